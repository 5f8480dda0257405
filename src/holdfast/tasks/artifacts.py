"""Artifacts: files attached to a task, stored and read chunk by chunk, however large they are."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import IO, Any, Final

from ..backends import StreamKey
from ..errors import LeaseLost, NotFound, SourceChanged, TaskEnded
from ..log import operations as ops
from ..log.drivers import EffectGen
from ..log.events import Blob, new_append_context
from ..log.head_fields import is_expired
from ..log.ids import check_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.blobs import (
    CHUNK_BYTES,
    FileReader,
    count_chunks,
    delete_orphans,
    delete_partial_file,
    is_stored,
    put_chunks,
)
from .run.frames import CallFunction
from .run.session import Session
from .state import events as ev
from .state.fold import AttachedFile
from .state.load import artifact_info, load_task

Source = str | os.PathLike[str] | bytes | IO[bytes]
"""What can be attached: a path, the content itself, or a file opened in binary mode."""

CHUNKS_PER_APPEND: Final = 4
"""Maximum number of chunks in memory, and in one append."""


class _Reader(io.RawIOBase):
    """An artifact as a file object that loads a page of chunks at a time."""

    def __init__(self, log: Log, attachment: AttachedFile) -> None:
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
            raise ValueError(f"the position must be >= 0, got {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        place, start = divmod(self._at, CHUNK_BYTES)
        if not self._place <= place < self._place + len(self._page):
            self._page = ops.run(self._log, self._reading.read_page(place))
            self._place = place
        if not self._page:
            return 0
        piece = memoryview(self._page[place - self._place])[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class ArtifactBase:
    """The base of `Artifact` and `AsyncArtifact`."""

    __slots__ = ("_attachment", "_log")

    def __init__(self, log: Log, attachment: AttachedFile) -> None:
        self._log, self._attachment = log, attachment

    @property
    def name(self) -> str:
        return self._attachment.name

    @property
    def size(self) -> int:
        """Its size in bytes."""
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
        """Return what identifies the artifact as a step's argument: the digest of its content."""
        return ["artifact", self.digest]

    def open(self) -> io.BufferedReader:
        """Return a seekable file object that loads a few MiB at a time.

        Its methods block, so use it in a thread in async code. Every chunk is verified, and so is
        the whole content if it is read from start to end. Changed content raises `CorruptRecord`.
        """
        return io.BufferedReader(_Reader(self._log, self._attachment), CHUNK_BYTES)


class Artifact(ArtifactBase):
    """One version of a file that is attached to a task. Its content isn't loaded into memory."""

    __slots__ = ()

    def chunks(self) -> Iterator[bytes]:
        """Iterate over the content in chunks of one MiB.

        If the content was changed, it raises `CorruptRecord` instead of yielding the last chunk.
        """
        reading, place = FileReader(self._attachment.owner, self._attachment.blob), 0
        while page := ops.run(self._log, reading.read_page(place)):
            yield from page
            place += len(page)

    def read(self) -> bytes:
        """Return the whole content."""
        return b"".join(self.chunks())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the content to a file, durably and atomically.

        A new file is readable only by its owner.
        """
        from ..conversations.json_files import write_atomically

        write_atomically(path, self.chunks())


class AsyncArtifact(ArtifactBase):
    """An `Artifact` whose methods are awaited."""

    __slots__ = ()

    async def chunks(self) -> AsyncIterator[bytes]:
        """`Artifact.chunks` as an async iterator."""
        reading, place = FileReader(self._attachment.owner, self._attachment.blob), 0
        while page := await ops.run_async(self._log, reading.read_page(place)):
            for chunk in page:
                yield chunk
            place += len(page)

    async def read(self) -> bytes:
        """`Artifact.read`, awaited."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def save(self, path: str | os.PathLike[str]) -> None:
        """`Artifact.save`, awaited. Cancelling it doesn't stop the write, which stays atomic."""
        import asyncio

        await asyncio.to_thread(Artifact(self._log, self._attachment).save, path)


class _Upload:
    """A file to attach. It is read twice: once for its digest, once to store it."""

    def __init__(self, source: Source) -> None:
        self._files, self._digest = ExitStack(), sha256()
        try:
            self._file = self._as_file(source)
            self._start = self._file.tell()
        except BaseException:
            self.close()
            raise

    def _as_file(self, source: Source) -> IO[bytes]:
        """Return the source as a file that can be read twice."""
        if isinstance(source, bytes):
            return io.BytesIO(source)
        if isinstance(source, str | os.PathLike):
            file: IO[bytes] = self._files.enter_context(_open_path(source))
        elif hasattr(source, "read"):
            file = source
        else:
            raise TypeError(
                "source must be a path, bytes, or a file opened for reading in binary mode, "
                f"got {type(source).__name__}"
            )
        if hasattr(file, "seekable") and file.seekable():
            return file
        import tempfile

        spooled = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  by close()
        while chunk := _read_chunk(file):
            spooled.write(chunk)
        spooled.seek(0)
        return spooled

    def close(self) -> None:
        """Close the files that this object opened."""
        self._files.close()

    def rewind(self) -> None:
        self._file.seek(self._start)
        self._digest = sha256()

    def take(self) -> list[bytes]:
        """Read the next few chunks. All have full length, except the last one of the file."""
        chunks: list[bytes] = []
        while len(chunks) < CHUNKS_PER_APPEND and (chunk := _read_chunk(self._file)):
            self._digest.update(chunk)
            chunks.append(chunk)
        return chunks

    def measure(self, incarnation: str) -> Blob:
        """Read the file from start to end, and return its digest and size."""
        self.rewind()
        size = 0
        while chunks := self.take():
            size += sum(map(len, chunks))
        return Blob(self._digest.hexdigest(), size, incarnation)

    def check_end(self, blob: Blob) -> bool:
        """Try to read more. Return True if the file has ended and has the digest of `blob`."""
        return not self.take() and self._digest.hexdigest() == blob.digest


def _open_path(path: str | os.PathLike[str]) -> IO[bytes]:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        if isinstance(path, str) and error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            error.strerror = f"{error.strerror} (a string is a path; to attach content, pass bytes)"
            if error.errno == errno.ENAMETOOLONG:
                error.filename = None  # it may be content
        raise


def _read_chunk(file: IO[bytes]) -> bytes:
    """Read a full chunk, or up to the end of the file. One `read` of a pipe may return less."""
    pieces: list[bytes] = []
    left = CHUNK_BYTES
    while left:
        piece = file.read(left)
        if piece is None:
            raise BlockingIOError("source must be a blocking file, got one without data to read")
        if not isinstance(piece, bytes):
            raise TypeError(
                "source must be a file opened for reading in binary mode, "
                f"got one that returns {type(piece).__name__}"
            )
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def attach(session: Session, name: str, source: Source) -> EffectGen[AttachedFile]:
    """Store a file with the task. The content is written first, then the event that names it."""
    check_id(name, "an artifact's name")
    session.check_active()
    if session.writer.needs_catch_up:
        yield from session.catch_up()
    content: _Upload = yield CallFunction(_Upload, (source,), {})
    try:
        blob: Blob = yield CallFunction(content.measure, (session.incarnation_hex,), {})
        if session.replaying is not None:
            return session.replaying.file(name, blob)
        known = session.state.attached.get(name)
        if known is not None and known.blob.digest == blob.digest:
            return known
        session.check_writable()
        try:
            yield from _store_content(session, name, content, blob)
            stamp = new_append_context()
            answer = yield from session.put([(ev.ATTACHED, ev.Attached(name, blob))], stamp)
        except (LeaseLost, TaskEnded):
            yield from ops.settle(lambda: delete_orphans(session.key, session.incarnation_hex))
            raise
        return AttachedFile(answer.last, stamp.at, session.key, name, blob)
    finally:
        content.close()


def _store_content(session: Session, name: str, content: _Upload, blob: Blob) -> EffectGen[None]:
    """Store the content of a file, unless it is stored already."""
    owner = session.key
    while not (yield from is_stored(owner, blob)):
        if (yield from _write_missing(session, name, content, blob)):
            return
        # The stored chunks are from a file that changed while it was read: this or another one.
        yield from session.catch_up()
        if (yield CallFunction(content.measure, (session.incarnation_hex,), {})) != blob:
            raise SourceChanged(str(owner), name=name)
        yield from ops.settle(lambda: delete_partial_file(owner, blob))


def _write_missing(session: Session, name: str, content: _Upload, blob: Blob) -> EffectGen[bool]:
    """Write the missing chunks. Return False if the stored chunks aren't the start of the file."""
    owner, place = session.key, 0
    incarnation: bytes | None = None
    yield CallFunction(content.rewind, (), {})
    while place < count_chunks(blob):
        session.check_writable()
        chunks: list[bytes] = yield CallFunction(content.take, (), {})
        # Never write the last chunk of a file that has changed since its digest was computed.
        last = not chunks or place + len(chunks) >= count_chunks(blob)
        if last and not (yield CallFunction(content.check_end, (blob,), {})):
            yield from ops.settle(lambda: delete_partial_file(owner, blob))
            raise SourceChanged(str(owner), name=name)
        stamp = new_append_context()
        incarnation = yield from ops.settle(
            partial(put_chunks, owner, blob, place, chunks, incarnation, stamp)
        )
        if incarnation is None:
            return False
        place += len(chunks)
    return True


def list_attachments(session: Session) -> list[AttachedFile]:
    """Return the artifacts that this session knows about."""
    with session.lock:
        return list(session.state.attached.values())


def find_artifact(key: StreamKey, name: str) -> Operation[AttachedFile]:
    """Return a task's artifact by its name."""
    check_id(name, "an artifact's name")
    head = yield from ops.head(key)
    if head is None or is_expired(head):
        raise NotFound(f"{key} doesn't exist or has expired; check the id")
    state = yield from load_task(key, end=head.version)
    if name not in state.attached:
        raise NotFound(f"{key} has no artifact with that name; get_task() lists its artifacts")
    return state.attached[name]
