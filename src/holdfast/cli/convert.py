"""`holdfast encrypt` and `holdfast decrypt`: copy a store to an encrypted or unencrypted one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import click

import holdfast

from ..backends.urls import redact_url
from .parser.declare import Argument, Option, command
from .stores import KEY_FORMS, URL_FORMS, Json, exit_on_error, given_keys, reject_memory_url
from .text import format_count, printable, to_json

if TYPE_CHECKING:
    from ..types import ConvertResult

Src = Annotated[str, Argument(metavar="SRC", help=f"The store to read. {URL_FORMS}")]
Dst = Annotated[str, Argument(metavar="DST", help="The store to write; created if needed.")]


@command("holdfast encrypt agents.db encrypted.db --to file:master.key")
def encrypt(
    src: Src,
    dst: Dst,
    to: Annotated[str | None, Option("--to", metavar="KEY", help=f"The key: {KEY_FORMS}.")] = None,
    as_json: Json = False,
) -> None:
    """Copy a store to an encrypted one.

    If it is interrupted, run it again to continue.
    """
    if not to:
        raise click.UsageError("name the key: --to file:new.key")
    with exit_on_error():
        _check_places(src, dst)
        result = holdfast.encrypt(src, dst, key=to)
    click.echo(_summary(result, dst, as_json))
    click.echo(
        f"{printable(redact_url(src))} still exists, unencrypted: delete it and its backups when"
        " you have checked the copy",
        err=as_json,
    )


@command("holdfast decrypt encrypted.db agents.db --key file:master.key")
def decrypt(src: Src, dst: Dst, as_json: Json = False) -> None:
    """Copy a store to an unencrypted one.

    If it is interrupted, run it again to continue.
    """
    with exit_on_error():
        _check_places(src, dst)
        result = holdfast.decrypt(src, dst, key=given_keys() or None)
    click.echo(_summary(result, dst, as_json))


def _check_places(src: str, dst: str) -> None:
    reject_memory_url(src)
    reject_memory_url(dst)
    if src == dst or (
        os.path.exists(_path(src)) and os.path.realpath(_path(src)) == os.path.realpath(_path(dst))
    ):
        raise ValueError(
            "SRC and DST must be different stores, because a store is not rewritten in place;"
            " name a new one"
        )


def _path(url: str) -> str:
    """Return the path of a store that is a file or a directory; return other URLs unchanged."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return url
    place = unquote(rest.partition("?")[0])
    return {"sqlite": place[1:], "file": place}.get(scheme.lower(), url)


def _summary(result: ConvertResult, dst: str, as_json: bool) -> str:
    if as_json:
        return to_json(result)
    text = (
        f"wrote {format_count(result.streams, 'stream')}, {format_count(result.records, 'record')}"
        f" to {printable(redact_url(dst))} and verified them"
    )
    if result.skipped:
        text += f"; {format_count(result.skipped, 'stream')} already there"
    if result.erased:
        text += f"; {format_count(result.erased, 'stream')} erased and left out"
    return text
