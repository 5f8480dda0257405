"""The hash chain: what a damaged database may return is never an error of Python."""

from __future__ import annotations

import pytest

from holdfast.backends import Record, StreamKey
from holdfast.log import chain

SEED = chain.seed(StreamKey("default", "stream", "s"), b"i" * 16)
ID = b"a" * 16


def chained(*bodies: bytes) -> list[Record]:
    links = chain.extend(SEED, chain.GENESIS, 0, ID, bodies)
    return [Record(version, ID, *link) for version, link in enumerate(links, 1)]


def test_a_chain_fits_from_its_start_and_from_any_record() -> None:
    records = chained(b"1", b"2", b"3")
    assert chain.find_first_bad(SEED, None, records) is None
    assert chain.find_first_bad(SEED, records[0], records[1:]) is None


@pytest.mark.parametrize("field", ["append_id", "hash", "body"])
def test_a_record_is_bad_if_any_part_of_it_was_altered(field: str) -> None:
    records = chained(b"1", b"2", b"3")
    old = records[1]
    parts = {"append_id": old.append_id, "hash": old.hash, "body": old.body}
    parts[field] = bytes([parts[field][0] ^ 1]) + parts[field][1:]
    records[1] = Record(2, **parts)
    assert chain.find_first_bad(SEED, None, records) == 2


@pytest.mark.parametrize("version", [-1, -(1 << 63), 1 << 62, 1 << 70])
def test_a_version_that_no_record_can_have_is_damage(version: int) -> None:
    [anchor, following] = chained(b"1", b"2")
    altered = Record(version, anchor.append_id, anchor.hash, anchor.body)
    assert chain.find_first_bad(SEED, altered, [following]) == 1
    assert chain.find_first_bad(SEED, None, [altered, following]) == 1
