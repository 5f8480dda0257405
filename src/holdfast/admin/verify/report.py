"""The report of a verification: problems, progress, result."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from ...backends import StreamKey
from .chain import ProblemKind


class StreamProblem(msgspec.Struct, frozen=True):
    """A problem at a version of a stream, or of the whole store if `id` is empty.

    `what` is one of:

    - found by the chain: a record is `altered`, `missing`, `misplaced` or `inserted`;
    - `head`: the head does not match the newest record, or its fields were altered;
    - `undecodable`: a record is not an event, or cannot be decrypted;
    - `value`: a blob or a file is missing or altered;
    - `unreadable`: the database cannot read it;
    - found by an anchor: `truncated` (the newest records are gone), `forked` (not the record of
      the anchor), `rolled_back` (another incarnation of the stream), and `stream_missing` (no
      deletion is recorded);
    - `index`: data derived from the records contradicts them; `store.repair()` rebuilds it;
    - `storage`: the database or its files are damaged, or contradict the records.
    """

    tenant: str
    kind: str
    id: str
    version: int | None
    what: ProblemKind
    details: str

    def __str__(self) -> str:
        at = "" if self.version is None else f" (version {self.version})"
        stream = StreamKey(self.tenant, self.kind, self.id) if self.id else "the store"
        return f"{stream}{at}: {self.what.replace('_', ' ')}: {self.details}"


class VerifyProgress(msgspec.Struct, frozen=True):
    """The progress of a verification. `of` is the number of streams; None until counted."""

    streams: int
    records: int
    bytes: int
    problems: int
    of: int | None


class VerifyResult(msgspec.Struct, frozen=True):
    """The result of a verification. `ok` if no problem was found.

    `problems` has the first 1,000 of `found`. `anchored` is the signature of the anchor.
    "unanchored" means that missing newest records, a restored old backup, deleted streams and a
    rewritten store cannot be detected. `deleted` streams of the anchor are gone, with a deletion in
    the audit stream. The keys of `erased` streams were destroyed: only their chain was checked.
    """

    problems: list[StreamProblem]
    found: int
    streams: int
    records: int
    bytes: int
    deleted: int
    erased: int
    anchored: Literal["unanchored", "unsigned", "hmac-sha256", "ed25519"]
    anchor_at: datetime | None = None
    complete: bool = True
    """False if only records after the anchor were read (`since=`)."""

    @property
    def ok(self) -> bool:
        return self.found == 0

    def __str__(self) -> str:
        read = "" if self.complete else " since the anchor"
        problems = "no problem" if self.ok else _format_count(self.found, "problem")
        streams = _format_count(self.streams, "stream")
        parts = [f"{problems} in {streams}, {_format_count(self.records, 'record')}{read}"]
        if self.anchor_at is None:
            parts.append("unanchored: missing newest records or streams cannot be detected")
        else:
            signed = (
                "an unsigned anchor"
                if self.anchored == "unsigned"
                else f"an anchor ({self.anchored})"
            )
            parts.append(f"compared with {signed} of {self.anchor_at:%Y-%m-%d %H:%M:%S} UTC")
        if self.deleted:
            deleted = _format_count(self.deleted, "stream")
            parts.append(f"deleted since, as recorded in the audit stream: {deleted}")
        if self.erased:
            parts.append(f"erased: {_format_count(self.erased, 'stream')}")
        return "; ".join(parts)


def _format_count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
