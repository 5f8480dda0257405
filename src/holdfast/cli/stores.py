"""Open the store that a command names, and report errors in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, NoReturn

import click

import holdfast

from .. import HoldfastError, Store
from ..backends.urls import redact_url
from ..errors import NotEncrypted, NotSetUp
from ..keys import KeyLike
from .parser.declare import Argument, Option
from .text import printable

URL_FORMS = "A path, or a URL such as file:///directory or postgresql://host/database."
KEY_FORMS = "file:PATH, env:NAME, passphrase:TEXT, base64:TEXT or kms:KEY"
STORE_HELP = "The store, in place of URL. Or set HOLDFAST_URL."
KEY_HELP = f"The key of an encrypted store: {KEY_FORMS}. Repeatable."
REDACT_HELP = "Remove secrets and personal data from what the command stores."

Url = Annotated[
    str | None,
    Argument(
        metavar="URL", help=f"The store: {URL_FORMS[0].lower()}{URL_FORMS[1:]}", is_store=True
    ),
]
Tenant = Annotated[
    str, Option(metavar="NAME", envvar="HOLDFAST_TENANT", help="The tenant to work on.")
]
Json = Annotated[bool, Option("--json", help="Print JSON instead of human-readable text.")]


@dataclass
class StoreOptions:
    """The options of a command that say which store to open, and how."""

    keys: list[str] = field(default_factory=list)
    redact: bool = False
    url: str | None = None


_options = StoreOptions()


def set_store_options(keys: Sequence[str], redact: bool, url: str | None = None) -> None:
    """Set the options that were given before the command, for the stores it opens."""
    _options.keys, _options.redact, _options.url = list(keys), redact, url


def extend_store_options(keys: Sequence[str], redact: bool, url: str | None) -> str | None:
    """Add the options given after the command. Return the store that --store names, if any."""
    _options.keys += keys
    _options.redact = _options.redact or redact
    _options.url = url or _options.url
    return _options.url


def given_keys() -> list[str]:
    """Return the keys given with `--key`, or else the key in HOLDFAST_KEY."""
    value = os.environ.get("HOLDFAST_KEY")
    if _options.keys or not value:
        return list(_options.keys)
    # Pass the variable's name, so that errors mention it and not the key. HOLDFAST_KEY may itself
    # refer to another variable.
    return [value if value.startswith("env:") else "env:HOLDFAST_KEY"]


def store_url(given: str | None) -> str:
    """Return the given URL, or else HOLDFAST_URL."""
    url = given or os.environ.get("HOLDFAST_URL")
    if not url:
        raise click.UsageError("name a store, such as agents.db, or set HOLDFAST_URL")
    return url


@contextmanager
def open_store(
    url: str | None,
    tenant: str,
    *,
    create: bool = False,
    quiet: bool = False,
    key: KeyLike | None = None,
) -> Iterator[Store]:
    """Open the store. A library error inside the block becomes a line on stderr and exit code 1.

    The store is created only with `create`, and the command then says so (if `quiet`, on standard
    error). Otherwise a mistyped name would look like an empty store.
    """
    chosen = store_url(url)
    key = key or given_keys() or None
    with exit_on_error():
        reject_memory_url(chosen)
        is_new = create and not _store_exists(chosen, tenant, key)
        with holdfast.open(
            chosen, tenant=tenant, create=create, key=key, redact=_options.redact
        ) as store:
            if is_new:
                click.echo(f"created {printable(redact_url(chosen))}", err=quiet)
            yield store


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn a library error inside the block into one line on stderr and exit code 1."""
    try:
        yield
    except (HoldfastError, ValueError) as error:
        fail(str(error).replace("overwrite=True", "--overwrite"))


def _store_exists(url: str, tenant: str, key: KeyLike | None) -> bool:
    try:
        holdfast.open(url, tenant=tenant, create=False, key=key).close()
    except (NotSetUp, NotEncrypted):  # NotEncrypted: an empty store, about to be encrypted
        return False
    return True


def confirm(question: str) -> bool:
    """Ask the user for confirmation, on standard error. Without a terminal, the answer is no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        return False


def reject_memory_url(url: str) -> None:
    """Raise for memory:// URLs."""
    if url.lower().startswith("memory:"):
        raise ValueError(
            "a memory:// store exists only inside its own process; name a file or a server"
        )


def fail(message: str) -> NoReturn:
    """Print the message on stderr as one line and exit with code 1."""
    click.echo(f"holdfast: {printable(' '.join(message.split()))}", err=True)
    raise click.exceptions.Exit(1) from None
