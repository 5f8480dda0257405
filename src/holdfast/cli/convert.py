"""`holdfast encrypt` and `holdfast decrypt`: a store in clear becomes an encrypted one, and the reverse."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import typer

import holdfast

from .. import HoldfastError
from ..backends.urls import shown_url
from .keys import KEYS
from .stores import failed, key_given, refuse_memory
from .text import counted, printable

if TYPE_CHECKING:
    from ..types import ConvertResult

_PLACES = "A path, or a URL like file:///directory or postgresql://host/database."
Src = Annotated[str, typer.Argument(metavar="SRC", help=f"The store to read. {_PLACES}")]
Dst = Annotated[
    str, typer.Argument(metavar="DST", help="The store to write; made if it is not there.")
]


def encrypt(
    src: Src,
    dst: Dst,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="KEY", help=f"The key: {KEYS}.", show_default=False),
    ] = None,
) -> None:
    """Write a store that is in clear to another place, encrypted. Interrupted, run it again: it goes on."""
    if not to:
        raise typer.BadParameter("say with which key: --to file:new.key")
    try:
        _refuse(src, dst)
        done = holdfast.encrypt(src, dst, key=to)
    except (HoldfastError, ValueError) as error:
        raise failed(str(error)) from None
    typer.echo(_summary(done, dst))
    typer.echo(
        f"{printable(shown_url(src))} is still there, in clear: delete it, and its backups, when the copy works"
    )


def decrypt(src: Src, dst: Dst) -> None:
    """Write an encrypted store to another place, in clear. Interrupted, run it again: it goes on."""
    try:
        _refuse(src, dst)
        done = holdfast.decrypt(src, dst, key=key_given() or None)
    except (HoldfastError, ValueError) as error:
        raise failed(str(error)) from None
    typer.echo(_summary(done, dst))


def _refuse(src: str, dst: str) -> None:
    refuse_memory(src)
    refuse_memory(dst)
    if src == dst or (
        os.path.exists(_path(src)) and os.path.realpath(_path(src)) == os.path.realpath(_path(dst))
    ):
        raise ValueError(
            "both are the same place, and a store is never rewritten where it is; name a new place"
        )


def _path(url: str) -> str:
    """Where the files of a store are, if it has files."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return url
    place = unquote(rest.partition("?")[0])
    return {"sqlite": place[1:], "file": place}.get(scheme.lower(), url)


def _summary(done: ConvertResult, dst: str) -> str:
    text = f"wrote {counted(done.streams, 'stream')}, {counted(done.records, 'record')} to {printable(shown_url(dst))}, and compared all of them"
    if done.skipped:
        text += f"; there already: {counted(done.skipped, 'stream')}"
    if done.erased:
        text += f"; erased, and left out: {counted(done.erased, 'stream')}"
    return text
