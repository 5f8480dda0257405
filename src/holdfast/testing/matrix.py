"""The crash matrix: an agent, killed with SIGKILL at each of its writes, resumed to its end, and judged."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from .._open import open as open_store
from .._store import Store
from ..backends import clock
from ..log import operations as ops
from ..log.codec import decode, encode, encode_as
from ..log.ids import stream_key
from ..log.validation import seconds
from ..tasks.run.claim import declared_type
from ..tasks.state.load import load
from ..tasks.state.waits import ASK, SIGNAL
from .effects import Notes, read_notes
from .judge import Evidence, Place, judge
from .report import MatrixError, MatrixReport, Violation
from .stores import url_at

AT_ONCE: Final = 2
LIVES: Final = 200
"""No run should need more to get to its end."""

_PROGRAM: Final = """
import json, sys
raw = open(sys.argv[1], "rb").read()
sys.path[:] = json.loads(raw)["path"]
from holdfast.testing.life import main
main(raw)
"""


class Matrix(msgspec.Struct, frozen=True):
    """What is the same for all runs."""

    target: dict[str, str]
    id: str
    goal: str | None
    input: Any
    answers: Mapping[str, Any]
    signals: Mapping[str, Any]
    engine: str
    timeout: float
    folder: Path


class MatrixRun:
    """One store, and the lives that work on it, one after the other."""

    def __init__(self, matrix: Matrix, name: str) -> None:
        self.matrix, self.folder = matrix, matrix.folder / name
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        self.url = url_at(matrix.engine, self.folder)
        self.path = self.folder / "notes"
        self.notes = Notes(self.path)
        self.now = 0.0
        self.doubts: list[Place] = []
        self.unanswered: list[str] = []

    def to_its_end(self, kill: str | None = None, expected: Evidence | None = None) -> Evidence:
        """Live, die at `kill`, and live again until the task has ended; what is waited for is given on the way."""
        try:
            for _ in range(LIVES):
                how, text = self._live(kill)
                with open_store(self.url, durability="process") as store:
                    if how == "killed":
                        kill = None
                    elif (
                        how in ("suspended", "doubt")
                        and expected is not None
                        and self._settle(store, expected)
                    ):
                        pass  # a child that is in doubt suspends its parent
                    elif how == "suspended":
                        self._give(store)
                    elif how == "finished":
                        return self._evidence(store)
                    else:
                        when = "after the crash " if expected else ""
                        return self._evidence(
                            store, f"the run {when}ended with {text}{self._hint()}"
                        )
                    self._note_completed(store)
            raise MatrixError(
                f"the agent did not get to its end in {LIVES} runs; does it wait for something again and again?"
            )
        finally:
            self.notes.close()

    def _live(self, kill: str | None) -> tuple[str, str]:
        """One life; how it ended, and what there is to say about that."""
        import subprocess

        matrix = self.matrix
        self.now = max(self.now, clock.time())
        spec = {
            "path": [os.path.abspath(part) for part in sys.path],
            "target": matrix.target,
            "url": self.url,
            "notes": str(self.path),
            "id": matrix.id,
            "goal": matrix.goal,
            "input": matrix.input,
            "now": self.now,
            "kill": kill,
        }
        (self.folder / "spec").write_bytes(msgspec.json.encode(spec))
        before = len(list(read_notes(self.path)))
        with (self.folder / "output").open("wb") as output:
            try:
                done = subprocess.run(  # noqa: S603  our own program
                    [sys.executable, "-c", _PROGRAM, str(self.folder / "spec")],
                    cwd=self.work,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=matrix.timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "hung", f"nothing after {matrix.timeout:g} s; give it more with timeout="
        notes = list(read_notes(self.path))[before:]
        if done.returncode == -signal.SIGKILL and any(note["what"] == "dying" for note in notes):
            self.notes.write("killed")  # not by itself before it dies: this has seen it dead
            return "killed", ""
        ends = [note for note in notes if note["what"] == "ended"]
        if done.returncode or not ends:
            tail = (self.folder / "output").read_text(errors="replace").strip().splitlines()[-20:]
            return "failed", "\n".join([f"code {done.returncode}, and said:", *tail])
        return ends[-1]["how"], ends[-1]["text"]

    # -- between two lives -----------------------------------------------------------------------------------------------

    def _note_completed(self, store: Store) -> None:
        steps = [
            (info.id, step.path)
            for info in store.tasks()
            if (view := store.get_task(info.id)) is not None
            for step in view.steps
            if step.status == "completed"
        ]
        self.notes.write("completed", steps=steps)

    def _give(self, store: Store) -> None:
        """Give the tasks what they wait for: answers and signals; if there are none to give, the time that they wait for."""
        times: list[float] = []
        missing: list[str] = []
        given = False
        for info in list(store.tasks(status="suspended")):
            waits = ops.run(store._log, load(stream_key(store.tenant, "task", info.id))).waits
            for wait in list(waits.all.values()):
                event = wait.event
                if wait.how is not None or (
                    event.kind == ASK and waits.current[event.name] != event.wait
                ):
                    continue
                if event.kind == ASK and event.name in self.matrix.answers:
                    store.answer(info.id, event.name, self.matrix.answers[event.name])
                    given = True
                elif event.kind == SIGNAL and event.name in self.matrix.signals:
                    store.signal(info.id, event.name, self.matrix.signals[event.name])
                    given = True
                else:
                    if event.kind in (ASK, SIGNAL):
                        missing.append(_how_to_give(event.kind, event.name))
                    if event.until is not None:
                        times.append(event.until)
        if not given and times:
            self.now = max(self.now, min(times) + 0.001)
            self.unanswered += missing
        elif not given and missing:
            raise MatrixError(f"the agent waits for {missing[0]}")

    def _hint(self) -> str:
        return f"; it had waited in vain for {self.unanswered[0]}" if self.unanswered else ""

    def _settle(self, store: Store, expected: Evidence) -> bool:
        """What a person does who looks: if its function was run, it was done; if not, it is to be done now. Whether there was doubt."""
        before = len(self.doubts)
        entered = {
            (note["task"], note["step"])
            for note in read_notes(self.path)
            if note["what"] == "entered"
        }
        for info in list(store.tasks()):
            view = store.get_task(info.id)
            for step in view.in_doubt if view is not None else ():
                self.doubts.append((info.id, step))
                if (info.id, step) in entered:
                    store.resolve(info.id, step, result=expected.results.get((info.id, step)))
                else:
                    store.resolve(info.id, step, retry=True)
        return len(self.doubts) > before

    def _evidence(self, store: Store, problem: str = "") -> Evidence:
        views = {
            info.id: view for info in store.tasks() if (view := store.get_task(info.id)) is not None
        }
        results = {
            (task, step.path): step.result for task, view in views.items() for step in view.steps
        }
        own = views.get(self.matrix.id)
        notes = list(read_notes(self.path))
        status, result = ("", None) if own is None else (own.status, own.result)
        return Evidence(status, result, notes, results, self.doubts, problem)


def _how_to_give(kind: str, name: str) -> str:
    option = "answer" if kind == ASK else "signal"
    return f"{name!r}; give it: {option}s={{{name!r}: …}}, from a shell --{option} {name}=…"


def crash_matrix(
    agent: str | Callable[..., Any],
    *,
    id: str = "matrix",
    goal: str | None = None,
    input: object = None,
    answers: Mapping[str, Any] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Literal["sqlite", "files"] = "sqlite",
    points: int | Collection[str] | None = None,
    timeout: float | timedelta = 60.0,
) -> MatrixReport:
    """Kill an agent at each of its writes, resume it, and compare with a run that nobody has disturbed.

    `agent` is `"path/app.py:claims"`, or a function at the top level of a module. It is run in processes of its own, each run
    on an empty store and in an empty working directory: first undisturbed, twice, to see that it does the same each time; then
    once for every point (before and after each write), killed there with SIGKILL, and started again until it ends. Questions
    get their answer from `answers`, waits theirs from `signals`, both by name; time is skipped. `input` and these are plain
    JSON values. `points`: at most so many, evenly spread, or just those of these names. `timeout`: seconds for one process.

    What counts as done to the world outside is what the program tells by `holdfast.testing.effect`.
    """
    import tempfile

    if store not in ("sqlite", "files"):
        raise ValueError(f"store must be 'sqlite' or 'files', which outlive a kill, got {store!r}")
    target, limit = _target(agent), seconds(timeout, "timeout", 0.001)
    given = decode(encode_as(input, declared_type(input)))
    for value in (dict(answers or {}), dict(signals or {})):
        encode(value)  # refused here, with the place of what cannot be handed over
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as name:
        matrix = Matrix(
            target,
            id,
            goal,
            given,
            answers or {},
            signals or {},
            store,
            limit,
            Path(name).resolve(),
        )
        expected = _undisturbed(matrix)
        chosen = _chosen(_points(expected), points)
        found = _all(matrix, chosen, expected)
    violations: list[Violation] = []
    doubts: list[tuple[str, str]] = []
    missed: list[str] = []
    for point, evidence in zip(chosen, found, strict=True):
        if not any(note["what"] == "killed" for note in evidence.notes):
            missed.append(point)
            continue
        violations += judge(point, evidence, expected)
        doubts += [(point, step) for _, step in evidence.doubts]
    return MatrixReport(target["name"], store, chosen, violations, doubts, missed)


def _undisturbed(matrix: Matrix) -> Evidence:
    first, second = (MatrixRun(matrix, name).to_its_end() for name in ("first", "second"))
    if first.problem:
        raise MatrixError(f"without any crash, {first.problem}")
    if first.status != "finished":
        raise MatrixError(
            f"without any crash the task is {first.status} at the end; it has to finish"
        )
    differences = list(judge("", second, first))
    if differences or set(_points(first)) != set(_points(second)):
        what = differences[0].what if differences else "its writes are others"
        raise MatrixError(
            f"two runs without a crash differ ({what}), so that nothing can be compared; "
            "let the agent do the same each time: no random values or times in results and in the texts of effects"
        )
    return first


def _points(evidence: Evidence) -> list[str]:
    writes = [note["point"] for note in evidence.notes if note["what"] == "write"]
    return [f"{place} {write}" for write in writes for place in ("before", "after")]


def _chosen(all: list[str], wanted: int | Collection[str] | None) -> list[str]:
    if wanted is None:
        return all
    if isinstance(wanted, int):
        if wanted < 1:
            raise ValueError("points is how many to try, 1 or more, or their names")
        return (
            [all[index * len(all) // wanted] for index in range(wanted)]
            if wanted < len(all)
            else all
        )
    unknown = sorted(set(wanted) - set(all))
    if unknown:
        raise MatrixError(f"there is no point {unknown[0]!r}; there are: {', '.join(all)}")
    return [point for point in all if point in set(wanted)]


def _all(matrix: Matrix, points: list[str], expected: Evidence) -> list[Evidence]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = [
            pool.submit(
                lambda number, point: MatrixRun(matrix, f"point {number}").to_its_end(
                    point, expected
                ),
                number,
                point,
            )
            for number, point in enumerate(points)
        ]
        try:
            return [each.result() for each in tried]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _target(agent: str | Callable[..., Any]) -> dict[str, str]:
    """Where an agent is, so that another process can find it."""
    if isinstance(agent, str):
        file, colon, name = agent.rpartition(":")
        if not colon or not file.endswith(".py"):
            raise ValueError("name the file and the function: 'path/app.py:claims'")
        if not Path(file).is_file():
            raise ValueError(f"there is no file {file!r}")
        return {"file": str(Path(file).resolve()), "module": "", "name": name}
    fn = getattr(agent, "fn", agent)
    module, path, code = (
        getattr(fn, part, None) for part in ("__module__", "__qualname__", "__code__")
    )
    if code is None or "<" in str(path) or not Path(code.co_filename).is_file():
        raise TypeError(
            "another process has to find the agent: define it at the top level of a module, in a file"
        )
    file = str(Path(code.co_filename).resolve())
    return {"file": file, "module": "" if module == "__main__" else str(module), "name": str(path)}
