"""The arguments of a `once` or `check` step, as stored for the person who may have to resolve it.

They are for people to read, never to call the step again. An object that isn't data is stored as
the name of its type. What is stored is redacted, and its size is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...log.codec import MAX_DEPTH, decode
from .identity import encode_unknown

if TYPE_CHECKING:
    from ...redaction.apply import Redaction
    from .declare import Step

MAX_BYTES: Final = 16 * 1024
"""How much of the arguments of one call is stored."""
MAX_REDACTED_BYTES: Final = 1024 * 1024
"""An argument that is longer is left out: to redact it would take too long."""
CUT_CHARACTERS: Final = 1000
"""How much of an argument is stored that has to be cut."""

READABLE_DEPTH: Final = MAX_DEPTH // 2
"""An argument that is nested deeper is left out: with it, the event could not be read again."""

_encoder = msgspec.json.Encoder(decimal_format="string", enc_hook=encode_unknown)


def encode_arguments(
    step: Step[Any, Any], args: tuple[object, ...], kwargs: Mapping[str, Any], redaction: Redaction
) -> tuple[bytes, tuple[str, ...]]:
    """Return the arguments of a call as a JSON object, and the names of those that are cut."""
    arguments = dict(step.bind_arguments(args, kwargs))
    if step.bound_values:
        arguments = {"bound": step.bound_values, **arguments}
    encoded = {name: _encode(value) for name, value in arguments.items()}
    cut = {name: raw for name, raw in encoded.items() if len(raw) > MAX_REDACTED_BYTES}
    encoded |= {name: _encode(f"({len(raw):,} bytes)") for name, raw in cut.items()}
    # All in one object, because the redactor also goes by names. Only then they may be cut: it does
    # not recognize half a secret.
    redacted = redaction.redact_json(_join(encoded))
    if len(redacted) > MAX_BYTES:
        encoded = {
            name: bytes(raw)
            for name, raw in msgspec.json.decode(redacted, type=dict[str, msgspec.Raw]).items()
        }
        for name in sorted(encoded, key=lambda name: len(encoded[name]), reverse=True):
            if len(redacted) <= MAX_BYTES:
                break
            cut[name], encoded[name] = encoded[name], _cut(encoded[name])
            redacted = _join(encoded)
    return redacted, tuple(name for name in encoded if name in cut)


def _join(encoded: Mapping[str, bytes]) -> bytes:
    return _encoder.encode({name: msgspec.Raw(raw) for name, raw in encoded.items()})


def _encode(value: object) -> bytes:
    try:
        raw = _encoder.encode(value)
        if len(raw) <= MAX_REDACTED_BYTES:
            decode(raw, max_depth=READABLE_DEPTH)
        return raw
    except Exception:  # an object of a type that is no data, nested too deep, or a hook fails
        return _encoder.encode(f"<{type(value).__module__}.{type(value).__qualname__}>")


def _cut(raw: bytes) -> bytes:
    """Return the start of an argument, as text."""
    value = msgspec.json.decode(raw)
    text = value if isinstance(value, str) else raw.decode()
    return _encoder.encode(f"{text[:CUT_CHARACTERS]}… ({len(raw):,} bytes)")
