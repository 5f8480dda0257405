"""The audit view: who did what, and when, as text, JSON Lines and CSV.

Stored text is escaped: on a terminal it cannot move the cursor, and in a spreadsheet it is never a
formula. In CSV every cell is quoted, invisible characters are written as in JSON, and a cell that
would start a formula starts with an apostrophe.
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
from ..backends.clock import to_datetime
from ..errors import Erased, NotFound
from ..log import operations as ops
from ..log.events import StoredEvent
from ..log.ids import stream_key
from ..log.operations import Operation
from ..log.operations.stream_ops import audit_key, load_data
from ..log.reprs import ShortRepr
from ..tasks.audit import DescribedEvent, EventDescriber

AUDITED_KINDS: Final = ("task", "conversation", "memory", "state", "stream")
COLUMNS: Final = ("version", "at", "event", "what", "by", "owner", "correlation", "step", "details")
# The wide characters too: some spreadsheets treat them like the others.
FORMULA_STARTS: Final = frozenset("=+-@＝＋－＠|%")  # noqa: RUF001
REMOVAL_TEXTS: Final = {"stream.deleted": "deletion decided", "stream.erased": "erasure decided"}
_HIDDEN_EVENTS: Final = ("task.renewed", "turn.renewed")


class AuditEntry(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """An event at a `version` of the stream, or of the tenant's audit stream (`source`).

    `by` is the person or application named by `holdfast.correlate(actor=…)`, an answer or a
    resolution, and `owner` the process that had the task's lease. `details` are facts without
    content; `data` is the content, if it was requested.
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
    """The events of a task or another stream, in order. Iterate over it, print it, or write it."""

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
        """Return the entries as a table, one per line. Lease renewals are left out."""
        rows: list[tuple[str, ...]] = [
            ("time (UTC)", "version", "what", "who", "correlation", "details")
        ]
        rows += [self._row(entry) for entry in self.entries if entry.event not in _HIDDEN_EVENTS]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def jsonl(self) -> str:
        """Return one JSON object per line."""
        return "".join(
            msgspec.json.encode(self._fields(entry)).decode() + "\n" for entry in self.entries
        )

    def csv(self) -> str:
        """Return CSV for a spreadsheet: a line of column names, then one line per entry."""
        columns = (*COLUMNS, "data") if self.content else COLUMNS
        to = io.StringIO()
        writer = csv.writer(to, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writerow(columns)
        for entry in self.entries:
            fields = self._fields(entry)
            writer.writerow([_format_cell(fields.get(name)) for name in columns])
        return to.getvalue()

    def _fields(self, entry: AuditEntry) -> dict[str, Any]:
        fields = {**msgspec.to_builtins(entry), "at": entry.at.isoformat()}
        if not self.content:
            del fields["data"]
        return {name: value for name, value in fields.items() if value not in (None, {})} | {
            "source": entry.source
        }

    def _row(self, entry: AuditEntry) -> tuple[str, ...]:
        who = ", ".join(name for name in (entry.by, entry.owner) if name)
        what = entry.what if entry.step is None else f"{entry.what}: {entry.step}"
        details = _to_json(entry.details) if entry.details else ""
        if entry.data is not None:
            details = f"{details} {_to_json(entry.data)}".strip()
        cells = (
            f"{entry.at:%Y-%m-%d %H:%M:%S}",
            str(entry.version),
            what,
            who,
            entry.correlation or "",
            details,
        )
        return tuple(map(_escape_invisible, cells))


def audited_key(tenant: str, kind: str, id: str) -> StreamKey:
    """Return the key of the stream to audit."""
    if kind not in AUDITED_KINDS:
        raise ValueError(f"kind must be one of {', '.join(AUDITED_KINDS)}, got {kind!r}")
    return stream_key(tenant, kind, id)


def load_audit(key: StreamKey, *, content: bool) -> Operation[Audit]:
    """Return a stream's own events, and the audit stream's entries about its incarnations."""
    head = yield from ops.head(key)
    entries = yield from _read_own_entries(key, content)
    before, after = yield from _read_removals(key, head.incarnation.hex() if head else "", content)
    if not (entries or before or after):
        raise NotFound(
            f"there is no {key}, and no deletion of it is recorded; check the id and the kind"
        )
    return Audit(key.tenant, key.kind, key.id, [*before, *entries, *after], content)


def _read_own_entries(key: StreamKey, content: bool) -> Operation[list[AuditEntry]]:
    """Return the entries of a stream. Erased records are left out: not even their time is known."""
    entries: list[AuditEntry] = []
    describer, version = EventDescriber() if key.kind == "task" else None, 0
    while True:
        try:
            page = yield from ops.read(key, after=version, decoded=True, allow_erased=True)
        except Erased:
            break  # the whole stream
        if not page:
            break
        version = page[-1].version
        for stored in page:
            if not stored.envelope.id:
                continue
            name, data = stored.envelope.type, None
            if content or describer is not None:
                data = yield from load_data(key, stored)
            described = (
                describer.describe(name, data)
                if describer
                else DescribedEvent(name, None, None, None, {})
            )
            entries.append(_new_entry(stored, described, data if content else None))
    return entries


_REMOVAL_FIELDS: Final = {"version": "version", "incarnation": "incarnation", "reason": "reason"}
"""The fields of a deletion: stored name and displayed name."""


def _read_removals(
    key: StreamKey, incarnation: str, content: bool
) -> Operation[tuple[list[AuditEntry], list[AuditEntry]]]:
    """Return the deletions and erasures of earlier incarnations, and of the current one."""
    before: list[AuditEntry] = []
    after: list[AuditEntry] = []
    version = 0
    while page := (
        yield from ops.read(audit_key(key.tenant), after=version, decoded=True, allow_erased=True)
    ):
        version = page[-1].version
        for stored in page:
            data: Any = stored.envelope.data
            text = REMOVAL_TEXTS.get(stored.envelope.type)
            if (
                text is None
                or type(data) is not dict
                or (data.get("kind"), data.get("id")) != (key.kind, key.id)
            ):
                continue
            details = {
                name: data[key]
                for key, name in _REMOVAL_FIELDS.items()
                if type(data.get(key)) in (int, str)
            }
            entry = _new_entry(
                stored,
                DescribedEvent(text, None, None, None, details),
                data if content else None,
                "audit",
            )
            (after if data.get("incarnation") == incarnation else before).append(entry)
    return before, after


def _new_entry(
    stored: StoredEvent,
    described: DescribedEvent,
    data: Any,
    source: Literal["stream", "audit"] = "stream",
) -> AuditEntry:
    envelope = stored.envelope
    return AuditEntry(
        source=source,
        version=stored.version,
        at=to_datetime(envelope.at),
        event=envelope.type,
        what=described.what,
        by=described.by or envelope.by,
        owner=described.owner,
        correlation=envelope.correlation,
        step=described.step,
        details=described.details,
        data=data,
    )


# -- as text ---------------------------------------------------------------------------------------


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _escape_invisible(text: str) -> str:
    r"""Return the text with invisible characters escaped, like `\u001b`."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else json.dumps(mark)[1:-1] for mark in text)


def _format_cell(value: Any) -> str:
    """Return a cell that no spreadsheet treats as a formula."""
    if value is None:
        return ""
    text = _escape_invisible(value if isinstance(value, str) else _to_json(value))
    return f"'{text}" if text.lstrip()[:1] in FORMULA_STARTS else text
