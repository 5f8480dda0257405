"""One life of an agent in the crash matrix: a process of its own, that kills itself at a chosen write.

It notes what it does outside of the store: its writes, which functions it enters, and how it ends.
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
from ..log.appender import NOWHERE
from ..log.codec import Undecodable
from ..log.events import open_plain
from ..tasks.agents.declare import find
from ..tasks.steps.declare import is_async
from ..tasks.steps.run import StepCall
from . import effects
from .clocks import SilentClock, using
from .effects import Notes, read_notes


class Target(msgspec.Struct):
    """Where the agent is: a file, the name under which that file can be imported (if it can), and the function's name in it."""

    file: str
    module: str
    name: str


class Spec(msgspec.Struct):
    """What a life is to do."""

    path: list[str]
    target: Target
    url: str
    notes: str
    id: str
    goal: str | None
    input: Any
    now: float
    kill: str | None


class Deaths:
    """In place of a backend's `append`: notes each write, and dies before or after the one that was chosen."""

    def __init__(self, append: Callable[..., Any], notes: Notes, spec: Spec) -> None:
        self._append, self._notes, self._kill, self._task = append, notes, spec.kill, spec.id
        earlier = [note["name"] for note in read_notes(Path(spec.notes)) if note["what"] == "write"]
        self._counts = Counter(earlier)
        self._names: dict[bytes, str] = {}

    def __call__(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        names = [
            self._name(append) for append in batch if append.expected_hash != NOWHERE
        ]  # that only asks
        self._at("before", names)
        answers: Sequence[AppendResult | VersionMismatch] = self._append(batch)
        self._at("after", names)
        return answers

    def _name(self, append: Append) -> str:
        """What a write is called: by what it says, and the how manyth of its kind it is. The same in every run."""
        if append.id not in self._names:  # else it is sent again
            name = _told(append, self._task)
            self._counts[name] += 1
            count = self._counts[name]
            self._names[append.id] = name if count == 1 else f"{name} ({count})"
            self._notes.write("write", name=name, point=self._names[append.id])
        return self._names[append.id]

    def _at(self, place: str, names: Sequence[str]) -> None:
        if self._kill in [f"{place} {name}" for name in names]:
            self._notes.write("dying", point=self._kill)
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


def _told(append: Append, task: str) -> str:
    """What an append says, in a few words. By its last event: lazy ones come before it."""
    kind, name = append.stream.kind, append.stream.id
    try:
        event = open_plain(append.records[-1][1])
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
    """Note each function of a step that is entered, and each check that is asked, before it is."""
    make: Any = StepCall.__init__

    def init(call: StepCall, *args: Any) -> None:
        make(call, *args)
        step = call.declared = copy.copy(call.declared)
        step.fn = _noting(notes, "entered", call, step.fn)
        if step.options.check is not None:
            asked = _noting(notes, "asked", call, step.options.check)
            step.options = msgspec.structs.replace(step.options, check=asked)

    StepCall.__init__ = init  # type: ignore[method-assign,assignment]


def _noting(notes: Notes, what: str, call: StepCall, fn: Callable[..., Any]) -> Callable[..., Any]:
    def note() -> None:
        notes.write(what, task=call.session.key.id, step=call.path, mode=call.declared.mode)

    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return fn(*args, **kwargs)

    async def noted_async(*args: Any, **kwargs: Any) -> Any:
        note()
        return await fn(*args, **kwargs)

    return noted_async if is_async(fn) else noted


def loaded(target: Target) -> Any:
    """The agent. Its module is imported under its own name if that leads to the same file."""
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
        return find(target.name)  # the name that it was registered under
    return found


def live(spec: Spec, notes: Notes) -> None:
    """Run the agent, to its end or its death. How it ended is noted last."""
    agent = loaded(spec.target)
    watch_functions(notes)
    with using(SilentClock(spec.now)), open_store(spec.url, durability="process") as store:
        backend: Any = store._log.backend
        backend.append = Deaths(backend.append, notes, spec)
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


def _run(store: Store, agent: Any, spec: Spec) -> None:
    options: dict[str, Any] = {"goal": spec.goal, "input": spec.input}
    if find(agent).is_async:
        import asyncio

        asyncio.run(store.aio.run(agent, spec.id, **options))
    else:
        store.run(agent, spec.id, **options)


def main(raw: bytes) -> None:
    """The program of the process. `raw` is the spec, as JSON."""
    spec = msgspec.json.decode(raw, type=Spec)
    notes = effects.notes = Notes(Path(spec.notes))
    code = 0
    try:
        live(spec, notes)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # whatever threads the agent has left behind
