"""Who says what is remembered, and who of them a model is told unasked.

An author is a name. Five of them mean something here; any other is somebody whom the program knows.
"""

from __future__ import annotations

from typing import Final

from .arguments import Authors, authors_of
from .model import MemoryFilter

MODEL: Final = "model"
"""A model, or whoever does not say who he is."""
PERSON: Final = "person"
"""Somebody at a keyboard: what `holdfast remember` stores, unless told otherwise."""
SYSTEM: Final = "system"
"""Holdfast, or your own program, in its own words."""
TOOL: Final = "tool"
"""What a tool gave, or another program said; also the text of an exception, which may quote anybody."""
WEB: Final = "web"
"""What stood on a page, in a mail, in a file of somebody else."""

OUTSIDE: Final = (TOOL, WEB)
"""Whoever writes such a text may be nobody you know. A model is told it if that is asked for, not else."""

Trust = bool | Authors
"""Whose memories a briefing may tell: True for everybody's, or only those of these authors."""


def trusted(trust: Trust) -> bool | str | tuple[str, ...]:
    """Who is trusted, as it can be kept; an error that says what is wrong with it."""
    if trust is True:
        return True
    if trust is False:
        raise TypeError(
            "trust must be True or names of authors, like ['person', 'model']; memories=0 tells none"
        )
    found = authors_of(trust, "trust")
    assert found is not None
    return found


def where_trusted(trust: Trust | None, now: float) -> MemoryFilter:
    """The memories of those who are trusted. None: of all but those from outside."""
    if trust is None:
        return MemoryFilter(now=now, without=OUTSIDE)
    found = trusted(trust)
    return MemoryFilter(now=now) if isinstance(found, bool) else MemoryFilter(now=now, author=found)
