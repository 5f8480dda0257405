"""What a run is doing: its step in the task's label, and reports of what takes too long."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ...backends import StreamKey, clock
from ...errors import HoldfastError
from ...log import operations as ops
from ...log.events import AppendContext, new_append_context
from ...log.operations import Operation
from ...log.operations.stream_ops import append_events
from ..state import events as ev
from ..state.load import StepLabel, encode_lingering

if TYPE_CHECKING:
    from ..steps.progress import StepRun
    from .session import Session

LINGER_SECONDS: Final = 30.0
"""How long the steps of a cancelled task may keep running before that is reported."""
MAX_PATH_CHARACTERS: Final = 200

logger = logging.getLogger("holdfast")


def describe_step(runs: Sequence[StepRun]) -> StepLabel | None:
    """Return the running step for the task's label: the most overdue one, or else the newest."""
    if not runs:
        return None
    _, _, _, run = max(
        (max(run.seconds_overdue(), 0.0), run.since, place, run) for place, run in enumerate(runs)
    )
    done, total = run.last_progress()
    return StepLabel(run.path[:MAX_PATH_CHARACTERS], run.since, done, total, run.expect)


def report_overdue(task: StreamKey, runs: Iterable[StepRun]) -> bool:
    """Log each step that runs longer than expected, once. Return whether there was a new one."""
    found = False
    for run in runs:
        expect = run.expect
        if expect is not None and not run.is_reported and run.seconds_overdue() > 0:
            run.is_reported = found = True
            logger.warning(
                "step %r of %s has been running for %s s; it was expected to take %s s",
                run.path,
                task,
                _format_seconds(clock.time() - run.since),
                _format_seconds(expect),
            )
    return found


def _format_seconds(seconds: float) -> str:
    """Return whole seconds, or three digits of what is less than ten seconds."""
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.3g}"


def report_lingering(session: Session) -> None:
    """Log and record, once, that a task was cancelled a while ago and its steps still run."""
    cancelled = session.state.cancelled
    if cancelled is None or session.was_ended or session.block.lingers:
        return
    seconds = session.now() - cancelled[0]
    with session.lock:
        steps = list(session.steps.running)
    if seconds < LINGER_SECONDS or not steps:
        return
    session.block.lingers = True
    logger.warning(
        "%s was cancelled %.0f s ago, and this process still runs its step %r",
        session.key,
        seconds,
        steps[-1],
    )
    stamp = new_append_context()
    owner = session.lease.owner
    ops.run_until_settled(
        session.log, lambda: record_lingering(session.key, session.incarnation, owner, steps, stamp)
    )


def record_lingering(
    key: StreamKey, incarnation: bytes, owner: str, steps: list[str], stamp: AppendContext
) -> Operation[None]:
    """Record which steps of a cancelled task a process still runs; none: it has ended."""
    head = yield from ops.head(key)
    if head is None or head.incarnation != incarnation or head.fields.status != "cancelled":
        return
    label = encode_lingering(head, owner if steps else None)
    yield from append_events(
        key,
        [ev.new_event(ev.LINGERED, ev.Lingered(owner, steps))],
        stamp,
        expected=head.version,
        fields=msgspec.structs.replace(head.fields, label=label),
        incarnation=incarnation,
    )


def record_refused_write(
    key: StreamKey, incarnation: bytes, owner: str, steps: list[str]
) -> Operation[None]:
    """Record that a write of a process that has lost the lease came too late."""
    event = ev.new_event(ev.WRITE_REFUSED, ev.WriteRefused(owner, steps))
    try:
        yield from append_events(key, [event], new_append_context(), incarnation=incarnation)
    except HoldfastError as error:  # only the record is lost
        logger.info("could not record a late write of %s (%s)", key, type(error).__name__)
