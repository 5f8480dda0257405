"""Open the store that a command names, and report errors in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

import holdfast

from .. import HoldfastError, Store
from ..backends.urls import redact_url
from ..errors import NotEncrypted, NotSetUp
from ..keys import KeyLike
from .text import printable

URL_FORMS = "A path, or a URL such as file:///directory or postgresql://host/database."
Url = Annotated[
    str | None,
    typer.Argument(
        metavar="URL", help=f"The store. {URL_FORMS} Or set HOLDFAST_URL.", show_default=False
    ),
]
Tenant = Annotated[
    str, typer.Option(metavar="NAME", envvar="HOLDFAST_TENANT", help="The tenant to work on.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of human-readable text.")]

_keys: list[str] = []
_redact: list[bool] = [False]


def set_store_options(keys: Sequence[str], redact: bool) -> None:
    """Keep the options that were given before the command, for the stores it opens."""
    _keys[:] = keys
    _redact[:] = [redact]


def given_keys() -> list[str]:
    """Return the keys given with `--key`, or else the key in HOLDFAST_KEY."""
    value = os.environ.get("HOLDFAST_KEY")
    if _keys or not value:
        return list(_keys)
    # Pass the variable's name, so that errors mention it and not the key. HOLDFAST_KEY may itself
    # refer to another variable.
    return [value if value.startswith("env:") else "env:HOLDFAST_KEY"]


def store_url(given: str | None) -> str:
    """Return the given URL, or else HOLDFAST_URL."""
    url = given or os.environ.get("HOLDFAST_URL")
    if not url:
        raise typer.BadParameter("name a store, such as agents.db, or set HOLDFAST_URL")
    return url


def split_url(url: str | None, name: str | None, usage: str) -> tuple[str | None, str]:
    """Return the store's URL and a name in it. A single argument is the name, with HOLDFAST_URL."""
    if name is None:
        url, name = None, url
    if name is None or (url is None and not os.environ.get("HOLDFAST_URL")):
        raise typer.BadParameter(usage)
    return url, name


def split_names(names: list[str], count: int, usage: str) -> tuple[Any, ...]:
    """Return the store's URL, or None if it is left out, and then `count` names."""
    if len(names) not in (count, count + 1):
        raise typer.BadParameter(f"wrong number of arguments; usage: {usage}")
    return tuple([None, *names][-count - 1 :])


@contextmanager
def open_store(
    url: str | None, tenant: str, *, create: bool = False, key: KeyLike | None = None
) -> Iterator[Store]:
    """Open the store. A library error inside the block is one line on stderr and exit code 1.

    The store is only created with `create`, and the command prints that: otherwise a mistyped name
    would look like an empty store.
    """
    chosen = store_url(url)
    key = key or given_keys() or None
    with exit_on_error():
        reject_memory_url(chosen)
        is_new = create and not _store_exists(chosen, tenant, key)
        with holdfast.open(
            chosen, tenant=tenant, create=create, key=key, redact=_redact[0]
        ) as store:
            if is_new:
                typer.echo(f"created {printable(redact_url(chosen))}")
            yield store


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn a library error inside the block into one line on stderr and exit code 1."""
    try:
        yield
    except (HoldfastError, ValueError) as error:
        fail(str(error))


def _store_exists(url: str, tenant: str, key: KeyLike | None) -> bool:
    try:
        holdfast.open(url, tenant=tenant, create=False, key=key).close()
    except (NotSetUp, NotEncrypted):  # NotEncrypted: an empty store, about to be encrypted
        return False
    return True


def confirm(question: str) -> bool:
    """Ask the user for confirmation; without a terminal the answer is no."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        return False


def reject_memory_url(url: str) -> None:
    """Raise for memory:// URLs."""
    if url.lower().startswith("memory:"):
        raise ValueError(
            "a memory:// store exists only inside its own process; name a file or a server"
        )


def fail(message: str) -> NoReturn:
    """Print the message on stderr as one line and exit with code 1."""
    typer.echo(f"holdfast: {printable(' '.join(message.split()))}", err=True)
    raise typer.Exit(1) from None
