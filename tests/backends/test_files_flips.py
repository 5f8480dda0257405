"""No flipped bit in the index of a store of files, or in a name, goes unnoticed.

A share of all bits; HOLDFAST_HOSTILE=all takes all (`make soak`). The files themselves are in
tests/hostile/test_bit_flips.py.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import apsw
import pytest

import holdfast
from helpers.engines.files_stores import forget_index
from helpers.stored.bit_flips import BAD, Flipper, write_sample
from helpers.stores import url_of
from holdfast.errors import HoldfastError

pytestmark = pytest.mark.slow

EVERYTHING = os.environ.get("HOLDFAST_HOSTILE") == "all"
SHARE = 30


def checkpoint(index: Path) -> None:
    """Move all of the index from its log to its file."""
    db = apsw.Connection(str(index))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall() == [(0, 0, 0)]
    db.close()


@pytest.mark.parametrize("index", ["log", "file"])
def test_no_flipped_bit_of_the_index_goes_unnoticed(index: str, tmp_path: Path) -> None:
    """In place: in a copy, the index would not be believed at all."""
    with Flipper("files", tmp_path, in_place=True) as flipper:
        if index == "file":
            checkpoint(flipper.pristine / "agents" / "index.db")
        places = flipper.every() if EVERYTHING else flipper.choose(100 * SHARE, 1)
        hit = (place for place in places if place.file.endswith((".db", ".db-wal")))
        judged = [
            (place, flipper.judge(place)) for place in islice(hit, None if EVERYTHING else SHARE)
        ]
    assert not [each for each in judged if each[1].how in BAD]
    assert any(judgement.how == "reported" for _, judgement in judged)


def flip_name(path: Path, bit: int) -> Path | None:
    """Rename a file or folder. Return None if the new name is taken, or none."""
    name = bytearray(os.fsencode(path.name))
    name[bit // 8] ^= 1 << bit % 8
    if b"/" in name or b"\0" in name or name in (b".", b".."):
        return None
    target = path.with_name(os.fsdecode(bytes(name)))
    return None if target.exists() else path.rename(target)


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_flipped_bit_in_the_name_of_a_file_or_folder_is_noticed(
    index: str, tmp_path: Path
) -> None:
    url, root = url_of("files", tmp_path), tmp_path / "agents"
    write_sample(url, None)
    if index == "lost":
        forget_index(root)
    beside = {"index.db", "index.db-wal", "index.db-shm", "memory.db", "lock"}
    paths = [path for path in sorted(root.rglob("*")) if path.name not in beside]
    if not EVERYTHING:  # every second one, and the others in the other case
        paths = paths[index == "lost" :: 2]
    for number, path in enumerate(paths):
        bits = range(8 * len(os.fsencode(path.name)))
        for bit in bits if EVERYTHING else [bits[5 * number % len(bits)]]:
            altered = flip_name(path, bit)
            if altered is None:
                continue
            try:
                with holdfast.open(url, create=False) as store:
                    report = store.verify(all_tenants=True)
                assert report.problems, altered
                str([str(problem) for problem in report.problems]).encode()
            except HoldfastError:
                assert path.name == "holdfast.json"
            altered.rename(path)
            if index == "lost":
                forget_index(root)
    with holdfast.open(url, create=False) as store:
        assert store.verify(all_tenants=True).ok
