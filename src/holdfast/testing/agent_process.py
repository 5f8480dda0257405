"""One process of an agent in the crash matrix, which kills itself at a chosen write.

It records outside the store what it does: its writes, the functions it enters, and how it ends.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import signal
import sys
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
from ..log.retry_commit import IMPOSSIBLE_HASH
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
        names = [
            self._name(append) for append in batch if append.expected_hash != IMPOSSIBLE_HASH
        ]  # an impossible hash only looks up an id
        self._die_if_chosen("before", names)
        answers: Sequence[AppendResult | VersionMismatch] = self._append(batch)
        self._die_if_chosen("after", names)
        return answers

    def _name(self, append: Append) -> str:
        """Name a write by its content and its number among equals: the same in every run."""
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
    """Describe an append in a few words, by its last event: lazy events come before it."""
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
    """Import the agent, under its module's own name if that leads to the same file."""
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


def run_process(spec: ProcessSpec, notes: Notes) -> None:
    """Run the agent until it ends or dies, and record last how it ended."""
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


def main(raw: bytes) -> None:
    """Run the process. `raw` is the spec as JSON."""
    spec = msgspec.json.decode(raw, type=ProcessSpec)
    notes = effects.notes = Notes(Path(spec.notes))
    code = 0
    try:
        run_process(spec, notes)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # even if the agent left threads behind
