"""Find secret fields by their names, in dicts and in text.

In text they look like `password=…`, `"password": "…"` or `Cookie: …`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from .normalize import Finder, Replacement
from .patterns import make_mark

_MAX_NAME_CHARS: Final = 128
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_APART: Final = re.compile(r"[\W_]+")
_POSITIONS: Final = (
    "page next previous prev first last start end stop continuation cursor resume sync"
)
_COUNTED: Final = (
    "max min num per total new special pad eos bos unk cls sep mask input output prompt completion"
)
_HARMLESS: Final = frozenset(f"{_POSITIONS} {_COUNTED}".split())
"""Before `token`, these words mean a position in a list or a piece of text, which callers need."""
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


class SecretNames:
    """The names of secret fields.

    A longer name that ends with one of them is secret too: `DB_PASSWORD`, `openaiApiKey`,
    `user[password]`.
    """

    def __init__(self, fields: Collection[str]) -> None:
        self.fields = tuple(fields)
        self._marks = {
            "".join(_words(name)): make_mark(name.lower().replace("-", "_")) for name in fields
        }
        self._cached_mark = lru_cache(maxsize=4096)(self._mark_of)

    def __len__(self) -> int:
        return len(self._marks)

    def mark_of(self, name: str) -> str | None:
        """Return the mark that replaces values in a field of this name; None if they may stay."""
        if len(name) > _MAX_NAME_CHARS or "[redacted: " in name:
            return None
        return self._cached_mark(name)

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
    """Return whether a dict is part of a JSON schema, which describes a field and has no value."""
    return type(value) is dict and value.get("type") in _TYPES and value.keys() <= _SCHEMA


def mark_of_value(value: dict[str, Any], names: SecretNames) -> str | None:
    """Return the mark for the `value` in a dict like `{"name": "password", "value": "…"}`.

    It may be a form field, a header or a variable.
    """
    for key, named in value.items():
        if key.lower() in _NAMING and type(named) is str and (found := names.mark_of(named)):
            return found
    return None


def is_mark(text: str) -> bool:
    """Return whether a text is the mark of an earlier redaction."""
    return text.startswith("[redacted: ") and re.fullmatch(_MARKED, text) is not None


# -- in text ---------------------------------------------------------------------------------------

_MARKED: Final = r"\[redacted: [\w -]{1,64}\]"
# A value up to its closing quote. In JSON that is nested in text, quotes have more backslashes.
_QUOTED: Final = (
    rf'b?"(?!{_MARKED})(?P<double>(?:[^"\\]|\\.)+)'
    rf"|b?'(?!{_MARKED})(?P<single>(?:[^'\\]|\\.)+)"
    rf'|\\"(?!{_MARKED})(?P<escaped>(?:[^"\\]|\\\\(?:\\.|[^\\]))+)'
    rf"|\\{{1,3}}[\"'](?!{_MARKED})(?P<deeper>[^\"'\\]+)"
)
_BARE: Final = rf"(?!{_MARKED})(?P<bare>[^\s\"'&,;)\]}}<]+)"
# A word with a digit that does not look like code: `token: str` and `password = ask()` stay.
_WORD: Final = (
    rf"(?!{_MARKED})(?P<word>(?=\S{{0,100}}[0-9])[^\s\"',;()\[\]{{}}<>]{{6,}})(?=[\s\"',;)\]}}<]|$)"
)
_NUMBER: Final = r"(?P<number>-?[0-9][0-9.eE+-]*)"
_COOKIES: Final = rf"(?!{_MARKED})(?P<cookies>[^\s\"'=;,]{{1,256}}=[^\r\n\"']+)"
# One word up to the end of the line, perhaps after a word for its scheme.
_LINE: Final = (
    rf"(?!(?:[\w-]{{1,20}}\s{{1,8}})?{_MARKED})"
    r"(?:(?:(?P<scheme>(?i:bearer|basic))|[A-Za-z][\w-]{0,20})[ \t]{1,8})?"
    r"(?P<line>(?=\S{0,200}[0-9]|\S{16})[^\s\"']{6,})(?=[ \t]*(?:[\"'\r\n]|$))"
)
_OPTION: Final = (
    rf"[ \t]{{1,8}}[\"']?(?!{_MARKED})(?P<option>(?=\S{{0,100}}[0-9])[^\s\"'-][^\s\"']*)"
)
_IS_OPTION: Final = re.compile(r"(?<!\S)--(?:\w{1,20}-){0,4}\Z")
_NAMED_BY: Final = {"cookies": "jar", "line": "header"}
_NOTHING: Final = "(?!)"
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def field_finder(names: SecretNames) -> Finder:
    """Return a finder of field values in text that is not, or not only, JSON."""
    words = _any_of(name.lower() for name in names.fields)
    name, pattern = re.compile(words), _pattern(names.fields)
    option = re.compile(rf"(?P<name>(?i:{words})){_OPTION}")

    def find(text: str) -> Iterator[Replacement]:
        # First search for the name alone in lower case, which is fast: most texts don't have one.
        lower, place = text.lower() if text.isascii() else text.translate(_LOWER), 0
        while hit := name.search(lower, place):
            at = hit.start()
            place = at + 1
            found = pattern.match(text, at)
            if found is None and _IS_OPTION.search(text, max(0, at - 80), at):
                found = option.match(text, at)
            if found is not None and (span := _span(names, found)) is not None:
                yield span
                place = found.end()

    return find


def _span(names: SecretNames, found: re.Match[str]) -> Replacement | None:
    kind = found.lastgroup or ""
    replacement = names.mark_of(
        _word_before(found.string, found.start()) + found[_NAMED_BY.get(kind, "name")]
    )
    if replacement is None:
        return None
    if kind == "line" and found["scheme"]:
        replacement = make_mark("token")
    quote = found["quote"] if kind == "number" else ""
    return Replacement(*found.span(kind), f"{quote}{replacement}{quote}")


def _pattern(fields: Collection[str]) -> re.Pattern[str]:
    """Return the pattern of a name and its value in all notations; the last group is the value."""
    headers, jars = (
        _any_of(name for name in fields if name.lower().endswith(end))
        for end in ("authorization", "cookie")
    )
    return re.compile(
        rf"(?<!\[redacted: )(?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))(?:"
        rf"(?P<header>(?i:{headers or _NOTHING}))[ \t]{{0,8}}:[ \t]{{0,8}}{_LINE}"
        rf"|(?P<jar>(?i:{jars or _NOTHING}))[ \t]{{0,8}}:[ \t]{{0,8}}{_COOKIES}"
        rf"|(?P<name>(?i:(?:{_any_of(fields)})s?))(?:"
        rf"\]?=(?:{_QUOTED}|{_BARE})"
        rf"|(?P<quote>\\{{0,3}}[\"'])\s{{0,8}}[:=]\s{{0,8}}"
        rf"(?:{_prefix_groups(_QUOTED, 'q')}|{_NUMBER})"
        rf"|\s{{0,8}}(?:[:=]|:=|=>)\s{{0,8}}(?:{_prefix_groups(_QUOTED, 'p')}|{_WORD})"
        rf"|>(?!{_MARKED})(?P<tag>[^<>\s][^<>]*)(?=</)))",
        re.DOTALL,
    )


def _prefix_groups(pattern: str, letter: str) -> str:
    """Rename the groups of a pattern: each name may occur only once."""
    return pattern.replace("(?P<", f"(?P<{letter}_")


def _any_of(names: Iterable[str]) -> str:
    """Return a pattern for these names, longest first: a name may be the start of another."""
    longest = sorted(names, key=len, reverse=True)
    return "|".join("[ _-]?".join(map(re.escape, re.split("[ _-]", name))) for name in longest)


def _word_before(text: str, at: int) -> str:
    """Return the word that precedes a name in the same identifier: `page_` in `page_token`."""
    found = re.search(r"[A-Za-z0-9]{1,20}[_-]?$", text[max(0, at - 21) : at])
    return found[0] if found else ""
