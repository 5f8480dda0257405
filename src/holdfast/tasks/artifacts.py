"""Files of a task: attached, found again, and read chunk by chunk, however large they are."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from hashlib import sha256
from typing import IO, Any, Final

from ..backends import StreamKey
from ..errors import LeaseLost, NotFound, SourceChanged, TaskEnded
from ..log import operations as ops
from ..log.blobs import (
    CHUNK_BYTES,
    FileReader,
    chunks_of,
    drop_half,
    drop_orphans,
    is_stored,
    put_chunks,
)
from ..log.events import Blob
from ..log.ids import checked_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import new_append_context
from .run.effects import CallFunction, RunOperation, Script
from .run.session import Session
from .state import events as ev
from .state.fold import Attachment
from .state.load import artifact_info, is_expired, load

Source = str | os.PathLike[str] | bytes | IO[bytes]
"""What can be attached: a path, the content itself, or a file that is open for reading bytes."""

CHUNKS_AT_ONCE: Final = 4
"""So many chunks are in memory, and in one append."""


class _Reader(io.RawIOBase):
    """An artifact as a file: a page of its chunks at a time."""

    def __init__(self, log: Log, attachment: Attachment) -> None:
        self._log, self._size = log, attachment.blob.size
        self._reading = FileReader(attachment.owner, attachment.blob)
        self._at = 0
        self._place, self._page = 0, list[bytes]()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError("there is nothing before the beginning of a file")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        place, start = divmod(self._at, CHUNK_BYTES)
        if not self._place <= place < self._place + len(self._page):
            self._page = ops.run(self._log, self._reading.page(place))
            self._place = place
        if not self._page:
            return 0
        piece = memoryview(self._page[place - self._place])[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class ArtifactBase:
    """What an artifact and its async twin share."""

    __slots__ = ("_attachment", "_log")

    def __init__(self, log: Log, attachment: Attachment) -> None:
        self._log, self._attachment = log, attachment

    @property
    def name(self) -> str:
        return self._attachment.name

    @property
    def size(self) -> int:
        """In bytes."""
        return self._attachment.blob.size

    @property
    def digest(self) -> str:
        """The SHA-256 of its content, in hex."""
        return self._attachment.blob.digest

    @property
    def at(self) -> datetime:
        """When it was attached, in UTC."""
        return artifact_info(self._attachment).at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArtifactBase) and self._attachment == other._attachment

    def __hash__(self) -> int:
        return hash(self._attachment)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {self.size} bytes>"

    def __holdfast_fingerprint__(self) -> object:
        """As an argument of a step it counts by its content."""
        return ["artifact", self.digest]

    def open(self) -> io.BufferedReader:
        """A file to read from, which can seek and loads a few MiB at a time.

        It blocks: async programs use it in a thread. Every chunk is checked, and the whole if it is
        read from beginning to end: changed content ends with `CorruptRecord`.
        """
        return io.BufferedReader(_Reader(self._log, self._attachment), CHUNK_BYTES)


class Artifact(ArtifactBase):
    """A file that was attached to a task, in one version of its content. Holds nothing of it in memory."""

    __slots__ = ()

    def chunks(self) -> Iterator[bytes]:
        """The content, a MiB at a time.

        `CorruptRecord` instead of the last one if it was changed.
        """
        reading, place = FileReader(self._attachment.owner, self._attachment.blob), 0
        while page := ops.run(self._log, reading.page(place)):
            yield from page
            place += len(page)

    def read(self) -> bytes:
        """The whole content."""
        return b"".join(self.chunks())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the content to a file, durably, whole or not at all.

        Only its owner may read a new file.
        """
        from ..conversations.json_files import write_atomically

        write_atomically(path, self.chunks())


class AsyncArtifact(ArtifactBase):
    """An `Artifact` whose methods are awaited."""

    __slots__ = ()

    async def chunks(self) -> AsyncIterator[bytes]:
        """`Artifact.chunks` as an async iterator."""
        reading, place = FileReader(self._attachment.owner, self._attachment.blob), 0
        while page := await ops.run_async(self._log, reading.page(place)):
            for chunk in page:
                yield chunk
            place += len(page)

    async def read(self) -> bytes:
        """`Artifact.read`, awaited."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def save(self, path: str | os.PathLike[str]) -> None:
        """`Artifact.save`, awaited. If cancelled, it is saved all the same, or not at all."""
        import asyncio

        await asyncio.to_thread(Artifact(self._log, self._attachment).save, path)


class _Content:
    """What is to be attached. It is read twice: for its digest, and to be stored."""

    def __init__(self, source: Source) -> None:
        self._opened, self._digest = ExitStack(), sha256()
        try:
            self._file = self._as_file(source)
            self._start = self._file.tell()
        except BaseException:
            self.close()
            raise

    def _as_file(self, source: Source) -> IO[bytes]:
        """The source as a file that can be read twice."""
        if isinstance(source, bytes):
            return io.BytesIO(source)
        if isinstance(source, str | os.PathLike):
            file: IO[bytes] = self._opened.enter_context(_open(source))
        elif hasattr(source, "read"):
            file = source
        else:
            raise TypeError(
                f"attach takes a path, bytes, or a file opened for reading bytes, not {_kind(source)}"
            )
        if hasattr(file, "seekable") and file.seekable():
            return file
        import tempfile

        spooled = self._opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  by close()
        while chunk := _chunk(file):
            spooled.write(chunk)
        spooled.seek(0)
        return spooled

    def close(self) -> None:
        """Close what was opened here."""
        self._opened.close()

    def rewind(self) -> None:
        self._file.seek(self._start)
        self._digest = sha256()

    def take(self) -> list[bytes]:
        """The next chunks, a few; all are as long as a chunk is, but for the last of the file."""
        chunks: list[bytes] = []
        while len(chunks) < CHUNKS_AT_ONCE and (chunk := _chunk(self._file)):
            self._digest.update(chunk)
            chunks.append(chunk)
        return chunks

    def measure(self, incarnation: str) -> Blob:
        """Read it from the beginning to the end, and say what it is."""
        self.rewind()
        size = 0
        while chunks := self.take():
            size += sum(map(len, chunks))
        return Blob(self._digest.hexdigest(), size, incarnation)

    def take_last(self, blob: Blob) -> bool:
        """Whether what was taken since the beginning is all that there is, and what `blob` says."""
        return not self.take() and self._digest.hexdigest() == blob.digest


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        if isinstance(path, str) and error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            error.strerror = f"{error.strerror} (text is a path; for content pass bytes)"
            if error.errno == errno.ENAMETOOLONG:
                error.filename = None  # it may be content
        raise


def _chunk(file: IO[bytes]) -> bytes:
    """A whole chunk, unless the file ends before: a pipe gives what it has."""
    pieces: list[bytes] = []
    left = CHUNK_BYTES
    while left:
        piece = file.read(left)
        if piece is None:
            raise BlockingIOError("the file to attach has nothing to read yet; give one that waits")
        if not isinstance(piece, bytes):
            raise TypeError(
                f"attach takes a file opened for reading bytes, not one that gives {_kind(piece)}"
            )
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _kind(value: object) -> str:
    return type(value).__name__


def attach(session: Session, name: str, source: Source) -> Script[Attachment]:
    """Keep a file with the task, under a name. The event that names it comes last, when all of it is there."""
    checked_id(name, "an artifact's name")
    session.check_here()
    if session.unsure:
        yield RunOperation(session.catch_up)
    content: _Content = yield CallFunction(_Content, (source,), {})
    try:
        blob: Blob = yield CallFunction(content.measure, (session.incarnation_hex,), {})
        if session.replaying is not None:
            return session.replaying.file(name, blob)
        known = session.state.attached.get(name)
        if known is not None and known.blob.digest == blob.digest:
            return known
        session.check()
        try:
            yield from _store(session, name, content, blob)
            stamp = new_append_context()
            answer = yield RunOperation(
                lambda: session.put([(ev.ATTACHED, ev.Attached(name, blob))], stamp)
            )
        except (LeaseLost, TaskEnded):
            yield RunOperation(lambda: drop_orphans(session.key, session.incarnation_hex))
            raise
        return Attachment(answer.last, stamp.at, session.key, name, blob)
    finally:
        content.close()


def _store(session: Session, name: str, content: _Content, blob: Blob) -> Script[None]:
    """Write a file, unless it is there."""
    owner = session.key
    while not (yield RunOperation(lambda: is_stored(owner, blob))):
        if (yield from _write(session, name, content, blob)):
            return
        # What is there came from a file that was changed while it was read. Unless it is ours that was: look again.
        yield RunOperation(session.catch_up)
        if (yield CallFunction(content.measure, (session.incarnation_hex,), {})) != blob:
            raise SourceChanged(str(owner), name=name)
        yield RunOperation(lambda: drop_half(owner, blob))


def _write(session: Session, name: str, content: _Content, blob: Blob) -> Script[bool]:
    """Write what is missing of a file. False if what is there of it is not how it begins."""
    owner, place = session.key, 0
    incarnation: bytes | None = None
    yield CallFunction(content.rewind, (), {})
    while place < chunks_of(blob):
        session.check()
        chunks: list[bytes] = yield CallFunction(content.take, (), {})
        # Never all of it, if it is not what it was when its digest was taken.
        last = not chunks or place + len(chunks) >= chunks_of(blob)
        if last and not (yield CallFunction(content.take_last, (blob,), {})):
            yield RunOperation(lambda: drop_half(owner, blob))
            raise SourceChanged(str(owner), name=name)
        incarnation = yield RunOperation(_putting(owner, blob, place, chunks, incarnation))
        if incarnation is None:
            return False
        place += len(chunks)
    return True


def _putting(
    owner: StreamKey, blob: Blob, place: int, chunks: list[bytes], incarnation: bytes | None
) -> Callable[[], Operation[bytes | None]]:
    """The same append, however often it has to be run."""
    stamp = new_append_context()
    return lambda: put_chunks(owner, blob, place, chunks, incarnation, stamp)


def attached_to(session: Session) -> list[Attachment]:
    """What this holder knows to be attached."""
    with session.lock:
        return list(session.state.attached.values())


def find_artifact(key: StreamKey, name: str) -> Operation[Attachment]:
    """What is attached to a task under a name."""
    checked_id(name, "an artifact's name")
    head = yield from ops.head(key)
    if head is None or is_expired(head):
        raise NotFound(f"there is no {key}, or it has expired; check the id")
    state = yield from load(key)
    if name not in state.attached:
        raise NotFound(f"{key} has no artifact of that name; get_task() lists those it has")
    return state.attached[name]
