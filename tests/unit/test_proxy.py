"""The proxy of the fault tests understands what is said, however the bytes are cut into pieces."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from helpers.engines.network_proxy import Postgres, Redis, Speech

STARTUP = struct.pack("!ii", 8, 80877103), struct.pack("!ii", 8, 196608)


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def fed(speech: Speech, data: bytes, piece: int) -> Iterator[tuple[bytes, str]]:
    for at in range(0, len(data), piece):
        yield from speech.answers(data[at : at + piece])


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_a_transaction_of_postgresql_is_heard_whole(piece: int) -> None:
    speech = Postgres()
    said = b"".join(STARTUP)
    said += message(b"P", b"name\0INSERT 1\0\0\0") + message(b"S") + message(b"Q", b"BEGIN\0")
    said += message(b"B", b"\0name\0more") + message(b"E", b"\0\0\0\0\0") + message(b"S")
    for at in range(0, len(said), piece):
        speech.heard(said[at : at + piece])
    assert speech.said == [b"BEGIN", b"INSERT 1"]
    ready, begun = message(b"Z", b"I"), message(b"Z", b"T")
    answers = [
        state
        for _, state in fed(speech, b"N" + ready + ready + begun + message(b"2") + begun, piece)
    ]
    assert answers == ["answered", "answering", "answering", "answering", "answering", "answered"]
    assert speech.said == [b"BEGIN", b"INSERT 1"]
    speech.heard(message(b"Q", b"COMMIT\0"))
    assert speech.said == [b"BEGIN", b"INSERT 1", b"COMMIT"]
    assert [state for _, state in fed(speech, message(b"C", b"COMMIT\0") + ready, piece)] == [
        "answering",
        "at rest",
    ]
    assert not speech.said


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_commands_and_replies_of_redis_are_heard_whole(piece: int) -> None:
    speech = Redis()
    said = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$7\r\nEVALSHA\r\n$4\r\n\r\n\r\n\r\n"
    for at in range(0, len(said), piece):
        speech.heard(said[at : at + piece])
    assert (
        len(speech.said) == 2
        and speech.said[0] == b"GET a"
        and speech.said[1].startswith(b"EVALSHA")
    )
    replies = [b"$-1\r\n", b"*3\r\n:1\r\n*1\r\n$4\r\n\r\n\r\n\r\n*-1\r\n"]
    assert list(fed(speech, b"".join(replies), piece)) == [
        (replies[0], "answering"),
        (replies[1], "at rest"),
    ]
    assert not speech.said
