"""One process of an agent in the crash matrix, which kills itself at a chosen write.

It keeps notes outside the store: its writes, the functions it enters, and how it ends.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import signal
import stat
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .._open import open as open_store
from .._store import Store
from ..backends import Append, AppendResult, VersionMismatch
from ..errors import StepInDoubt, Suspended
from ..log.codec import Undecodable
from ..log.events import decode_plain_envelope
from ..tasks.agents.declare import find_agent
from ..tasks.steps.declare import is_async
from ..tasks.steps.run import StepCall
from . import effects
from .clocks import SilentClock, use_clock
from .effects import Notes, read_notes


class Target(msgspec.Struct):
    """Where the agent is defined: file, importable module name (if any), and function name."""

    file: str
    module: str
    name: str


class ProcessSpec(msgspec.Struct):
    """What the process has to do, as JSON from its parent."""

    path: list[str]
    target: Target
    url: str
    notes: str
    id: str
    goal: str | None
    input: Any
    now: float
    kill: str | None


class MortalAppend:
    """Replaces a backend's `append`: records each write and dies before or after the chosen one."""

    def __init__(self, append: Callable[..., Any], notes: Notes, spec: ProcessSpec) -> None:
        self._append, self._notes, self._kill, self._task = append, notes, spec.kill, spec.id
        earlier = [note["name"] for note in read_notes(Path(spec.notes)) if note["what"] == "write"]
        self._counts = Counter(earlier)
        self._names: dict[bytes, str] = {}

    def __call__(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        names = [self._name(append) for append in batch]
        self._die_if_chosen("before", names)
        answers: Sequence[AppendResult | VersionMismatch] = self._append(batch)
        self._die_if_chosen("after", names)
        return answers

    def _name(self, append: Append) -> str:
        """Name a write by its content, with a number if several are equal. Names never vary."""
        if append.id not in self._names:  # otherwise it is a retry
            name = _describe_append(append, self._task)
            self._counts[name] += 1
            count = self._counts[name]
            self._names[append.id] = name if count == 1 else f"{name} ({count})"
            self._notes.write("write", name=name, point=self._names[append.id])
        return self._names[append.id]

    def _die_if_chosen(self, place: str, names: Sequence[str]) -> None:
        if self._kill in [f"{place} {name}" for name in names]:
            self._notes.write("dying", point=self._kill)
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


def _describe_append(append: Append, task: str) -> str:
    """Describe an append in a few words. Its last event counts, because lazy events come first."""
    kind, name = append.stream.kind, append.stream.id
    try:
        event = decode_plain_envelope(append.records[-1][1])
    except Undecodable:
        return f"large value of {sum(len(body) for _, body in append.records)} bytes"
    data = event.data if isinstance(event.data, dict) else {}
    detail = str(data.get("step") or data.get("name") or data.get("text") or "")[:80]
    if kind not in ("task", "tenant"):
        detail = f"{name} {append.expected + 1}"
    elif kind == "task" and name != task:
        detail = f"{detail} of {name}"
    return f"{event.type} {detail}".strip()


def watch_functions(notes: Notes) -> None:
    """Record each step function and each check right before it is called."""
    make: Any = StepCall.__init__

    def init(call: StepCall, *args: Any) -> None:
        make(call, *args)
        step = call.declared = copy.copy(call.declared)
        step.fn = _record_calls(notes, "entered", call, step.fn)
        if step.options.check is not None:
            asked = _record_calls(notes, "asked", call, step.options.check)
            step.options = msgspec.structs.replace(step.options, check=asked)

    StepCall.__init__ = init  # type: ignore[method-assign,assignment]


def _record_calls(
    notes: Notes, what: str, call: StepCall, fn: Callable[..., Any]
) -> Callable[..., Any]:
    def note() -> None:
        notes.write(what, task=call.session.key.id, step=call.path, mode=call.declared.mode)

    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return fn(*args, **kwargs)

    async def noted_async(*args: Any, **kwargs: Any) -> Any:
        note()
        return await fn(*args, **kwargs)

    return noted_async if is_async(fn) else noted


def load_agent(target: Target) -> Any:
    """Import the agent, under its module's own name if that name leads to the same file."""
    known = importlib.util.find_spec(target.module) if target.module else None
    if (
        known is not None
        and known.origin is not None
        and Path(known.origin).resolve() == Path(target.file).resolve()
    ):
        module = importlib.import_module(target.module)
    else:
        sys.path.insert(0, str(Path(target.file).parent))
        spec = importlib.util.spec_from_file_location(Path(target.file).stem, target.file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    found: Any = module
    try:
        for part in target.name.split("."):
            found = getattr(found, part)
    except AttributeError:
        return find_agent(target.name)  # the name under which it is registered
    return found


def run_process(spec: ProcessSpec, notes: Notes, agent: Any = None) -> None:
    """Run the agent until it ends or dies, and record last how it ended."""
    if agent is None:
        agent = load_agent(spec.target)
    watch_functions(notes)
    with use_clock(SilentClock(spec.now)), open_store(spec.url, durability="process") as store:
        backend: Any = store._log.backend
        backend.append = MortalAppend(backend.append, notes, spec)
        try:
            _run(store, agent, spec)
        except StepInDoubt as doubt:
            notes.write("ended", how="doubt", text=str(doubt))
        except Exception as error:
            traceback.print_exc()
            notes.write("ended", how="failed", text=f"{type(error).__name__}: {error}")
        except Suspended:
            notes.write("ended", how="suspended", text="")
        else:
            notes.write("ended", how="finished", text="")


def _run(store: Store, agent: Any, spec: ProcessSpec) -> None:
    options: dict[str, Any] = {"goal": spec.goal, "input": spec.input}
    if find_agent(agent).is_async:
        import asyncio

        asyncio.run(store.aio.run(agent, spec.id, **options))
    else:
        store.run(agent, spec.id, **options)


def main(raw: bytes, agent: Any = None) -> None:
    """Run the process. `raw` is the spec as JSON, `agent` the agent if it is imported already."""
    spec = msgspec.json.decode(raw, type=ProcessSpec)
    notes = effects.notes = Notes(Path(spec.notes))
    code = 0
    try:
        run_process(spec, notes, agent)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # even if the agent left threads behind


def serve(raw: bytes) -> None:
    """Import the agent, then fork for each job on standard input: [spec, work folder, output].

    Writes "ready", or why a fork would not be like a new process; then for each job the process id
    and the exit code.
    """
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    spec = msgspec.json.decode(raw, type=ProcessSpec)
    notes = Path("notes").resolve()
    effects.notes = Notes(notes)
    before = _open_sockets()
    agent = load_agent(spec.target)
    os.write(answers, f"{_describe_import(notes, before) or 'ready'}\n".encode())
    for line in jobs:
        path, work, output = json.loads(line)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(answers)
            jobs.close()
            os.chdir(work)
            written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(written, 1)
            os.dup2(written, 2)
            main(Path(path).read_bytes(), agent)
        os.write(answers, f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, f"{code}\n".encode())


def _describe_import(notes: Path, sockets: set[str]) -> str:
    """Return the effects of the import that a fork could not share or repeat; "" for none."""
    if threading.active_count() > 1:
        return "it starts threads"
    if _open_sockets() - sockets:
        return "it opens connections"
    if any(path != notes for path in Path().resolve().iterdir()):
        return "it writes files"
    if any(True for _ in read_notes(notes)):
        return "it has effects"
    return ""


def _open_sockets() -> set[str]:
    """Return the file descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(name)
        except OSError:
            pass  # that of the listing itself
    return found
