"""Tests of bodies: they are opaque, and every byte comes back."""

from __future__ import annotations

import os

from ..backends import Backend
from .build import StreamTracker, bodies, read_all

ODD = [
    b"",
    b"\x00",
    bytes(range(256)),
    bytes(range(255, -1, -1)),
    b"\xff\xfe\xfd",
    b"\xed\xa0\x80",  # a lone surrogate in UTF-8
    b"plain text",
    b'{"a":1}',
    b' { "a" : 1.0 ,\n\t"b" : [ ] }\r\n',
    b'{"a":1,"a":2}',
    b'{"n":1e400,"big":123456789012345678901234567890}',
    b"null",
    b'""',
    b'"\\u0000"',
    b"\n",
    b"\r\n",
    b"a\nb\nc\n",
    b"\n\n",
    b"\x1e{}\n",
    b" ",
    b"'; DROP TABLE records; --",
    b"QUJD",  # base64 of ABC
    "ünï 😀\u2028".encode(),
    b"\xef\xbb\xbf{}",
    b"\x1f\x8b\x08\x00",  # looks like gzip
    b"\x80\x04\x95.",  # looks like a pickle
]


class BodyTests:
    def test_a_body_of_any_bytes_comes_back_as_it_was(self, backend: Backend) -> None:
        for place, body in enumerate(ODD):
            tracker = StreamTracker(f"{place}")
            tracker.write(backend, body)
            assert bodies(read_all(backend, tracker.stream)) == [body]

    def test_odd_bodies_side_by_side_in_one_append_stay_apart(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, *ODD)
        tracker.write(backend, *ODD[::-1])
        assert bodies(read_all(backend, tracker.stream)) == ODD + ODD[::-1]

    def test_a_body_of_four_mebibytes_comes_back_as_it_was(self, backend: Backend) -> None:
        tracker = StreamTracker()
        big = [
            os.urandom(4 * 1024 * 1024),
            b"a" * 4 * 1024 * 1024,
            b'{"text":"' + b"\n" * (4 * 1024 * 1024 - 12) + b'"}',
        ]
        for body in big:
            tracker.write(backend, body)
        found = bodies(read_all(backend, tracker.stream))
        # No single assert on the lists: pytest would take minutes to explain how 12 MiB differ.
        assert [len(body) for body in found] == [len(body) for body in big]
        assert all(a == b for a, b in zip(found, big, strict=True))

    def test_sizes_around_powers_of_two_are_kept(self, backend: Backend) -> None:
        tracker = StreamTracker()
        sizes = [size + off for size in (64, 512, 4096, 65536, 262144) for off in (-1, 0, 1)]
        tracker.write(backend, *(os.urandom(size) for size in sizes))
        assert [len(body) for body in bodies(read_all(backend, tracker.stream))] == sizes
