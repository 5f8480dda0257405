"""`holdfast key`, `rekey` and `erase`: the keys of encrypted stores, and erasing data by key."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated

import typer

import holdfast

from .. import HoldfastError, keys
from ..errors import MissingKey
from .stores import Tenant, Url, confirm, exit_on_error, fail, given_keys, open_store, store_url
from .text import format_count, printable

KEY_FORMS = "file:PATH, env:NAME, passphrase:TEXT, base64:TEXT or kms:KEY"


def key(
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")
    ],
) -> None:
    """Generate a key file.

    Writes 32 random bytes as text to a file that only its owner can read. Keep a copy of it away
    from the store.
    """
    text = base64.b64encode(keys.generate()) + b"\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        fail(f"{path} exists, and may be the only copy of a key; name another file")
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror})")
    with os.fdopen(file, "wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    name = printable(path)
    typer.echo(f"created {name}; if you lose it, you lose everything that it encrypts")
    typer.echo(
        f"use it with: holdfast --key file:{name} …, or holdfast.open(url, key='file:{name}')"
    )


def rekey(
    url: Url = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="KEY", help=f"The new key: {KEY_FORMS}.", show_default=False),
    ] = None,
) -> None:
    """Rotate the encryption key.

    Rewrites no record, and applications can keep running. If it is interrupted, run it again.
    """
    if not to:
        raise typer.BadParameter("name the new key: --to file:new.key")
    with exit_on_error():
        new = keys.parse_keys(to)
    old = given_keys()
    if not old:
        _fail_if_encrypted(url)
    with open_store(url, "default", key=[*old, *new]) as store:
        done = store.rekey(new)
    typer.echo(
        f"wrapped by the new key: {format_count(done.keys, 'data key')},"
        f" {done.now:,} by this run; {_describe_old_keys(url, old)}"
    )


def _fail_if_encrypted(url: str | None) -> None:
    """Report that the old key is missing; opening with the new one would report a wrong key."""
    try:
        holdfast.open(store_url(url), create=False).close()
    except MissingKey:
        fail("the old key is missing: holdfast --key file:old.key rekey …, or set HOLDFAST_KEY")
    except (HoldfastError, ValueError):
        pass  # opening the store again reports it


def _describe_old_keys(url: str | None, old: Sequence[str]) -> str:
    """Say which of the old keys still open the store. The new key may be among them."""
    usable = sum(_opens(url, key) for key in old)
    if not usable:
        return "the old key no longer opens the store"
    if usable == len(old):
        return "the key is the same as before, and still opens the store"
    return "of the keys given before, only the new one opens the store"


def _opens(url: str | None, key: str) -> bool:
    try:
        holdfast.open(store_url(url), key=key, create=False).close()
    except HoldfastError:
        return False
    return True


def erase(
    url: Url = None,
    conversation: Annotated[
        str | None, typer.Option(metavar="ID", help="Erase a conversation.", show_default=False)
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="ID", help="Erase a task.", show_default=False)
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Erase a namespace of memories.", show_default=False),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="ID", help="Erase a state document.", show_default=False)
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="ID", help="Erase a stream of events.", show_default=False)
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Erase all data about a subject.", show_default=False),
    ] = None,
    reason: Annotated[
        str, typer.Option(help="The reason to record in the audit stream.")
    ] = "erased at the command line",
    by: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Who erases, for the audit stream.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    tenant: Tenant = "default",
) -> None:
    """Crypto-shred a subject's data.

    Destroys the keys of some data in an encrypted store, which makes it unreadable. An earlier
    backup still contains the keys.
    """
    given = {
        "conversation": conversation,
        "task": task,
        "memory": memory,
        "state": state,
        "stream": stream,
    }
    chosen = [(kind, name) for kind, name in given.items() if name is not None]
    if len(chosen) + (subject is not None) != 1:
        raise typer.BadParameter(
            "name one thing to erase: --conversation, --task, --memory, --state, --stream or"
            " --subject"
        )
    what = (
        f"all data about {subject!r}" if subject is not None else f"{chosen[0][0]} {chosen[0][1]!r}"
    )
    with open_store(url, tenant) as store:
        if not yes and not confirm(f"erase {printable(what)} permanently?"):
            fail("nothing was erased; use --yes to skip the confirmation")
        with (
            nullcontext()
            if by is None
            else holdfast.correlate(f"erase-{secrets.token_hex(8)}", actor=by)
        ):
            if subject is not None:
                done = store.erase(subject=subject, reason=reason)
            else:
                kind, name = chosen[0]
                done = store.erase(getattr(store, kind)(name), reason=reason)
    for kind, name in done.streams:
        typer.echo(f"erased {kind} {printable(name)}")
    for name in done.memories:
        typer.echo(f"erased the memories about it in {printable(name)}")
    if not done.streams and not done.memories:
        typer.echo(
            f"nothing to erase: tenant {printable(repr(tenant))} has no data about subject"
            f" {printable(repr(subject))}; check the names, unless it was erased before"
        )
