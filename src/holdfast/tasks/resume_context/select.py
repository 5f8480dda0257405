"""What of a task's record goes into a briefing, for a given room.

Things of one sort are ranked, the newest first, and the n-th gets a share in proportion to 1 / (n + 2), cut to it if it is
longer. A thing whose share would be too small to be of use is left out, and counted. So with less room old things go first, and the
long ones among the new get shorter. Goal, what is in doubt, where to go on, and the result of a finished task have a least size that they always get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ...conversations.quote import Extract, extract, one_line, text_of
from ...memory.quote import LARGE_NAME, MemoryLine
from ..state.view import ENDED, Note, Question, StepInfo, TaskView

if TYPE_CHECKING:
    from ...memory.model import MemoryItem

LEAST: Final = 80
"""Nothing is shown with a smaller share than this many bytes, unless it is shorter or must be shown."""
SPREAD: Final = 3
SMALL_NAME, SMALL_GOAL, ALWAYS_NAMED = 24, 48, 3

GOAL, DOUBT, UNFINISHED, PLAN, DECISION, RESULT, DISCOVERY, INPUT, NOTE, INNER = (
    24,
    24,
    16,
    16,
    10,
    9,
    8,
    7,
    6,
    1,
)
MEMORY = 5
WAIT, ASK = 12, 11
"""How much of the room each sort of thing gets, in proportion to the others. No two that are often there are equal: as
the room grows, one thing after the other comes in."""

Mark = Literal["done", "to do", "running", "interrupted", "waiting", "retry", "failed", "in doubt"]


class PlanLine(msgspec.Struct, frozen=True):
    """An item of the plan and how it stands."""

    number: int
    name: str
    mark: Mark


class FinishedLine(msgspec.Struct, frozen=True):
    """A finished step; `result` is None if it has none."""

    step: str
    how: str
    result: Extract | None


class UnfinishedLine(msgspec.Struct, frozen=True):
    """A step that was begun and did not end well, with what is known of it."""

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
    """A question to people, and what came of it. `status` is "open", "answered" or "timeout"."""

    name: str
    status: str
    by: str | None
    question: Extract | None
    payload: Extract | None
    answer: Extract | None


class NextLine(msgspec.Struct, frozen=True):
    """Where to go on. `number` counts the items of the plan, or without a plan the steps; None: after all of them."""

    number: int | None
    name: str
    mark: Mark


class SelectedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a briefing tells. Shortened texts say by how much, `left_out` counts what is not there at all."""

    task: str
    agent: str | None
    status: str
    runs: int
    goal: Extract | None
    input: Extract | None
    plan: list[PlanLine]
    plan_length: int
    plan_done: int
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
    complete: bool


class TextBudget:
    """How much may be said. Remembers whether everything could be."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bare = size == 0  # only what must be said
        self.short = size < LARGE_NAME
        self.left_out: dict[str, int] = {}

    def newest(
        self, what: str, ranked: Sequence[int], weight: int, *, least: int = 0
    ) -> dict[int, int]:
        """Those for which there is room, each with its rank. The others are noted as left out."""
        count = max(least, weight * self.size // LEAST - SPREAD + 1)
        if count < len(ranked):
            self.left_out[what] = len(ranked) - count
        return {place: rank for rank, place in enumerate(ranked[:count])}

    def part(self, text: str, weight: int, rank: int = 0, *, least: int = 0) -> Extract | None:
        """As much of a text as its share allows; None if that is too little."""
        share = max(least, weight * self.size // (rank + SPREAD))
        if share < LEAST and len(text) > share and not least:
            self.short = True
            return None
        found = extract(text, share)
        self.short = self.short or found.more > 0
        return found

    def name(self, text: str) -> str:
        return one_line(text, min(LARGE_NAME, max(SMALL_NAME, self.size)))


class TaskFacts:
    """Everything that could be told of a task, sorted and ranked once; values are made into text when first shown."""

    def __init__(
        self, view: TaskView, notes: Sequence[str], memories: Sequence[MemoryItem] = ()
    ) -> None:
        self._view, self._notes, self._memories = view, notes, memories
        self._texts: dict[tuple[str, int], str] = {}
        steps = view.steps
        self._by_path = {step.path: step for step in steps}
        self._marks = [mark_of(self._by_path.get(path)) for path in view.plan_paths]
        self._next = self._find_next()
        newest = sorted(
            range(len(steps)), key=lambda place: (steps[place].version, place), reverse=True
        )
        finished = [place for place in newest if steps[place].status == "completed"]
        # What was done inside a finished step is told by that step's result.
        inner = {place for place in newest if enclosed(steps[place], self._by_path)}
        self._outer = [place for place in finished if place not in inner]
        self._inner = [place for place in finished if place in inner]
        self._doubts = [place for place in newest if steps[place].in_doubt]
        stopped = ("interrupted", "failed", "retrying")
        self._stopped = [
            place
            for place in newest
            if steps[place].status in stopped and not steps[place].in_doubt and place not in inner
        ]
        self._questions = sorted(
            range(len(view.questions)),
            key=lambda place: (view.questions[place].status != "open", -place),
        )
        if view.status in ENDED:  # nothing is tried again
            self._stopped = []
        here = self._next.number - 1 if self._next and self._next.number else len(view.plan)
        self._near = sorted(range(len(view.plan)), key=lambda place: (abs(place - here), -place))

    def select(self, size: int) -> SelectedFacts:
        """What to tell, given this much room. More room never tells less."""
        view, room = self._view, TextBudget(size)
        outer = room.newest("results", self._outer, RESULT)
        inner = room.newest("inner_results", self._inner, INNER)
        near = room.newest("plan", self._near, PLAN)
        doubts = room.newest("in_doubt", self._doubts, DOUBT, least=ALWAYS_NAMED)
        stopped = room.newest("unfinished", self._stopped, UNFINISHED)
        given = room.newest("input", [] if view.input is None else [0], INPUT)
        questions = room.newest("questions", self._questions, ASK)
        waits = room.newest("waits", range(len(view.waits_for)), WAIT)
        notes = room.newest("notes", range(len(self._notes)), NOTE)
        memories = room.newest("memories", range(len(self._memories)), MEMORY)
        failure = None if room.bare or view.status in ENDED else view.error
        ended = view.status == "finished" and view.result is not None
        return SelectedFacts(
            task=room.name(view.id),
            agent=None if view.agent is None or room.bare else room.name(view.agent),
            status=view.status,
            runs=view.runs,
            goal=None if view.goal is None else room.part(view.goal, GOAL, least=SMALL_GOAL),
            input=room.part(self._text("input", 0, view.input), INPUT) if given else None,
            plan=[
                PlanLine(place + 1, room.name(_name(view, place)), self._marks[place])
                for place in sorted(near)
            ],
            plan_length=len(view.plan),
            plan_done=self._marks.count("done"),
            results=[
                self._finished(
                    place, room, (RESULT, outer[place]) if place in outer else (INNER, inner[place])
                )
                for place in sorted([*outer, *inner])
            ],
            decisions=self._noted("decisions", view.decisions, room, DECISION),
            discoveries=self._noted("discoveries", view.discoveries, room, DISCOVERY),
            questions=[
                self._asked(view.questions[place], place, room, questions[place])
                for place in sorted(questions)
            ],
            waits=[room.name(view.waits_for[place]) for place in waits],
            unfinished=[
                self._unfinished(place, room, UNFINISHED, stopped[place])
                for place in sorted(stopped)
            ],
            error=None if failure is None else room.name(failure.type),
            message=room.part(failure.message, UNFINISHED) if failure and failure.message else None,
            in_doubt=[
                self._unfinished(place, room, DOUBT, doubts[place]) for place in sorted(doubts)
            ],
            notes=_present(
                room.part(self._notes[place], NOTE, rank) for place, rank in notes.items()
            ),
            memories=[
                self._recalled(self._memories[place], room, rank)
                for place, rank in memories.items()
            ],
            result=room.part(self._text("end", 0, view.result), GOAL, least=SMALL_NAME)
            if ended
            else None,
            next=self._next
            and NextLine(self._next.number, room.name(self._next.name), self._next.mark),
            left_out=room.left_out,
            complete=not room.short and not room.left_out,
        )

    def _finished(self, place: int, room: TextBudget, share: tuple[int, int]) -> FinishedLine:
        step = self._view.steps[place]
        result = (
            None
            if step.result is None
            else room.part(self._text("result", place, step.result), *share)
        )
        return FinishedLine(room.name(step.path), step.how, result)

    def _unfinished(self, place: int, room: TextBudget, weight: int, rank: int) -> UnfinishedLine:
        step = self._view.steps[place]
        error, progress = (None, None) if room.bare else (step.error, step.progress)
        cursor = (
            None
            if progress is None or progress.cursor is None
            else self._text("cursor", place, progress.cursor)
        )
        return UnfinishedLine(
            step=room.name(step.path),
            mark=mark_of(step),
            mode=step.mode,
            error=None if error is None else room.name(error.type),
            message=room.part(error.message, weight, rank) if error and error.message else None,
            done=_finite(progress.done) if progress else None,
            total=_finite(progress.total) if progress else None,
            cursor=None if cursor is None else room.part(cursor, weight, rank),
        )

    def _asked(self, ask: Question, place: int, room: TextBudget, rank: int) -> QuestionLine:
        payload = None if ask.payload is None else self._text("payload", place, ask.payload)
        answer = self._text("answer", place, ask.answer) if ask.status == "answered" else None
        return QuestionLine(
            name=room.name(ask.name),
            status=ask.status,
            by=None if ask.by is None else room.name(ask.by),
            question=room.part(ask.text, ASK, rank),
            payload=None if payload is None else room.part(payload, ASK, rank),
            answer=None if answer is None else room.part(answer, ASK, rank),
        )

    def _recalled(self, memory: MemoryItem, room: TextBudget, rank: int) -> MemoryLine:
        text = room.part(memory.full_text, MEMORY, rank)
        assert text is not None  # as below
        source = None if memory.source is None else room.name(memory.source)
        return MemoryLine(
            memory.id, room.name(memory.author), source, f"{memory.at:%Y-%m-%d}", text
        )

    def _noted(
        self, what: str, notes: Sequence[Note], room: TextBudget, weight: int
    ) -> list[NoteLine]:
        chosen = room.newest(what, range(len(notes) - 1, -1, -1), weight)
        told = []
        for place in sorted(chosen):
            note, rank = notes[place], chosen[place]
            text = room.part(note.text, weight, rank)
            assert text is not None  # its share is large enough, or it would not have been chosen
            told.append(NoteLine(text, room.part(note.why, weight, rank) if note.why else None))
        return told

    def _text(self, what: str, place: int, value: Any) -> str:
        """A value as text. Made once: the room is tried in many sizes."""
        text = self._texts.get((what, place))
        if text is None:
            text = self._texts[what, place] = text_of(value)
        return text

    def _find_next(self) -> NextLine | None:
        view = self._view
        if view.status in ENDED:
            return None
        for place, mark in enumerate(self._marks):
            if mark not in ("done", "failed"):
                return NextLine(place + 1, _name(view, place), mark)
        planned = set(view.plan_paths)
        top = [step for step in view.steps if not step.parent]
        for number, step in enumerate(top, 1):
            mark = mark_of(step)
            if mark not in ("done", "failed") and step.path not in planned:
                return NextLine(None if view.plan else number, step.path, mark)
        done = [step for step in top if step.status == "completed"]
        if view.plan or not done:
            return NextLine(None, "", "done" if view.plan else "to do")
        return NextLine(None, max(reversed(done), key=lambda step: step.version).path, "done")


def mark_of(step: StepInfo | None) -> Mark:
    """How a step stands, in a word. "failed" is one that is not tried again."""
    if step is None:
        return "to do"
    if step.in_doubt:
        return "in doubt"
    if step.status == "completed":
        return "done"
    if step.status == "failed":
        return "failed" if step.replays else "retry"
    return "retry" if step.status == "retrying" else step.status


def enclosed(step: StepInfo, by_path: Mapping[str, StepInfo]) -> bool:
    """Whether it was called from inside a step that is finished: nobody will ask for it again."""
    scope = step.parent
    while scope:
        above = by_path.get(scope)  # None: begun, but killed before anything of it was written
        if above is not None and above.status == "completed":
            return True
        scope = scope.rpartition("/")[0]
    return False


def _name(view: TaskView, place: int) -> str:
    item = view.plan[place]
    return item if isinstance(item, str) else str(item["name"])


def _finite(number: float | None) -> float | None:
    return number if number is not None and isfinite(number) else None


def _present(found: Iterable[Extract | None]) -> list[Extract]:
    return [extract for extract in found if extract is not None]
