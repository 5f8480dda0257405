"""`holdfast encrypt` and `holdfast decrypt`: copy a store to an encrypted or unencrypted one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import typer

import holdfast

from ..backends.urls import redact_url
from .keys import KEY_FORMS
from .stores import URL_FORMS, exit_on_error, given_keys, reject_memory_url
from .text import format_count, printable

if TYPE_CHECKING:
    from ..types import ConvertResult

Src = Annotated[str, typer.Argument(metavar="SRC", help=f"The store to read. {URL_FORMS}")]
Dst = Annotated[
    str, typer.Argument(metavar="DST", help="The store to write; created if it does not exist.")
]


def encrypt(
    src: Src,
    dst: Dst,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="KEY", help=f"The key: {KEY_FORMS}.", show_default=False),
    ] = None,
) -> None:
    """Copy a store to an encrypted one.

    If it is interrupted, run it again to continue.
    """
    if not to:
        raise typer.BadParameter("name the key: --to file:new.key")
    with exit_on_error():
        _check_places(src, dst)
        result = holdfast.encrypt(src, dst, key=to)
    typer.echo(_summary(result, dst))
    typer.echo(
        f"{printable(redact_url(src))} still exists, unencrypted: delete it and its backups when"
        " you have checked the copy"
    )


def decrypt(src: Src, dst: Dst) -> None:
    """Copy a store to an unencrypted one.

    If it is interrupted, run it again to continue.
    """
    with exit_on_error():
        _check_places(src, dst)
        result = holdfast.decrypt(src, dst, key=given_keys() or None)
    typer.echo(_summary(result, dst))


def _check_places(src: str, dst: str) -> None:
    reject_memory_url(src)
    reject_memory_url(dst)
    if src == dst or (
        os.path.exists(_path(src)) and os.path.realpath(_path(src)) == os.path.realpath(_path(dst))
    ):
        raise ValueError(
            "SRC and DST are the same place; a store is not rewritten in place, name a new one"
        )


def _path(url: str) -> str:
    """Return the path of a store that has files; other URLs are returned as they are."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return url
    place = unquote(rest.partition("?")[0])
    return {"sqlite": place[1:], "file": place}.get(scheme.lower(), url)


def _summary(result: ConvertResult, dst: str) -> str:
    text = (
        f"wrote {format_count(result.streams, 'stream')}, {format_count(result.records, 'record')}"
        f" to {printable(redact_url(dst))} and verified them"
    )
    if result.skipped:
        text += f"; {format_count(result.skipped, 'stream')} already there"
    if result.erased:
        text += f"; {format_count(result.erased, 'stream')} erased and left out"
    return text
