"""Interrupts at exact instants: an exception is raised in Holdfast's own code, wherever CPython may
run a signal handler there, as Ctrl-C does.

CPython looks for signals when a function begins, after a call, and when a loop goes back. Nowhere
else: a `finally:` whose first statement is a call of a C function always runs that one.
"""

from __future__ import annotations

import contextlib
import dis
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import holdfast

SOURCE = str(Path(holdfast.__file__).parent)

LEAVE_GENERATOR = contextlib._GeneratorContextManager.__exit__.__code__
"""The end of a `with` block whose context manager is a generator of ours. The traceback of an
interrupt here refers to the generator, which stays suspended as long as the traceback is there."""

_BEFORE = ("BEFORE_WITH", "SETUP_WITH", "BEFORE_ASYNC_WITH", "SETUP_ASYNC_WITH")
"""A lock may be interrupted while it is acquired: then it isn't."""


def _is_checked(name: str) -> bool:
    """Whether CPython looks for signals after an instruction."""
    return name.startswith(("CALL", "JUMP_ABSOLUTE", "RESUME")) or (
        "BACKWARD" in name and "NO_INTERRUPT" not in name
    )


class _Places:
    """The offsets of the instructions of a function at which an interrupt may come."""

    def __init__(self, code: CodeType) -> None:
        bytecode = dis.Bytecode(code)
        found = [(each.offset, each.opname) for each in bytecode]
        handled = getattr(
            bytecode, "exception_entries", ()
        )  # Python 3.10 has none: it keeps a stack

        def handlers(offset: int) -> list[Any]:
            return [entry for entry in handled if entry.start <= offset < entry.end]

        # CPython handles an interrupt as if the instruction before had raised it. A trace function
        # can raise only at the next one, which must be in the same `try` for the same effect.
        self.same_try = {
            later
            for (offset, _), (later, _) in pairwise(found)
            if handlers(offset) == handlers(later)
        }
        self.after = {offset for offset, name in found if _is_checked(name)}
        self.before = {offset for offset, name in found if name in _BEFORE}
        self.first = next((offset for offset, name in found if name == "RESUME"), 0)
        """Where it begins. A generator that continues is inside its own `try` by then."""
        file = Path(code.co_filename)
        self.only_first = code is LEAVE_GENERATOR
        """Whether only its beginning counts: an interrupt there comes before our own code runs."""
        if file.is_relative_to(SOURCE):
            self.name = f"{file.relative_to(SOURCE)} {code.co_name}"
        else:
            self.name = f"{file.name} {code.co_name}" if self.only_first else ""

    def may_interrupt(self, last: int, here: int) -> bool:
        """Whether an interrupt may come between these two instructions."""
        return here in self.before or (last in self.after and here in self.same_try)


_places: dict[CodeType, _Places] = {}


def _places_of(code: CodeType) -> _Places:
    if code not in _places:
        _places[code] = _Places(code)
    return _places[code]


class Place(NamedTuple):
    """A phase of the work, and an instruction of a function at which an interrupt may come."""

    phase: str
    code: CodeType
    offset: int

    def __str__(self) -> str:
        return f"{self.phase}: {_places_of(self.code).name} at {self.offset}"


class Interrupts:
    """Raises `KeyboardInterrupt` once in some work: at a place, the first or the nth time that it
    gets there.

    Without a place it only lists the instants. The work says in `phase` where it is.
    """

    def __init__(self, chosen: Place | None = None, occurrence: int = 1) -> None:
        self._chosen, self._left, self.phase = chosen, occurrence, ""
        self.passed: list[Place] = []
        self.hit: Place | None = None
        """Where the interrupt came."""

    def run(self, work: Callable[[Interrupts], object]) -> bool:
        """Do the work; return whether it was interrupted."""
        sys.settrace(self._trace_call)
        try:
            work(self)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    def _trace_call(self, frame: FrameType, event: str, arg: object) -> Any:
        chosen = self._chosen
        if chosen and (frame.f_code is not chosen.code or self.phase != chosen.phase):
            return None  # to trace it would only take time: phases begin outside of Holdfast
        places = _places_of(frame.f_code)
        if not places.name:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, not places.only_first
        if frame.f_lasti <= places.first:
            self._pass(frame)
        if places.only_first:
            return None
        may_interrupt, last = places.may_interrupt, -1

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal last
            if event == "opcode":
                before, last = last, frame.f_lasti
                if may_interrupt(before, last):
                    self._pass(frame)
            return trace

        return trace

    def _pass(self, frame: FrameType) -> None:
        place = Place(self.phase, frame.f_code, frame.f_lasti)
        if self._chosen is None:
            self.passed.append(place)
        elif place == self._chosen:
            self._left -= 1
            if self._left == 0:
                self.hit = place
                raise KeyboardInterrupt


def list_places(work: Callable[[Interrupts], object]) -> list[Place]:
    """Where some work may be interrupted, each place once per phase."""
    listing = Interrupts()
    assert not listing.run(work)
    return list(dict.fromkeys(listing.passed))


def list_instants(work: Callable[[Interrupts], object]) -> dict[str, list[tuple[Place, int]]]:
    """When some work may be interrupted, by phase: a place, and the how manyth time there."""
    listing, times = Interrupts(), Counter[Place]()
    assert not listing.run(work)
    found: dict[str, list[tuple[Place, int]]] = {}
    for place in listing.passed:
        times[place] += 1
        found.setdefault(place.phase, []).append((place, times[place]))
    return found


def count_phases(hits: Iterable[Place | None]) -> Counter[str]:
    """How many interrupts came in each phase."""
    return Counter(hit.phase for hit in hits if hit is not None)
