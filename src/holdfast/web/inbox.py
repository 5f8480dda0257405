"""The inbox: everything in a store that waits for a person."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from time import monotonic
from typing import Any, Final, Literal

import msgspec

from .. import Budget, Failure, Question, StepInfo, Store, TaskInfo, TaskView

InboxKind = Literal["question", "in doubt", "failed", "over budget", "stuck"]

_STATUSES: Final = ("failed", "stuck", "suspended", "retrying", "running", "pending")
"""The statuses of tasks that may wait for a person. Those of which most do come first."""
LOOK_SECONDS: Final = 0.15
"""How long one request looks for items. The next one continues after the last task."""


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a person: a question, a step in doubt, or a task that was given up."""

    kind: InboxKind
    task: str
    agent: str | None
    goal: str | None
    since: datetime
    name: str = ""
    """The name of the question, or the path of the step."""
    text: str = ""
    payload: Any = None
    schema: Any = None
    """The JSON Schema of the answer, or of the step's result."""
    question: str | None = None
    """The id of the question, for the answer."""
    until: datetime | None = None
    mode: str = ""
    arguments: dict[str, Any] | None = None
    """The arguments of the step in doubt."""
    cut_arguments: list[str] = []
    idempotency_key: str | None = None
    check: str | None = None
    """What the last call of the step's check found."""
    error: Failure | None = None
    budget: Budget | None = None
    """The budget that was used up."""
    actions: tuple[str, ...] = ()


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the inbox. `after` continues it; it is empty at the end."""

    items: list[InboxItem]
    after: str = ""


def read_inbox(store: Store, *, after: str = "", limit: int = 100) -> InboxPage:
    """Return what waits for a person, up to `limit` items.

    `after` is "status/task id" of the last task looked at, as the page before returned it.
    """
    status, _, last = after.partition("/")
    first = _STATUSES.index(status) if status in _STATUSES else 0
    items: list[InboxItem] = []
    stop = monotonic() + LOOK_SECONDS
    for number, status in enumerate(_STATUSES[first:]):
        for info in store.tasks(status=status, after="" if number else last):
            if may_wait_for_person(info):
                view = store.get_task(info.id)
                items += [] if view is None else list(find_items(view))
            if len(items) >= limit or monotonic() > stop:
                return InboxPage(items=_oldest_first(items), after=f"{status}/{info.id}")
    return InboxPage(items=_oldest_first(items))


def _oldest_first(items: list[InboxItem]) -> list[InboxItem]:
    return sorted(items, key=lambda item: item.since)


def may_wait_for_person(info: TaskInfo) -> bool:
    """Whether a listed task may be in the inbox, so that it has to be loaded."""
    return info.in_doubt or info.status in ("failed", "stuck", "suspended")


def find_items(view: TaskView) -> Iterator[InboxItem]:
    """Yield what a task waits for from people."""
    for question in view.questions:
        if question.status == "open" and view.status not in ("finished", "cancelled"):
            yield _question_item(view, question)
    for step in view.steps:
        if step.in_doubt and view.owner is None:
            yield _doubt_item(view, step)
    if view.status == "stuck":
        yield _task_item(view, "stuck", f"killed {view.crashes} times in a row without progress")
    elif view.status == "failed" and not view.in_doubt:
        over = view.error is not None and view.error.type == "BudgetExceeded"
        yield _task_item(view, "over budget" if over else "failed", "")


def _question_item(view: TaskView, question: Question) -> InboxItem:
    return InboxItem(
        kind="question",
        task=view.id,
        agent=view.agent,
        goal=view.goal,
        since=question.asked_at,
        name=question.name,
        text=question.text,
        payload=question.payload,
        schema=question.schema,
        question=question.id,
        until=question.until,
        actions=("answer", "cancel"),
    )


def _doubt_item(view: TaskView, step: StepInfo) -> InboxItem:
    return InboxItem(
        kind="in doubt",
        task=view.id,
        agent=view.agent,
        goal=view.goal,
        since=step.ended_at or step.started_at,
        name=step.path,
        mode=step.mode,
        arguments=step.arguments,
        cut_arguments=step.cut_arguments,
        idempotency_key=step.idempotency_key,
        check=step.check,
        schema=step.result_schema,
        error=step.error,
        actions=("resolve", "cancel"),
    )


def _task_item(view: TaskView, kind: InboxKind, text: str) -> InboxItem:
    return InboxItem(
        kind=kind,
        task=view.id,
        agent=view.agent,
        goal=view.goal,
        since=view.updated_at,
        text=text,
        error=view.error,
        budget=view.budget if kind == "over budget" else None,
        actions=("cancel",) if view.agent is None else ("retry", "cancel"),
    )
