"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from helpers.servers import SERVERS, TEMPROOT
from helpers.stores import SUFFIX, encrypt_by_default, kinds_for, summary, url_of
from helpers.sync_and_async import Ways
from holdfast.tasks.agents.declare import registered_agents

MEMORY = Path("/dev/shm")
ROOM = 2 * 1024**3


def _may_hold_files(place: Path) -> bool:
    """Whether there is room, also for programs: some tests install one."""
    if not place.is_dir() or os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0):
        return False
    return shutil.disk_usage(place).free > ROOM


# Many tests start Python, which would compile the library each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tests kill processes and never the machine: real disks would only add time.
if _may_hold_files(MEMORY):
    os.environ.setdefault(TEMPROOT, str(MEMORY))


try:
    from hypothesis import settings
except ModuleNotFoundError:
    pass  # in the environments of classic AutoGen
else:
    # How long an example takes depends on the machine and its load.
    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")


# -- stores ----------------------------------------------------------------------------------------


def pytest_report_header() -> list[str]:
    elsewhere = (
        "left out: integrations/test_autogen_classic*.py and test_google_adk.py, each with an "
        "environment of its own (make test)"
    )
    newer = "left out: PydanticAI (test_pydantic_ai*.py, test_durable_tools.py) needs Python 3.11"
    return [
        summary(),
        *([] if "HOLDFAST_FRAMEWORK" in os.environ else [elsewhere]),
        *([newer] if sys.version_info < (3, 11) else []),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture in ("store_kind", "durable_kind"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, kinds_for(metafunc.definition, fixture), indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that have a server among their parameters. Those whose fixtures start one have the
    mark themselves."""
    for item in items:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        names = [value.removesuffix(SUFFIX) for value in params if isinstance(value, str)]
        if any(name.partition(" ")[0] in SERVERS for name in names):  # "postgres without pgvector"
            item.add_marker("server")
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = put_slow_first(items, processes)


def put_slow_first(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Let each process begin with slow tests, so that none is left to run alone at the end.
    pytest-xdist gives each an equal part of the list."""
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    others = [item for item in items if item.get_closest_marker("slow") is None]
    files = list(dict.fromkeys(item.path for item in slow))
    ordered: list[pytest.Item] = []
    for number in range(processes):
        some = set(files[number::processes])
        ordered += [item for item in slow if item.path in some]
        room = max(0, len(items) * (number + 1) // processes - len(ordered))
        ordered += others[:room]
        del others[:room]
    return ordered


def pytest_collection_finish() -> None:
    """Keep the tests and their modules, which stay until the end, out of each `gc.collect()`."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def store_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine, or an engine with `-encrypted`: see helpers/stores.py."""
    kind: str = request.param
    if kind.endswith(SUFFIX):
        encrypt_by_default(monkeypatch)
    return kind


@pytest.fixture
def durable_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, without those that end with the process."""
    kind: str = request.param
    if kind.endswith(SUFFIX):
        encrypt_by_default(monkeypatch)
    return kind


@pytest.fixture
def url(store_kind: str, tmp_path: Path) -> str:
    """The URL of an empty store of each kind in turn."""
    return url_of(store_kind, tmp_path)


@pytest.fixture
def durable_url(durable_kind: str, tmp_path: Path) -> str:
    """The URL of an empty store of each kind that outlives the process."""
    return url_of(durable_kind, tmp_path)


@pytest.fixture(params=("sqlite", "files"))
def local_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store whose files are below `tmp_path`."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[holdfast.Store]:
    with holdfast.open(url) as store:
        yield store


@pytest.fixture(params=["plain", "async"])
def ways(request: pytest.FixtureRequest, url: str) -> Iterator[Ways]:
    """An open store, and its tasks in both ways: plain, and async."""
    with holdfast.open(url) as store:
        yield Ways(store, asynchronous=request.param == "async")


# -- nothing is left behind ------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test writes into the user's cache."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _agents_as_before() -> Iterator[None]:
    """Agents that a test registers are gone after it."""
    before = dict(registered_agents)
    yield
    registered_agents.clear()
    registered_agents.update(before)


@pytest.fixture
def no_agents() -> None:
    """There are no agents but those that the test registers."""
    registered_agents.clear()


@pytest.fixture
def ignore_lost_interrupts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An interrupt is lost if it comes while Python closes a generator that nothing refers to, and
    a coroutine that was interrupted before its first instruction was never awaited."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    gc.collect()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks don't wait for an engine that cannot be reached."""

    def refuse(pause: object) -> None:
        raise holdfast.errors.Unavailable("no time to wait")

    monkeypatch.setattr("holdfast.log.log._check_time_for", refuse)
