"""Naming and opening the store that a command looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

import holdfast
from holdfast import HoldfastError, Store

from ._text import printable

_URL = "The store: a path, sqlite:///agents.db or file:///directory. Or set HOLDFAST_URL."
Url = Annotated[str | None, typer.Argument(metavar="URL", help=_URL, show_default=False)]
Tenant = Annotated[str, typer.Option(metavar="NAME", envvar="HOLDFAST_TENANT", help="Whose streams to look at.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text for people.")]


def _url(given: str | None) -> str:
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
def opened(url: str | None, tenant: str, *, create: bool = False) -> Iterator[Store]:
    """The open store; an error of the library, in here, is one line on stderr and exit code 1.

    Looking at a store must not make one: a mistyped path would look like an empty store. With `create` it may, and says so.
    """
    chosen = _url(url)
    try:
        missing = _missing(chosen)
        if missing and not create:
            raise ValueError(f"there is no store at {missing}; check the path")
        with holdfast.open(chosen, tenant=tenant) as store:
            if missing:
                typer.echo(f"made {printable(missing)}")
            yield store
    except (HoldfastError, ValueError) as error:
        raise failed(str(error)) from None


def _missing(url: str) -> str | None:
    """The path of a store that is not there yet."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise ValueError("a memory:// store lives inside its process and cannot be seen from here; name a file")
    path = url
    if parts.scheme in ("sqlite", "file") and not parts.netloc:
        path = unquote(parts.path[1:] if parts.scheme == "sqlite" else parts.path)
    elif "://" in url:
        return None  # open() says what a URL is
    marker = os.path.join(path, "holdfast.json") if parts.scheme == "file" else path
    return path if path and (not os.path.exists(marker) or os.path.getsize(marker) == 0) else None


def failed(message: str) -> typer.Exit:
    typer.echo(f"holdfast: {printable(' '.join(message.split()))}", err=True)
    return typer.Exit(1)
