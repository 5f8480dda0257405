"""Fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
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
        "left out: integrations/test_autogen_classic*.py, each with an environment of its "
        "own (make test)"
    )
    return [summary(), *([] if "HOLDFAST_FRAMEWORK" in os.environ else [elsewhere])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture in ("store_kind", "durable_kind"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, kinds_for(metafunc.definition, fixture), indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that have a server among their parameters. Those whose fixtures start one have the
    mark themselves."""
    for item in items:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(
            isinstance(value, str) and value.removesuffix(SUFFIX) in SERVERS for value in params
        ):
            item.add_marker("server")


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
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks don't wait for an engine that cannot be reached."""
    monkeypatch.setattr("holdfast.tasks.run.session.RETRY_DEADLINE", 0.0)
