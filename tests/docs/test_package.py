"""What the package promises as a package: its names, what importing it costs, and that its wheel
works alone."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

import holdfast
from helpers.paths import ROOT
from holdfast import (
    Artifact,
    AsyncArtifact,
    AsyncConversation,
    AsyncMemory,
    AsyncState,
    AsyncStore,
    AsyncStream,
    AsyncTask,
    Conversation,
    Memory,
    State,
    Store,
    Stream,
    Task,
    types,
)

PUBLIC = [
    "Agent",
    "AgentCheckpoint",
    "Artifact",
    "ArtifactInfo",
    "AsyncArtifact",
    "AsyncConversation",
    "AsyncMemory",
    "AsyncState",
    "AsyncStore",
    "AsyncStream",
    "AsyncTask",
    "Budget",
    "Conflict",
    "Conversation",
    "ConversationInfo",
    "DataProblem",
    "Event",
    "EventType",
    "Failure",
    "Health",
    "HoldfastError",
    "LeaseHeld",
    "Memory",
    "MemoryHit",
    "MemoryInfo",
    "MemoryItem",
    "NeedsHuman",
    "NotDone",
    "NotFound",
    "OutcomeUnknown",
    "Question",
    "ResumeContext",
    "Retryable",
    "State",
    "StateInfo",
    "Step",
    "StepFailed",
    "StepInDoubt",
    "StepInfo",
    "StepRun",
    "Store",
    "Stream",
    "StreamInfo",
    "Suspended",
    "Task",
    "TaskInfo",
    "TaskView",
    "Usage",
    "Worker",
    "agent",
    "aopen",
    "backup",
    "bind",
    "copy",
    "correlate",
    "current_step",
    "current_task",
    "decrypt",
    "encrypt",
    "errors",
    "idempotency_key",
    "keys",
    "memory",
    "open",
    "redact",
    "replay",
    "step",
    "text_counter",
    "types",
]

TYPES = [
    "Anchor",
    "AppendResult",
    "Audit",
    "AuditEntry",
    "CacheSize",
    "Cancellation",
    "ConversationView",
    "ConvertResult",
    "CopyProgress",
    "CopyResult",
    "Divergence",
    "Draft",
    "DraftPiece",
    "Drift",
    "EntityInfo",
    "EraseResult",
    "FailureFrame",
    "ImportResult",
    "LeaseInfo",
    "MemoryConflict",
    "MemoryStats",
    "MessageEntry",
    "MessageProblem",
    "ModelInput",
    "Note",
    "PlanItem",
    "Preview",
    "RekeyResult",
    "RepairResult",
    "ReplayResult",
    "RunResult",
    "RunningStep",
    "SparedStream",
    "StateVersion",
    "StepProgress",
    "StreamProblem",
    "SweepResult",
    "SweptStream",
    "VerifyProgress",
    "VerifyResult",
    "WorkerInfo",
    "WorkerTask",
]

TWINS = [
    (Store, AsyncStore),
    (Stream, AsyncStream),
    (Conversation, AsyncConversation),
    (State, AsyncState),
    (Memory, AsyncMemory),
    (Task, AsyncTask),
    (Artifact, AsyncArtifact),
]


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(holdfast.__all__) == PUBLIC
    assert all(hasattr(holdfast, name) for name in PUBLIC)
    assert sorted(types.__all__) == TYPES
    assert all(hasattr(types, name) for name in TYPES)
    assert not set(PUBLIC) & set(TYPES)


def test_dir_lists_what_is_public_and_nothing_of_others() -> None:
    listed = set(dir(holdfast))
    assert set(PUBLIC) <= listed
    assert not {"Any", "TYPE_CHECKING", "typing"} & listed


@pytest.mark.parametrize(
    "error",
    [
        holdfast.Conflict("stream 's'", expected=1, actual=2),
        holdfast.errors.CorruptRecord("stream 's'", version=3, what="damaged"),
        holdfast.errors.HeadRegressed("stream 's'", acknowledged=3, actual=2),
        holdfast.LeaseHeld("task 't'", owner="somebody", until=1.5),
        holdfast.errors.MissingExtra("postgresql://", "postgres"),
        holdfast.OutcomeUnknown("lost", stream="stream 's'", id="req-1"),
        holdfast.StepFailed("task 't'", step="pay", type="ValueError", message="no"),
        holdfast.errors.Unavailable("down"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_copied_and_sent_to_another_process(error: holdfast.HoldfastError) -> None:
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_every_error_is_in_one_module() -> None:
    public = {name for name in PUBLIC if isinstance(getattr(holdfast, name), type)}
    errors = {name for name in public if issubclass(getattr(holdfast, name), BaseException)}
    assert errors <= set(vars(holdfast.errors))
    assert not {name for name in TYPES if name in vars(holdfast.errors)}


def test_importing_works_where_there_is_no_fork_and_no_fcntl() -> None:
    # What Windows lacks. It isn't supported, but a program that merely imports the library works.
    program = (
        "import os, sys\n"
        "for name in ('fcntl', 'pwd', 'grp', 'resource', 'termios', 'tty', 'pty'):\n"
        "    sys.modules[name] = None\n"
        "for name in ('register_at_fork', 'fork', 'killpg', 'getuid', 'geteuid'):\n"
        "    delattr(os, name)\n"
        "import holdfast, holdfast.cli\n"
        "for name in holdfast.__all__:\n"
        "    getattr(holdfast, name)\n"
        "with holdfast.open('memory://') as store, store.task('a') as task:\n"
        "    print(task.finish(task.step('b', lambda: 'done')))\n"
    )
    assert _run(sys.executable, "-c", program).strip() == "done"


def test_importing_holdfast_loads_nothing_optional() -> None:
    optional = [
        "Stemmer",
        "apsw",
        "hypothesis",
        "matplotlib",
        "numpy",
        "pydantic",
        "pytest",
        "rich",
        "sqlite3",
        "click",
    ]
    program = f"import sys, holdfast; print([name for name in {optional} if name in sys.modules])"
    assert _run(sys.executable, "-c", program).strip() == "[]"


def test_every_public_class_and_function_has_a_docstring() -> None:
    for module, names in ((holdfast, PUBLIC), (types, TYPES)):
        for name in names:
            assert inspect.getdoc(getattr(module, name)), name
    for owner in (plain_or_awaited for pair in TWINS for plain_or_awaited in pair):
        for name, method in _methods(owner).items():
            assert inspect.getdoc(method), f"{owner.__name__}.{name}"


@pytest.mark.parametrize(("plain", "awaited"), TWINS)
def test_the_async_twin_has_the_same_methods_with_the_same_signatures(
    plain: type, awaited: type
) -> None:
    ours, theirs = _methods(plain), _methods(awaited)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert _parameters(ours[name]) == _parameters(theirs[name]), name


@pytest.mark.parametrize(("plain", "awaited"), TWINS)
def test_the_async_twin_has_the_same_properties(plain: type, awaited: type) -> None:
    only_sync = {"aio"}  # the way from one to the other
    assert _properties(plain) - only_sync == _properties(awaited)


def test_open_and_aopen_take_the_same_arguments() -> None:
    assert _parameters(holdfast.open) == _parameters(holdfast.aopen)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, as a release has it."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    [built] = folder.glob("*.whl")
    [sources] = folder.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"mkdocs.yml", "RELEASING.md", "tests/conftest.py", "docs/index.md", "Makefile"} <= names
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and what it asks for, no extras."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder, with_pip=True)
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel))
    return folder / "bin"


@pytest.mark.xdist_group("wheel")
def test_the_wheel_installed_alone_has_a_working_command_and_demo(
    installed: Path, tmp_path: Path
) -> None:
    assert (
        _run(str(installed / "holdfast"), "--version").strip() == f"holdfast {holdfast.__version__}"
    )
    assert "kill" in _run(str(installed / "holdfast"), "demo", "--kills", "2", cwd=tmp_path)


@pytest.mark.xdist_group("wheel")
def test_the_wheel_installed_alone_appends_and_reads(installed: Path, tmp_path: Path) -> None:
    program = (
        "import holdfast\n"
        "with holdfast.open('agents.db') as store:\n"
        "    store.stream('orders-7').append(('order.placed', {'sku': 'A1'}), id='req-17')\n"
        "with holdfast.open('agents.db') as store:\n"
        "    print([event.data for event in store.stream('orders-7').read()])\n"
    )
    assert _run(str(installed / "python"), "-c", program, cwd=tmp_path).strip() == "[{'sku': 'A1'}]"


@pytest.mark.xdist_group("wheel")
def test_the_wheel_brings_its_types_and_the_conformance_suite(installed: Path) -> None:
    program = "import holdfast, pathlib; print(pathlib.Path(holdfast.__file__).parent)"
    package = Path(_run(str(installed / "python"), "-c", program).strip())
    assert (package / "py.typed").exists()
    assert (package / "conformance" / "__init__.py").exists()


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _methods(owner: type) -> dict[str, object]:
    return {
        name: value
        for name, value in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    }


def _properties(owner: type) -> set[str]:
    return {name for name, value in inspect.getmembers(owner) if isinstance(value, property)}


def _parameters(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return list(inspect.signature(function).parameters.values())
