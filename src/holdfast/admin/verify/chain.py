"""What a chain tells of its records: which was altered, is missing, was moved, or was put in.

Whoever changes a record leaves all hashes after it as they were, or has to change them too. So where the chain breaks, the records around
that place say what happened: each of them fits where it once stood, and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from ...backends import Record
from ...log.chain import GENESIS

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
]

FAULTS: Final = 100
"""After so many in one stream no more are looked for in it."""

AHEAD: Final = 4
"""A record that does not fit is judged with so many after it in sight, or with all that there are."""

WINDOW: Final = 1000
"""How far a record that belongs to a place is looked for, among those after it; and how many of those before it are remembered."""

CUT_OUT: Final = 100
"""How many records may have been cut out, and those after them renumbered, for that to be recognised."""


class ChainFault(NamedTuple):
    """What is wrong at a version of a stream."""

    version: int | None
    what: ProblemKind
    details: str


class ChainWalk:
    """One life of a stream, walked from its beginning or from a record whose hash is known to be right.

    `version` and `previous` are how far it has come and the hash there; None if that cannot be known. Where records were put in or cut out
    and all others renumbered, `shift` is how far the numbers that are stored are ahead of those that were.
    """

    def __init__(self, seed: bytes, version: int = 0, previous: bytes | None = GENESIS) -> None:
        self._seed = seed
        self.version, self.previous, self.shift = version, previous, 0
        self.faults: list[ChainFault] = []
        self.recomputed: bytes | None = None
        """What the hash of the newest record should be, where it is another; for the head may have the right one."""
        self._strays: deque[Record] = deque(maxlen=WINDOW)

    @property
    def stored_version(self) -> int:
        """How far it has come, as the records are numbered now."""
        return self.version + self.shift

    @property
    def gave_up(self) -> bool:
        return len(self.faults) >= FAULTS

    def take(self, records: Sequence[Record], *, more: bool) -> int:
        """Judge records in the order in which they are stored; how many. With `more` to come, the last may be left for the next call."""
        at = 0
        while not self.gave_up:
            at = self._good(records, at)
            if at == len(records) or (more and len(records) - at < AHEAD):
                break
            at += self._bad(records[at : at + WINDOW])
        return len(records) if self.gave_up else at

    def unreadable(self, version: int, details: str) -> None:
        """The engine cannot read what is stored there."""
        self.faults.append(ChainFault(version, "unreadable", details))
        self.version, self.previous = version - self.shift, None

    def _good(self, records: Sequence[Record], at: int) -> int:
        """Where the first record is that does not fit."""
        seed, previous, version, shift = self._seed, self.previous, self.version, self.shift
        while at < len(records):
            record = records[at]
            if record.version != version + 1 + shift:
                break
            # What came before is unknown if `previous` is: then this record is taken for the beginning of what follows.
            if previous is not None and record.hash != _hash(
                seed, previous, version + 1, record.body
            ):
                break
            at, version, previous = at + 1, version + 1, record.hash
            self.recomputed = None
        self.version, self.previous = version, previous
        return at

    def _bad(self, rest: Sequence[Record]) -> int:
        """Say what is wrong with the first of these; how many of them that explains."""
        record, place = rest[0], self.stored_version + 1
        if record.version < place or record.version >> 63:  # so large a number is nobody's
            self._add(
                record.version,
                "inserted",
                "its version comes again, or is none that a record can have",
            )
            return 1
        if record.version > place:
            upto = record.version - 1
            which = f"version {place} is" if upto == place else f"versions {place} to {upto} are"
            self._add(place, "missing", f"{which} not there")
            self.version, self.previous = upto - self.shift, None
            return 0
        previous = self.previous
        assert previous is not None  # else it would have been taken for a beginning
        return self._misfit(record, rest[1:], previous)

    def _misfit(self, record: Record, rest: Sequence[Record], previous: bytes) -> int:
        """A record has the right number and the wrong hash."""
        version = self.version + 1
        home = next((stray for stray in self._strays if self._fits(previous, version, stray)), None)
        if home is not None:
            return self._replaced(record, home)
        recomputed = _hash(self._seed, previous, version, record.body)
        if not rest:
            return self._altered(record.hash, "it does not fit the records before it", recomputed)
        following = rest[0]
        if self._fits(record.hash, version + 1, following):
            return self._altered(
                record.hash,
                "its content is not that of its hash, or the record before it was replaced",
            )
        if self._fits(recomputed, version + 1, following):
            return self._altered(recomputed, "its hash is not that of its content")
        if self._fits(previous, version, following):
            return self._swapped_or_inserted(record, following)
        cut = next(
            (
                n
                for n in range(1, CUT_OUT + 1)
                if self._fits(record.hash, version + n + 1, following)
            ),
            0,
        )
        if cut:
            what = f"{cut} record{'s were' if cut > 1 else ' was'} cut out here, and those after it renumbered"
            self._add(self.stored_version + 1, "missing", what)
            self.version, self.previous, self.shift = version + cut, record.hash, self.shift - cut
            return 1
        home = next((other for other in rest[1:] if self._fits(previous, version, other)), None)
        if home is not None:
            return self._replaced(record, home)
        return self._altered(
            None,
            "neither its content nor its hash fits; so the one after it cannot be judged either",
        )

    def _altered(
        self, going_on_from: bytes | None, details: str, recomputed: bytes | None = None
    ) -> int:
        self._add(self.stored_version + 1, "altered", details)
        self.version, self.previous, self.recomputed = self.version + 1, going_on_from, recomputed
        return 1

    def _replaced(self, record: Record, home: Record) -> int:
        """The record that belongs here stands elsewhere."""
        place = self.stored_version + 1
        self._add(
            place, "misplaced", f"the record that belongs here stands at version {home.version}"
        )
        self._strays.append(record)
        self.version, self.previous = self.version + 1, home.hash
        return 1

    def _swapped_or_inserted(self, record: Record, following: Record) -> int:
        """The next record belongs here."""
        place, version = self.stored_version + 1, self.version + 1
        if self._fits(following.hash, version + 1, record):
            self._add(place, "misplaced", f"it has changed places with version {place + 1}")
            self.version, self.previous = version + 1, record.hash
            return 2
        self._add(place, "inserted", "it was put in here, and those after it renumbered")
        self.shift += 1
        return 1

    def _fits(self, previous: bytes, version: int, record: Record) -> bool:
        return record.hash == _hash(self._seed, previous, version, record.body)

    def _add(self, version: int, what: ProblemKind, details: str) -> None:
        if len(self.faults) == FAULTS - 1:
            details += "; no more are looked for in this stream"
        self.faults.append(ChainFault(version, what, details))


def _hash(seed: bytes, previous: bytes, version: int, body: bytes) -> bytes:
    """As `_chain.extend` makes it."""
    return sha256(seed + previous + version.to_bytes(8, "big") + sha256(body).digest()).digest()
