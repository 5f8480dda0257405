"""The files backend: JSON Lines files that you can read with cat and jq, and copy with cp.

    root/holdfast.json                                   marks the store; has its format version
    root/streams/<tenant>/<kind>/<2 hex>/<id>.jsonl      one file per stream, one line per batch
    root/lock                                            locked by the current writer; never deleted
    root/index.db                                        derived from the files; may be deleted
    root/torn/                                           the remains of unfinished writes

Only the files count. The writers of a root take turns. A reader waits for a writer only if that
writer is writing the stream that it reads.
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
    BackendProblem,
    Cursor,
    Description,
    Head,
    IndexFile,
    Record,
    StreamKey,
    VersionMismatch,
    find_first_head,
)
from .append import AppendDraft, find_append_id, store_drafts
from .catalog import Catalog
from .check import FilesCheck
from .delete import delete_stream
from .disk import Disk, translate_os_error
from .frame import MAX_FRAME_BYTES
from .index import FileIndex, IndexPage
from .lock import WriterLock
from .names import TORN
from .page import Pager
from .root import FORMAT, is_marked, open_lock, open_root, write_marker
from .streams import FileStreams
from .tree import Tree

MEMORY_INDEX = "memory.db"
"""The memory index, if there is one: an SQLite file beside the streams."""


class FilesBackend(Forkable):
    """Streams in JSON Lines files under `root`, which is created if it does not exist.

    With `durability="process"` nothing is synced: an acknowledged append survives the death of the
    process, but not a power loss. `disk` is for tests.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durability: Literal["disk", "process"] = "disk",
        disk: Disk | None = None,
    ) -> None:
        if durability not in ("disk", "process"):
            raise ValueError(f"durability must be 'disk' or 'process', got {durability!r}")
        self._root = os.path.realpath(root)
        self._durability: Literal["disk", "process"] = durability
        disk = disk or Disk()
        refuse_network_filesystem(self._root)
        # Reentrant: the garbage collector may end an interrupted call while this thread has it.
        self._gate = threading.RLock()
        self._calls, self._closed, self._released = 0, False, False
        with _translate_errors(f"{self._root} cannot be opened"):
            self._top = top = open_root(self._root, disk)
        self._lock = WriterLock(lambda: open_lock(top, disk))
        self._tree = Tree(self._root, top, disk, durable=durability == "disk")
        self._catalog = Catalog(self._root, top, disk, self._lock, self._tree.scan_rows)
        self._streams = FileStreams(self._tree, self._lock, self._catalog)
        self._check = FilesCheck(self._streams)
        try:
            with _translate_errors(f"{self._root} cannot be opened"):
                self._prepare(disk)
        except BaseException:
            self.close()
            raise
        register_forkable(self)

    def _prepare(self, disk: Disk) -> None:
        if not is_marked(self._top, disk):
            with self._lock.threads, self._lock.hold():
                if not is_marked(self._top, disk):
                    write_marker(self._root, self._top, disk)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        with self._call("the append could not be written"), self._lock.threads, self._lock.hold():
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
                store_drafts(self._streams, changed)
            return answers

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        with (
            self._call(f"{stream} cannot be read"),
            self._streams.open_settled(stream) as (span, state),
        ):
            state.head(stream, clock.time())  # raises if it is damaged: the id may be there
            return find_append_id(self._streams, stream, span, state, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        with (
            self._call(f"{stream} cannot be read"),
            self._streams.open_settled(stream) as (span, state),
        ):
            return Pager(stream, span, state, self._tree.full_path(stream)).read_page(
                after, limit, reverse
            )

    def may_exist(self, stream: StreamKey) -> bool:
        # Without the lock: a process that is stopped in the middle of a write keeps it.
        with self._call(f"{stream} cannot be read"), self._tree.open_stream(stream) as file:
            return file is not None

    def head(self, stream: StreamKey) -> Head | None:
        with (
            self._call(f"{stream} cannot be read"),
            self._streams.open_settled(stream) as (_, state),
        ):
            return state.head(stream, clock.time())

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        return find_first_head(self.head, streams)

    def head_before_damage(self, stream: StreamKey) -> Head | None:
        with (
            self._call(f"{stream} cannot be read"),
            self._streams.open_settled(stream) as (_, state),
        ):
            return state._replace(damage=None).head(stream, clock.time())

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
            found = []
            for head in self._list(lambda index: index.due(tenant, kind, before, after, limit)):
                due = head.fields.due
                if due is None or (before is not None and due > before):
                    continue
                if after is None or (due, head.stream.id) > after:
                    found.append((due, head.stream.id, head))
            return [head for _, _, head in sorted(found, key=lambda entry: entry[:2])[:limit]]

    def _list(self, find: Callable[[FileIndex], IndexPage]) -> Iterator[Head]:
        """Yield the heads of clean rows from the index, and of dirty rows from their files."""
        clean, dirty = self._catalog.read(find)
        now = clock.time()
        for row in clean:
            yield Head(row.stream, row.incarnation, row.fields, now, row.version, row.hash)
        for row in dirty:
            head = self._streams.peek(row.stream).head(row.stream, now)
            if head is not None:
                yield head

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        with self._call(f"streams of kind {kind} cannot be listed"):
            return self._check.list_damaged(tenant, kind)

    def list_scopes(self) -> Sequence[tuple[str, str]]:
        with self._call("streams cannot be listed"):
            return self._check.list_scopes()

    def check(self) -> Iterator[BackendProblem]:
        problems = self._check.check()
        while True:
            with self._call("the store cannot be checked"):
                problem = next(problems, None)  # the call ends before the caller gets it
            if problem is None:
                return
            yield problem

    def rebuild(self) -> int:
        with self._call("the index could not be rebuilt"):
            return self._check.rebuild()

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        with self._call(f"{stream} could not be deleted"), self._lock.threads, self._lock.hold():
            head = self._streams.settle(stream, write=True).head(stream, clock.time())
            if head is None or head.position != expected.position:
                return False
            delete_stream(self._streams, stream, head.incarnation)
            return True

    def discard(self, stream: StreamKey) -> bool:
        with self._call(f"{stream} could not be deleted"):
            return self._check.discard(stream)

    def index_locations(self) -> Sequence[IndexFile]:
        return [IndexFile(os.path.join(self._root, MEMORY_INDEX))]

    def describe(self) -> Description:
        with self._call("the store cannot be described"):
            torn = len(self._tree.disk.list(self._top, TORN))
            warnings = (
                [f"{torn} unfinished writes were truncated and are kept in {TORN}/"] if torn else []
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
                limits={"append": MAX_FRAME_BYTES},
                sizes=sizes,
                warnings=warnings,
                caches={"states of files": self._streams.cache_size()},
            )

    def close(self) -> None:
        with self._gate:
            self._closed = True
            self._release_if_idle()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # noqa: S110  at interpreter exit, modules may be gone already
            pass

    @contextmanager
    def _call(self, what: str) -> Iterator[None]:
        """Count the running calls: the last one to end after `close` releases the handles."""
        with self._gate:
            if self._closed:
                raise StoreClosed(f"the store in {self._root} was closed; open it again")
            self._calls += 1
        try:
            with _translate_errors(what):
                yield
        finally:
            with self._gate:
                self._calls -= 1
                self._release_if_idle()

    def _release_if_idle(self) -> None:
        if self._closed and not self._calls and not self._released:
            self._released = True
            self._catalog.close()
            os.close(self._top)

    def before_fork(self) -> None:
        self._lock.threads.acquire()  # first, as an append does
        self._catalog.before_fork()

    def after_fork_in_parent(self) -> None:
        self._catalog.after_fork(child=False)
        self._lock.threads.release()

    def after_fork_in_child(self) -> None:
        # Threads that don't exist here may hold the locks, and the lock file is the parent's.
        self._gate = threading.RLock()
        self._calls = 0
        self._lock.forget()
        self._tree.forget()
        self._streams.forget()
        self._catalog.after_fork(child=True)


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Translate errors of the system and of SQLite. They all mean that nothing was stored."""
    try:
        yield
    except OSError as error:
        raise translate_os_error(error, what) from error
    except apsw.FullError as error:
        raise StorageFull(
            f"{what}: the disk is too full for the index; nothing was written"
        ) from error
    except (apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise ReadOnly(
            f"{what}: the index cannot be written; check permissions and mount options"
        ) from error
    except apsw.Error as error:
        raise Unavailable(
            f"{what}: the index failed ({type(error).__name__}); nothing was written"
        ) from error
