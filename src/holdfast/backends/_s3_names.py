"""Names for S3: bytes as text that sorts the same, for keys are text and are listed in the order of their bytes."""

from __future__ import annotations

from typing import Final

ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
"""64 characters in the order of their codes, all harmless in a key."""

_VALUES: Final = {character: value for value, character in enumerate(ALPHABET)}


def to_text(name: bytes) -> str:
    """Six bits a character, filled up with zeros: a name that begins another one is shorter, and sorts before it."""
    size = -(-len(name) * 8 // 6)
    number = int.from_bytes(name, "big") << (size * 6 - len(name) * 8)
    return "".join(ALPHABET[number >> 6 * place & 63] for place in range(size - 1, -1, -1))


def to_bytes(text: str) -> bytes | None:
    """The name, None if the text is not that of any."""
    size = len(text) * 6 // 8
    number = 0
    for character in text:
        if character not in _VALUES:
            return None
        number = number << 6 | _VALUES[character]
    name = (number >> len(text) * 6 - size * 8).to_bytes(size, "big")
    return name if to_text(name) == text else None
