"""Everything Holdfast raises, and what to do about it.

    HoldfastError
    ├── Retryable          the same call may work later
    │   ├── Conflict           another writer appended first; nothing was written
    │   ├── Unavailable        the engine cannot be reached or is busy; nothing was written
    │   ├── StorageFull        no room; nothing was written, what was stored stays readable
    │   └── OutcomeUnknown     the answer was lost; retry with the same id to settle it
    ├── NeedsHuman         a person has to decide or change something
    │   ├── ReadOnly           the store cannot be written to
    │   ├── UnsupportedFilesystem  a network file system, where locks cannot be trusted
    │   └── UnsupportedVersion stored by a newer Holdfast, or not a Holdfast store
    ├── DataProblem        this piece of data cannot be stored or cannot be trusted
    │   ├── CorruptRecord      stored bytes do not match their digest
    │   ├── HeadRegressed      the engine lost acknowledged writes
    │   ├── IdReused           the same append id with other content
    │   ├── InvalidId          an id that no backend could keep apart from others
    │   ├── SchemaMismatch     stored data does not fit the type that the program declares
    │   ├── TooLarge           beyond a limit on size or depth
    │   └── NotSerializable    a value that would not come back as it went in
    └── Closed             the store was closed

Any error from an append other than OutcomeUnknown means: not stored. Wrong use of the
library (a bad argument) is a plain TypeError or ValueError. No message ever holds
content, a key or a password.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Base of all errors raised by Holdfast."""


class Retryable(HoldfastError):
    """The same call may succeed later."""


class NeedsHuman(HoldfastError):
    """Retrying will not help: a person has to decide or change something."""


class DataProblem(HoldfastError):
    """This piece of data cannot be stored, or cannot be trusted."""


class Conflict(Retryable):
    """Another writer appended first. Nothing was written: read the stream again and decide again."""

    def __init__(self, stream: str, *, expected: int, actual: int) -> None:
        super().__init__(f"{stream} is at version {actual}, not {expected}; read it again and retry")
        self.stream, self.expected, self.actual = stream, expected, actual


class Unavailable(Retryable):
    """The storage engine cannot be reached, is busy or failed. Nothing was written."""


class StorageFull(Retryable):
    """There is no room for the write. Nothing was written; it works again once there is space."""


class OutcomeUnknown(Retryable):
    """The engine did not say whether the append was stored. Repeat it with `id=error.id` to settle it.

    A repeat never stores twice: if the first attempt did arrive, it is answered as a duplicate. An id that you chose can be
    repeated by any process at any time; one that the library made, only by the process that got this error.
    """

    def __init__(self, message: str, *, stream: str | None = None, id: str | None = None) -> None:
        super().__init__(message)
        self.stream, self.id = stream, id


class ReadOnly(NeedsHuman):
    """The store cannot be written to: check permissions and the file system's mount options."""


class UnsupportedFilesystem(NeedsHuman):
    """The path is on a network file system, where locks and shared memory cannot be trusted."""

    def __init__(self, path: str, filesystem: str) -> None:
        super().__init__(
            f"{path} is on a network file system ({filesystem}), where locks cannot be trusted; "
            "put it on a local disk, or use a database server"
        )
        self.path, self.filesystem = path, filesystem


class UnsupportedVersion(NeedsHuman):
    """The data was written by a newer Holdfast, or is not a Holdfast store at all."""


class CorruptRecord(DataProblem):
    """Stored bytes do not match their digest. They are reported, never returned as data."""

    def __init__(self, stream: str, *, version: int | None = None, what: str, place: str | None = None) -> None:
        where = f" (version {version})" if version is not None else ""
        at = f", {place}" if place else ""
        super().__init__(f"{stream}{where} is damaged: {what}{at}; restore it from a backup or a copy")
        self.stream, self.version, self.what, self.place = stream, version, what, place


class HeadRegressed(DataProblem):
    """The engine went back in time: it no longer has a version it had acknowledged."""

    def __init__(self, stream: str, *, acknowledged: int, actual: int) -> None:
        super().__init__(
            f"{stream} had acknowledged version {acknowledged} and is now at {actual} with another history: "
            "the engine lost writes (a failover or a restored backup); reopen the store to accept its state"
        )
        self.stream, self.acknowledged, self.actual = stream, acknowledged, actual


class IdReused(DataProblem):
    """This append id was already used for other content. Nothing was written: choose an id per thing you append."""

    def __init__(self, stream: str, *, id: str) -> None:
        super().__init__(f"{stream} already has an append with id {id!r} and other content; use another id")
        self.stream, self.id = stream, id


class InvalidId(DataProblem, ValueError):
    """The id cannot be stored on every backend: it is empty, too long, or not valid text."""


class SchemaMismatch(DataProblem):
    """Stored data is sound, but does not fit the type that the program declares for it."""

    def __init__(self, stream: str, *, version: int, type: str, what: str) -> None:
        super().__init__(
            f"{stream} (version {version}): the data of {type!r} {what}; "
            "declare the type it was stored with, or raise the type's version and add an upcaster"
        )
        self.stream, self.version, self.type, self.what = stream, version, type, what


class TooLarge(DataProblem, ValueError):
    """A value is over a limit on size or depth. Nothing was written."""


class NotSerializable(DataProblem, TypeError):
    """A value would not come back as it went in. `path` is the place inside it, like `$.items[3].price`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class Closed(HoldfastError):
    """The store was closed; open it again."""
