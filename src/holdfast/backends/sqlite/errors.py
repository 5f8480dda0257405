"""Translate the errors of SQLite and the file system into Holdfast's."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import apsw

from ...errors import (
    CorruptRecord,
    HoldfastError,
    ReadOnly,
    StorageFull,
    Unavailable,
    UnsupportedVersion,
)


def raise_translated(error: BaseException, path: str) -> NoReturn:
    """Raise a driver error as one of Holdfast's; raise any other error unchanged."""
    if isinstance(error, UnicodeDecodeError):
        raise CorruptRecord(path, what="a text in it is not valid UTF-8") from None
    if isinstance(error, TypeError):
        raise foreign_row_error(path) from error
    if isinstance(error, apsw.Error):
        raise translate_error(error, path) from error
    raise error


def translate_error(error: apsw.Error, path: str) -> HoldfastError:
    """Translate an error of the driver. SQLite's messages contain no user data."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, apsw.FullError):
        return storage_full_error(path)
    if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError)):
        return ReadOnly(
            f"{path} cannot be written to ({reason}); check permissions and mount options"
        )
    if isinstance(error, apsw.NotADBError):
        return UnsupportedVersion(f"{path} is not an SQLite database; choose another path")
    if (
        isinstance(error, apsw.CantOpenError)
        and os.path.exists(path)
        and not os.access(path, os.R_OK | os.W_OK)
    ):
        return ReadOnly(f"{path} cannot be opened; check its permissions and those of its folder")
    if isinstance(error, (apsw.CorruptError, apsw.TooBigError, apsw.ConstraintError)):
        return CorruptRecord(path, what=f"SQLite reports {reason}")
    if isinstance(error, apsw.BusyError):
        return Unavailable(f"another process kept {path} locked until the deadline; retry")
    return Unavailable(f"{path}: {reason}")


def translate_create_error(error: OSError, path: str) -> HoldfastError:
    """Translate the error of a file that could not be created."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(f"cannot create {path}: {error.strerror}; check permissions")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no space left to create {path}; free some space")
    if error.errno == errno.ENOENT:
        return Unavailable(f"cannot create {path}: its directory does not exist; create it first")
    return Unavailable(f"cannot create {path}: {error.strerror}")


def is_storage_full(error: BaseException, connection: apsw.Connection) -> bool:
    """Return whether a write failed because the disk is full, or a quota or size limit is reached.

    SQLite reports only a full disk as such; the other two are I/O errors. Call this before the
    connection is used again: the system's error number is that of its last failure.
    """
    if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_WRITE:
        return connection.system_errno in (errno.EDQUOT, errno.EFBIG)
    return isinstance(error, apsw.FullError)


def readonly_error(path: str) -> ReadOnly:
    return ReadOnly(
        f"{path} was opened read-only; nothing was written. Check the permissions of the"
        " file and its folder, and the mount options of the disk"
    )


def storage_full_error(path: str) -> StorageFull:
    return StorageFull(f"no space left to write to {path}; nothing was lost. Free some space")


def foreign_row_error(path: str) -> CorruptRecord:
    return CorruptRecord(path, what="a row has a value of a type that its table does not allow")
