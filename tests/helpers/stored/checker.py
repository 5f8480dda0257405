"""The judge that comes after the crash: what is stored against what the writers noted.

`main` (arguments: URL NOTES SEEN) opens the store in a process of its own, reads every stream
(reading checks the hash chain) and prints a verdict as JSON. SEEN is a file in which it remembers,
from one crash to the next, what it found stored.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from helpers.stored.notes import digest, plan, read_notes
from holdfast import Event
from holdfast.backends import Backend

Stored = Mapping[str, Sequence[Event]]
Seen = dict[str, tuple[int, str]]
"""For each stream: a version, and a digest of the history up to it."""


class Verdict(msgspec.Struct):
    """What was found. `doubts` are the keys of appends without an answer that have an id, so that
    they can be repeated."""

    violations: list[str] = []
    attempts: int = 0
    acknowledged: int = 0
    refused: int = 0
    stored: int = 0
    in_doubt_stored: int = 0
    in_doubt_absent: int = 0
    doubts: list[str] = []
    in_flight: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.violations


class Place(msgspec.Struct):
    """Where the events of one append are."""

    stream: str
    versions: list[int]
    data: list[Any]
    types: list[str]


def judge(notes: Iterable[Mapping[str, Any]], stored: Stored, seen: Seen) -> tuple[Verdict, Seen]:
    """The verdict, and what is to be remembered for the next one. Pure: no store, no files."""
    verdict = Verdict()
    notes = list(notes)
    places = _find_appends(stored, verdict)
    _check_appends(places, verdict)
    _check_notes(notes, places, stored, verdict)
    _check_real_time_order(notes, places, verdict)
    return verdict, _check_seen(stored, seen, verdict)


def _find_appends(stored: Stored, verdict: Verdict) -> dict[str, Place]:
    """The appends by key, from the events. Versions must be 1, 2, 3, …"""
    places: dict[str, Place] = {}
    event_ids: set[str] = set()
    for stream, events in stored.items():
        for number, event in enumerate(events, 1):
            verdict.stored += 1
            if event.version != number:
                verdict.violations.append(
                    f"{stream}: version {event.version} stands where {number} should"
                )
            if event.id in event_ids:
                verdict.violations.append(
                    f"{stream} version {number}: event id {event.id} is stored twice"
                )
            event_ids.add(event.id)
            data = event.data
            if not isinstance(data, dict) or digest(
                {k: v for k, v in data.items() if k != "sum"}
            ) != data.get("sum"):
                verdict.violations.append(
                    f"{stream} version {number}: its content does not match its own sum"
                )
                continue
            place = places.setdefault(data["key"], Place(stream, [], [], []))
            if place.stream != stream:
                verdict.violations.append(
                    f"{data['key']} is stored in two streams: {place.stream} and {stream}"
                )
            place.versions.append(event.version)
            place.data.append(data)
            place.types.append(event.type)
    return places


def _check_appends(places: Mapping[str, Place], verdict: Verdict) -> None:
    """Each append once, whole, in one piece, equal to what was meant, in the stream it was meant
    for."""
    for key, place in places.items():
        expected = plan(key)
        if place.stream != expected.stream:
            verdict.violations.append(f"{key} is in {place.stream}, not in {expected.stream}")
        elif len(place.data) > len(expected.data):
            verdict.violations.append(f"{key} is stored more than once: versions {place.versions}")
        elif len(place.data) < len(expected.data):
            verdict.violations.append(
                f"{key} is torn: {len(place.data)} of {len(expected.data)} events"
            )
        elif list(zip(place.types, place.data, strict=True)) != expected.events:
            verdict.violations.append(f"{key} is not what was appended")
        elif place.versions != list(
            range(place.versions[0], place.versions[0] + len(place.versions))
        ):
            verdict.violations.append(f"{key} is not in one piece: versions {place.versions}")


def _check_notes(
    notes: Sequence[Mapping[str, Any]],
    places: Mapping[str, Place],
    stored: Stored,
    verdict: Verdict,
) -> None:
    """Acknowledged is stored, where the answer said; stored was attempted; refused is not stored;
    what was seen is there."""
    tried: Counter[str] = Counter()
    answered: dict[str, str] = {}
    for note in notes:
        match note["what"]:
            case "try":
                tried[note["key"]] += 1
            case "ack":
                answered[note["key"]] = "ack"
                place = places.get(note["key"])
                if place is None:
                    verdict.violations.append(f"{note['key']} was acknowledged and is lost")
                elif (place.versions[0], place.versions[-1]) != (note["first"], note["last"]):
                    verdict.violations.append(
                        f"{note['key']} was acknowledged at {note['first']}, is at {place.versions}"
                    )
            case "refused":
                answered[note["key"]] = "refused"
            case "saw":
                events = stored.get(note["stream"], ())
                if len(events) < note["version"] or events[note["version"] - 1].id != note["event"]:
                    verdict.violations.append(
                        f"{note['stream']} version {note['version']} was read and is gone"
                    )
            case "wrong":
                verdict.violations.append(note["problem"])
    for key in places:
        if key not in tried:
            verdict.violations.append(f"{key} is stored and was never attempted")
        elif (
            answered.get(key) == "refused" and tried[key] == 1
        ):  # a refused repeat says nothing of the first try
            verdict.violations.append(f"{key} is stored, but the writer was told that it was not")
    verdict.attempts = len(tried)
    verdict.acknowledged = sum(answer == "ack" for answer in answered.values())
    verdict.refused = len(answered) - verdict.acknowledged
    verdict.in_flight = [key for key in tried if key not in answered]
    verdict.in_doubt_stored = sum(key in places for key in verdict.in_flight)
    verdict.in_doubt_absent = len(verdict.in_flight) - verdict.in_doubt_stored
    verdict.doubts = [key for key in verdict.in_flight if plan(key).id is not None]


def _check_real_time_order(
    notes: Iterable[Mapping[str, Any]], places: Mapping[str, Place], verdict: Verdict
) -> None:
    """An append that was acknowledged before another began on the same stream has the lower
    version."""
    newest: dict[str, int] = {}
    begun: set[str] = set()
    for note in notes:
        place = places.get(note.get("key", ""))
        if place is None:
            continue
        if note["what"] == "try" and note["key"] not in begun:
            begun.add(note["key"])
            if place.versions[0] <= newest.get(place.stream, 0):
                verdict.violations.append(
                    f"{note['key']} is at {place.stream} version {place.versions[0]}, but began "
                    "after "
                    f"version {newest[place.stream]} was acknowledged"
                )
        elif note["what"] == "ack":
            newest[place.stream] = max(newest.get(place.stream, 0), place.versions[-1])


def _check_seen(stored: Stored, seen: Seen, verdict: Verdict) -> Seen:
    """What was stored after an earlier crash is still there, unchanged."""
    for stream, (version, history) in seen.items():
        if _history(stored.get(stream, ())[:version]) != history:
            verdict.violations.append(
                f"{stream}: what was stored up to version {version} is gone or changed"
            )
    return {stream: (len(events), _history(events)) for stream, events in stored.items()}


def _history(events: Sequence[Event]) -> str:
    return digest(
        [(event.version, event.id, event.type, event.data.get("sum")) for event in events]
    )


def read_store(url: str) -> dict[str, list[Event]]:
    """All streams of the workload's tenant."""
    with holdfast.open(url) as store:
        names = list(stream_names(store._log.backend))
        return {name: list(store.stream(name).read()) for name in names}


def stream_names(backend: Backend) -> Iterable[str]:
    after = ""
    while page := backend.heads(tenant="default", kind="stream", after=after):
        yield from (head.stream.id for head in page)
        after = page[-1].stream.id


def check(url: str, notes: str, seen: str) -> Verdict:
    """Judge a store, and remember what was found for the next time."""
    memory = Path(seen)
    before = json.loads(memory.read_text()) if memory.exists() else {}
    try:
        stored = read_store(url)
    except holdfast.HoldfastError as error:
        return Verdict([f"the store cannot be read: {type(error).__name__}: {error}"])
    verdict, after = judge(read_notes(notes), stored, before)
    memory.write_text(json.dumps(after))
    return verdict


def main() -> None:
    sys.stdout.buffer.write(msgspec.json.encode(check(*sys.argv[1:])))
