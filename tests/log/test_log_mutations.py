"""The test of the log's promises can fail: with one protection taken out, it finds a violation."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from test_log_faults import late_together, violations_of

from holdfast import Conflict as ConflictError
from holdfast import OutcomeUnknown
from holdfast.backends import Append, AppendResult, Backend, VersionMismatch
from holdfast.backends.memory import MemoryBackend, _Stream
from holdfast.errors import Unavailable
from holdfast.log.appender import Answer, Appender, PendingAppend
from holdfast.log.log import Log

SEEDS = 2000


class AbsentMeansNotDone(Appender):
    """Takes an append that cannot be found for one that was not stored, though it may still be on
    its way."""

    def _send_alone(self, append: Append, *, in_doubt: bool, until: float) -> Answer:
        try:
            if in_doubt and not self.backend.read(append.stream, after=append.expected, limit=1):
                return Unavailable("not found, so not stored")
        except Exception as error:
            return error
        return super()._send_alone(append, in_doubt=in_doubt, until=until)


class NoDoubt(Appender):
    """Believes a lost answer to be a refusal."""

    def _send_alone(self, append: Append, *, in_doubt: bool, until: float) -> Answer:
        return (
            Unavailable("no answer, so not stored")
            if in_doubt
            else super()._send_alone(append, in_doubt=False, until=until)
        )


class FreshIds(Appender):
    """Sends an append in doubt again under a new id."""

    def _send_alone(self, append: Append, *, in_doubt: bool, until: float) -> Answer:
        if not in_doubt:
            return super()._send_alone(append, in_doubt=False, until=until)
        for _ in range(20):
            try:
                return self.backend.append([msgspec.structs.replace(append, id=os.urandom(16))])[0]
            except Exception:
                continue
        return OutcomeUnknown("gave up")


class NoGhosts(Appender):
    """Forgets that an append whose predecessor is missing may still arrive together with it."""

    def _handle_answer(self, entry: PendingAppend, answer: Answer) -> bool:
        if isinstance(answer, VersionMismatch):
            answer = VersionMismatch(answer.head)
        return super()._handle_answer(entry, answer)


class ForgetsDoubts(Appender):
    """Treats the repetition of an append in doubt as a new one."""

    def _remember_doubt(self, entry: PendingAppend, ghosts: list[Append]) -> None:
        pass


class NoVersionCheck(MemoryBackend):
    """Appends wherever the stream is."""

    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        if stream is not None:
            append = msgspec.structs.replace(
                append,
                expected=stream.version,
                expected_hash=stream.hash,
                incarnation=stream.incarnation,
            )
        return super()._append(append, now)


class NoHashCheck(MemoryBackend):
    """Compares the version, but not the hash: does not notice that another history has the same
    length."""

    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        if stream is not None and stream.incarnation == append.incarnation:
            append = msgspec.structs.replace(append, expected_hash=stream.hash)
        return super()._append(append, now)


class NoIdCheck(MemoryBackend):
    """Does not look whether an append is already stored."""

    @staticmethod
    def _find_repeated(stream: _Stream, append: Append) -> tuple[int, int] | None:
        return None


class ImpatientLog(Log):
    """Gives up after a moment: on a broken backend, no retry may succeed."""

    def __init__(self, backend: Backend, *, timeout: float, **options: Any) -> None:
        super().__init__(backend, timeout=min(timeout, 0.1), **options)


def log_with(appender: type[Appender]) -> type[Log]:
    return type("Mutant", (Log,), {"appender": appender})


@pytest.mark.parametrize("appender", [AbsentMeansNotDone, NoDoubt, FreshIds, ForgetsDoubts])
def test_a_log_without_a_protection_is_caught(appender: type[Appender]) -> None:
    assert first_violation(log_with(appender), MemoryBackend), f"{appender.__doc__} Nobody noticed."


def test_a_log_that_forgets_what_may_still_arrive_is_caught() -> None:
    _, stored = late_together(log_with(NoGhosts), if_version=None)
    assert stored == ["begun", "first", "second", "second"]
    (_, second), stored = late_together(log_with(NoGhosts), if_version=2)
    assert isinstance(second, ConflictError) and "second" in stored


@pytest.mark.slow
@pytest.mark.parametrize("memory", [NoVersionCheck, NoHashCheck, NoIdCheck])
def test_a_backend_without_a_check_is_caught(memory: type[MemoryBackend]) -> None:
    assert first_violation(ImpatientLog, memory), f"{memory.__doc__} Nobody noticed."


def first_violation(log: type[Log], memory: type[MemoryBackend]) -> str | None:
    for seed in range(SEEDS):
        _, violations = violations_of(seed, log, memory)
        if violations:
            print(f"seed {seed}: {violations[0]}")
            return violations[0]
    return None
