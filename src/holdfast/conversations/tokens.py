"""Count the tokens of a message.

Only the provider knows the exact number. A counter is any function from a message to a number. The
default is tiktoken if it works without a network, otherwise an estimate that errs on the high side.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Sized
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .messages import Message

if TYPE_CHECKING:
    from pathlib import Path

Counter = Callable[[Message], int]

TOKENS_PER_MESSAGE: Final = 4
TOKENS_PER_CALL: Final = 8
TOKENS_PER_IMAGE: Final = 1500

# The cost of bytes in sixths of a token. In fact prose costs less; keys, numbers and base64 cost
# about that much.
_CHEAP: Final = b"abcdefghijklmnopqrstuvwxyz \n\t\r"
_ASCII: Final = bytes(range(128))
_FOUR_BYTES: Final = bytes(range(0xF0, 0xF8))  # the first byte of emoji and rare scripts
_SIXTHS_CHEAP, _SIXTHS_ASCII, _SIXTHS_OTHER, _SIXTHS_FOUR = 2, 6, 3, 9

_IMAGE_TYPES: Final = frozenset(
    {"image", "image_url", "input_image", "computer_screenshot", "image_generation_call"}
)
_AUDIO_TYPES: Final = frozenset({"input_audio", "audio"})
_FILE_TYPES: Final = frozenset({"file", "input_file"})
# Fields for the transport of a message, not part of its content.
_ID_FIELDS: Final = frozenset(
    {"id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "index"}
)
_UNCOUNTED_FIELDS: Final = _ID_FIELDS | {
    "role",
    "type",
    "status",
    "phase",
    "cache_control",
    "annotations",
    "logprobs",
    "caller",
}
_ENCRYPTED_FIELDS: Final = frozenset({"encrypted_content", "signature", "fingerprint"})
_NESTED_FIELDS: Final = frozenset(
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
# Some tokenizers overflow their stack, or take quadratic time, on a very long run of characters.
_PIECE_CHARACTERS: Final = 4096

_O200K_URL: Final = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_O200K_SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def default_counter() -> Counter:
    """Return a counter with tiktoken's o200k_base if its data is on this machine, else `estimate`.

    The network is never used.
    """
    data = _tiktoken_data_path()
    return (_load_tiktoken(data) if data is not None and data.is_file() else None) or estimate


def estimate(message: Message) -> int:
    """Estimate the number of tokens of a message, erring on the high side.

    Three lower-case letters or spaces count as one token, any other ASCII character as one, two
    bytes of UTF-8 beyond ASCII as one, and an emoji as three. Each message adds 4 and each tool
    call 8. An image counts as 1500, whatever its size.
    """
    return _measure(message, _estimate_text)


def text_counter(encode: Callable[[str], Sized]) -> Counter:
    """Return a counter that uses a text tokenizer.

    Example:
        >>> text_counter(tiktoken.get_encoding("o200k_base").encode_ordinary)
    """

    def tokens(text: str) -> int:
        return sum(
            len(encode(text[start : start + _PIECE_CHARACTERS]))
            for start in range(0, len(text), _PIECE_CHARACTERS)
        )

    return lambda message: _measure(message, tokens)


def _measure(message: Message, tokens: Callable[[str], int]) -> int:
    texts: list[str] = []
    extra = TOKENS_PER_MESSAGE + _collect_texts(_sent_part(message), texts)
    return extra + sum(map(tokens, texts))


def _estimate_text(text: str) -> int:
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


def _sent_part(message: Message) -> Any:
    """Return the part that is sent: with several results, AutoGen's content only repeats them."""
    responses = message.get("tool_responses")
    return responses if responses and message.get("role") == "tool" else message


def _collect_texts(value: Any, texts: list[str]) -> int:
    """Collect the texts in a value, and return the tokens of everything else."""
    if isinstance(value, str):
        texts.append(value)
    if isinstance(value, list):
        return sum(_collect_texts(item, texts) for item in value)
    if not isinstance(value, dict):
        return 0
    kind = value.get("type")
    if not isinstance(kind, str):
        kind = ""
    if kind in _IMAGE_TYPES:
        return TOKENS_PER_IMAGE
    if kind in _AUDIO_TYPES:
        return max(
            TOKENS_PER_IMAGE, _text_length(value) // 1000
        )  # ten tokens per second, at a modest bit rate
    if kind in _FILE_TYPES:
        return max(TOKENS_PER_IMAGE, _text_length(value) // 16)  # a page of text is about 20 KB
    extra = (
        TOKENS_PER_CALL
        if "_call" in kind or kind in ("tool_use", "tool_result") or "function" in value
        else 0
    )
    for key, item in value.items():
        if key in _UNCOUNTED_FIELDS:
            continue
        if key in _ENCRYPTED_FIELDS and isinstance(item, str):
            extra += len(item) // 4
        elif key == "source" and isinstance(item, dict) and item.get("type") != "text":
            extra += max(TOKENS_PER_IMAGE, _text_length(item) // 16)
        elif key in _NESTED_FIELDS or isinstance(item, str):
            extra += _collect_texts(item, texts)
        elif isinstance(item, dict | list):
            texts.append(msgspec.json.encode(item).decode())
    return extra


def _text_length(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_text_length, value.values()))
    return len(value) if isinstance(value, str) else 0


def _tiktoken_data_path() -> Path | None:
    """Return where tiktoken caches the data of o200k_base; None if its cache is disabled."""
    import tempfile  # here: importing holdfast does not need them
    from pathlib import Path

    named = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if named == "":
        return None
    folder = Path(tempfile.gettempdir(), "data-gym-cache") if named is None else Path(named)
    return folder / hashlib.sha1(_O200K_URL.encode(), usedforsecurity=False).hexdigest()


@lru_cache(maxsize=1)
def _load_tiktoken(data: Path) -> Counter | None:
    """Return a counter with local tiktoken data; None if tiktoken would have to download it."""
    if hashlib.sha256(data.read_bytes()).hexdigest() != _O200K_SHA256:
        return None
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError:
        return None
    return text_counter(tiktoken.get_encoding("o200k_base").encode_ordinary)
