"""Redaction: remove secrets and personal data before anything is stored.

    store = holdfast.open("agents.db", redact=True)

    redactor = Redactor(fields=(*FIELDS, "diagnosis"), patterns=("keys", "tokens", "cards"))
    store = holdfast.open("agents.db", redact=redactor)

Redacted data never gets into the store. Even the caller that stored it reads back the redacted
form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import partial
from operator import is_
from typing import Any, Final

import msgspec

from .errors import NotSerializable
from .log.codec import Undecodable, decode
from .log.codec.walk import format_path
from .redaction.fields import SecretNames, field_finder, is_mark, is_schema, mark_of_value
from .redaction.normalize import Finder, replace_found
from .redaction.patterns import PATTERNS as _PATTERNS
from .redaction.patterns import is_card, make_mark

__all__ = ["FIELDS", "PATTERNS", "Hook", "Redactor"]

Hook = Callable[[str, str], str]
"""Your function. It takes a field's name ("" if none) and a text, and returns the text to store."""

PATTERNS: Final = tuple(_PATTERNS)
"""The built-in patterns: `keys`, `tokens`, `iban`, `cards`, `email`."""

FIELDS: Final = (
    "password", "passwd", "passphrase", "secret", "client_secret", "api_key", "x_api_key",
    "api_token", "access_key", "access_key_id", "secret_key", "secret_access_key",
    "aws_secret_access_key", "private_key", "authorization", "proxy_authorization", "cookie",
    "set_cookie", "token", "access_token", "refresh_token", "id_token", "auth_token",
    "bearer_token", "session_token", "card_number", "cvv", "cvc", "pwd", "credential",
    "account_key", "connection_string",
)  # fmt: skip
"""The fields whose values are always redacted.

Case, `_` and `-` make no difference: `API-Key` is `api_key`. Longer names that end with one of them
(`DB_PASSWORD`) and plurals (`cookies`) count too.
"""

_MAX_ROUNDS: Final = 8
"""How many times to search a text: a replacement may uncover another secret."""
_MAX_NESTED_JSON: Final = 4
"""How many levels of JSON nested in text to search."""
_MAX_NESTED_DEPTH: Final = 32
_MIN_CHARS: Final = 6
_JSON: Final = re.compile(r"[\s\ufeff]{0,64}[\[{]")

_write = msgspec.json.Encoder().encode


class Redactor:
    """Replaces secrets in text and JSON values with marks like `[redacted: card]`.

    Args:
        patterns: Names of patterns (see `PATTERNS`) to look for in every text.
        fields: Names of secret fields, found in dicts, in JSON inside text (the arguments of a tool
            call), and as `password=…`.
        hook: Called for every text after that; returns the text to store. It must return the same
            result for the same text, and may be called with a text that it has returned before.

    Raises:
        TypeError: `patterns` or `fields` is a str, or `hook` is not a function.
        ValueError: A pattern is unknown, or a field name is not valid.
    """

    def __init__(
        self,
        *,
        patterns: Collection[str] = PATTERNS,
        fields: Collection[str] = FIELDS,
        hook: Hook | None = None,
    ) -> None:
        if isinstance(patterns, str) or isinstance(fields, str):
            raise TypeError(
                'patterns and fields must be tuples of names, like patterns=("cards",), got a str'
            )
        unknown = [name for name in patterns if name not in _PATTERNS]
        if unknown:
            raise ValueError(f"patterns must be from {', '.join(PATTERNS)}, got {unknown[0]!r}")
        bad = [name for name in fields if not re.fullmatch(r"(?=.*[^\W_])[\w -]{1,64}", name)]
        if bad:
            raise ValueError(
                f"fields must be names of up to 64 letters, digits, '_' and '-', got {bad[0]!r}"
            )
        if hook is not None and not callable(hook):
            raise TypeError(
                f"hook must be a function (field name, text) -> text, got {type(hook).__name__}"
            )
        self._names, self._hook = SecretNames(fields), hook
        self._cards = "cards" in patterns
        shapes = (find for name in PATTERNS if name in patterns for find in _PATTERNS[name])
        self._finds: list[Finder] = [*([field_finder(self._names)] if fields else []), *shapes]

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._names)} fields>"

    def text(self, text: str) -> str:
        """Redact a text. Return it unchanged if it has nothing to redact."""
        return self._text(text, "", _MAX_NESTED_JSON)

    def value(self, value: Any) -> Any:
        """Redact a JSON-native value. Return it unchanged if it has nothing to redact."""
        return self._value(value, "", None, _MAX_NESTED_JSON)

    def json(self, raw: bytes) -> bytes:
        """Redact JSON. Return the same bytes if it has nothing to redact."""
        before = decode(raw)
        if self.value(before) is before:
            return raw
        # Decode it again with the numbers as raw text: Python might round them.
        exact = json.loads(raw, parse_int=_number, parse_float=_number)
        return _write(self.value(exact))

    def _value(self, value: Any, field: str, secret: str | None, nested: int) -> Any:
        """Redact a value. In a secret field, the mark `secret` replaces every text and number."""
        kind = type(value)
        if kind is str:
            if secret is None or value == "" or is_mark(value):
                return self._text(value, field, nested)
            return secret
        if isinstance(value, dict):
            return self._dict(value, secret, nested)
        if isinstance(value, list):
            new = self._list(value, field, secret, nested)
            return value if all(map(is_, value, new)) else new
        if value is None or kind is bool:
            return value
        if secret is None and self._cards and "card" in field.lower() and is_card(_digits(value)):
            return make_mark("card")
        return value if secret is None else secret

    def _list(self, value: list[Any], field: str, secret: str | None, nested: int) -> list[Any]:
        if secret is None and value and all(map(_is_pair, value)):  # headers or other dict items
            return [self._pair(pair, field, nested) for pair in value]
        new = []
        option: Any = None
        for item in value:
            mark = secret
            is_option = type(option) is str and option.startswith("--")
            if secret is None and is_option and type(item) is str:  # ["--password", "…"]
                mark = self._names.mark_of(option)
            new.append(self._value(item, field, mark, nested))
            option = item
        return new

    def _pair(self, pair: list[str], field: str, nested: int) -> list[str]:
        new = [
            self._text(pair[0], field, nested),
            self._value(pair[1], pair[0], self._names.mark_of(pair[0]), nested),
        ]
        return pair if all(map(is_, pair, new)) else new

    def _dict(self, value: dict[str, Any], secret: str | None, nested: int) -> dict[str, Any]:
        new: dict[str, Any] = {}
        same = True
        named = mark_of_value(value, self._names) if secret is None else None
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
                kept = _unused_key(kept, new, value)
            new[kept] = inside
        return value if same else new

    def _text(self, text: str, field: str, nested: int, *, hook: bool = True) -> str:
        new = text
        if len(text) >= _MIN_CHARS:
            if (
                nested
                and _JSON.match(text)
                and (found := self._redact_nested(text, nested)) is not None
            ):
                new = found
            else:
                for _ in range(_MAX_ROUNDS):
                    before, new = new, replace_found(new, self._finds)
                    if new == before:
                        break
        if hook and self._hook is not None:
            new = self._call_hook(field, new)
        return text if new == text else new

    def _redact_nested(self, text: str, nested: int) -> str | None:
        """Redact a text that is a JSON object or list. Return None if it is not one."""
        text = text.lstrip("\ufeff")
        try:
            value = decode(text.encode(), max_depth=_MAX_NESTED_DEPTH)
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
                object_pairs_hook=partial(_make_dict, twice),
            )
        except ValueError:
            return None
        new = self._value(exact, "", None, nested - 1)
        return text if new is exact and not twice else _write(new).decode()

    def _call_hook(self, field: str, text: str) -> str:
        assert self._hook is not None
        try:
            new = self._hook(field, text)
        except Exception as error:  # its message may quote the text
            problem = f"the redactor's hook raised {type(error).__name__}"
        else:
            if type(new) is str:
                return new
            problem = f"the redactor's hook must return a str, got {type(new).__name__}"
        raise NotSerializable(
            format_path([field] if field else []), f"{problem}; nothing was stored"
        )


def as_redactor(redact: bool | Redactor | Hook | None) -> Redactor | None:
    """Return the redactor for the value of `open(redact=…)`."""
    if redact is None or redact is False:
        return None
    if redact is True:
        return Redactor()
    if isinstance(redact, Redactor):
        return redact
    if callable(redact):
        return Redactor(patterns=(), fields=(), hook=redact)
    raise TypeError(
        "redact must be True, a holdfast.redact.Redactor, or a function (field name, text) -> "
        f"text, got {type(redact).__name__}"
    )


def _is_pair(value: object) -> bool:
    return type(value) is list and len(value) == 2 and type(value[0]) is type(value[1]) is str


def _digits(number: Any) -> str:
    return bytes(number).decode() if type(number) is msgspec.Raw else str(number)


def _make_dict(twice: list[bool], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of these pairs.

    If a name repeats, note it in `twice`: a dict keeps only the last.
    """
    items = dict(pairs)
    if len(items) < len(pairs):
        twice.append(True)
    return items


def _number(digits: str) -> msgspec.Raw:
    return msgspec.Raw(digits.encode())


def _unused_key(name: str, *taken: dict[str, Any]) -> str:
    """Return a key that is not taken: two redacted keys must not become one."""
    number, found = 1, name
    while any(found in each for each in taken):
        number += 1
        found = f"{name} {number}"
    return found
