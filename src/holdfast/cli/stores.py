"""Naming and opening the store that a command looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

import holdfast

from .. import HoldfastError, Store
from ..backends.urls import shown_url
from ..errors import NotEncrypted, NotSetUp
from ..keys import KeyLike
from .text import printable

URLS = "A path, or a URL like file:///directory or postgresql://host/database. Or set HOLDFAST_URL."
Url = Annotated[
    str | None, typer.Argument(metavar="URL", help=f"The store. {URLS}", show_default=False)
]
Tenant = Annotated[
    str, typer.Option(metavar="NAME", envvar="HOLDFAST_TENANT", help="Whose streams to look at.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text for people.")]


_keys: list[str] = []
_redacting: list[bool] = [False]


def use_keys(given: Sequence[str]) -> None:
    """The keys that were given before the command."""
    _keys[:] = given


def use_redaction(wanted: bool) -> None:
    """Whether what a command stores is redacted."""
    _redacting[:] = [wanted]


def key_given() -> list[str]:
    """The keys to open a store with: those that were given, or that of the environment."""
    told = os.environ.get("HOLDFAST_KEY")
    if _keys or not told:
        return list(_keys)
    # By its name, so that what is said of it names it; but one that names another variable stands for that one.
    return [told if told.startswith("env:") else "env:HOLDFAST_KEY"]


def store_url(given: str | None) -> str:
    """The store that is named, or that of the environment."""
    url = given or os.environ.get("HOLDFAST_URL")
    if not url:
        raise typer.BadParameter("name a store, like agents.db, or set HOLDFAST_URL")
    return url


def named(url: str | None, name: str | None, usage: str) -> tuple[str | None, str]:
    """The store and the name of something in it. With one of them, it is the name: the environment names the store."""
    if name is None:
        url, name = None, url
    if name is None or (url is None and not os.environ.get("HOLDFAST_URL")):
        raise typer.BadParameter(usage)
    return url, name


@contextmanager
def opened(
    url: str | None, tenant: str, *, create: bool = False, key: KeyLike | None = None
) -> Iterator[Store]:
    """The open store; an error of the library, in here, is one line on stderr and exit code 1.

    Looking at a store must not make one: a mistyped name would look like an empty store. With `create` it may, and says so.
    """
    chosen = store_url(url)
    key = key or key_given() or None
    try:
        refuse_memory(chosen)
        is_new = create and not _is_there(chosen, tenant, key)
        with holdfast.open(
            chosen, tenant=tenant, create=create, key=key, redact=_redacting[0]
        ) as store:
            if is_new:
                typer.echo(f"made {printable(shown_url(chosen))}")
            yield store
    except (HoldfastError, ValueError) as error:
        raise failed(str(error)) from None


def _is_there(url: str, tenant: str, key: KeyLike | None) -> bool:
    try:
        holdfast.open(url, tenant=tenant, create=False, key=key).close()
    except (NotSetUp, NotEncrypted):  # with a key, a store that is empty is as good as none
        return False
    return True


def agreed(question: str) -> bool:
    """Whether somebody says yes."""
    try:
        return typer.confirm(question)
    except typer.Abort:  # nobody is there to answer
        return False


def refuse_memory(url: str) -> None:
    if url.lower().startswith("memory:"):
        raise ValueError(
            "a memory:// store lives inside its process and cannot be seen from here; name a file"
        )


def failed(message: str) -> typer.Exit:
    typer.echo(f"holdfast: {printable(' '.join(message.split()))}", err=True)
    return typer.Exit(1)
