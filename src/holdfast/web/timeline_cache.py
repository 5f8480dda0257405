"""Timelines of the tasks that pages show, kept so that a change costs only the new events."""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import datetime, timezone
from typing import Final

from .. import Event, Store, TaskView
from ..backends import StreamKey
from ..log import operations as ops
from ..log.ids import stream_key
from ..log.operations import Operation
from ..log.operations.stream_ops import load_data
from .savings import Savings, count_savings
from .timeline import Timeline, TimelineBuilder

MAX_STEPS: Final = 100_000
"""How many steps the kept timelines have in all. They have no content, only paths and times."""


class TimelineCache:
    """The timelines of the tasks that were shown last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[datetime, TimelineBuilder]] = OrderedDict()

    def read(self, view: TaskView, *, past: bool) -> tuple[Timeline, Savings]:
        """Return the timeline of a task up to the version of a view, and what it has saved."""
        ended = view.status in ("finished", "cancelled")
        now = view.updated_at if ended or past else datetime.now(timezone.utc)
        if past:
            timeline = self._add_events(TimelineBuilder(), view).finish(now)
        else:
            with self._lock:
                timeline = self._update(view).finish(now, abandoned=view.abandoned)
        return timeline, count_savings(view, timeline)

    def _update(self, view: TaskView) -> TimelineBuilder:
        """Return the builder of a task, with all events up to the view's."""
        created, builder = self._kept.pop(view.id, (None, TimelineBuilder()))
        if created != view.created_at or builder.version > view.version:
            builder = TimelineBuilder()  # another incarnation of the task
        self._kept[view.id] = view.created_at, self._add_events(builder, view)
        while sum(len(kept.steps) for _, kept in self._kept.values()) > MAX_STEPS:
            self._kept.popitem(last=False)
        return builder

    def _add_events(self, builder: TimelineBuilder, view: TaskView) -> TimelineBuilder:
        key = stream_key(self._store.tenant, "task", view.id)
        ops.run(self._store._log, _add_events(builder, key, view.version))
        return builder


def _add_events(builder: TimelineBuilder, key: StreamKey, upto: int) -> Operation[None]:
    """Add the events of a task that a builder lacks, up to a version.

    A reply that is a message of a conversation is not loaded: the timeline has no content.
    """
    while builder.version < upto:
        page = yield from ops.read(
            key, after=builder.version, limit=upto - builder.version, decoded=True
        )
        if not page:
            return  # it was deleted in the meantime
        for stored in page:
            envelope, data = stored.envelope, (yield from load_data(key, stored))
            builder.add(
                Event(stored.version, envelope.id, envelope.type, data, envelope.at, envelope.by)
            )
