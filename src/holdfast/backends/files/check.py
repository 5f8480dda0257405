"""Compare the index and the file names with the frames, and report damage.

A frame verifies itself. Everything else is checked here: that each file is where its stream
belongs, that its lines are in order, and that the index agrees with them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import apsw

from ..interface import BackendProblem, StreamKey
from .catalog import BROKEN, INDEX_FILE
from .delete import discard_stream
from .digest import FileDigest, digest_file
from .frame import guess_stream
from .index import FileIndexEntry, FileIndexRow
from .names import STREAMS, SUFFIX, TEMPORARY, TORN, folder_of, parse_name, path_of
from .scan import find_last_frame, is_torn
from .state import read_stamp
from .streams import FileStreams

_MAX_READS = 10
"""How many times to read a stream that is being written before locking out the writers."""
_GUESS_BYTES = 64 * 1024
_NOT_REGULAR = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR)


class FilesCheck:
    """Finds everything that contradicts the frames. Other processes may keep writing."""

    def __init__(self, streams: FileStreams) -> None:
        self._streams, self._tree, self._catalog = streams, streams.tree, streams.catalog
        self._disk, self._top = streams.tree.disk, streams.tree.top

    # -- streams, by their files -------------------------------------------------------------------

    def list_scopes(self) -> list[tuple[str, str]]:
        """Return tenant and kind of all streams, from the names of their folders."""
        found: set[tuple[str, str]] = set()
        for folder in self._tree.iter_folders(STREAMS, 2):
            path = next(filter(self._has_stream, self._iter_paths(folder, 1)), None)
            if path is None:
                continue
            tenant, kind = map(parse_name, folder.split("/")[1:])
            if tenant is None or kind is None:  # a long name is shortened
                stream = self._identify(path)
                if stream is None:
                    continue
                tenant, kind = stream.tenant, stream.kind
            found.add((tenant, kind))
        return sorted(found)

    def _has_stream(self, path: str) -> bool:
        """Return whether a file has a stream, even a damaged one, and not just a tombstone."""
        with suppress(OSError), self._tree.open_path(path) as file:
            span = self._tree.span(file, read_stamp(file).size)
            place = find_last_frame(span)
            return place.frame.first > 0 if place else span.end > 0 and not is_torn(span, 0)
        return False

    def list_damaged(self, tenant: str, kind: str) -> list[StreamKey]:
        """Return the streams that have a file, but no frame that could be listed."""
        folder = folder_of(StreamKey(tenant, kind, "")).rpartition("/")[0]
        listed = set(self._catalog.read(lambda index: index.list_clean(tenant, kind)))
        found = []
        for path in self._iter_paths(folder, 1):
            stream = self._identify(path)
            if stream is None or stream in listed:
                continue
            digest = self._digest(path)
            if digest is not None and digest.last is None and digest.damage is not None:
                found.append(stream)
        return sorted(found)

    def _iter_paths(self, folder: str, depth: int) -> Iterator[str]:
        """Yield the paths of stream files, `depth` folders below this one."""
        for inner in self._tree.iter_folders(folder, depth):
            for name in self._tree.list(inner):
                if not name.endswith(TEMPORARY):
                    yield f"{inner}/{name}"

    def _identify(self, path: str) -> StreamKey | None:
        """Return the stream that a file is named for, even if no frame in it is valid."""
        tenant, kind, _, name = path.split("/")[1:]
        parts = [parse_name(part) for part in (tenant, kind, name.removesuffix(SUFFIX))]
        if None not in parts:
            stream = StreamKey(*(part or "" for part in parts))
            return stream if path_of(stream) == path else None
        with suppress(OSError), self._tree.open_path(path) as file:
            guess = guess_stream(self._tree.span(file, _GUESS_BYTES).get(0, _GUESS_BYTES))
            return guess if guess is not None and path_of(guess) == path else None
        return None

    def _digest(self, path: str, row: FileIndexRow | None = None) -> FileDigest | None:
        """Return the frames of a file, up to the size in `row` if any; None if there is no file."""
        try:
            with self._tree.open_path(path) as file:
                stamp = read_stamp(file)
                known = row is not None and row.inode == stamp.inode and row.size < stamp.size
                size = row.size if row is not None and known else stamp.size
                return digest_file(self._tree.span(file, size), stamp)
        except FileNotFoundError:
            return None

    # -- differences -------------------------------------------------------------------------------

    def check(self) -> Iterator[BackendProblem]:
        """Yield everything that contradicts the frames, and all damaged frames."""
        yield from self._check_root()
        fault = self._find_index_fault()
        if fault:
            yield BackendProblem(f"{INDEX_FILE} is damaged ({fault})", derived=True)
        check_file = partial(self._check_file, has_index=fault is None)
        for path in self._iter_paths(STREAMS, 3):
            yield from self._confirm(self._identify(path), partial(check_file, path))
        for stream in self._list_rows():
            yield from self._confirm(stream, partial(self._check_row, stream))

    def discard(self, stream: StreamKey) -> bool:
        """Delete a stream whose head cannot be read; return False if it can."""
        with self._streams.lock.threads, self._streams.lock.hold():
            if self._streams.settle(stream).damage is None:
                return False
            entry = self._find_entry(stream)
            discard_stream(self._streams, stream, entry.read() if entry else None)
            return True

    def rebuild(self) -> int:
        """Rebuild the index; return how many entries were wrong.

        A row that proves a loss is kept: without it, the loss would go unnoticed.
        """
        with self._streams.lock.threads, self._streams.lock.hold():
            problems = list(self.check())
            lost = [
                problem.stream for problem in problems if problem.stream and not problem.derived
            ]
            rows = [entry.read() for stream in lost if (entry := self._find_entry(stream))]
            self._catalog.rebuild([row for row in rows if row is not None and row.version])
        return sum(problem.derived for problem in problems)

    def _confirm(
        self,
        stream: StreamKey | None,
        find: Callable[[FileIndexEntry | None], list[BackendProblem]],
    ) -> list[BackendProblem]:
        """Return the problems of a stream, unless they come from a write in progress.

        A writer marks the entry of a stream as dirty before it writes, and replaces it afterwards.
        So if the entry is the same before and after, no other process has written.
        """
        for _ in range(_MAX_READS):
            before = self._find_entry(stream)
            problems = find(before)
            if not problems or self._find_entry(stream) == before:
                return problems
        with self._streams.lock.threads, self._streams.lock.hold(reading=True):
            return find(self._find_entry(stream))

    def _check_root(self) -> Iterator[BackendProblem]:
        for name in self._disk.list(self._top, ""):
            if name not in (STREAMS, TORN) and self._contains_streams(name):
                place = f"folder {self._show(name)}"
                yield BackendProblem(f"{place} contains streams, but is not named {STREAMS!r}")

    def _contains_streams(self, folder: str) -> bool:
        try:
            self._disk.list(self._top, folder)
        except OSError:
            return False  # a file, or not Holdfast's
        return any(path.endswith(SUFFIX) for path in self._iter_paths(folder, 3))

    def _find_index_fault(self) -> str | None:
        """Return the fault of the index database; None if it is valid, "" if it is unusable."""
        try:
            return self._catalog.examine(lambda index: index.find_damage())
        except BROKEN as error:
            return type(error).__name__
        except (OSError, apsw.Error):
            return ""  # the disk is read-only or full

    def _list_rows(self) -> list[StreamKey]:
        with suppress(OSError, apsw.Error):
            return self._catalog.examine(lambda index: index.list_existing())
        return []

    def _find_entry(self, stream: StreamKey | None) -> FileIndexEntry | None:
        if stream is not None:
            with suppress(OSError, apsw.Error):  # reported for the whole index, or there is none
                return self._catalog.examine(lambda index: index.get_entry(stream))
        return None

    def _check_file(
        self, path: str, entry: FileIndexEntry | None, *, has_index: bool
    ) -> list[BackendProblem]:
        place = f"file {self._show(path)}"
        row = None if entry is None or entry.is_dirty else entry.read()
        try:
            # Acknowledged bytes do not change, so a writer does not disturb this.
            digest = self._digest(path, row)
            if (
                row is not None
                and digest is not None
                and digest.stamp.size > row.size
                and self._find_entry(row.stream) == entry
            ):
                digest = self._digest(path)  # no other process is writing it
        except OSError as error:
            if error.errno not in _NOT_REGULAR:
                raise
            return [BackendProblem(f"{place} is a link, a folder or a device")]
        if digest is None:
            return []
        stream = digest.stream
        if stream is None:
            if digest.damage is None or not path.endswith(SUFFIX):
                return []
            what = f"{place}, byte offset 0: {digest.damage[1]}"
            return [BackendProblem(what, self._identify(path))]
        if path_of(stream) != path:
            return [BackendProblem(f"{place} contains {stream}, which does not belong there")]
        if digest.damage is not None:
            offset, why = digest.damage
            return [BackendProblem(f"{place}, byte offset {offset}: {why}", stream)]
        state, wrong = digest.state, "it is missing"
        if row is not None and row.inode == digest.stamp.inode and row.size > state.end:
            what = f"{row.size} bytes were acknowledged, {state.end} are left"
            return [BackendProblem(f"{place}: {what}", stream)]
        if entry is not None:
            wrong = entry.find_difference(state.to_row(stream), digest.ids) or ""
        if not has_index or not wrong:
            return []
        return [BackendProblem(f"in the index, {wrong}", stream, derived=True)]

    def _check_row(self, stream: StreamKey, entry: FileIndexEntry | None) -> list[BackendProblem]:
        """Check that a stream of the index has a file."""
        row = None if entry is None or entry.is_dirty else entry.read()
        if row is None or not row.version:
            return []
        with self._tree.open_stream(stream) as file:
            if file is not None:
                return []
        return [BackendProblem(f"file {self._show(path_of(stream))} is missing", stream)]

    def _show(self, path: str) -> str:
        """Return a full path as text. A name that was altered may not be UTF-8."""
        return os.fsencode(os.path.join(self._tree.root, path)).decode(errors="backslashreplace")
