"""The HTTP server of the dashboard and of `holdfast mcp`: uvicorn, without logs of requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from .. import Store
from .app import create_app
from .options import WebOptions


class AppServer:
    """A server that listens from the moment it is made. `run` serves until it is interrupted."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,  # open pages listen for ever
        )
        self._server = uvicorn.Server(config)
        try:
            self._listener = config.bind_socket()
        except SystemExit:  # uvicorn has logged why; its exit code means something else here
            raise ValueError(f"cannot listen on port {port} of {host}; name another") from None
        self._listener.listen()  # so that a reader of the address can connect at once
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._listener.getsockname()[1]}/"

    def run(self) -> None:
        self._server.run([self._listener])

    def stop(self) -> None:
        """Make `run` return, from another thread."""
        self._server.should_exit = True


class DashboardServer(AppServer):
    """The server of the dashboard."""

    def __init__(self, store: Store, options: WebOptions, host: str, port: int) -> None:
        super().__init__(create_app(store, options), host, port)


@contextmanager
def serve_in_background(store: Store, options: WebOptions) -> Iterator[str]:
    """Serve the dashboard on this machine while the block runs. Yields the address."""
    server = DashboardServer(store, options, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, name="holdfast-web")
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join()
