"""What all tests share."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

import holdfast
from feature_table import FIXTURES, way_of
from holdfast.tasks._agents import registered
from servers import SERVERS, TEMPROOT, url_on

URLS = ("memory", "sqlite", "files", *SERVERS)

MEMORY = Path("/dev/shm")
ROOM = 2 * 1024**3


def _may_hold_files(place: Path) -> bool:
    """Whether there is room, also for programs: some tests install one."""
    if not place.is_dir() or os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0):
        return False
    return shutil.disk_usage(place).free > ROOM


# What tests end are processes and never the machine: a disk under their files would add nothing but time.
if _may_hold_files(MEMORY):
    os.environ.setdefault(TEMPROOT, str(MEMORY))


try:
    from hypothesis import settings
except ModuleNotFoundError:
    pass  # in the environments of classic AutoGen
else:
    # How long an example takes says something about the machine, and what else it is doing.
    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")


def url_of(name: str, place: Path) -> str:
    """The URL of an empty store of this kind below `place`."""
    if name in SERVERS:
        return url_on(name, place)
    return {"memory": "memory://", "sqlite": str(place / "agents.db"), "files": f"file://{place}/agents"}[name]


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each backend in turn."""
    return url_of(request.param, tmp_path)


@pytest.fixture(params=[name for name in URLS if name != "memory"])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each backend that outlives the process."""
    return url_of(request.param, tmp_path)


@pytest.fixture(params=("sqlite", "files"))
def local_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each backend whose files are below `tmp_path`."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[holdfast.Store]:
    with holdfast.open(url) as store:
        yield store


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test writes into the cache of whoever runs it."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _agents_as_before() -> Iterator[None]:
    """No test leaves agents behind for the next one, which may be of any file."""
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that do not wait for an engine that cannot be reached."""
    monkeypatch.setattr("holdfast.tasks._session.PATIENCE", 0.0)


# -- all of it encrypted ---------------------------------------------------------------------------------------------------

ENCRYPTED = os.environ.get("HOLDFAST_ENCRYPTED") == "1"
"""`make test-encrypted`: see tests/encrypted."""


@pytest.fixture(scope="session", autouse=True)
def _encrypted() -> None:
    if ENCRYPTED:
        with holdfast.open("memory://") as store:
            assert store._log.cipher is not None, "tests/encrypted is not on PYTHONPATH"


# -- simulated servers -----------------------------------------------------------------------------------------------------

SIMULATED = ("dynamodb", "s3")
COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests that were found, before some are left out."""
SHARE = 1 if os.environ.get("HOLDFAST_SIMULATED") == "all" else 30


def pytest_report_header() -> str | None:
    if SHARE == 1:
        return None
    return f"on simulated servers ({', '.join(SIMULATED)}): 1 of {SHARE} tests of each feature; HOLDFAST_SIMULATED=all runs all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Run a share of each file's tests on simulated servers, which are slow: always the same ones, plain and async.

    What sits above the seam does not know the engine, and the contract of the seam is tested in full on all of them.
    """
    config.stash[COLLECTED] = list(items)
    groups: dict[tuple[str, str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        engine = next((params[name] for name in FIXTURES if params.get(name) in SIMULATED), None)
        if engine is not None:
            groups[item.path.name, engine, way_of(item)].append(item)
    left_out = {item for group in groups.values() for item in _chosen(group)[-(-len(group) // SHARE) :]}
    if ENCRYPTED:
        left_out |= {item for item in items if any(item.iter_markers("in_clear"))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _chosen(group: list[pytest.Function]) -> list[pytest.Function]:
    """In an order that is the same in every run and on every machine, and another one for each engine; long ones last."""
    return sorted(
        group, key=lambda item: (any(item.iter_markers("many_writes")), crc32(item.nodeid.encode()), item.nodeid)
    )
