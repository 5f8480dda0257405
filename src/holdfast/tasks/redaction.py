"""Which parts of a task's events hold content, and those events without what is to be redacted.

Ids, names, paths and fingerprints stay as they are: they tell what belongs to what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from .state import events as ev

if TYPE_CHECKING:
    from ..redact import Redactor

CONTENT: Final[dict[type[msgspec.Struct], tuple[str, ...]]] = {
    ev.Created: ("goal", "input"),
    ev.Planned: ("items",),
    ev.Noted: ("text", "why"),
    ev.Recalled: ("texts",),
    ev.Asked: ("question", "payload"),
    ev.Answered: ("value",),
    ev.Signalled: ("payload",),
    ev.Failed: ("type", "message"),
    ev.Cancelled: ("reason",),
    ev.Finished: ("result",),
    ev.StepEvent: ("error", "message", "cursor", "model_input", "result"),
    ev.ModelInputPart: ("text",),
}
"""What a holder or anybody else may have put there. All other fields are ours, or names."""


def without_secrets(redactor: Redactor, event: ev.TaskEvent) -> ev.TaskEvent:
    """The event as it is to be stored; itself, if there is nothing to redact."""
    changed: dict[str, Any] = {}
    for name in CONTENT.get(type(event), ()):
        before = getattr(event, name)
        after = _without(redactor, before)
        if after is not before:
            changed[name] = after
    return msgspec.structs.replace(event, **changed) if changed else event


def _without(redactor: Redactor, part: Any) -> Any:
    if type(part) is msgspec.Raw:
        raw = bytes(part)
        new = redactor.json(raw) if raw not in (b"", b"null") else raw
        return part if new is raw else msgspec.Raw(new)
    if type(part) is tuple:  # what a model saw
        seen = tuple(without_secrets(redactor, one) for one in part)
        return part if all(one is other for one, other in zip(part, seen, strict=True)) else seen
    return part if part is None else redactor.value(part)
