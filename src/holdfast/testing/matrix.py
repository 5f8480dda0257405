"""The crash matrix: kill an agent with SIGKILL at each of its writes, resume it, and judge."""

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
from ..log.validation import check_seconds
from ..tasks.run.claim import declared_type
from ..tasks.state.load import load_task
from ..tasks.state.waits import ASK, SIGNAL
from .agent_process import ProcessSpec, Target
from .effects import Notes, read_notes
from .judge import Evidence, StepId, judge
from .launcher import HUNG, Launcher
from .report import MatrixError, MatrixReport, Violation
from .stores import url_at

CONCURRENT_RUNS: Final = 2
MAX_PROCESSES: Final = 200
"""No run should need more processes than this to finish."""


class Matrix(msgspec.Struct, frozen=True):
    """The settings that all runs share."""

    target: dict[str, str]
    id: str
    goal: str | None
    input: Any
    answers: Mapping[str, Any]
    signals: Mapping[str, Any]
    engine: str
    timeout: float
    folder: Path
    launcher: Launcher
    effects_only: bool


class MatrixRun:
    """One store, and the processes that work on it one after another."""

    def __init__(self, matrix: Matrix, number: int) -> None:
        self.matrix, self.folder = matrix, matrix.folder / f"run {number}"
        self._processes = number  # so that concurrent runs use different warm processes
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        self.url = url_at(matrix.engine, self.folder)
        self.path = self.folder / "notes"
        self.notes = Notes(self.path)
        self.now = 0.0
        self.doubts: list[StepId] = []
        self.unanswered: list[str] = []

    def finish(self, kill: str | None = None, expected: Evidence | None = None) -> Evidence:
        """Start processes until the task ends, and answer its waits. The first dies at `kill`."""
        try:
            for _ in range(MAX_PROCESSES):
                how, text = self._run_process(kill)
                with open_store(self.url, durability="process") as store:
                    if how == "killed":
                        kill = None
                    elif (
                        how in ("suspended", "doubt")
                        and expected is not None
                        and self._resolve(store, expected)
                    ):
                        pass  # a child in doubt suspends its parent
                    elif how == "suspended":
                        self._answer(store)
                    elif how == "finished":
                        return self._evidence(store)
                    else:
                        when = "after the crash " if expected else ""
                        return self._evidence(
                            store, f"the run {when}ended with {text}{self._hint()}"
                        )
                    self._note_completed(store)
            raise MatrixError(
                f"the agent did not finish in {MAX_PROCESSES} runs; is it waiting in a loop?"
            )
        finally:
            self.notes.close()

    def _run_process(self, kill: str | None) -> tuple[str, str]:
        """Run one process; return how it ended, and details."""
        matrix = self.matrix
        self.now = max(self.now, clock.time())
        spec = ProcessSpec(
            _import_path(),
            Target(**matrix.target),
            self.url,
            str(self.path),
            matrix.id,
            matrix.goal,
            matrix.input,
            self.now,
            kill,
        )
        (self.folder / "spec").write_bytes(msgspec.json.encode(spec))
        before = len(list(read_notes(self.path)))
        self._processes += 1
        code = matrix.launcher.run(self._processes, self.folder / "spec", self.work, matrix.timeout)
        if code is HUNG:
            return "hung", f"no end after {matrix.timeout:g} s; pass a larger timeout="
        notes = list(read_notes(self.path))[before:]
        if code == -signal.SIGKILL and any(note["what"] == "dying" for note in notes):
            self.notes.write("killed")  # written by the parent, which has seen it dead
            return "killed", ""
        ends = [note for note in notes if note["what"] == "ended"]
        if code or not ends:
            tail = (self.folder / "output").read_text(errors="replace").strip().splitlines()[-20:]
            return "failed", "\n".join([f"exit code {code} and this output:", *tail])
        return ends[-1]["how"], ends[-1]["text"]

    # -- between two processes -----------------------------------------------------------------

    def _note_completed(self, store: Store) -> None:
        steps = [
            (info.id, step.path)
            for info in store.tasks()
            if (view := store.get_task(info.id)) is not None
            for step in view.steps
            if step.status == "completed"
        ]
        self.notes.write("completed", steps=steps)

    def _answer(self, store: Store) -> None:
        """Answer questions and send signals; with nothing to send, advance to the next timer."""
        times: list[float] = []
        missing: list[str] = []
        given = False
        for info in list(store.tasks(status="suspended")):
            waits = ops.run(store._log, load_task(stream_key(store.tenant, "task", info.id))).waits
            for wait in list(waits.all.values()):
                event = wait.event
                if wait.how is not None or (
                    event.kind == ASK and waits.question_ids[event.name] != event.wait
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
                        missing.append(_how_to_answer(event.kind, event.name))
                    if event.until is not None:
                        times.append(event.until)
        if not given and times:
            self.now = max(self.now, min(times) + 0.001)
            self.unanswered += missing
        elif not given and missing:
            raise MatrixError(f"the agent waits for {missing[0]}")

    def _hint(self) -> str:
        return f"; it waited in vain for {self.unanswered[0]}" if self.unanswered else ""

    def _resolve(self, store: Store, expected: Evidence) -> bool:
        """Resolve steps in doubt as an operator would. Return True if there were any.

        If the function ran, the step was done; if not, it is retried.
        """
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


def _how_to_answer(kind: str, name: str) -> str:
    option = "answer" if kind == ASK else "signal"
    return f"{name!r}; pass {option}s={{{name!r}: …}}, or --{option} {name}=… in a shell"


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
    effects_only: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> MatrixReport:
    """Kill an agent around each of its writes, resume it, and compare with an undisturbed run.

    The agent runs in separate processes, each run on an empty store and in an empty working
    directory. It runs twice undisturbed, to check that it is repeatable, and then once per point
    (before and after each write), where it is killed with SIGKILL and restarted until it ends.
    Timers don't wait: time is skipped. Side effects are those that the program reports with
    `holdfast.testing.effect`. The application is imported once, and the processes are forks of
    that, unless the import starts threads, opens connections, writes files or has effects.

    Args:
        agent: `"path/app.py:claims"`, or a function at the top level of a module.
        id: The id of the task.
        goal: The goal of the task.
        input: The input of the task, as plain JSON values.
        answers: Answers to questions by name, as plain JSON values.
        signals: Signal payloads by name, as plain JSON values.
        store: `"sqlite"` or `"files"`.
        points: How many points to try at most, evenly spread, or the names of the points.
        timeout: Seconds for one process.
        effects_only: Compare side effects and repeated steps, but not the result: for an agent
            whose result differs from run to run, because it asks a model.
        progress: Called with the number of finished points and the total.

    Returns:
        A report; print it to see each violation with advice.

    Raises:
        MatrixError: The agent does not finish or is not repeatable even without crashes.

    Example:
        report = testing.crash_matrix("app.py:claims", answers={"approve": True})
        assert report.ok, report
    """
    import tempfile

    if store not in ("sqlite", "files"):
        raise ValueError(f"store must be 'sqlite' or 'files', which survive a kill, got {store!r}")
    target, limit = _locate_agent(agent), check_seconds(timeout, "timeout", 0.001)
    given = decode(encode_as(input, declared_type(input)))
    for value in (dict(answers or {}), dict(signals or {})):
        encode(value)  # raises here if a value can't be stored
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as name:
        folder = Path(name).resolve()
        spec = ProcessSpec(_import_path(), Target(**target), "", "", id, goal, given, 0.0, None)
        (folder / "spec").write_bytes(msgspec.json.encode(spec))
        launcher = Launcher(folder / "spec", folder / "imports")
        try:
            matrix = Matrix(
                target,
                id,
                goal,
                given,
                answers or {},
                signals or {},
                store,
                limit,
                folder,
                launcher,
                effects_only,
            )
            expected, possible = _run_undisturbed(matrix)
            chosen = _choose_points(possible, points)
            found = _run_points(matrix, chosen, expected, progress or _ignore)
        finally:
            launcher.close()
    violations: list[Violation] = []
    doubts: list[tuple[str, str]] = []
    missed: list[str] = []
    for point, evidence in zip(chosen, found, strict=True):
        if not any(note["what"] == "killed" for note in evidence.notes):
            missed.append(point)
            continue
        violations += judge(point, evidence, expected, effects_only=effects_only)
        doubts += [(point, step) for _, step in evidence.doubts]
    return MatrixReport(target["name"], store, chosen, violations, doubts, missed)


def _import_path() -> list[str]:
    return [os.path.abspath(part) for part in sys.path]


def _ignore(_done: int, _all: int) -> None:
    pass


def _run_undisturbed(matrix: Matrix) -> tuple[Evidence, list[str]]:
    """Run the agent twice without a crash. Return what it did, and the points it reaches."""
    first, second = (MatrixRun(matrix, number).finish() for number in (0, 1))
    if first.problem:
        raise MatrixError(f"without any crash, {first.problem}")
    if first.status != "finished":
        raise MatrixError(f"without any crash the task ends as {first.status}; it must finish")
    differences = list(judge("", second, first, effects_only=matrix.effects_only))
    reached = set(_points(second))
    if not matrix.effects_only and not differences and set(_points(first)) != reached:
        differences = [Violation("", "its writes differ", "")]
    if differences:
        advice = "" if matrix.effects_only else ", or compare effects only (effects_only=True)"
        raise MatrixError(
            f"two runs without a crash differ ({differences[0].what}), so there is nothing to "
            "compare with; make the agent repeatable: no random values or times in results and "
            f"effect names{advice}"
        )
    return first, [point for point in _points(first) if point in reached]


def _points(evidence: Evidence) -> list[str]:
    writes = [note["point"] for note in evidence.notes if note["what"] == "write"]
    return [f"{place} {write}" for write in writes for place in ("before", "after")]


def _choose_points(all: list[str], wanted: int | Collection[str] | None) -> list[str]:
    if wanted is None:
        return all
    if isinstance(wanted, int):
        if wanted < 1:
            raise ValueError(f"points must be an integer >= 1 or a list of names, got {wanted}")
        return (
            [all[index * len(all) // wanted] for index in range(wanted)]
            if wanted < len(all)
            else all
        )
    unknown = sorted(set(wanted) - set(all))
    if unknown:
        raise MatrixError(f"no point is called {unknown[0]!r}; there are: {', '.join(all)}")
    return [point for point in all if point in set(wanted)]


def _run_points(
    matrix: Matrix, points: list[str], expected: Evidence, progress: Callable[[int, int], object]
) -> list[Evidence]:
    from concurrent.futures import ThreadPoolExecutor, as_completed

    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        tried = [
            pool.submit(
                lambda number, point: MatrixRun(matrix, number).finish(point, expected),
                number,
                point,
            )
            for number, point in enumerate(points, 2)
        ]
        try:
            for done, each in enumerate(as_completed(tried), 1):
                each.result()
                progress(done, len(tried))
            return [each.result() for each in tried]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _locate_agent(agent: str | Callable[..., Any]) -> dict[str, str]:
    """Return where an agent is defined, so that another process can import it."""
    if isinstance(agent, str):
        file, colon, name = agent.rpartition(":")
        if not colon or not file.endswith(".py"):
            raise ValueError(f"agent must be like 'path/app.py:claims', got {agent!r}")
        if not Path(file).is_file():
            raise ValueError(f"no file at {file!r}; check the path")
        return {"file": str(Path(file).resolve()), "module": "", "name": name}
    fn = getattr(agent, "fn", agent)
    module, path, code = (
        getattr(fn, part, None) for part in ("__module__", "__qualname__", "__code__")
    )
    if code is None or "<" in str(path) or not Path(code.co_filename).is_file():
        raise TypeError(
            "agent must be defined at the top level of a module file: other processes import it"
        )
    file = str(Path(code.co_filename).resolve())
    return {"file": file, "module": "" if module == "__main__" else str(module), "name": str(path)}
