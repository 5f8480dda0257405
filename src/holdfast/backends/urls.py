"""Server URLs: parse them, read their options, and show them without a password."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import InvalidURL

if TYPE_CHECKING:
    from urllib.parse import SplitResult

MAX_NUMBER: Final = 2_147_483_647
"""The largest number that every driver accepts. As milliseconds, it is 24 days."""
IDENTIFYING_OPTIONS: Final = ("host", "port", "dbname", "schema", "prefix")
"""Options that identify the store. Others are not shown: they may be secret."""
URL_HINT: Final = (
    "a URL starts with a scheme such as postgresql, a colon and two slashes, without quotes or "
    "anything else before it"
)


class ServerURL(NamedTuple):
    """A parsed URL. `options` are the ones after the question mark."""

    parts: SplitResult
    options: dict[str, str]


def check_path(path: str, hint: str = URL_HINT) -> str:
    """Return a path unchanged; raise `InvalidURL` if it looks like a malformed URL.

    It may contain a password, so it is neither shown nor used as the name of a file.
    """
    if "://" in path or re.search(r"//[^/]*@|\bpassword\s*=", path, re.IGNORECASE):
        raise InvalidURL(f"this is not the path of a file; {hint}")
    return path


def check_whitespace(url: str) -> str:
    """Return a URL or path unchanged; raise `InvalidURL` if white space surrounds it."""
    if url != url.strip():
        raise InvalidURL(
            "the URL or path must not start or end with white space; remove it, as with .strip()"
        )
    return url


def parse_url(url: str, *, example: str, options: Collection[str] | None) -> ServerURL:
    """Parse a URL; raise `InvalidURL`, with `example`, if it is malformed.

    `options` are the valid options, None if the caller checks them.
    """
    from urllib.parse import parse_qsl, urlsplit

    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        if "," not in parts.netloc:  # PostgreSQL accepts several hosts
            parts.port  # noqa: B018  raises if it is not a number
    except ValueError:
        # Without the message of urllib, which may quote a part of the URL and so of a password.
        raise InvalidURL(f"this is not a store URL; it must look like {example}") from None
    if parts.fragment:
        raise InvalidURL(
            f"a {parts.scheme}:// URL must not contain '#'; write a '#' in a password as %23"
        )
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidURL(f"{_quote_option(name, parts)} is given twice{_hint(parts)}")
        if options is not None and name not in options:
            raise unknown_option_error(name, parts, options)
        found[name] = value
    return ServerURL(parts, found)


def unknown_option_error(
    name: str, parts: SplitResult, options: Collection[str], others: str = ""
) -> InvalidURL:
    """Build the error for an unknown option.

    It lists `durability`, `timeout` and `tracebacks` for every scheme: they are removed before a
    backend sees the URL.
    """
    known = ", ".join(sorted({*options, "durability", "timeout", "tracebacks"}))
    return InvalidURL(
        f"{_quote_option(name, parts)} is unknown; "
        f"a {parts.scheme}:// URL takes {known}{others}{_hint(parts)}"
    )


def _quote_option(name: str, parts: SplitResult) -> str:
    """Name an option in an error, unless it may be the part of a password after a '?'."""
    hidden = "@" in parts.query or not re.fullmatch("[a-z_]+", name)
    return "an option of the URL" if hidden else f"the option {name!r} of the URL"


def _hint(parts: SplitResult) -> str:
    return "; write a '?' in a password as %3F" if "@" in parts.query else ""


def format_location(parts: SplitResult) -> str:
    """Format a URL for messages and logs, without password and options."""
    if "@" in parts.path:
        # A password with an unescaped '@' and '/': host and path seem to be parts of it.
        return f"{parts.scheme}://…"
    user = parts.username or ""
    if parts.password is None and parts.scheme in ("redis", "rediss"):
        user = "…" if user else ""  # nearly always the password, with its colon forgotten
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user}{'@' if user else ''}{host}{parts.path}"


def redact_url(url: str) -> str:
    """Return a URL or path without its password and the options that don't identify the store."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        try:
            return check_path(url)
        except InvalidURL:
            return "…"
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme):
        return "…"
    if scheme.lower() in ("sqlite", "file"):
        return url.partition("?")[0]
    if "@" in "".join(re.split("([/?#])", rest, maxsplit=1)[1:]):
        # A password with an unescaped '/' or '?': its end is unknown.
        return f"{scheme}://…"
    try:
        parts, options = parse_url(url, example="", options=None)
    except InvalidURL:
        return f"{scheme}://…"
    shown = {name: value for name, value in options.items() if name in IDENTIFYING_OPTIONS}
    if shown.get("port", "").strip("0123456789,"):
        del shown["port"]  # not a port, so it may be anything
    from urllib.parse import urlencode

    return format_location(parts) + (f"?{urlencode(shown, safe='/,:')}" if shown else "")


def pop_option(url: str, name: str) -> tuple[str, str | None]:
    """Return the URL without this option, and the value of the option; None if it is absent."""
    base, mark, query = url.partition("?")
    if not mark:
        return url, None
    from urllib.parse import unquote_plus

    pairs = [pair.partition("=") for pair in query.split("&")] if mark else []
    values = [unquote_plus(value) for key, _, value in pairs if key == name]
    if not values:
        return url, None
    if len(values) > 1:
        raise InvalidURL(f"the option {name!r} is given twice in the URL")
    kept = "&".join("".join(pair) for pair in pairs if pair[0] != name)
    return base + (f"?{kept}" if kept else ""), values[0]


def read_int_option(
    options: dict[str, str], name: str, default: int, *, least: int = 0, most: int = MAX_NUMBER
) -> int:
    """Return an option that must be an integer in a range."""
    try:
        value = int(options.get(name, default))
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidURL(
            f"the option {name!r} of the URL must be an integer from {least} to {most}"
        )
    return value


def read_bool_option(options: dict[str, str], name: str, default: bool) -> bool:
    """Return an option that must be on or off."""
    value = options.get(name, "on" if default else "off").lower()
    if value not in ("on", "off", "true", "false", "1", "0", "yes", "no"):
        raise InvalidURL(f"the option {name!r} of the URL must be 'on' or 'off'")
    return value in ("on", "true", "1", "yes")
