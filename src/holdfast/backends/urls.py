"""The URLs of servers: what they name, which options they take, and how they are shown without a password."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote_plus, urlencode, urlsplit

from ..errors import InvalidURL

LARGEST: Final = 2_147_483_647
"""What everybody who is handed a number can take; in milliseconds, 24 days."""
SHOWN: Final = ("host", "port", "dbname", "schema", "prefix")
"""Options that say which store it is. Others are not shown: they may be secret."""


class ServerURL(NamedTuple):
    """A URL taken apart. `options` are those behind the question mark."""

    parts: SplitResult
    options: dict[str, str]


AS_A_URL: Final = "a URL begins with a word like postgresql, a colon and two slashes, without quotes or anything else before it"


def checked_path(path: str, advice: str = AS_A_URL) -> str:
    """A path as it is. `InvalidURL` if it was meant to be a URL, or the parameters of a connection: it may hold a password, so it is
    neither shown nor made into the name of a file."""
    if "://" in path or re.search(r"//[^/]*@|\bpassword\s*=", path, re.IGNORECASE):
        raise InvalidURL(f"this is not the path of a file; {advice}")
    return path


def without_space(url: str) -> str:
    """A URL or path as it is. `InvalidURL` if there is white space around it, as at the end of a file that was read."""
    if url != url.strip():
        raise InvalidURL(
            "there is white space before or behind the URL or path; take it off, as with .strip()"
        )
    return url


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
        raise InvalidURL(
            f"a {parts.scheme}:// URL has no part behind '#'; write a '#' in a password as %23"
        )
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidURL(f"{_named(name, parts)} is given twice{_hint(parts)}")
        if options is not None and name not in options:
            raise unknown(name, parts, options)
        found[name] = value
    return ServerURL(parts, found)


def unknown(
    name: str, parts: SplitResult, options: Collection[str], others: str = ""
) -> InvalidURL:
    """What is said of an option that does not exist. `durability` exists for all: it is taken before the engine sees the URL."""
    known = f"a {parts.scheme}:// URL has {', '.join(sorted({*options, 'durability'}))}{others}"
    return InvalidURL(f"{_named(name, parts)} is unknown; {known}{_hint(parts)}")


def _named(name: str, parts: SplitResult) -> str:
    """An option in an error. Behind a '?' in a password the rest of the password looks like options, and is not shown."""
    hidden = "@" in parts.query or not re.fullmatch("[a-z_]+", name)
    return "an option of the URL" if hidden else f"the option {name!r} of the URL"


def _hint(parts: SplitResult) -> str:
    return "; write a '?' in a password as %3F" if "@" in parts.query else ""


def shown(parts: SplitResult) -> str:
    """The URL for people and logs: without password and options."""
    if "@" in parts.path:
        # A password with a bare '@' and '/': what seems to be host and path is a part of it.
        return f"{parts.scheme}://…"
    user = parts.username or ""
    if parts.password is None and parts.scheme in ("redis", "rediss"):
        user = "…" if user else ""  # nearly always the password, with its colon forgotten
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user}{'@' if user else ''}{host}{parts.path}"


def shown_url(url: str) -> str:
    """Which store a URL or path names, for people and logs: a password is left out, and so are options that only tune."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        try:
            return checked_path(url)
        except InvalidURL:
            return "…"
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme):
        return "…"
    if scheme.lower() in ("sqlite", "file"):
        return url.partition("?")[0]
    if "@" in "".join(re.split("([/?#])", rest, maxsplit=1)[1:]):
        # A password with a '/' or '?' in it that should have been %2F or %3F: nobody knows where it ends.
        return f"{scheme}://…"
    try:
        parts, options = parse(url, example="", options=None)
    except InvalidURL:
        return f"{scheme}://…"
    told = {name: value for name, value in options.items() if name in SHOWN}
    if told.get("port", "").strip("0123456789,"):
        del told["port"]  # whatever it is, it is none
    return shown(parts) + (f"?{urlencode(told, safe='/,:')}" if told else "")


def without(url: str, name: str) -> tuple[str, str | None]:
    """The URL without this option, and the value that the option had; None if it was not there."""
    front, mark, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")] if mark else []
    values = [unquote_plus(value) for key, _, value in pairs if key == name]
    if not values:
        return url, None
    if len(values) > 1:
        raise InvalidURL(f"the option {name!r} is given twice in the URL")
    kept = "&".join("".join(pair) for pair in pairs if pair[0] != name)
    return front + (f"?{kept}" if kept else ""), values[0]


def number(
    options: dict[str, str], name: str, default: int, *, least: int = 0, most: int = LARGEST
) -> int:
    """An option that is a whole number."""
    try:
        value = int(options.get(name, default))
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidURL(f"the option {name!r} of the URL is a whole number from {least} to {most}")
    return value


def flag(options: dict[str, str], name: str, default: bool) -> bool:
    """An option that is on or off."""
    value = options.get(name, "on" if default else "off").lower()
    if value not in ("on", "off", "true", "false", "1", "0", "yes", "no"):
        raise InvalidURL(f"the option {name!r} of the URL is 'on' or 'off'")
    return value in ("on", "true", "1", "yes")
