"""Redact the content of a task's events. Ids, names, paths and fingerprints stay unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from .state import events as ev

if TYPE_CHECKING:
    from ..redact import Redactor

CONTENT: Final[dict[type[msgspec.Struct], tuple[str, ...]]] = {
    ev.Created: ("goal", "input"),
    ev.Branched: ("input",),
    ev.Planned: ("items",),
    ev.Noted: ("text", "why"),
    ev.Recalled: ("texts",),
    ev.Asked: ("question", "payload"),
    ev.Answered: ("value",),
    ev.Signalled: ("payload",),
    ev.Failed: ("type", "message", "trace"),
    ev.Cancelled: ("reason",),
    ev.Finished: ("result",),
    ev.StepEvent: (
        *("arguments", "error", "message", "trace", "check", "cursor", "model_input", "result"),
    ),
    ev.ModelInputPart: ("text",),
}
"""The fields that hold content of users or models. Holdfast itself writes all others."""


def redact_event(redactor: Redactor, event: ev.TaskEvent) -> ev.TaskEvent:
    """Return the event without secrets; the same object if there is nothing to redact."""
    changed: dict[str, Any] = {}
    for name in CONTENT.get(type(event), ()):
        before = getattr(event, name)
        after = _redact_part(redactor, before)
        if after is not before:
            changed[name] = after
    return msgspec.structs.replace(event, **changed) if changed else event


def _redact_part(redactor: Redactor, part: Any) -> Any:
    if type(part) is msgspec.Raw:
        raw = bytes(part)
        new = redactor.json(raw) if raw not in (b"", b"null") else raw
        return part if new is raw else msgspec.Raw(new)
    if type(part) is tuple:  # the input of a model
        seen = tuple(redact_event(redactor, one) for one in part)
        return part if all(one is other for one, other in zip(part, seen, strict=True)) else seen
    if part is None or type(part) is ev.Trace:  # a trace is redacted when it is captured
        return part
    return redactor.value(part)
