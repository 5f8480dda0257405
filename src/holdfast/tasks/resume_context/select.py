"""Select the recorded facts that go into a resume context of a given size.

Facts of one kind are ranked, newest first. The n-th gets a share in proportion to 1 / (n + 2) and
is cut to that share if it is longer. A fact whose share would be too small to be useful is omitted
and counted. So as the size shrinks, old facts are dropped first, and long recent ones are
shortened. The goal, steps in doubt, the next step and the result of a finished task always get a
minimum size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ...conversations.quote import Extract, extract, extract_line, value_to_text
from ...memory.quote import MAX_NAME_BYTES, MemoryLine
from ..state.fold import plan_item_name
from ..state.view import ENDED, Note, PlanItem, Question, StepInfo, TaskView

if TYPE_CHECKING:
    from ...memory.model import MemoryItem

MIN_SHARE_BYTES: Final = 80
"""A fact with a smaller share is omitted, unless it fits in its share or is required."""
SHARE_OFFSET: Final = 3
MIN_NAME_BYTES, MIN_GOAL_BYTES, MIN_DOUBTS = 24, 48, 3

GOAL: Final = 24
DOUBT: Final = 24
UNFINISHED: Final = 16
PLAN: Final = 16
WAIT: Final = 12
QUESTION: Final = 11
DECISION: Final = 10
RESULT: Final = 9
DISCOVERY: Final = 8
INPUT: Final = 7
NOTE: Final = 6
MEMORY: Final = 5
FIELD: Final = 4
INNER: Final = 1
"""The weights of the kinds of facts: a fact's share of the size, before ranking, relative to the
others. Kinds that often occur together differ, so that facts appear one by one as the size grows.
"""

Mark = Literal["done", "to do", "running", "interrupted", "waiting", "retry", "failed", "in doubt"]


Stage = Literal["first run", "resumed", "suspended", "ended"]
"""Where a task is: in its first run, resumed after an interruption, waiting, or at its end."""


class FieldLine(msgspec.Struct, frozen=True):
    """A named value: a field of a plan item besides its name, or another field of a checkpoint."""

    name: str
    value: Extract


class PlanLine(msgspec.Struct, frozen=True):
    """An item of the plan, its status, and its other fields."""

    number: int
    name: str
    mark: Mark
    details: list[FieldLine]


class FinishedLine(msgspec.Struct, frozen=True):
    """A finished step; `result` is None if it has no result."""

    step: str
    how: str
    result: Extract | None


class UnfinishedLine(msgspec.Struct, frozen=True):
    """A step that was started and not completed, with its recorded error and progress."""

    step: str
    mark: Mark
    mode: str
    error: str | None
    message: Extract | None
    done: float | None
    total: float | None
    cursor: Extract | None


class NoteLine(msgspec.Struct, frozen=True):
    """A decision or a discovery."""

    text: Extract
    why: Extract | None


class QuestionLine(msgspec.Struct, frozen=True):
    """A question to people and its outcome. `status` is "open", "answered" or "timeout"."""

    name: str
    status: str
    by: str | None
    question: Extract | None
    payload: Extract | None
    answer: Extract | None


class NextLine(msgspec.Struct, frozen=True):
    """Where to continue.

    `number` is that of a plan item, or of a step if there is no plan; None means after all of them.
    `details` are the other fields of the plan item.
    """

    number: int | None
    name: str
    mark: Mark
    details: list[FieldLine] = []


class SelectedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a resume context.

    A shortened text says how much was cut, and `left_out` counts the omitted facts. `brief` means
    that only the required facts fit.
    """

    task: str
    agent: str | None
    status: str
    stage: Stage
    runs: int
    goal: Extract | None
    input: Extract | None
    fields: list[FieldLine]
    plan: list[PlanLine]
    plan_length: int
    plan_done: int
    steps_done: int
    results: list[FinishedLine]
    decisions: list[NoteLine]
    discoveries: list[NoteLine]
    questions: list[QuestionLine]
    waits: list[str]
    unfinished: list[UnfinishedLine]
    error: str | None
    message: Extract | None
    in_doubt: list[UnfinishedLine]
    notes: list[Extract]
    memories: list[MemoryLine]
    result: Extract | None
    next: NextLine | None
    left_out: dict[str, int]
    brief: bool
    complete: bool


class TextBudget:
    """Divides a size among facts, and records whether all of them fit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bare = size == 0  # only the required facts
        self.short = size < MAX_NAME_BYTES
        self.left_out: dict[str, int] = {}

    def take(
        self, what: str, ranked: Sequence[int], weight: int, *, least: int = 0
    ) -> dict[int, int]:
        """Return the first places that fit, each with its rank; count the others as omitted."""
        count = max(least, weight * self.size // MIN_SHARE_BYTES - SHARE_OFFSET + 1)
        if count < len(ranked):
            self.left_out[what] = len(ranked) - count
        return {place: rank for rank, place in enumerate(ranked[:count])}

    def quote(
        self, text: str | None, weight: int, rank: int = 0, *, least: int = 0
    ) -> Extract | None:
        """Return as much of a text as its share allows; None for no text, or too small a share."""
        if text is None:
            return None
        share = max(least, weight * self.size // (rank + SHARE_OFFSET))
        if share < MIN_SHARE_BYTES and len(text) > share and not least:
            self.short = True
            return None
        quoted = extract(text, share)
        self.short = self.short or quoted.more > 0
        return quoted

    def shorten(self, text: str) -> str:
        """Return a name as one line, shortened to fit."""
        return extract_line(text, min(MAX_NAME_BYTES, max(MIN_NAME_BYTES, self.size)))


NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})


class TaskFacts:
    """All facts of a task, ranked once. Values are rendered as text when first needed."""

    def __init__(
        self,
        view: TaskView,
        notes: Sequence[str],
        memories: Sequence[MemoryItem] = (),
        fields: Mapping[str, Any] = NO_FIELDS,
    ) -> None:
        self._view, self._notes, self._memories = view, notes, memories
        self._fields = list(fields.items())
        self.task = view.id
        self._texts: dict[tuple[str, int], str] = {}
        self._by_path = {step.path: step for step in view.steps}
        self._marks = [step_mark(self._by_path.get(path)) for path in view.plan_paths]
        self._next = self._find_next()
        self._rank_steps(view)
        self._questions = sorted(
            range(len(view.questions)),
            key=lambda place: (view.questions[place].status != "open", -place),
        )
        here = self._next.number - 1 if self._next and self._next.number else len(view.plan)
        self._near = sorted(range(len(view.plan)), key=lambda place: (abs(place - here), -place))
        self._details = [
            (place, field)
            for place in self._near
            for field in range(len(plan_details(view.plan[place])))
        ]

    def _rank_steps(self, view: TaskView) -> None:
        """Rank the steps, newest first: finished ones, those in doubt, and those that stopped."""
        steps = view.steps
        newest = sorted(
            range(len(steps)), key=lambda place: (steps[place].version, place), reverse=True
        )
        # The result of a finished step covers the steps inside it.
        inner = {place for place in newest if is_inside_completed(steps[place], self._by_path)}
        self._outer, self._inner = list[int](), list[int]()
        self._doubts, self._stopped = list[int](), list[int]()
        for place in newest:
            step = steps[place]
            if step.status == "completed":
                (self._inner if place in inner else self._outer).append(place)
            if step.in_doubt:
                self._doubts.append(place)
            elif (
                step.status in ("interrupted", "failed", "retrying")
                and place not in inner
                and view.status not in ENDED  # otherwise nothing is retried
            ):
                self._stopped.append(place)

    def select(self, size: int) -> SelectedFacts:
        """Return the facts that fit the size. A larger size never selects fewer facts."""
        view, budget = self._view, TextBudget(size)
        outer = budget.take("results", self._outer, RESULT)
        inner = budget.take("inner_results", self._inner, INNER)
        near = budget.take("plan", self._near, PLAN)
        details = self._select_details(budget, near)
        doubts = budget.take("in_doubt", self._doubts, DOUBT, least=MIN_DOUBTS)
        stopped = budget.take("unfinished", self._stopped, UNFINISHED)
        has_input = budget.take("input", [] if view.input is None else [0], INPUT)
        fields = budget.take("fields", range(len(self._fields)), FIELD)
        questions = budget.take("questions", self._questions, QUESTION)
        waits = budget.take("waits", range(len(view.waits_for)), WAIT)
        notes = budget.take("notes", range(len(self._notes)), NOTE)
        memories = budget.take("memories", range(len(self._memories)), MEMORY)
        failure = None if budget.bare or view.status in ENDED else view.error
        ended = view.status == "finished" and view.result is not None
        return SelectedFacts(
            task=budget.shorten(view.id),
            agent=None if view.agent is None or budget.bare else budget.shorten(view.agent),
            status=view.status,
            stage=find_stage(view),
            runs=view.runs,
            goal=budget.quote(view.goal, GOAL, least=MIN_GOAL_BYTES),
            input=budget.quote(self._text("input", 0, view.input), INPUT) if has_input else None,
            fields=[self._field_line(place, budget, rank) for place, rank in fields.items()],
            plan=[
                PlanLine(
                    place + 1,
                    budget.shorten(plan_item_name(view.plan[place])),
                    self._marks[place],
                    details.get(place, []),
                )
                for place in sorted(near)
            ],
            plan_length=len(view.plan),
            plan_done=self._marks.count("done"),
            steps_done=len(self._outer),
            results=[
                self._finished_line(
                    place,
                    budget,
                    (RESULT, outer[place]) if place in outer else (INNER, inner[place]),
                )
                for place in sorted([*outer, *inner])
            ],
            decisions=self._note_lines("decisions", view.decisions, budget, DECISION),
            discoveries=self._note_lines("discoveries", view.discoveries, budget, DISCOVERY),
            questions=[
                self._question_line(view.questions[place], place, budget, questions[place])
                for place in sorted(questions)
            ],
            waits=[budget.shorten(view.waits_for[place]) for place in waits],
            unfinished=[
                self._unfinished_line(place, budget, UNFINISHED, stopped[place])
                for place in sorted(stopped)
            ],
            error=None if failure is None else budget.shorten(failure.type),
            message=budget.quote(failure.message, UNFINISHED)
            if failure and failure.message
            else None,
            in_doubt=[
                self._unfinished_line(place, budget, DOUBT, doubts[place])
                for place in sorted(doubts)
            ],
            notes=[
                quoted
                for place, rank in notes.items()
                if (quoted := budget.quote(self._notes[place], NOTE, rank)) is not None
            ],
            memories=[
                self._memory_line(self._memories[place], budget, rank)
                for place, rank in memories.items()
            ],
            result=budget.quote(self._text("end", 0, view.result), GOAL, least=MIN_NAME_BYTES)
            if ended
            else None,
            next=self._next and self._next_line(self._next, budget, details),
            left_out=budget.left_out,
            brief=budget.bare,
            complete=not budget.short and not budget.left_out,
        )

    def _select_details(
        self, budget: TextBudget, near: Mapping[int, int]
    ) -> dict[int, list[FieldLine]]:
        """Return the other fields of the selected plan items, as many as fit, by place."""
        ranks = budget.take("plan_details", range(len(self._details)), PLAN)
        found: dict[int, list[FieldLine]] = {}
        for rank in ranks:
            place, field = self._details[rank]
            if place not in near:
                continue
            name, value = plan_details(self._view.plan[place])[field]
            text = budget.quote(self._text(f"plan {name}", place, value), PLAN, rank)
            assert text is not None  # `take` only takes places whose share is large enough
            found.setdefault(place, []).append(FieldLine(budget.shorten(name), text))
        left_out = len(self._details) - sum(map(len, found.values()))
        if left_out:
            budget.left_out["plan_details"] = left_out
        return found

    def _next_line(
        self, line: NextLine, budget: TextBudget, details: Mapping[int, list[FieldLine]]
    ) -> NextLine:
        place = line.number - 1 if line.number and self._view.plan else -1
        return NextLine(line.number, budget.shorten(line.name), line.mark, details.get(place, []))

    def _finished_line(
        self, place: int, budget: TextBudget, share: tuple[int, int]
    ) -> FinishedLine:
        step = self._view.steps[place]
        result = (
            None
            if step.result is None
            else budget.quote(self._text("result", place, step.result), *share)
        )
        return FinishedLine(budget.shorten(step.path), step.how, result)

    def _unfinished_line(
        self, place: int, budget: TextBudget, weight: int, rank: int
    ) -> UnfinishedLine:
        step = self._view.steps[place]
        error, progress = (None, None) if budget.bare else (step.error, step.progress)
        cursor = (
            None
            if progress is None or progress.cursor is None
            else self._text("cursor", place, progress.cursor)
        )
        return UnfinishedLine(
            step=budget.shorten(step.path),
            mark=step_mark(step),
            mode=step.mode,
            error=None if error is None else budget.shorten(error.type),
            message=budget.quote(error.message, weight, rank) if error and error.message else None,
            done=_finite(progress.done) if progress else None,
            total=_finite(progress.total) if progress else None,
            cursor=budget.quote(cursor, weight, rank),
        )

    def _question_line(
        self, question: Question, place: int, budget: TextBudget, rank: int
    ) -> QuestionLine:
        payload = (
            None if question.payload is None else self._text("payload", place, question.payload)
        )
        answer = (
            self._text("answer", place, question.answer) if question.status == "answered" else None
        )
        return QuestionLine(
            name=budget.shorten(question.name),
            status=question.status,
            by=None if question.by is None else budget.shorten(question.by),
            question=budget.quote(question.text, QUESTION, rank),
            payload=budget.quote(payload, QUESTION, rank),
            answer=budget.quote(answer, QUESTION, rank),
        )

    def _field_line(self, place: int, budget: TextBudget, rank: int) -> FieldLine:
        name, value = self._fields[place]
        text = budget.quote(self._text("field", place, value), FIELD, rank)
        assert text is not None  # `take` only takes places whose share is large enough
        return FieldLine(budget.shorten(name), text)

    def _memory_line(self, memory: MemoryItem, budget: TextBudget, rank: int) -> MemoryLine:
        text = budget.quote(memory.full_text, MEMORY, rank)
        assert text is not None  # `take` only takes places whose share is large enough
        source = None if memory.source is None else budget.shorten(memory.source)
        return MemoryLine(
            memory.id, budget.shorten(memory.author), source, f"{memory.at:%Y-%m-%d}", text
        )

    def _note_lines(
        self, what: str, notes: Sequence[Note], budget: TextBudget, weight: int
    ) -> list[NoteLine]:
        chosen = budget.take(what, range(len(notes) - 1, -1, -1), weight)
        found = []
        for place in sorted(chosen):
            note, rank = notes[place], chosen[place]
            text = budget.quote(note.text, weight, rank)
            assert text is not None  # `take` only takes places whose share is large enough
            found.append(NoteLine(text, budget.quote(note.why or None, weight, rank)))
        return found

    def _text(self, what: str, place: int, value: Any) -> str:
        """Return a value as text. The text is cached, because many sizes are tried."""
        if (what, place) not in self._texts:
            self._texts[what, place] = value_to_text(value)
        return self._texts[what, place]

    def _find_next(self) -> NextLine | None:
        view = self._view
        if view.status in ENDED:
            return None
        for place, mark in enumerate(self._marks):
            if mark not in ("done", "failed"):
                return NextLine(place + 1, plan_item_name(view.plan[place]), mark)
        planned = set(view.plan_paths)
        top = [step for step in view.steps if not step.parent]
        for number, step in enumerate(top, 1):
            mark = step_mark(step)
            if mark not in ("done", "failed") and step.path not in planned:
                return NextLine(None if view.plan else number, step.path, mark)
        done = [step for step in top if step.status == "completed"]
        if view.plan or not done:
            return NextLine(None, "", "done" if view.plan else "to do")
        return NextLine(None, max(reversed(done), key=lambda step: step.version).path, "done")


def step_mark(step: StepInfo | None) -> Mark:
    """Return the mark for a step's status. A step marked "failed" is not retried."""
    if step is None:
        return "to do"
    if step.in_doubt:
        return "in doubt"
    if step.status == "completed":
        return "done"
    if step.status == "failed":
        return "failed" if step.replays else "retry"
    return "retry" if step.status == "retrying" else step.status


def is_inside_completed(step: StepInfo, by_path: Mapping[str, StepInfo]) -> bool:
    """Whether a step ran inside a step that is completed, and so is never requested again."""
    scope = step.parent
    while scope:
        above = by_path.get(scope)  # None if the process was killed before its first event
        if above is not None and above.status == "completed":
            return True
        scope = scope.rpartition("/")[0]
    return False


def find_stage(view: TaskView) -> Stage:
    """Return the stage of a task. It is "resumed" even in the first run after an interruption."""
    if view.status in ENDED:
        return "ended"
    if view.status == "suspended":
        return "suspended"
    was_left = view.runs > 0 and view.status != "running"
    stopped = any(step.status == "interrupted" or step.in_doubt for step in view.steps)
    return "resumed" if view.runs > 1 or was_left or stopped else "first run"


def plan_details(item: PlanItem) -> list[tuple[str, Any]]:
    """Return the fields of a plan item besides its name."""
    if isinstance(item, str):
        return []
    return [(name, value) for name, value in item.items() if name != "name"]


def _finite(number: float | None) -> float | None:
    return number if number is not None and isfinite(number) else None
