"""The URLs of servers: what they name, which options they take, and how they are shown without a password."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from ..errors import InvalidURL


class ServerURL(NamedTuple):
    """A URL taken apart. `options` are those behind the question mark."""

    parts: SplitResult
    options: dict[str, str]


def parse(url: str, *, example: str, options: Collection[str] | None) -> ServerURL:
    """Take a URL apart. `options` are the ones that exist, None if the driver knows them; `example` shows what is right."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        if "," not in parts.netloc:  # several hosts, as PostgreSQL takes them
            parts.port  # noqa: B018  raises if it is no number
    except ValueError:
        # Not the message of urllib: it may quote a part of the URL, and with it a password.
        raise InvalidURL(f"this is not a URL of a store; it looks like {example}") from None
    if parts.fragment:
        raise InvalidURL(f"a {parts.scheme}:// URL has no part behind '#'; write a '#' in a password as %23")
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidURL(f"the option {name!r} is given twice in the URL")
        if options is not None and name not in options:
            raise InvalidURL(f"a {parts.scheme}:// URL has no option {name!r}; it has {', '.join(sorted(options))}")
        found[name] = value
    return ServerURL(parts, found)


def shown(parts: SplitResult) -> str:
    """The URL for people and logs: without password and options."""
    user = parts.username or ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{user}@{host}" if user else host, parts.path, "", ""))


def number(options: dict[str, str], name: str, default: int, *, least: int = 0) -> int:
    """An option that is a whole number."""
    try:
        value = int(options.get(name, default))
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidURL(f"the option {name!r} of the URL is a whole number of at least {least}")
    return value


def flag(options: dict[str, str], name: str, default: bool) -> bool:
    """An option that is on or off."""
    value = options.get(name, "on" if default else "off").lower()
    if value not in ("on", "off", "true", "false", "1", "0", "yes", "no"):
        raise InvalidURL(f"the option {name!r} of the URL is 'on' or 'off'")
    return value in ("on", "true", "1", "yes")
