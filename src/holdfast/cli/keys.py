"""`holdfast key`, `rekey` and `erase`: the keys of encrypted stores, and erasing data by key."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import Annotated

import click

import holdfast

from .. import HoldfastError, keys
from ..errors import MissingKey
from .operators.actor import By, choose_actor
from .parser.declare import Argument, Option, command
from .stores import (
    KEY_FORMS,
    Json,
    Tenant,
    Url,
    confirm,
    exit_on_error,
    fail,
    given_keys,
    open_store,
    store_url,
)
from .text import format_count, printable, to_json


@command("holdfast key master.key")
def key(
    path: Annotated[str, Argument(metavar="FILE", help="The file to write; it must not exist.")],
    as_json: Json = False,
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
    try:
        with os.fdopen(file, "wb") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:  # a full disk, or Ctrl-C: half a key must not look like one
        os.unlink(path)
        raise
    name = printable(path)
    if as_json:
        click.echo(to_json({"path": path, "key": f"file:{path}"}))
        return
    click.echo(f"created {name}; if you lose it, you lose everything that it encrypts")
    click.echo(
        f"use it with: holdfast --key file:{name} …, or holdfast.open(url, key='file:{name}')"
    )


@command("holdfast rekey agents.db --key file:old.key --to file:new.key")
def rekey(
    url: Url,
    to: Annotated[
        str | None, Option("--to", metavar="KEY", help=f"The new key: {KEY_FORMS}.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rotate the encryption key.

    Rewrites no record, and applications can keep running. If it is interrupted, run it again.
    """
    if not to:
        raise click.UsageError("name the new key: --to file:new.key")
    with exit_on_error():
        new = keys.parse_keys(to)
    old = given_keys()
    if not old:
        _fail_if_encrypted(url)
    with open_store(url, "default", key=[*old, *new]) as store:
        done = store.rekey(new)
    if as_json:
        click.echo(to_json(done))
        return
    click.echo(
        f"wrapped with the new key: {format_count(done.keys, 'data key')},"
        f" {done.now:,} of them by this run; {_describe_old_keys(url, old)}"
    )


def _fail_if_encrypted(url: str | None) -> None:
    """Report that the old key is missing. Opening with the new one would report a wrong key."""
    try:
        holdfast.open(store_url(url), create=False).close()
    except MissingKey:
        fail("the old key is missing: holdfast --key file:old.key rekey …, or set HOLDFAST_KEY")
    except (HoldfastError, ValueError):
        pass  # opening the store again reports it


def _describe_old_keys(url: str | None, old: Sequence[str]) -> str:
    """Describe which of the old keys still open the store. The new key may be among them."""
    usable = sum(_opens(url, key) for key in old)
    if not usable:
        return "the old key no longer opens the store"
    if usable == len(old):
        return "the key is the same as before, and still opens the store"
    return "of the given keys, only the new one opens the store"


def _opens(url: str | None, key: str) -> bool:
    try:
        holdfast.open(store_url(url), key=key, create=False).close()
    except HoldfastError:
        return False
    return True


@command(
    "holdfast erase agents.db --subject customer-7 --reason 'request of 31 January'",
    "holdfast erase agents.db --conversation support-42 --yes",
)
def erase(
    url: Url,
    conversation: Annotated[str | None, Option(metavar="ID", help="Erase a conversation.")] = None,
    task: Annotated[str | None, Option(metavar="ID", help="Erase a task.")] = None,
    memory: Annotated[
        str | None, Option(metavar="NAME", help="Erase a namespace of memories.")
    ] = None,
    state: Annotated[str | None, Option(metavar="ID", help="Erase a state document.")] = None,
    stream: Annotated[str | None, Option(metavar="ID", help="Erase a stream of events.")] = None,
    subject: Annotated[
        str | None, Option(metavar="WHO", help="Erase all data about a subject.")
    ] = None,
    reason: Annotated[
        str, Option(help="The reason to record in the audit stream.")
    ] = "erased at the command line",
    by: By = None,
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Erase data by destroying its keys (crypto-shredding).

    Works in encrypted stores. The data can no longer be read. Earlier backups still contain the
    keys.
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
        raise click.UsageError(
            "name one thing to erase: --conversation, --task, --memory, --state, --stream or"
            " --subject"
        )
    what = (
        f"all data about {subject!r}" if subject is not None else f"{chosen[0][0]} {chosen[0][1]!r}"
    )
    with open_store(url, tenant) as store:
        if not yes and not confirm(f"erase {printable(what)} permanently?"):
            fail("nothing was erased; use --yes to skip the confirmation")
        if subject is not None:
            done = store.erase(subject=subject, reason=reason, by=choose_actor(by))
        else:
            kind, name = chosen[0]
            done = store.erase(getattr(store, kind)(name), reason=reason, by=choose_actor(by))
    if as_json:
        click.echo(to_json(done))
        return
    for kind, name in done.streams:
        click.echo(f"erased {kind} {printable(name)}")
    for name in done.memories:
        click.echo(f"erased the memories about it in {printable(name)}")
    if not done.streams and not done.memories:
        click.echo(
            f"nothing to erase: tenant {printable(repr(tenant))} has no data about subject"
            f" {printable(repr(subject))}; check the names, unless it was erased before"
        )
