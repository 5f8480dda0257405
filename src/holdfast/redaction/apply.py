"""Apply a store's redactor, if it has one, where values are encoded."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import NotSerializable
from ..log.codec import Undecodable, decode, decode_as, encode

if TYPE_CHECKING:
    from ..redact import Redactor

T = TypeVar("T")
Text = TypeVar("Text", str, "str | None")


@cache
def _built_in() -> Redactor:
    from ..redact import Redactor

    return Redactor()


class Redaction:
    """Redacts values before they are stored. Without a redactor it returns them unchanged."""

    def __init__(self, redactor: Redactor | None) -> None:
        self.redactor = redactor

    def redact_json(self, raw: bytes, declared: Any = Any) -> bytes:
        """Redact encoded JSON. Raise `NotSerializable` if the result does not fit `declared`."""
        if self.redactor is None:
            return raw
        new = self.redactor.json(raw)
        if new is not raw and declared is not Any:
            try:
                decode_as(new, declared)
            except Undecodable as error:
                problem = f"a part of it must be redacted, and the replacement text {error.what}"
            else:
                return new
            raise NotSerializable("$", problem)
        return new

    def redact_value(self, value: T) -> T:
        """Redact a JSON-native value."""
        if self.redactor is None:
            return value
        redacted: T = decode(self.redactor.json(encode(value)))
        return redacted

    def redact_error(self, text: str) -> str:
        """Redact a text of an error, with the built-in patterns too if the redactor lacks some.

        Exceptions quote values that no code meant to store. Return "" if the redactor fails: the
        error must be recorded.
        """
        if self.redactor is None:
            return text
        try:
            return _built_in().text(self.redactor.text(text))
        except NotSerializable:
            return ""

    def redact_text(self, text: Text) -> Text:
        return text if self.redactor is None or text is None else self.redactor.text(text)
