"""Build the resume context of a checkpoint document, as if its facts were those of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ...conversations.quote import value_to_text
from ...conversations.tokens import Counter
from ..state.fold import plan_item_name, plan_step_paths
from ..state.view import Note, PlanItem, StepInfo, StepProgress, TaskView
from .context import ResumeContext, build_resume_context

if TYPE_CHECKING:
    from ..checkpoint import AgentCheckpoint

_KNOWN: Final = frozenset(
    {
        "agent_id",
        "task_id",
        "goal",
        "plan",
        "completed",
        "results",
        "decisions",
        "discoveries",
        "created_at",
        "updated_at",
    }
)
_MISSING: Final = object()


def build_checkpoint_context(
    checkpoint: AgentCheckpoint,
    max_tokens: int,
    *,
    notes: Sequence[str] = (),
    counter: Counter | None = None,
) -> ResumeContext:
    """Return the resume context of a checkpoint, as `build_resume_context` does for a task."""
    document = checkpoint.to_dict()
    fields = {name: value for name, value in document.items() if name not in _KNOWN}
    view = _to_view(document, checkpoint.created_at, checkpoint.updated_at)
    return build_resume_context(view, max_tokens, notes=notes, counter=counter, fields=fields)


def _to_view(document: Mapping[str, Any], created_at: datetime, updated_at: datetime) -> TaskView:
    """Return the view of a task that has done what the document says, and was then interrupted."""
    plan = [_to_plan_item(item, number) for number, item in enumerate(document["plan"], 1)]
    paths = plan_step_paths(plan)
    steps = list(_list_steps(document, plan, paths, updated_at))
    decisions, discoveries = (
        [_to_note(value, updated_at) for value in document[name]]
        for name in ("decisions", "discoveries")
    )
    return TaskView(
        id=document["task_id"],
        goal=document.get("goal") or None,
        input=None,
        agent=document["agent_id"] or None,
        status="pending",
        plan=plan,
        plan_paths=list(paths),
        steps=steps,
        decisions=decisions,
        discoveries=discoveries,
        result=None,
        error=None,
        created_at=created_at,
        updated_at=updated_at,
        owner=None,
        lease_until=None,
        expires_at=None,
        version=0,
        runs=1 if steps or decisions or discoveries else 0,
        orphaned=[],
        drift=[],
    )


def _list_steps(
    document: Mapping[str, Any], plan: Sequence[PlanItem], paths: Sequence[str], at: datetime
) -> Iterator[StepInfo]:
    """Yield the completed items in the recorded order, then everything else that has a result.

    The result of an item that is not completed counts as its progress so far.
    """
    results = dict(document["results"])
    ranks = {index: rank for rank, index in enumerate(dict.fromkeys(document["completed"]))}
    used = set(paths)
    for index in dict.fromkeys((*ranks, *range(len(plan)))):
        is_planned = 0 <= index < len(plan)
        name = plan_item_name(plan[index]) if is_planned else f"step {index + 1}"
        path = paths[index] if is_planned else _take_free_name(name, used)
        result = results.pop(str(index), _MISSING)
        if result is _MISSING:
            result = results.pop(name, _MISSING)
        if index in ranks:
            value = None if result is _MISSING else result
            yield _make_step(path, at, ranks[index], result=value)
        elif result is not _MISSING:
            yield _make_step(path, at, 0, progress=StepProgress(result, None, None, at))
    for name, result in results.items():
        yield _make_step(_take_free_name(name, used), at, 0, result=result)


def _take_free_name(name: str, used: set[str]) -> str:
    while name in used:
        name += " (another)"
    used.add(name)
    return name


def _make_step(
    path: str,
    at: datetime,
    version: int,
    *,
    result: Any = None,
    progress: StepProgress | None = None,
) -> StepInfo:
    return StepInfo(
        path=path,
        name=path,
        status="completed" if progress is None else "interrupted",
        started_at=at,
        version=version,
        result=result,
        progress=progress,
    )


def _to_plan_item(item: PlanItem, number: int) -> PlanItem:
    """Return the item with a name, which it may lack in a document."""
    if isinstance(item, str):
        return item or f"step {number}"
    name = item.get("name")
    return {**item, "name": str(name) if name not in (None, "") else f"step {number}"}


def _to_note(value: Any, at: datetime) -> Note:
    """Convert a decision or discovery, which is text, {"what": …, "why": …} or any other value."""
    if isinstance(value, dict) and value.keys() <= {"what", "why"}:
        what, why = value.get("what"), value.get("why")
        if isinstance(what, str) and isinstance(why, str | None):
            return Note(what, why, at)
    return Note(value_to_text(value), None, at)
