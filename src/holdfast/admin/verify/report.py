"""What a verification reports."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from ...backends import StreamKey
from .chain import ProblemKind


class StreamProblem(msgspec.Struct, frozen=True):
    """Something that is wrong with a stream, and where. `what` is one of:

    - `altered`, `missing`, `misplaced`, `inserted`: a record, by the chain;
    - `head`: the head and the newest record do not fit, or its label does not open; `undecodable`: a record that is no event, or does not open; `value`: a large value or
      a file that is missing or altered; `unreadable`: the engine cannot read it;
    - by an anchor: `truncated` (records at the end are gone), `forked` (another record than the anchor has seen), `rolled_back` (another incarnation of
      the stream) and `stream_missing`, where no deletion was noted.
    """

    tenant: str
    kind: str
    id: str
    version: int | None
    what: ProblemKind
    details: str

    def __str__(self) -> str:
        at = "" if self.version is None else f" (version {self.version})"
        return f"{StreamKey(self.tenant, self.kind, self.id)}{at}: {self.what.replace('_', ' ')}: {self.details}"


class VerifyProgress(msgspec.Struct, frozen=True):
    """How far a verification has got. `of` is how many streams there are, None as long as they are not counted."""

    streams: int
    records: int
    bytes: int
    problems: int
    of: int | None


class VerifyResult(msgspec.Struct, frozen=True):
    """What a verification found. `ok` if nothing is wrong, as far as can be told.

    `problems` has the first 1,000 of `found`. `anchored` says against what: "unanchored" means that missing newest records, an old backup
    put back, deleted streams and a store that was written anew from the beginning cannot be noticed. `deleted` streams of the
    anchor are gone, and the audit stream says since when and why; of `erased` streams the keys were destroyed, and only the chain is checked.
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
    """False if only what came after the anchor was read (`since=`)."""

    @property
    def ok(self) -> bool:
        return self.found == 0

    def __str__(self) -> str:
        read = "" if self.complete else " since the anchor"
        wrong = "no problem" if self.ok else _counted(self.found, "problem")
        parts = [
            f"{wrong} in {_counted(self.streams, 'stream')}, {_counted(self.records, 'record')}{read}"
        ]
        if self.anchor_at is None:
            parts.append("unanchored: what is gone from the end, or as a whole, cannot be noticed")
        else:
            signed = (
                "an unsigned anchor"
                if self.anchored == "unsigned"
                else f"an anchor ({self.anchored})"
            )
            parts.append(f"compared with {signed} of {self.anchor_at:%Y-%m-%d %H:%M:%S} UTC")
        if self.deleted:
            parts.append(
                f"deleted since, as the audit stream says: {_counted(self.deleted, 'stream')}"
            )
        if self.erased:
            parts.append(f"erased: {_counted(self.erased, 'stream')}")
        return "; ".join(parts)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
