"""Redaction where values are encoded: what a store's redactor makes of them, or the values themselves if it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import NotSerializable
from ..log.codec import Undecodable, decode, decode_as, encode

if TYPE_CHECKING:
    from ..redact import Redactor

T = TypeVar("T")
Text = TypeVar("Text", str, "str | None")


class Redaction:
    """What a log knows of redaction. Without a redactor each of these is one comparison, and none is on the way of an append."""

    def __init__(self, redactor: Redactor | None) -> None:
        self.redactor = redactor

    def encoded(self, raw: bytes, declared: Any = Any) -> bytes:
        """An encoded value as it is to be stored. `NotSerializable` if the declared type has no place for what stands in."""
        if self.redactor is None:
            return raw
        new = self.redactor.json(raw)
        if new is not raw and declared is not Any:
            try:
                decode_as(new, declared)
            except Undecodable as error:
                problem = f"something in it is to be redacted, and the text that stands for it {error.what}"
            else:
                return new
            raise NotSerializable("$", problem)
        return new

    def value(self, value: T) -> T:
        """A JSON-native value as it is to be stored."""
        if self.redactor is None:
            return value
        found: T = decode(self.redactor.json(encode(value)))
        return found

    def message(self, text: str) -> str:
        """The message of an error, as it is to be stored; none if the redactor fails: that something went wrong has to be told all the same."""
        try:
            return self.text(text)
        except NotSerializable:
            return ""

    def text(self, text: Text) -> Text:
        """A text as it is to be stored."""
        return text if self.redactor is None or text is None else self.redactor.text(text)
