"""`holdfast key`, `holdfast rekey` and `holdfast erase`: keys of encrypted stores, and what only those can do."""

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
from ..errors import InvalidKey, MissingKey
from .stores import Tenant, Url, agreed, failed, key_given, opened, store_url
from .text import counted, printable

KEYS = "file:PATH, env:NAME, passphrase:TEXT, base64:TEXT or kms:KEY"


def key(
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write; there must be none yet.")
    ],
) -> None:
    """Make a new key: 32 random bytes, as text, in a file that only its owner can read. Keep a copy of it where the store is not."""
    text = base64.b64encode(keys.generate()) + b"\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise failed(
            f"{path} is there already, and may be the only key to something; name another file"
        ) from None
    except OSError as error:
        raise failed(f"{path} cannot be written ({error.strerror})") from None
    with os.fdopen(file, "wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    typer.echo(f"made {printable(path)}; whoever loses it loses what it encrypts")
    typer.echo(
        f"use it with: holdfast --key file:{printable(path)} …, or holdfast.open(url, key='file:{printable(path)}')"
    )


def rekey(
    url: Url = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="KEY", help=f"The new key: {KEYS}.", show_default=False),
    ] = None,
) -> None:
    """Give an encrypted store a new key. No record is rewritten, and programs go on meanwhile. Interrupted, run it again."""
    if not to:
        raise typer.BadParameter("say which key it is to have: --to file:new.key")
    try:
        new = keys.given(to)
    except InvalidKey as error:
        raise failed(str(error)) from None
    old = key_given()
    if not old:
        _refuse_encrypted(url)
    with opened(url, "default", key=[*old, *new]) as store:
        done = store.rekey(new)
    typer.echo(
        f"wrapped by the new key: {counted(done.keys, 'data key')}, {done.now:,} by this run; {_what_opens(url, old)}"
    )


def _refuse_encrypted(url: str | None) -> None:
    """Without the old key: otherwise the new one would be called wrong, which it is not."""
    try:
        holdfast.open(store_url(url), create=False).close()
    except MissingKey:
        raise failed(
            "the old key is missing: holdfast --key file:old.key rekey …, or set HOLDFAST_KEY"
        ) from None
    except (HoldfastError, ValueError):
        pass  # whoever opens it next says so


def _what_opens(url: str | None, old: Sequence[str]) -> str:
    """What the keys that were given before the command are good for now. They are tried: the new one may be among them."""
    good = sum(_opens(url, key) for key in old)
    if not good:
        return "the old key opens the store no more"
    if good == len(old):
        return "it is the same key as before, and still opens the store"
    return "of the keys that were given before, only the new one opens the store"


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
        str | None, typer.Option(metavar="ID", help="Erase a document.", show_default=False)
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="ID", help="Erase a stream of events.", show_default=False)
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Erase all that is about a subject.", show_default=False),
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Why; kept in the audit stream.")
    ] = "erased at the command line",
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHO", help="Who erases; kept in the audit stream.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    tenant: Tenant = "default",
) -> None:
    """Destroy the keys of something in an encrypted store: there nobody can read it any more. A backup from before has them still."""
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
            "say what to erase, one thing: --conversation, --task, --memory, --state, --stream or --subject"
        )
    what = (
        f"all that is about {subject!r}"
        if subject is not None
        else f"{chosen[0][0]} {chosen[0][1]!r}"
    )
    with opened(url, tenant) as store:
        if not yes and not agreed(f"erase {printable(what)} for good?"):
            raise failed("nothing was erased; say --yes to erase without being asked")
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
        typer.echo(f"erased what memory {printable(name)} had")
    if not done.streams and not done.memories:
        typer.echo(
            f"there was nothing to erase: tenant {printable(repr(tenant))} has nothing about subject {printable(repr(subject))};"
            " check the names, unless it was erased before"
        )
