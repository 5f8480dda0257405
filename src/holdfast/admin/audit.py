"""The audit view: who did what when, as text, JSON Lines and CSV.

Stored text is data here too: on a terminal it cannot move the cursor, and in a spreadsheet it is never a formula. In CSV every cell is
quoted, invisible characters are written as in JSON, and a cell that would begin a formula begins with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from ..backends import StreamKey
from ..backends.clock import moment
from ..errors import Erased, NotFound
from ..log import operations as ops
from ..log.blobs import incarnation_hex
from ..log.events import StoredEvent
from ..log.ids import stream_key
from ..log.operations import Operation
from ..log.reprs import Readable
from ..log.stream_ops import audit_of, data_of
from ..tasks.audit import DescribedEvent, EventDescriber

KINDS: Final = ("task", "conversation", "memory", "state", "stream")
COLUMNS: Final = (
    "version",
    "at",
    "event",
    "what",
    "by",
    "owner",
    "correlation",
    "step",
    "details",
)
FORMULA: Final = frozenset("=+-@＝＋－＠|%")  # noqa: RUF001  the wide ones too: some programs take them for the others
DECIDED: Final = {"stream.deleted": "deletion decided", "stream.erased": "erasure decided"}
_HIDDEN: Final = ("task.renewed", "turn.renewed")


class AuditEntry(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened: `version` in the stream, or in the tenant's audit stream if `source` says so.

    `by` is the person or program that is named (`holdfast.correlate(actor=…)`, or who answered), `owner` the process that held the task.
    `details` are facts that are no content; `data` is the content, if it was asked for.
    """

    source: Literal["stream", "audit"] = "stream"
    version: int
    at: datetime
    event: str
    what: str
    by: str | None = None
    owner: str | None = None
    correlation: str | None = None
    step: str | None = None
    details: dict[str, Any] = {}
    data: Any = None


class Audit(msgspec.Struct, frozen=True):
    """What happened to a task or another stream, in order. Iterate over it, print it, or write it to a file."""

    tenant: str
    kind: str
    id: str
    entries: list[AuditEntry]
    content: bool = False

    def __iter__(self) -> Iterator[AuditEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """A table for people: time, what, who, correlation id, details. Leases that were only renewed are left out."""
        rows: list[tuple[str, ...]] = [
            ("time (UTC)", "version", "what", "who", "correlation", "details")
        ]
        rows += [self._row(entry) for entry in self.entries if entry.event not in _HIDDEN]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def jsonl(self) -> str:
        """One JSON object per line."""
        return "".join(
            msgspec.json.encode(self._fields(entry)).decode() + "\n" for entry in self.entries
        )

    def csv(self) -> str:
        """For a spreadsheet: a line of names, then one line per entry."""
        columns = (*COLUMNS, "data") if self.content else COLUMNS
        to = io.StringIO()
        writer = csv.writer(to, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writerow(columns)
        for entry in self.entries:
            fields = self._fields(entry)
            writer.writerow([_cell(fields.get(name)) for name in columns])
        return to.getvalue()

    def _fields(self, entry: AuditEntry) -> dict[str, Any]:
        fields = msgspec.to_builtins(entry)
        if not self.content:
            del fields["data"]
        return {name: value for name, value in fields.items() if value not in (None, {})} | {
            "source": entry.source
        }

    def _row(self, entry: AuditEntry) -> tuple[str, ...]:
        who = ", ".join(name for name in (entry.by, entry.owner) if name)
        what = entry.what if entry.step is None else f"{entry.what}: {entry.step}"
        details = _json(entry.details) if entry.details else ""
        if entry.data is not None:
            details = f"{details} {_json(entry.data)}".strip()
        cells = (
            f"{entry.at:%Y-%m-%d %H:%M:%S}",
            str(entry.version),
            what,
            who,
            entry.correlation or "",
            details,
        )
        return tuple(map(_visible, cells))


def audited(tenant: str, kind: str, id: str) -> StreamKey:
    """The stream that is asked for."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return stream_key(tenant, kind, id)


def audit(key: StreamKey, *, content: bool) -> Operation[Audit]:
    """All that is known of a stream: its own events, and before and after them what the audit stream says of its lives."""
    head = yield from ops.head(key)
    entries = yield from _own(key, content)
    before, after = yield from _deletions(
        key, incarnation_hex(head.incarnation) if head else "", content
    )
    if not (entries or before or after):
        raise NotFound(
            f"there is no {key}, and no deletion of it was noted; check the id and the kind"
        )
    return Audit(key.tenant, key.kind, key.id, [*before, *entries, *after], content)


def _own(key: StreamKey, content: bool) -> Operation[list[AuditEntry]]:
    """Of a record that was erased nothing is known, not even when it was written: it is left out."""
    entries: list[AuditEntry] = []
    teller, version = EventDescriber() if key.kind == "task" else None, 0
    while True:
        try:
            page = yield from ops.read(key, after=version, plain=True, spare=True)
        except Erased:
            break  # as a whole
        if not page:
            break
        version = page[-1].version
        for stored in page:
            if not stored.envelope.id:
                continue
            name, data = stored.envelope.type, None
            if content or teller is not None:
                data = yield from data_of(key, stored)
            told = teller.tell(name, data) if teller else DescribedEvent(name, None, None, None, {})
            entries.append(_entry(stored, told, data if content else None))
    return entries


_DETAILS: Final = {"version": "version", "life": "incarnation", "reason": "reason"}
"""What a deletion tells, by its stored name, and how it is shown."""


def _deletions(
    key: StreamKey, incarnation: str, content: bool
) -> Operation[tuple[list[AuditEntry], list[AuditEntry]]]:
    """What the audit stream says was deleted or erased under this name: of former lives, and of the one that is there."""
    before: list[AuditEntry] = []
    after: list[AuditEntry] = []
    version = 0
    while page := (
        yield from ops.read(audit_of(key.tenant), after=version, plain=True, spare=True)
    ):
        version = page[-1].version
        for stored in page:
            data: Any = stored.envelope.data
            words = DECIDED.get(stored.envelope.type)
            if (
                words is None
                or type(data) is not dict
                or (data.get("kind"), data.get("id")) != (key.kind, key.id)
            ):
                continue
            details = {
                name: data[key]
                for key, name in _DETAILS.items()
                if type(data.get(key)) in (int, str)
            }
            entry = _entry(
                stored,
                DescribedEvent(words, None, None, None, details),
                data if content else None,
                "audit",
            )
            (after if data.get("life") == incarnation else before).append(entry)
    return before, after


def _entry(
    stored: StoredEvent,
    told: DescribedEvent,
    data: Any,
    source: Literal["stream", "audit"] = "stream",
) -> AuditEntry:
    envelope = stored.envelope
    return AuditEntry(
        source=source,
        version=stored.version,
        at=moment(envelope.at),
        event=envelope.type,
        what=told.what,
        by=told.by or envelope.by,
        owner=told.owner,
        correlation=envelope.correlation,
        step=told.step,
        details=told.details,
        data=data,
    )


# -- as text -----------------------------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _visible(text: str) -> str:
    r"""The text with invisible characters as `\u001b`."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else json.dumps(mark)[1:-1] for mark in text)


def _cell(value: Any) -> str:
    """A cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    text = _visible(value if isinstance(value, str) else _json(value))
    return f"'{text}" if text.lstrip()[:1] in FORMULA else text
