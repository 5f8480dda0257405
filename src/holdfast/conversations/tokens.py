"""How many tokens a message takes.

Exactly, only the provider knows. A counter is any function from a message to a number; the one used by default is
tiktoken's where that works without a network, and otherwise an estimate that errs on the high side.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Sized
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from .messages import Message

Counter = Callable[[Message], int]

PER_MESSAGE: Final = 4
PER_CALL: Final = 8
PER_IMAGE: Final = 1500

# Bytes by what they cost, in sixths of a token. Prose needs fewer tokens than this; keys, numbers and base64 as many.
_CHEAP: Final = b"abcdefghijklmnopqrstuvwxyz \n\t\r"
_ASCII: Final = bytes(range(128))
_FOUR_BYTES: Final = bytes(range(0xF0, 0xF8))  # the first byte of emoji and of rare scripts
_SIXTHS_CHEAP, _SIXTHS_ASCII, _SIXTHS_OTHER, _SIXTHS_FOUR = 2, 6, 3, 9

_IMAGES: Final = frozenset(
    {"image", "image_url", "input_image", "computer_screenshot", "image_generation_call"}
)
_AUDIO: Final = frozenset({"input_audio", "audio"})
_FILES: Final = frozenset({"file", "input_file"})
# Part of how a message is sent rather than of what it says.
_IDS: Final = frozenset(
    {"id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "index"}
)
_UNREAD: Final = _IDS | {
    "role",
    "type",
    "status",
    "phase",
    "cache_control",
    "annotations",
    "logprobs",
    "caller",
}
_SEALED: Final = frozenset({"encrypted_content", "signature", "fingerprint"})
_PARTS: Final = frozenset(
    {
        "content",
        "tool_calls",
        "tool_responses",
        "summary",
        "output",
        "function",
        "function_call",
        "source",
    }
)
# Some tokenizers overflow their stack, or take quadratic time, on one very long run of the same kind of character.
_PIECE: Final = 4096

_O200K_URL: Final = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_O200K_SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def default_counter() -> Counter:
    """tiktoken's o200k_base where it is installed and its data is on this machine; else `estimate`. No network, ever."""
    data = _tiktoken_data()
    return (_exact(data) if data is not None and data.is_file() else None) or estimate


def estimate(message: Message) -> int:
    """About how many tokens a message takes: cheap, needs nothing, and rather too many than too few.

    Three lower-case letters or spaces make a token; any other ASCII character is one; two bytes of UTF-8 beyond ASCII
    make one, and an emoji three. On top come 4 per message and 8 per tool call. An image is 1500, whatever its size.
    """
    return _measure(message, _estimated)


def text_counter(encode: Callable[[str], Sized]) -> Counter:
    """A counter made from a tokenizer of text: `text_counter(tiktoken.get_encoding("o200k_base").encode_ordinary)`."""

    def tokens(text: str) -> int:
        return sum(
            len(encode(text[start : start + _PIECE])) for start in range(0, len(text), _PIECE)
        )

    return lambda message: _measure(message, tokens)


def _measure(message: Message, tokens: Callable[[str], int]) -> int:
    texts: list[str] = []
    extra = PER_MESSAGE + _read(_sent(message), texts)
    return extra + sum(map(tokens, texts))


def _estimated(text: str) -> int:
    data = text.encode("utf-8", "surrogatepass")
    dear = data.translate(None, _CHEAP)
    other = dear.translate(None, _ASCII)
    four = len(other) - len(other.translate(None, _FOUR_BYTES))
    sixths = (
        _SIXTHS_CHEAP * (len(data) - len(dear))
        + _SIXTHS_ASCII * (len(dear) - len(other))
        + _SIXTHS_OTHER * (len(other) - four)
        + _SIXTHS_FOUR * four
    )
    return -(-sixths // 6)


def _sent(message: Message) -> Any:
    """AutoGen keeps several results in one message and sends only those; its own content repeats them."""
    responses = message.get("tool_responses")
    return responses if responses and message.get("role") == "tool" else message


def _read(value: Any, texts: list[str]) -> int:
    """Collect what is to be read as text; return the tokens of what is not."""
    if isinstance(value, str):
        texts.append(value)
    if isinstance(value, list):
        return sum(_read(item, texts) for item in value)
    if not isinstance(value, dict):
        return 0
    kind = value.get("type")
    if not isinstance(kind, str):
        kind = ""
    if kind in _IMAGES:
        return PER_IMAGE
    if kind in _AUDIO:
        return max(PER_IMAGE, _length(value) // 1000)  # ten tokens a second, at a modest bit rate
    if kind in _FILES:
        return max(PER_IMAGE, _length(value) // 16)  # a page of text in some 20 KB
    extra = (
        PER_CALL
        if "_call" in kind or kind in ("tool_use", "tool_result") or "function" in value
        else 0
    )
    for key, item in value.items():
        if key in _UNREAD:
            continue
        if key in _SEALED and isinstance(item, str):
            extra += len(item) // 4
        elif key == "source" and isinstance(item, dict) and item.get("type") != "text":
            extra += max(PER_IMAGE, _length(item) // 16)
        elif key in _PARTS or isinstance(item, str):
            extra += _read(item, texts)
        elif isinstance(item, dict | list):
            texts.append(msgspec.json.encode(item).decode())
    return extra


def _length(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_length, value.values()))
    return len(value) if isinstance(value, str) else 0


def _tiktoken_data() -> Path | None:
    """Where tiktoken keeps the data of o200k_base once it has been downloaded; None if it is told to keep nothing."""
    import tempfile  # here: importing holdfast does not need it

    named = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if named == "":
        return None
    folder = Path(tempfile.gettempdir(), "data-gym-cache") if named is None else Path(named)
    return folder / hashlib.sha1(_O200K_URL.encode(), usedforsecurity=False).hexdigest()


@lru_cache(maxsize=1)
def _exact(data: Path) -> Counter | None:
    """The counter that uses this data; None if tiktoken would not, and go and download it."""
    if hashlib.sha256(data.read_bytes()).hexdigest() != _O200K_SHA256:
        return None
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError:
        return None
    return text_counter(tiktoken.get_encoding("o200k_base").encode_ordinary)
