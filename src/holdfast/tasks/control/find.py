"""Find tasks by status, agent, time and error: `store.tasks(…)`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from ...backends import StreamKey
from ...errors import Erased
from ...log import operations as ops
from ...log.ids import check_id
from ...log.operations import Operation
from ...log.validation import check_timestamp
from ..state.events import KIND
from ..state.failure import Failure
from ..state.fold import TaskState
from ..state.load import list_tasks, load_task, step_failure, task_failure
from ..state.view import STATUSES, TaskInfo

_FAILED_STATUSES = ("failed", "retrying", "stuck")


class TaskFilter(msgspec.Struct, frozen=True):
    """The tasks to list. `since` is in Unix seconds; None selects all.

    `text` is a part of the id or the goal, casefolded.
    """

    status: str | None = None
    agent: str | None = None
    since: float | None = None
    error: str | None = None
    text: str = ""


def check_task_filter(
    status: str | None,
    agent: str | None,
    since: float | datetime | None,
    error: str | None,
    text: str = "",
) -> TaskFilter:
    """Return the filter for the arguments of `Store.tasks`, and for a part of the id or goal."""
    if status is not None and status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")
    if agent is not None:
        check_id(agent, "agent")
    if error is not None and (type(error) is not str or not error):
        raise ValueError("error must be the type of an exception, or a part of its message")
    moment = None if since is None else check_timestamp(since, "since")
    return TaskFilter(status, agent, moment, error, text.casefold())


def find_tasks(
    tenant: str, wanted: TaskFilter, after: str
) -> Operation[tuple[list[TaskInfo], str]]:
    """Return a page of the tasks that fit, and the id to continue after.

    Status, agent, id and goal are known from the listing. For `since` the newest event of each task
    is read, and for `error` each task that failed or is in doubt.
    """
    page, last = yield from list_tasks(tenant, wanted.status, after)
    found = []
    for info in page:
        if wanted.agent is not None and info.agent != wanted.agent:
            continue
        if wanted.text and wanted.text not in f"{info.id}\n{info.goal or ''}".casefold():
            continue
        key = StreamKey(tenant, KIND, info.id)
        try:
            if wanted.error is not None and not (yield from _has_error(key, info, wanted.error)):
                continue
            if wanted.since is not None and not (yield from _is_newer(key, wanted.since)):
                continue
        except Erased:
            continue
        found.append(info)
    return found, last


def _is_newer(key: StreamKey, since: float) -> Operation[bool]:
    newest = yield from ops.read(key, limit=1, reverse=True)
    return bool(newest) and newest[0].envelope.at >= since


def _has_error(key: StreamKey, info: TaskInfo, text: str) -> Operation[bool]:
    if info.status not in _FAILED_STATUSES and not info.in_doubt:
        return False
    state = yield from load_task(key)
    wanted = text.casefold()
    return any(
        wanted in f"{failure.type}: {failure.message}".casefold()
        for failure in _list_failures(state)
    )


def _list_failures(state: TaskState) -> Iterator[Failure]:
    """Yield why a task and its unfinished steps failed, with all causes."""
    left = [task_failure(state), *(step_failure(state, path) for path, step in state.steps.items())]
    while left:
        failure = left.pop()
        if failure is not None:
            yield failure
            left += [failure.cause, *failure.group]
