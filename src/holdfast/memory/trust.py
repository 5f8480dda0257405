"""Authors of memories, and whose memories a model is shown by default.

An author is a name. Five names have a meaning for Holdfast; any other is up to your application.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .arguments import Authors, check_authors
from .model import MemoryFilter

MODEL: Final = "model"
"""A model, or an unspecified author."""
PERSON: Final = "person"
"""A person at a keyboard: the default of `holdfast remember`."""
SYSTEM: Final = "system"
"""Holdfast or your application."""
TOOL: Final = "tool"
"""A tool or another program; also the text of an exception, which may quote anything."""
WEB: Final = "web"
"""A web page, a mail, or a file from outside."""

OUTSIDE_AUTHORS: Final = (TOOL, WEB)
"""Their texts may have been written by strangers, so a model is shown them only on request."""

Trust = bool | Authors
"""Whose memories a resume context may show: True for everyone's, or the names of authors."""


def check_trust(trust: Trust) -> bool | str | tuple[str, ...]:
    """Check `trust` and return it in a form that can be stored."""
    if trust is True:
        return True
    if trust is False:
        raise TypeError(
            "trust must be True or names of authors, like ['person', 'model'], got False;"
            " to show no memories, use memories=0"
        )
    authors = check_authors(trust, "trust")
    assert authors is not None
    return authors


def build_trust_filter(trust: Trust | None, subject: str | None, now: float) -> MemoryFilter:
    """Return the filter for trusted memories that a task about `subject` may quote.

    If `trust` is None, memories by `OUTSIDE_AUTHORS` are excluded.
    """
    where = MemoryFilter(now=now, visible_to=subject)
    if trust is None:
        return msgspec.structs.replace(where, without=OUTSIDE_AUTHORS)
    authors = check_trust(trust)
    if isinstance(authors, bool):
        return where
    return msgspec.structs.replace(where, author=authors)
