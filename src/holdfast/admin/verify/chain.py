"""Walk a hash chain and diagnose its faults: records altered, missing, moved or inserted.

A change to a record either leaves all later hashes as they were, or has to change all of them. So
the records around a break show what happened: each fits at its original place, and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ...backends import Record
from ...log.chain import GENESIS, link

ProblemKind = Literal[
    "altered",
    "missing",
    "misplaced",
    "inserted",
    "head",
    "undecodable",
    "value",
    "unreadable",
    "truncated",
    "rolled_back",
    "forked",
    "stream_missing",
    "index",
    "storage",
]

MAX_FAULTS: Final = 100
"""Stop the check of a stream after this many faults."""

LOOKAHEAD_RECORDS: Final = 4
"""How many of the following records to use to diagnose one that does not fit."""

WINDOW_RECORDS: Final = 1000
"""How many later records to search for the one that belongs here, and how many to remember."""

MAX_CUT_OUT: Final = 100
"""The most records that can be cut out, and the rest renumbered, with the cut still recognized."""


class ChainFault(NamedTuple):
    """A problem at a version of a stream."""

    version: int | None
    what: ProblemKind
    details: str


class ChainWalk:
    """A walk over an incarnation of a stream, from its start or from a record with a trusted hash.

    `version` and `previous` are its position and the hash there, None if unknown. If records were
    inserted or cut out and all others renumbered, `shift` is the difference between the stored and
    the original version numbers.
    """

    def __init__(self, seed: bytes, version: int = 0, previous: bytes | None = GENESIS) -> None:
        self._seed = seed
        self.version, self.previous, self.shift = version, previous, 0
        self.faults: list[ChainFault] = []
        self.recomputed: bytes | None = None
        """The correct hash of the newest record, if its own is wrong: the head may have it."""
        self._strays: deque[Record] = deque(maxlen=WINDOW_RECORDS)

    @property
    def stored_version(self) -> int:
        """The position by the current numbers of the records."""
        return self.version + self.shift

    @property
    def gave_up(self) -> bool:
        return len(self.faults) >= MAX_FAULTS

    def take(self, records: Sequence[Record], *, more: bool) -> int:
        """Check records in stored order, and return how many were checked.

        With `more` to come, the last ones may be left for the next call.
        """
        at = 0
        while not self.gave_up:
            at = self._skip_good(records, at)
            if at == len(records) or (more and len(records) - at < LOOKAHEAD_RECORDS):
                break
            at += self._diagnose(records[at : at + WINDOW_RECORDS])
        return len(records) if self.gave_up else at

    def add_unreadable(self, version: int, details: str) -> None:
        """Add the fault of a record that the database cannot read."""
        self.faults.append(ChainFault(version, "unreadable", details))
        self.version, self.previous = version - self.shift, None

    def _skip_good(self, records: Sequence[Record], at: int) -> int:
        """Return the index of the first record that does not fit."""
        seed, previous, version, shift = self._seed, self.previous, self.version, self.shift
        while at < len(records):
            record = records[at]
            if record.version != version + 1 + shift:
                break
            # If `previous` is unknown, this record is trusted as the start of the following ones.
            if previous is not None and record.hash != link(
                seed, previous, version + 1, record.append_id, record.body
            ):
                break
            at, version, previous = at + 1, version + 1, record.hash
            self.recomputed = None
        self.version, self.previous = version, previous
        return at

    def _diagnose(self, rest: Sequence[Record]) -> int:
        """Add the fault of the first of these records. Return how many it explains."""
        record, expected = rest[0], self.stored_version + 1
        if record.version < expected or record.version >> 63:  # over 63 bits: out of range
            self._add(record.version, "inserted", "its version is a duplicate, or out of range")
            return 1
        if record.version > expected:
            upto = record.version - 1
            which = (
                f"version {expected} is"
                if upto == expected
                else f"versions {expected} to {upto} are"
            )
            self._add(expected, "missing", f"{which} missing")
            self.version, self.previous = upto - self.shift, None
            return 0
        previous = self.previous
        assert previous is not None  # otherwise `_skip_good` would have trusted the record
        return self._diagnose_hash(record, rest[1:], previous)

    def _diagnose_hash(self, record: Record, rest: Sequence[Record], previous: bytes) -> int:
        """Add the fault of a record with the right version and a wrong hash."""
        version = self.version + 1
        home = next((stray for stray in self._strays if self._fits(previous, version, stray)), None)
        if home is not None:
            return self._add_misplaced(record, home)
        recomputed = link(self._seed, previous, version, record.append_id, record.body)
        if not rest:
            return self._add_altered(
                record.hash, "it does not fit the records before it", recomputed
            )
        following = rest[0]
        if self._fits(record.hash, version + 1, following):
            return self._add_altered(
                record.hash,
                "its content does not match its hash, or the record before it was replaced",
            )
        if self._fits(recomputed, version + 1, following):
            return self._add_altered(recomputed, "its hash does not match its content")
        if self._fits(previous, version, following):
            return self._add_swapped_or_inserted(record, following)
        cut = next(
            (
                n
                for n in range(1, MAX_CUT_OUT + 1)
                if self._fits(record.hash, version + n + 1, following)
            ),
            0,
        )
        if cut:
            were = "records were" if cut > 1 else "record was"
            what = f"{cut} {were} cut out here, and the following ones renumbered"
            self._add(self.stored_version + 1, "missing", what)
            self.version, self.previous, self.shift = version + cut, record.hash, self.shift - cut
            return 1
        home = next((other for other in rest[1:] if self._fits(previous, version, other)), None)
        if home is not None:
            return self._add_misplaced(record, home)
        return self._add_altered(
            None, "neither its content nor its hash fits, so the next one cannot be checked either"
        )

    def _add_altered(
        self, previous: bytes | None, details: str, recomputed: bytes | None = None
    ) -> int:
        """Add the fault of an altered record, and continue with `previous` as its hash."""
        self._add(self.stored_version + 1, "altered", details)
        self.version, self.previous, self.recomputed = self.version + 1, previous, recomputed
        return 1

    def _add_misplaced(self, record: Record, home: Record) -> int:
        """Add the fault of a record that is in the place of `home`."""
        what = f"the record that belongs here is at version {home.version}"
        self._add(self.stored_version + 1, "misplaced", what)
        self._strays.append(record)
        self.version, self.previous = self.version + 1, home.hash
        return 1

    def _add_swapped_or_inserted(self, record: Record, following: Record) -> int:
        """Add the fault of a record in front of the one that belongs here."""
        stored, version = self.stored_version + 1, self.version + 1
        if self._fits(following.hash, version + 1, record):
            self._add(stored, "misplaced", f"it was swapped with version {stored + 1}")
            self.version, self.previous = version + 1, record.hash
            return 2
        self._add(stored, "inserted", "it was inserted here, and the following ones renumbered")
        self.shift += 1
        return 1

    def _fits(self, previous: bytes, version: int, record: Record) -> bool:
        return record.hash == link(self._seed, previous, version, record.append_id, record.body)

    def _add(self, version: int, what: ProblemKind, details: str) -> None:
        if len(self.faults) == MAX_FAULTS - 1:
            details += "; the rest of this stream was not checked"
        self.faults.append(ChainFault(version, what, details))
