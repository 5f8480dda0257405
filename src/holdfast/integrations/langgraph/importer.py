"""Import the checkpoints of LangGraph's SqliteSaver and PostgresSaver into a store.

No stored object is created: msgpack is taken apart into plain data, with objects left as bytes.
Values stay as they were written, and `HoldfastSaver` loads them with its own serializer.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import ormsgpack

from ... import Store
from ...errors import DataProblem
from ...log import operations as ops
from ...log.events import new_append_context
from ...log.operations import Operation
from ...log.operations.stream_ops import append_events
from .operations import ThreadCache, delete_expired, load_index, thread_key
from .thread import (
    CheckpointEntry,
    EventBatch,
    ThreadIndex,
    WriteEntry,
    encode_checkpoint,
    encode_writes,
)
from .values import ChannelValue, Item, encode_typed, rebuild_value, redact_typed

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_PLAIN: Final = ormsgpack.OPT_NON_STR_KEYS


class Unreadable(DataProblem):
    """A checkpoint can't be imported without running code from the data. It was left out."""


class CheckpointImport(msgspec.Struct, frozen=True):
    """What an import found. `checkpoints` and `writes` count what was new."""

    threads: int
    checkpoints: int
    writes: int
    unreadable: list[str]
    """Thread, namespace and id of the checkpoints that were left out, and why."""

    def __str__(self) -> str:
        text = (
            f"imported {self.checkpoints} checkpoints and {self.writes} writes of "
            f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        )
        return f"{text}; left out {len(self.unreadable)}" if self.unreadable else text


class SourceCheckpoint(NamedTuple):
    """A checkpoint as it is in the source. `values` are tags and bytes of a serializer."""

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    values: dict[str, tuple[str, bytes]]


class SourceWrite(NamedTuple):
    """A write as it is in the source."""

    ns: str
    id: str
    task: str
    path: str
    place: int
    channel: str
    tag: str
    data: bytes


class CheckpointSource(Protocol):
    """A database of LangGraph checkpoints."""

    def threads(self) -> list[str]: ...

    def checkpoints(self, thread_id: str) -> Iterator[SourceCheckpoint | Unreadable]:
        """Yield the checkpoints of a thread by id: parents come before their children."""

    def writes(self, thread_id: str) -> Iterable[SourceWrite]: ...


def import_checkpoints(
    source: str | Path, store: Store, *, on_thread: Callable[[str], None] | None = None
) -> CheckpointImport:
    """Import all threads of a SqliteSaver or PostgresSaver database.

    Nothing in the source is changed. What was imported before is left out, so after an
    interruption, call it again to continue.

    Args:
        source: The path of an SQLite file, or a `postgresql://` URL.
        store: An open store.
        on_thread: Called with the id of each thread before it is imported.

    Raises:
        ValueError: The source has no checkpoints of LangGraph.

    Example:
        import_checkpoints("checkpoints.sqlite", holdfast.open("agents.db"))
    """
    checkpoints = writes = 0
    unreadable: list[str] = []
    with _open_source(str(source)) as database:
        threads = database.threads()
        for thread_id in threads:
            if on_thread is not None:
                on_thread(thread_id)
            job = ThreadImport(database, store, thread_id)
            while ops.run_until_settled(store._log, job.import_batch):
                pass
            checkpoints, writes = checkpoints + job.checkpoints, writes + job.writes
            unreadable += job.unreadable
    return CheckpointImport(len(threads), checkpoints, writes, unreadable)


class ThreadImport:
    """The import of one thread, batch by batch."""

    def __init__(self, source: CheckpointSource, store: Store, thread_id: str) -> None:
        self._source, self._thread = source, thread_id
        self._key = thread_key(store.tenant, thread_id)
        self._cache = store._log.attachment(ThreadCache)
        self._redact = store._log.redaction.redactor
        self.checkpoints = self.writes = 0
        self.unreadable: list[str] = []

    def import_batch(self) -> Operation[bool]:
        """Import what the thread lacks, up to the size of a batch. Return False at the end."""
        stamp = new_append_context()
        index = yield from load_index(self._cache, self._key, stamp)
        batch = EventBatch()
        counts = self._add_checkpoints(index, batch), self._add_writes(index, batch)
        if not batch.events:
            return False
        yield from delete_expired(self._key, index, stamp)
        yield from append_events(
            self._key, batch.events, stamp, expected=index.version, incarnation=index.incarnation
        )
        self.checkpoints += counts[0]
        self.writes += counts[1]
        return True

    def _add_checkpoints(self, index: ThreadIndex, batch: EventBatch) -> int:
        count = 0
        self.unreadable = []
        newest: dict[str, CheckpointEntry] = {}
        for one in self._source.checkpoints(self._thread):
            if isinstance(one, Unreadable):
                self.unreadable.append(str(one))
                continue
            known = index.get(one.ns, one.id)
            if known is not None:
                newest[one.ns] = known
                continue
            base = index.get(one.ns, one.parent) if one.parent else None
            base = base or newest.get(one.ns)
            entry = self._build_entry(one, base)
            encode_checkpoint(entry, base, batch)
            count += 1
            # The append expects the version of the index, so the version of this event is known.
            newest[one.ns] = entry._replace(version=index.version + len(batch.events))
            if batch.size > MAX_BATCH_BYTES:
                break
        return count

    def _add_writes(self, index: ThreadIndex, batch: EventBatch) -> int:
        count = 0
        groups: dict[tuple[str, str, str], list[WriteEntry]] = {}
        for one in self._source.writes(self._thread):
            known = index.writes(one.ns, one.id)
            if any((write.task, write.place) == (one.task, one.place) for write in known):
                continue
            data = redact_typed(one.tag, one.data, self._redact, one.channel)
            value = ChannelValue("value", [Item(encode_typed(one.tag, data))])
            write = WriteEntry(one.path, one.task, one.place, one.channel, value)
            groups.setdefault((one.ns, one.id, one.task), []).append(write)
        for (ns, checkpoint_id, _), writes in groups.items():
            if batch.size > MAX_BATCH_BYTES:
                break
            encode_writes(ns, checkpoint_id, writes, batch)
            count += len(writes)
        return count

    def _build_entry(self, one: SourceCheckpoint, base: CheckpointEntry | None) -> CheckpointEntry:
        checkpoint = one.checkpoint
        values = {}
        for channel, (tag, data) in one.values.items():
            old = base.values.get(channel) if base is not None else None
            kind, items = _split(tag, redact_typed(tag, data, self._redact, channel))
            values[channel] = rebuild_value(kind, items, old)
        rest = {"pending_sends": sends} if (sends := checkpoint.get("pending_sends")) else None
        return CheckpointEntry(
            one.ns,
            one.id,
            one.parent,
            checkpoint.get("v", 1),
            checkpoint.get("ts", ""),
            msgspec.json.encode(
                one.metadata if self._redact is None else self._redact.value(one.metadata)
            ),
            None,
            values,
            checkpoint.get("channel_versions") or {},
            checkpoint.get("versions_seen") or {},
            checkpoint.get("updated_channels"),
            encode_typed("msgpack", redact_typed("msgpack", _pack(rest), self._redact))
            if rest
            else None,
            0,
        )


def _split(tag: str, data: bytes) -> tuple[str, list[Item]]:
    """Return a serialized value as its items, if it is a list or dict."""
    if tag == "msgpack":
        value = _unpack(data)
        if isinstance(value, list) and value and not isinstance(value[0], int | float):
            return "list", [Item(encode_typed("msgpack", _pack(part))) for part in value]
    return "value", [Item(encode_typed(tag, data))]


def _unpack(data: bytes) -> Any:
    """Return msgpack data as plain values. Objects stay bytes: nothing is imported or called."""
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=_PLAIN)


def _pack(value: Any) -> bytes:
    return ormsgpack.packb(value, option=_PLAIN)


# -- sources ---------------------------------------------------------------------------------------


@contextmanager
def _open_source(source: str) -> Iterator[CheckpointSource]:
    if source.startswith(("postgresql://", "postgres://")):
        try:
            import psycopg
        except ImportError as error:
            raise ImportError(
                "importing from PostgreSQL needs psycopg: pip install 'holdfast[postgres]'"
            ) from error

        with psycopg.connect(source, autocommit=True) as connection:
            yield PostgresSource(connection)
        return
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"source must be an SQLite file or a postgresql:// URL, got {source!r}")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
        yield SqliteSource(file)


class SqliteSource:
    """The tables of a SqliteSaver. A checkpoint is one serialized value with all channels."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        try:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(writes)")}
            connection.execute("SELECT checkpoint_ns FROM checkpoints LIMIT 1")
        except sqlite3.DatabaseError as error:
            raise ValueError(f"the file has no checkpoints of LangGraph: {error}") from error
        self._path = "task_path" if "task_path" in columns else "''"

    def threads(self) -> list[str]:
        rows = self._connection.execute(
            "SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM writes ORDER BY 1"
        )
        return [str(row[0]) for row in rows]

    def checkpoints(self, thread_id: str) -> Iterator[SourceCheckpoint | Unreadable]:
        rows = self._connection.execute(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
            " FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_id",
            (thread_id,),
        )
        for ns, checkpoint_id, parent, tag, data, metadata in rows:
            if tag == "msgpack":
                checkpoint, pack = _unpack(data), _pack
            elif tag == "json":
                checkpoint, pack = json.loads(data), _dump_json
            else:
                yield _unreadable(thread_id, ns, checkpoint_id, tag)
                continue
            values = checkpoint.pop("channel_values", None) or {}
            yield SourceCheckpoint(
                ns,
                checkpoint_id,
                parent,
                checkpoint,
                json.loads(metadata) if metadata else {},
                {channel: (tag, pack(value)) for channel, value in values.items()},
            )

    def writes(self, thread_id: str) -> Iterable[SourceWrite]:
        rows = self._connection.execute(
            f"SELECT checkpoint_ns, checkpoint_id, task_id, {self._path}, idx, channel, type, value"  # noqa: S608  one of two constants
            " FROM writes WHERE thread_id = ? ORDER BY checkpoint_id, task_id, idx",
            (thread_id,),
        )
        return (SourceWrite(*row) for row in rows)


class PostgresSource:
    """The tables of a PostgresSaver. Each version of a channel has a row of its own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        found = connection.execute("SELECT to_regclass('checkpoint_blobs')").fetchone()
        if found is None or found[0] is None:
            raise ValueError("the database has no checkpoints of LangGraph in this schema")
        columns = connection.execute(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_name = 'checkpoint_writes'"
        ).fetchall()
        self._path = "task_path" if ("task_path",) in columns else "''"

    def threads(self) -> list[str]:
        rows = self._connection.execute(
            "SELECT thread_id FROM checkpoints UNION SELECT thread_id FROM checkpoint_writes"
            " ORDER BY 1"
        )
        return [row[0] for row in rows.fetchall()]

    def checkpoints(self, thread_id: str) -> Iterator[SourceCheckpoint | Unreadable]:
        blobs = {
            (ns, channel, version): (tag, bytes(data) if data is not None else b"")
            for ns, channel, version, tag, data in self._connection.execute(
                "SELECT checkpoint_ns, channel, version, type, blob FROM checkpoint_blobs"
                " WHERE thread_id = %s",
                (thread_id,),
            ).fetchall()
        }
        rows = self._connection.execute(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata"
            ' FROM checkpoints WHERE thread_id = %s ORDER BY checkpoint_id COLLATE "C"',
            (thread_id,),
        ).fetchall()
        for ns, checkpoint_id, parent, checkpoint, metadata in rows:
            # Short plain values are in the checkpoint itself. `True` may stand for a blob.
            inline = checkpoint.pop("channel_values", None) or {}
            values = {channel: ("msgpack", _pack(value)) for channel, value in inline.items()}
            for channel, version in (checkpoint.get("channel_versions") or {}).items():
                found = blobs.get((ns, channel, str(version)))
                if found is not None and found[0] != "empty":
                    values[channel] = found
            yield SourceCheckpoint(ns, checkpoint_id, parent, checkpoint, metadata, values)

    def writes(self, thread_id: str) -> Iterable[SourceWrite]:
        rows = self._connection.execute(
            f"SELECT checkpoint_ns, checkpoint_id, task_id, {self._path}, idx, channel, type, blob"  # noqa: S608  one of two constants
            " FROM checkpoint_writes WHERE thread_id = %s ORDER BY checkpoint_id, task_id, idx",
            (thread_id,),
        ).fetchall()
        return [SourceWrite(*row)._replace(data=bytes(row[7])) for row in rows]


def _dump_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "ignore")


def _unreadable(thread_id: str, ns: str, checkpoint_id: str, tag: str) -> Unreadable:
    return Unreadable(
        f"thread {thread_id!r}, namespace {ns!r}, checkpoint {checkpoint_id}: it is stored as "
        f"{tag!r}, which can't be read without running code from it"
    )
