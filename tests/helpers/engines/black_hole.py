"""A proxy that forwards bytes in both directions until it is told to swallow them all."""

from __future__ import annotations

import socket
import threading


class BlackHole:
    """Listens on a port of its own. While `swallowing`, it accepts connections and reads what
    arrives, and nothing comes back: as with a network that drops every packet."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.swallowing = False
        self.swallowed = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> BlackHole:
        return self

    def __exit__(self, *error: object) -> None:
        for each in [self._listener, *self._sockets]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if self.swallowing:
                    self.swallowed += len(data)
                else:
                    sink.sendall(data)
        except OSError:
            pass
        if not self.swallowing:
            for each in (source, sink):
                each.close()
