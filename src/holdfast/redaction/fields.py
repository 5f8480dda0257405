"""Fields whose names say that what is in them is secret: in dicts, and in text as `password=…`, `"password": "…"` or `Cookie: …`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from .normalize import Find, Replacement
from .patterns import mark

_LONGEST: Final = 128
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_APART: Final = re.compile(r"[\W_]+")
_PLACES: Final = "page next previous prev first last start end stop continuation cursor resume sync"
_COUNTED: Final = (
    "max min num per total new special pad eos bos unk cls sep mask input output prompt completion"
)
_HARMLESS: Final = frozenset(f"{_PLACES} {_COUNTED}".split())
"""Before `token`: a place in a list, or a piece of text. Whoever loses these cannot go on."""
_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object")
_SCHEMA: Final = {
    "type",
    "title",
    "description",
    "format",
    "nullable",
    "writeOnly",
    "minLength",
    "maxLength",
    "items",
}
_NAMING: Final = ("name", "key", "field", "header")


class Names:
    """The names of fields that are secret. A longer name that ends with one is too: `DB_PASSWORD`, `openaiApiKey`, `user[password]`."""

    def __init__(self, fields: Collection[str]) -> None:
        self.fields = tuple(fields)
        self._marks = {
            "".join(_words(name)): mark(name.lower().replace("-", "_")) for name in fields
        }
        self._known = lru_cache(maxsize=4096)(self._mark_of)

    def __len__(self) -> int:
        return len(self._marks)

    def mark_of(self, name: str) -> str | None:
        """What stands for the values in a field of this name; None if they may stay."""
        return self._known(name) if len(name) <= _LONGEST and "[redacted: " not in name else None

    def _mark_of(self, name: str) -> str | None:
        words = _words(name)
        for at in range(len(words)):
            ending = "".join(words[at:])
            found = self._marks.get(ending)
            if found is None and ending.endswith("s") and ending != "tokens":
                found = self._marks.get(ending[:-1])
            if found is not None:
                return None if ending == "token" and at and words[at - 1] in _HARMLESS else found
        return None


def _words(name: str) -> list[str]:
    return [word for word in _APART.split(_CAPITAL.sub("_", name).lower()) if word]


def is_schema(value: Any) -> bool:
    """Whether a dict says what a field may hold, rather than what it does: part of a JSON schema."""
    return type(value) is dict and value.get("type") in _TYPES and value.keys() <= _SCHEMA


def named_mark(value: dict[str, Any], names: Names) -> str | None:
    """What stands for the `value` in `{"name": "password", "value": "…"}`: a form, a list of headers or of variables."""
    for key, named in value.items():
        if key.lower() in _NAMING and type(named) is str and (found := names.mark_of(named)):
            return found
    return None


def is_mark(text: str) -> bool:
    """Whether this stands for something that was taken out before."""
    return text.startswith("[redacted: ") and re.fullmatch(_MARKED, text) is not None


# -- in text -------------------------------------------------------------------------------------------------------------

_MARKED: Final = r"\[redacted: [\w -]{1,64}\]"
# A value up to the quote that closes it. Inside of JSON that is itself in a text, all of these have one backslash more.
_QUOTED: Final = (
    rf'b?"(?!{_MARKED})(?P<double>(?:[^"\\]|\\.)+)'
    rf"|b?'(?!{_MARKED})(?P<single>(?:[^'\\]|\\.)+)"
    rf'|\\"(?!{_MARKED})(?P<escaped>(?:[^"\\]|\\\\(?:\\.|[^\\]))+)'
    rf"|\\{{1,3}}[\"'](?!{_MARKED})(?P<deeper>[^\"'\\]+)"
)
_BARE: Final = rf"(?!{_MARKED})(?P<bare>[^\s\"'&,;)\]}}<]+)"
# A word that has a digit, and nothing that code has: `token: str` and `password = ask()` stay.
_WORD: Final = (
    rf"(?!{_MARKED})(?P<word>(?=\S{{0,100}}[0-9])[^\s\"',;()\[\]{{}}<>]{{6,}})(?=[\s\"',;)\]}}<]|$)"
)
_NUMBER: Final = r"(?P<number>-?[0-9][0-9.eE+-]*)"
_COOKIES: Final = rf"(?!{_MARKED})(?P<cookies>[^\s\"'=;,]{{1,256}}=[^\r\n\"']+)"
# One word to the end of the line; before it, perhaps, one that says of what kind it is.
_LINE: Final = (
    rf"(?!(?:[\w-]{{1,20}}\s{{1,8}})?{_MARKED})(?:(?:(?P<scheme>(?i:bearer|basic))|[A-Za-z][\w-]{{0,20}})[ \t]{{1,8}})?"
    r"(?P<line>(?=\S{0,200}[0-9]|\S{16})[^\s\"']{6,})(?=[ \t]*(?:[\"'\r\n]|$))"
)
_OPTION: Final = (
    rf"[ \t]{{1,8}}[\"']?(?!{_MARKED})(?P<option>(?=\S{{0,100}}[0-9])[^\s\"'-][^\s\"']*)"
)
_IS_OPTION: Final = re.compile(r"(?<!\S)--(?:\w{1,20}-){0,4}\Z")
_NAMED_BY: Final = {"cookies": "jar", "line": "header"}
_NOTHING: Final = "(?!)"
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def in_text(names: Names) -> Find:
    """What finds the values of fields in text that is not JSON, or not only."""
    words = _either(name.lower() for name in names.fields)
    name, pattern = re.compile(words), _pattern(names.fields)
    option = re.compile(rf"(?P<name>(?i:{words})){_OPTION}")

    def find(text: str) -> Iterator[Replacement]:
        # First by name alone, in small letters, which is quick: most texts have none.
        lower, place = text.lower() if text.isascii() else text.translate(_LOWER), 0
        while begun := name.search(lower, place):
            at = begun.start()
            place = at + 1
            found = pattern.match(text, at)
            if found is None and _IS_OPTION.search(text, max(0, at - 80), at):
                found = option.match(text, at)
            if found is not None and (span := _span(names, found)) is not None:
                yield span
                place = found.end()

    return find


def _span(names: Names, found: re.Match[str]) -> Replacement | None:
    kind = found.lastgroup or ""
    standing = names.mark_of(
        _before(found.string, found.start()) + found[_NAMED_BY.get(kind, "name")]
    )
    if standing is None:
        return None
    if kind == "line" and found["scheme"]:
        standing = mark("token")
    quote = found["quote"] if kind == "number" else ""
    return Replacement(*found.span(kind), f"{quote}{standing}{quote}")


def _pattern(fields: Collection[str]) -> re.Pattern[str]:
    """A name and its value in all the ways in which they are written; the group that matched last is the value."""
    headers, jars = (
        _either(name for name in fields if name.lower().endswith(end))
        for end in ("authorization", "cookie")
    )
    return re.compile(
        rf"(?<!\[redacted: )(?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))(?:"
        rf"(?P<header>(?i:{headers or _NOTHING}))[ \t]{{0,8}}:[ \t]{{0,8}}{_LINE}"
        rf"|(?P<jar>(?i:{jars or _NOTHING}))[ \t]{{0,8}}:[ \t]{{0,8}}{_COOKIES}"
        rf"|(?P<name>(?i:(?:{_either(fields)})s?))(?:"
        rf"\]?=(?:{_QUOTED}|{_BARE})"
        rf"|(?P<quote>\\{{0,3}}[\"'])\s{{0,8}}[:=]\s{{0,8}}(?:{_renamed(_QUOTED, 'q')}|{_NUMBER})"
        rf"|\s{{0,8}}(?:[:=]|:=|=>)\s{{0,8}}(?:{_renamed(_QUOTED, 'p')}|{_WORD})"
        rf"|>(?!{_MARKED})(?P<tag>[^<>\s][^<>]*)(?=</)))",
        re.DOTALL,
    )


def _renamed(pattern: str, letter: str) -> str:
    """The same with other names for its groups: each may occur once."""
    return pattern.replace("(?P<", f"(?P<{letter}_")


def _either(names: Iterable[str]) -> str:
    """An expression for these names; the longest is tried first, as a part of it may be one too."""
    longest = sorted(names, key=len, reverse=True)
    return "|".join("[ _-]?".join(map(re.escape, re.split("[ _-]", name))) for name in longest)


def _before(text: str, at: int) -> str:
    """The word in front of a name that is a part of the same: `next_page_` of `next_page_token`."""
    found = re.search(r"[A-Za-z0-9]{1,20}[_-]?$", text[max(0, at - 21) : at])
    return found[0] if found else ""
