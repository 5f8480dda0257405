"""Translate the errors of redis-py and the refusals of a server into Holdfast's."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Final

from ...errors import (
    AccessDenied,
    CorruptRecord,
    HoldfastError,
    InvalidURL,
    MissingExtra,
    ReadOnly,
    StorageFull,
    Unavailable,
    UnsupportedServer,
)
from .url import RedisAddress

try:
    from redis.exceptions import AuthenticationError as AuthenticationError
    from redis.exceptions import BusyLoadingError as BusyLoadingError
    from redis.exceptions import InvalidResponse
    from redis.exceptions import NoScriptError as NoScriptError
    from redis.exceptions import RedisError as RedisError
    from redis.exceptions import ResponseError as ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError
except ModuleNotFoundError:
    raise MissingExtra("a redis:// store", "redis") from None


_REFUSALS: Final[tuple[tuple[str, type[HoldfastError], str], ...]] = (
    ("READONLY", ReadOnly, "is a read-only replica; name the primary in the URL"),
    (
        "OOM",
        StorageFull,
        "has reached its maxmemory; nothing was written. Raise it, or delete data",
    ),
    (
        "MISCONF",
        StorageFull,
        "cannot write to its disk and accepts no writes until it can; see its log",
    ),
    (
        r"MOVED|\bASK\b|CROSSSLOT",
        UnsupportedServer,
        "is one node of a cluster of several, which Holdfast does not support",
    ),
)


class ConnectionLost(Exception):
    """The connection broke after a command was sent on it."""


def translate_error(error: Exception, location: str) -> HoldfastError:
    """Translate a refusal; nothing was written.

    Only the error code of Redis is used: the rest of its text may name keys.
    """
    text = f"{getattr(error, 'status_code', None) or ''} {error}"
    if isinstance(error, AuthenticationError):
        return AccessDenied(f"{location} {_explain_rejected_login(text)}")
    if is_denied(text):
        command = re.search(r"'([a-z|]+)' command", text)
        return command_denied_error(
            command[1] if command else "a command that Holdfast needs, or touch its keys", location
        )
    for pattern, kind, reason in _REFUSALS:
        if re.search(pattern, text):
            return kind(f"{location} {reason}")
    code = re.search(r"\b(LOADING|BUSY|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN)\b", text)
    if not code and re.search(r"WRONGTYPE|CORRUPT|user_script|not an integer|would overflow", text):
        return CorruptRecord(location, what="one of its keys was not written by Holdfast")
    return Unavailable(
        f"{location} refused ({code[1] if code else type(error).__name__}); retry later"
    )


def _explain_rejected_login(text: str) -> str:
    """Return the problem with the user and the password, and what to do."""
    if re.search(r"without any password configured|no password is set", text):
        return (
            "has no password, and the URL has one; remove it from the URL, or set requirepass on "
            "the server"
        )
    if re.search(r"NOAUTH|Authentication required", text):
        return (
            "requires a password, and the URL has none; write redis://:password@host or "
            "redis://user:password@host"
        )
    return (
        "rejects the user and password of the URL; correct them, and write @ : / ? # in a password "
        "as %40 %3A %2F %3F %23"
    )


def is_denied(text: str) -> bool:
    """Return whether the user lacks a permission. Versions of Redis word it differently."""
    return re.search(r"NOPERM|ACL failure|can't run this command", text) is not None


def command_denied_error(command: str, location: str) -> AccessDenied:
    return AccessDenied(
        f"the user of {location} may not run {command}; have an administrator allow it "
        "(ACL SETUSER)"
    )


def translate_connect_error(
    error: Exception, cause: BaseException | None, address: RedisAddress
) -> HoldfastError:
    """Translate the error of a connection attempt; `cause` is the error of the system."""
    if isinstance(error, ResponseError | AuthenticationError):
        if re.search("DB index|cluster mode", str(error)):
            return InvalidURL(
                f"{address.location} has no such database; use a lower number, in a cluster 0"
            )
        if "protected mode" in str(error):
            return AccessDenied(
                f"{address.location} has no password and accepts only its own machine (protected "
                "mode); set requirepass"
            )
        return translate_error(error, address.location)
    if isinstance(error, BusyLoadingError):
        return Unavailable(f"{address.location} is loading its data; retry soon")
    return Unavailable(
        f"cannot connect to {address.location}: {_explain_no_connection(error, cause, address)}"
    )


def _explain_no_connection(
    error: Exception, cause: BaseException | None, address: RedisAddress
) -> str:
    """Return why there is no connection, and what to check."""
    reason = cause if isinstance(error, RedisError) else error
    tls = "check that it uses TLS, with a certificate that this machine trusts"
    if isinstance(reason, ConnectionRefusedError):
        return "nothing listens there; check host and port, and that the server runs"
    if isinstance(reason, socket.gaierror | UnicodeError):
        return (
            "the host name is not known; check it, and write @ : / ? # in a password as "
            "%40 %3A %2F %3F %23"
        )
    if isinstance(error, RedisTimeoutError) or isinstance(reason, TimeoutError):
        late = "no answer in time; check host and port, and the network"
        return f"{late}; {tls}" if address.tls else late
    if isinstance(reason, ssl.SSLError):
        return (
            f"no secure connection; {tls} (the option 'ca' names a file of certificates to trust)"
        )
    if "max number of clients" in str(error):
        return "it accepts no more clients; retry later, or raise its maxclients"
    if isinstance(reason, OSError) and reason.errno and not isinstance(reason, ConnectionError):
        return f"{os.strerror(reason.errno)}; check host and port, and the network"
    other = "" if address.tls else ", whether it requires TLS (rediss://)"
    if isinstance(error, InvalidResponse):
        return f"the server there is not Redis; check host and port{other}"
    return (
        f"the connection was closed at once; check host and port{other}, and whether the server is "
        "in protected mode"
    )
