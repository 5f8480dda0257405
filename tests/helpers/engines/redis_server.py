"""A Redis of one's own: configured, killed and started again by a test."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from helpers.servers import free_port, start_redis

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class Server:
    """A redis-server with its files in `place`."""

    def __init__(self, place: Path, *options: str, durable: bool = True) -> None:
        place.mkdir(exist_ok=True)
        self.place, self.port = place, _port()
        self.options = (*(DURABLE if durable else ()), *options)
        self.process = start_redis(place, self.port, *self.options)

    def url(self, rest: str = "", *, user: str = "") -> str:
        return f"redis://{user}127.0.0.1:{self.port}/0{rest}"

    def __call__(self, *command: Any, user: str | None = None, password: str | None = None) -> Any:
        """What the server answers, asked by an ordinary client."""
        client = redis.Redis(port=self.port, username=user, password=password, protocol=2)
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self, *options: str) -> None:
        self.process = start_redis(self.place, self.port, *(options or self.options))

    def restart(self, *, lose: bool = False, files: Path | None = None) -> None:
        """Killed with -9 and started again: with its files, without them, or with others."""
        self.kill()
        if lose or files:
            shutil.rmtree(self.place)
            shutil.copytree(files, self.place) if files else self.place.mkdir()
        self.start()
        self("PING")

    def replicate(self, place: Path) -> Server:
        """A replica that has everything, in its append-only file too."""
        replica = Server(place, "--replicaof", "127.0.0.1", str(self.port))
        until(lambda: b"master_link_status:up" in replica.info("replication"))
        until(lambda: not replica.rewrites())
        return replica

    def rewrites(self) -> bool:
        """Whether it rewrites its append-only file, or is about to."""
        return (
            re.search(b"aof_rewrite_(in_progress|scheduled):1", self.info("persistence"))
            is not None
        )

    def info(self, section: str) -> bytes:
        client = redis.Redis(port=self.port, protocol=2)
        try:
            client.response_callbacks.clear()
            return bytes(client.execute_command("INFO", section))
        finally:
            client.close()


def _port() -> int:
    """A free port for which there is one ten thousand further up: that is where the nodes of a
    cluster talk."""
    while (port := free_port()) > 55_535:
        pass
    return port


def until(true: Callable[[], object], seconds: float = 30) -> None:
    """Wait for something that a server does in its own time."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
