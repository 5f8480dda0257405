"""The name that a command records with what it does: `--by`."""

from __future__ import annotations

import getpass
from typing import Annotated

from ..parser.declare import Option

By = Annotated[
    str | None,
    Option(
        "--by",
        metavar="NAME",
        help="The name to record, for `holdfast audit`.",
        default_text="the login user",
    ),
]


def choose_actor(by: str | None) -> str | None:
    """Return the given name, or the login user's; None if there is none, as in some containers."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
