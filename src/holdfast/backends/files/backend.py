"""Streams in files: JSON Lines that can be read with cat and jq, copied with cp and kept in a backup.

    root/holdfast.json                                   says that this is ours, and its format
    root/streams/<tenant>/<kind>/<2 hex>/<id>.jsonl      one file per stream, one line per batch
    root/lock                                            held by whoever writes; never deleted
    root/index.db                                        derived from the files; may be deleted at any time
    root/torn/                                           what unfinished writes left behind

The files are the truth. All writers of a root take turns; readers do not wait for them, except
for one that is in the middle of writing the very stream they want.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import apsw

from ...errors import ReadOnly, StorageFull, StoreClosed, Unavailable
from .. import clock
from ..filesystem import refuse_network_filesystem
from ..fork import Forkable, register_forkable
from ..interface import (
    Append,
    AppendResult,
    Cursor,
    Description,
    Head,
    IndexFile,
    Record,
    StreamKey,
    VersionMismatch,
)
from .append import AppendDraft, store
from .catalog import Catalog
from .delete import delete_stream
from .disk import Disk, translated
from .frame import MAX_BYTES
from .index import FileIndex, FileIndexRow
from .lock import WriterLock
from .names import TORN
from .page import Pager
from .root import FORMAT, is_marked, mark, open_lock, open_root
from .streams import FileStreams
from .tree import Tree

MEMORY_INDEX = "memory.db"
"""The index of memories, if there is one: an SQLite file beside the streams."""


class FilesBackend(Forkable):
    """Streams in JSON Lines files below `root`, which is made if it is missing.

    `durability="process"` leaves out every sync: what was acknowledged survives the death of the process,
    not that of the machine. `disk` is for tests.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durability: Literal["disk", "process"] = "disk",
        disk: Disk | None = None,
    ) -> None:
        if durability not in ("disk", "process"):
            raise ValueError(f"durability is 'disk' or 'process', not {durability!r}")
        self._root = os.path.realpath(root)
        self._durability: Literal["disk", "process"] = durability
        disk = disk or Disk()
        refuse_network_filesystem(self._root)
        self._gate = threading.Lock()
        self._calls, self._closed, self._released = 0, False, False
        with _translating(f"{self._root} cannot be opened"):
            self._top = top = open_root(self._root, disk)
        self._lock = WriterLock(lambda: open_lock(top, disk))
        self._tree = Tree(self._root, top, disk, durable=durability == "disk")
        self._catalog = Catalog(self._root, top, disk, self._lock, self._tree.scan)
        self._streams = FileStreams(self._tree, self._lock, self._catalog)
        try:
            with _translating(f"{self._root} cannot be opened"):
                self._prepare(disk)
        except BaseException:
            self.close()
            raise
        register_forkable(self)

    def _prepare(self, disk: Disk) -> None:
        if not is_marked(self._top, disk):
            with self._lock.held():
                if not is_marked(self._top, disk):
                    mark(self._root, self._top, disk)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        with self._call("the append could not be written"), self._lock.held():
            now = clock.time()
            drafts: dict[StreamKey, AppendDraft] = {}
            answers = []
            for append in batch:
                draft = drafts.get(append.stream)
                if draft is None:
                    draft = drafts[append.stream] = AppendDraft(self._streams, append.stream)
                answers.append(draft.answer(append, now))
            changed = [draft for draft in drafts.values() if draft.accepted]
            if changed:
                store(self._streams, changed)
            return answers

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        with self._call(f"{stream} cannot be read"), self._streams.look(stream) as (span, state):
            return Pager(stream, span, state, self._tree.place(stream)).page(after, limit, reverse)

    def may_exist(self, stream: StreamKey) -> bool:
        """Whether it has a file. Nobody is waited for: a process that is stopped in the middle of a write keeps the lock."""
        with self._call(f"{stream} cannot be read"), self._tree.opened(stream) as file:
            return file is not None

    def head(self, stream: StreamKey) -> Head | None:
        with self._call(f"{stream} cannot be read"), self._streams.look(stream) as (_, state):
            return state.head(stream, clock.time())

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        with self._call(f"streams of kind {kind} cannot be listed"):
            found = self._list(lambda index: index.heads(tenant, kind, status, after, limit))
            wanted = [
                h
                for h in found
                if h.stream.id > after and (status is None or h.fields.status == status)
            ]
            # Code points order like UTF-8 bytes.
            return sorted(wanted, key=lambda head: head.stream.id)[:limit]

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        with self._call(f"streams of kind {kind} cannot be listed"):
            places = []
            for head in self._list(lambda index: index.due(tenant, kind, before, after, limit)):
                due = head.fields.due
                if due is None or (before is not None and due > before):
                    continue
                if after is None or (due, head.stream.id) > after:
                    places.append((due, head.stream.id, head))
            return [head for _, _, head in sorted(places, key=lambda place: place[:2])[:limit]]

    def _list(
        self, question: Callable[[FileIndex], tuple[Sequence[FileIndexRow], Sequence[FileIndexRow]]]
    ) -> Iterator[Head]:
        """What the index says, and for rows that it does not vouch for, what their files say."""
        clean, dirty = self._catalog.read(question)
        now = clock.time()
        for row in clean:
            yield Head(row.stream, row.incarnation, row.fields, now, row.version, row.hash)
        for row in dirty:
            head = self._streams.peek(row.stream).head(row.stream, now)
            if head is not None:
                yield head

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        with self._call(f"{stream} could not be deleted"), self._lock.held():
            head = self._streams.settle(stream, write=True).head(stream, clock.time())
            if head is None or head.position != expected.position:
                return False
            delete_stream(self._streams, stream, head.incarnation)
            return True

    def index_locations(self) -> Sequence[IndexFile]:
        return [IndexFile(os.path.join(self._root, MEMORY_INDEX))]

    def describe(self) -> Description:
        with self._call("the store cannot be described"):
            torn = len(self._tree.disk.list(self._top, TORN))
            warnings = (
                [f"{torn} unfinished writes were cut off and are kept in {TORN}/"] if torn else []
            )
            if self._durability != "disk":
                warnings.append(
                    "acknowledged appends survive the death of the process, not a power loss"
                )
            sizes = {
                "data": self._catalog.read(lambda index: index.data_bytes()),
                "index": self._catalog.size(),
            }
            return Description(
                *("files", str(FORMAT), Path(self._root).as_uri(), self._durability),
                limits={"append": MAX_BYTES},
                sizes=sizes,
                warnings=warnings,
            )

    def close(self) -> None:
        with self._gate:
            self._closed = True
            self._release_if_idle()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # noqa: S110  at the end of the interpreter half of it is gone; nobody is left to tell
            pass

    @contextmanager
    def _call(self, what: str) -> Iterator[None]:
        """Everything a caller does happens in here: handles are closed when the last call has left."""
        with self._gate:
            if self._closed:
                raise StoreClosed(f"the store in {self._root} was closed")
            self._calls += 1
        try:
            with _translating(what):
                yield
        finally:
            with self._gate:
                self._calls -= 1
                self._release_if_idle()

    def _release_if_idle(self) -> None:
        if self._closed and not self._calls and not self._released:
            self._released = True
            self._catalog.close()
            self._lock.close()
            os.close(self._top)

    def before_fork(self) -> None:
        self._catalog.before_fork()

    def after_fork_in_parent(self) -> None:
        self._catalog.after_fork(child=False)

    def after_fork_in_child(self) -> None:
        # The locks may be held by threads that do not exist here, and the lock file is the parent's.
        self._gate = threading.Lock()
        self._calls = 0
        self._lock.forget()
        self._tree.forget()
        self._streams.forget()
        self._catalog.after_fork(child=True)


@contextmanager
def _translating(what: str) -> Iterator[None]:
    """The one place where errors of the system and of SQLite become ours. They all mean: nothing was stored."""
    try:
        yield
    except OSError as error:
        raise translated(error, what) from error
    except apsw.FullError as error:
        raise StorageFull(f"{what}: there is no room for the index; nothing was written") from error
    except (apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise ReadOnly(
            f"{what}: the index cannot be written; check permissions and mount options"
        ) from error
    except apsw.Error as error:
        raise Unavailable(
            f"{what}: the index failed ({type(error).__name__}); nothing was written"
        ) from error
