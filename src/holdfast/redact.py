"""Redaction: secrets and personal data are taken out before anything is stored.

    store = holdfast.open("agents.db", redact=True)
    store = holdfast.open("agents.db", redact=Redactor(fields=(*FIELDS, "diagnosis"), patterns=("keys", "tokens", "cards")))

What is taken out is gone: it is nowhere in the store, and whoever appended it gets back what is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import msgspec

from .errors import NotSerializable
from .log.codec import Undecodable, decode
from .log.codec.walk import path_text
from .redaction.fields import Names, in_text, is_mark, is_schema, named_mark
from .redaction.normalize import Find, replaced
from .redaction.patterns import PATTERNS as _PATTERNS
from .redaction.patterns import is_card, mark

__all__ = ["FIELDS", "PATTERNS", "Hook", "Redactor"]

Hook = Callable[[str, str], str]
"""A function of your own: the name of the field that a text is in ("" if in none), and the text. Returns the text to store."""

PATTERNS: Final = tuple(_PATTERNS)
"""What is found by its shape: `keys`, `tokens`, `iban`, `cards`, `email`."""

FIELDS: Final = (
    "password", "passwd", "passphrase", "secret", "client_secret", "api_key", "x_api_key", "api_token", "access_key",
    "access_key_id", "secret_key", "secret_access_key", "aws_secret_access_key", "private_key", "authorization",
    "proxy_authorization", "cookie", "set_cookie", "token", "access_token", "refresh_token", "id_token", "auth_token",
    "bearer_token", "session_token", "card_number", "cvv", "cvc", "pwd", "credential", "account_key", "connection_string",
)  # fmt: skip
"""The fields whose values are taken out whatever they are. Case, `_` and `-` make no difference: `API-Key` is `api_key`. A longer
name that ends with one is one too (`DB_PASSWORD`), and so are more of them (`cookies`)."""

_ROUNDS: Final = 8
"""Taking one thing out may uncover another; so often at most."""
_NESTED: Final = 4
"""JSON inside of text inside of JSON is looked into so deep."""
_NESTED_DEPTH: Final = 32
_SHORTEST: Final = 6
_JSON: Final = re.compile(r"[\s\ufeff]{0,64}[\[{]")

_write = msgspec.json.Encoder().encode


class Redactor:
    """Takes secrets out of text and JSON values, and puts `[redacted: card]` or the like in their place.

    `patterns` are found by their shape in every text, `fields` by their name: in dicts, in JSON that is inside of text (the arguments of
    a tool call), and as `password=…`. `hook` is then called for every text. It must give the same for the same, and may be called
    with what it returned before.
    """

    def __init__(
        self,
        *,
        patterns: Collection[str] = PATTERNS,
        fields: Collection[str] = FIELDS,
        hook: Hook | None = None,
    ) -> None:
        if isinstance(patterns, str) or isinstance(fields, str):
            raise TypeError('patterns and fields must be tuples of names: patterns=("cards",)')
        unknown = [name for name in patterns if name not in _PATTERNS]
        if unknown:
            raise ValueError(f"there is no pattern {unknown[0]!r}; there are {', '.join(PATTERNS)}")
        if not all(re.fullmatch(r"(?=.*[^\W_])[\w -]{1,64}", name) for name in fields):
            raise ValueError(
                "fields must be names of letters, digits, '_' and '-', up to 64 of them"
            )
        if hook is not None and not callable(hook):
            raise TypeError(
                "hook must be a function of a field's name and a text, that returns a text"
            )
        self._names, self._hook = Names(fields), hook
        self._cards = "cards" in patterns
        shapes = (find for name in PATTERNS if name in patterns for find in _PATTERNS[name])
        self._finds: list[Find] = [*([in_text(self._names)] if fields else []), *shapes]

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._names)} fields>"

    def text(self, text: str) -> str:
        """A text without what is to be taken out; itself, if there is nothing."""
        return self._text(text, "", _NESTED)

    def value(self, value: Any) -> Any:
        """A JSON-native value without what is to be taken out; itself, if there is nothing."""
        return self._value(value, "", None, _NESTED)

    def json(self, raw: bytes) -> bytes:
        """JSON without what is to be taken out; the same bytes, if there is nothing."""
        before = decode(raw)
        if self.value(before) is before:
            return raw
        # Once more, with the numbers as they stand there: Python might round them.
        exact = json.loads(raw, parse_int=_number, parse_float=_number)
        return _write(self.value(exact))

    def _value(self, value: Any, field: str, secret: str | None, nested: int) -> Any:
        """`secret`: what stands for every text and number here, because of the field that it is in."""
        kind = type(value)
        if kind is str:
            return (
                self._text(value, field, nested)
                if secret is None or value == "" or is_mark(value)
                else secret
            )
        if kind is dict:
            return self._dict(value, secret, nested)
        if kind is list:
            new = self._list(value, field, secret, nested)
            return value if all(map(_is, value, new)) else new
        if value is None or kind is bool:
            return value
        if secret is None and self._cards and "card" in field.lower() and is_card(_digits(value)):
            return mark("card")
        return value if secret is None else secret

    def _list(self, value: list[Any], field: str, secret: str | None, nested: int) -> list[Any]:
        if (
            secret is None and value and all(map(_is_pair, value))
        ):  # headers, or what else was in a dict
            return [self._pair(pair, field, nested) for pair in value]
        new = []
        for at, item in enumerate(value):
            here, option = (
                secret,
                value[at - 1] if at else None,
            )  # of a command: ["--password", "…"]
            if (
                secret is None
                and type(item) is str
                and type(option) is str
                and option.startswith("--")
            ):
                here = self._names.mark_of(option)
            new.append(self._value(item, field, here, nested))
        return new

    def _pair(self, pair: list[str], field: str, nested: int) -> list[str]:
        new = [
            self._text(pair[0], field, nested),
            self._value(pair[1], pair[0], self._names.mark_of(pair[0]), nested),
        ]
        return pair if all(map(_is, pair, new)) else new

    def _dict(self, value: dict[str, Any], secret: str | None, nested: int) -> dict[str, Any]:
        new: dict[str, Any] = {}
        same = True
        named = named_mark(value, self._names) if secret is None else None
        for name, item in value.items():
            here = (
                secret or (named if name.lower() == "value" else None) or self._names.mark_of(name)
            )
            if here is not None and secret is None:
                of_a_model = name == "token" and "logprob" in value
                here = None if of_a_model or is_schema(item) else here
            inside = self._value(item, name, here, nested)
            kept = self._text(name, "", 0, hook=False)
            same = same and inside is item and kept is name
            if kept is not name:
                kept = _free(kept, new, value)
            new[kept] = inside
        return value if same else new

    def _text(self, text: str, field: str, nested: int, *, hook: bool = True) -> str:
        new = text
        if len(text) >= _SHORTEST:
            if nested and _JSON.match(text) and (found := self._inside(text, nested)) is not None:
                new = found
            else:
                for _ in range(_ROUNDS):
                    before, new = new, replaced(new, self._finds)
                    if new == before:
                        break
        if hook and self._hook is not None:
            new = self._hooked(field, new)
        return text if new == text else new

    def _inside(self, text: str, nested: int) -> str | None:
        """The text of a JSON object or list; None if it is not one, or has not that form."""
        text = text.lstrip("\ufeff")
        try:
            value = decode(text.encode(), max_depth=_NESTED_DEPTH)
        except (Undecodable, UnicodeEncodeError):
            return None
        if type(value) not in (dict, list):
            return None
        twice: list[bool] = []
        try:
            exact = json.loads(
                text,
                parse_int=_number,
                parse_float=_number,
                object_pairs_hook=partial(_once_each, twice),
            )
        except ValueError:
            return None
        new = self._value(exact, "", None, nested - 1)
        return text if new is exact and not twice else _write(new).decode()

    def _hooked(self, field: str, text: str) -> str:
        assert self._hook is not None
        try:
            new = self._hook(field, text)
        except Exception as error:  # its words may quote the text
            problem = f"the hook of the redactor failed with {type(error).__name__}"
        else:
            if type(new) is str:
                return new
            problem = f"the hook of the redactor returned {type(new).__name__}, not a str"
        raise NotSerializable(path_text([field] if field else []), f"{problem}; nothing was stored")


def as_redactor(redact: bool | Redactor | Hook | None) -> Redactor | None:
    """What `open(redact=…)` was given, as a redactor."""
    if redact is None or redact is False:
        return None
    if redact is True:
        return Redactor()
    if isinstance(redact, Redactor):
        return redact
    if callable(redact):
        return Redactor(patterns=(), fields=(), hook=redact)
    raise TypeError(
        "redact must be True, a holdfast.redact.Redactor, or a function of a field's name and a text"
    )


def _is(one: object, other: object) -> bool:
    return one is other


def _is_pair(value: object) -> bool:
    return type(value) is list and len(value) == 2 and type(value[0]) is type(value[1]) is str


def _digits(number: Any) -> str:
    return bytes(number).decode() if type(number) is msgspec.Raw else str(number)


def _once_each(twice: list[bool], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of these; notes if a name comes more than once. Readers take the last one, and the others would be overlooked."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice.append(True)
    return made


def _number(digits: str) -> msgspec.Raw:
    return msgspec.Raw(digits.encode())


def _free(name: str, *taken: dict[str, Any]) -> str:
    """A key that no other has: two addresses must not become one key."""
    number, found = 1, name
    while any(found in each for each in taken):
        number += 1
        found = f"{name} {number}"
    return found
