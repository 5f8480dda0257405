"""The log's promises on an engine that goes wrong: whatever fails, every append ends as done, not
done or unknown, truthfully.

A few threads and async agents append to and read from a store whose backend loses requests and
answers, delivers late, refuses, breaks, and lets strangers write in between. Then the engine is
healed, what was in doubt is repeated with the id that the error named, and the same judge as after
a real crash compares what is stored with what was said.

`HOLDFAST_LOG_SEEDS` says how many runs (800 unless told), `HOLDFAST_LOG_FIRST_SEED` where to start.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers.servers import SERVERS
from helpers.stored.checker import judge, stream_names
from helpers.stored.notes import Plan, plan
from helpers.stores import url_of
from holdfast import AsyncStore, Conflict, Event, HoldfastError, OutcomeUnknown, Store
from holdfast._open import open_backend
from holdfast.backends import Append, AppendResult, Backend, HeadFields, StreamKey
from holdfast.backends import VersionMismatch as SeamConflict
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.files import FilesBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import StorageFull, Unavailable
from holdfast.log import chain, ids
from holdfast.log.events import NewEvent, encode_envelopes, new_append_context
from holdfast.log.head_fields import encode_fields
from holdfast.log.log import Log

SEEDS = int(os.environ.get("HOLDFAST_LOG_SEEDS", "800"))
FIRST_SEED = int(os.environ.get("HOLDFAST_LOG_FIRST_SEED", "0"))
CHUNKS = 8
APPENDS = 5
HEALED_SECONDS = 30.0
"""The timeout of calls once the engine is healed: on a busy machine a server takes its time."""

RATES = {
    "unavailable": 0.04,
    "full": 0.04,
    "lost_answer": 0.07,
    "lost_request": 0.07,
    "late": 0.07,
    "late_part": 0.07,
    "foreign": 0.05,
    "driver_error": 0.04,
    "driver_error_stored": 0.04,
    "read_unavailable": 0.1,
    "delay": 0.01,
}
KINDS = {*RATES, "late_stored"}


class Run:
    """One run: its store, what was noted, and what is in doubt. `log` and `engine` are replaced by
    those who test this test."""

    def __init__(
        self, seed: int, log: type[Log] = Log, engine: Callable[[], Backend] = MemoryBackend
    ) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.engine = engine()
        self.faulty = FaultyBackend(
            self.engine, seed=seed, **RATES, foreign_append=self.foreign_append
        )  # type: ignore[arg-type]
        self.log_type = log
        # No patience: many unknown outcomes. Some patience: the log settles most of them itself.
        # A server is asked nothing after the deadline, so there it takes a moment.
        none = 0.0 if isinstance(self.engine, MemoryBackend | SQLiteBackend | FilesBackend) else 0.1
        self.log = self.new_log(self.faulty, self.chance.choice([none, none, 5.0]))
        self.store = Store(self.log, "default")
        self.notes: list[dict[str, Any]] = []
        self.doubts: list[tuple[Plan, str]] = []
        self.outcomes: Counter[str] = Counter()
        self.foreigners = 0

    def new_log(self, backend: Backend, patience: float) -> Log:
        return self.log_type(backend, timeout=patience, pause=lambda seconds: None)

    # -- the writers -----------------------------------------------------------------------------

    def work(self) -> None:
        """A few threads, or a few agents in one event loop, or both."""
        writers: list[Callable[[], None]] = []
        threads, agents = self.chance.choice([(1, 0), (3, 0), (0, 3), (2, 2)])
        for number in range(threads):
            writers.append(lambda number=number: self.write(f"{self.seed}/thread {number}"))  # type: ignore[misc]
        if agents:
            writers.append(lambda: asyncio.run(self.run_agents(agents)))
        if len(writers) == 1:
            return writers[0]()
        crew = [threading.Thread(target=self.guarded, args=(writer,)) for writer in writers]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        return None

    def guarded(self, writer: Callable[[], None]) -> None:
        try:
            writer()
        except BaseException as error:
            self.notes.append({"what": "wrong", "problem": f"a writer died of {error!r}"})

    async def run_agents(self, count: int) -> None:
        store = self.store.aio
        await asyncio.gather(
            *(self.write_async(store, f"{self.seed}/agent {number}") for number in range(count))
        )

    def write(self, writer: str) -> None:
        chance = random.Random(writer)
        for number in range(APPENDS):
            step = plan(f"{writer}/{number}")
            stream = self.store.stream(step.stream)
            append_id = step.id
            for attempt in range(3):
                self.notes.append({"what": "try", "key": step.key})
                try:
                    expected = stream.version() if step.conditional and attempt == 0 else None
                    answer = stream.append(*step.events, id=append_id, if_version=expected)
                except Exception as error:
                    append_id = self.failed(step, append_id, error, attempt)
                    if append_id is None or chance.random() < 0.5:
                        break
                else:
                    self.done(step, answer.first, answer.last)
                    break
            try:
                stream.last(2)
                list(stream.read(after=chance.randrange(3)))
            except Unavailable:
                continue

    async def write_async(self, store: AsyncStore, writer: str) -> None:
        chance = random.Random(writer)
        for number in range(APPENDS):
            step = plan(f"{writer}/{number}")
            stream = store.stream(step.stream)
            append_id = step.id
            for attempt in range(3):
                self.notes.append({"what": "try", "key": step.key})
                try:
                    expected = await stream.version() if step.conditional and attempt == 0 else None
                    answer = await stream.append(*step.events, id=append_id, if_version=expected)
                except Exception as error:
                    append_id = self.failed(step, append_id, error, attempt)
                    if append_id is None or chance.random() < 0.5:
                        break
                else:
                    self.done(step, answer.first, answer.last)
                    break

    def done(self, step: Plan, first: int, last: int) -> None:
        self.outcomes["done"] += 1
        self.notes.append({"what": "ack", "key": step.key, "first": first, "last": last})

    def failed(
        self, step: Plan, append_id: str | None, error: Exception, attempt: int
    ) -> str | None:
        """Note a failure. Returns the id to repeat with, if repeating makes sense."""
        if isinstance(error, OutcomeUnknown):
            self.outcomes["unknown"] += 1
            if error.id is None or append_id not in (None, error.id):
                self.notes.append(
                    {"what": "wrong", "problem": f"{step.key}: the error names id {error.id}"}
                )
                return append_id
            if attempt == 0:
                self.doubts.append((step, error.id))
            return error.id
        if not isinstance(error, Unavailable | StorageFull | Conflict):
            self.notes.append({"what": "wrong", "problem": f"{step.key} ended with {error!r}"})
        self.outcomes["not done"] += 1
        self.notes.append({"what": "refused", "key": step.key})
        return append_id if attempt else None

    def foreign_append(self, ahead_of: Append) -> Append:
        """What another process would append to one of the shared streams: a good record, with its
        place in the chain."""
        target = ahead_of.stream
        if target.kind != "stream" or not target.id.startswith("shared"):
            target = StreamKey("default", "stream", "shared 0")
        while True:
            self.foreigners += 1
            step = plan(f"{self.seed}/foreign/{self.foreigners}")
            if step.stream == target.id and not any(
                len(data["text"]) > 60_000 for data in step.data
            ):
                break
        self.notes.append({"what": "try", "key": step.key})
        head = self.engine.head(target)
        incarnation = head.incarnation if head else random.randbytes(16)
        stamp = new_append_context()
        bodies = encode_envelopes(
            [NewEvent(name, msgspec.json.encode(data)) for name, data in step.events], stamp, {}
        )
        version, digest = (head.version, head.hash) if head else (0, chain.GENESIS)
        name, seed = ids.append_id(stamp.id), chain.seed(target, incarnation)
        return Append(
            target,
            version,
            digest if head else b"",
            incarnation,
            name,
            chain.extend(seed, digest, version, name, bodies),
            None if head else encode_fields(seed, HeadFields()),
        )

    # -- afterwards ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Heal the engine and repeat what is in doubt. Late packets arrive before, between or
        after."""
        self.log.backend = self.log.reader.backend = self.log._appender.backend = self.engine
        self.log.timeout = HEALED_SECONDS
        restarted = self.chance.random() < 0.3
        if restarted:
            # A new process: it knows the ids that its predecessor's callers chose, nothing else.
            self.store = Store(self.new_log(self.engine, HEALED_SECONDS), "default")
        for step, append_id in self.doubts:
            if self.chance.random() < 0.3:
                self.faulty.deliver()
            if restarted and step.id is None:
                continue
            self.notes.append({"what": "try", "key": step.key})
            try:
                answer = self.store.stream(step.stream).append(*step.events, id=append_id)
            except HoldfastError as error:
                problem = (
                    f"{step.key} was unknown, and repeated on a healed engine it ended with "
                    f"{error!r}"
                )
                self.notes.append({"what": "wrong", "problem": problem})
            else:
                self.done(step, answer.first, answer.last)
        self.faulty.deliver()

    def violations(self) -> Sequence[str]:
        """What the judge finds, who reads everything through a log of its own."""
        stored: dict[str, list[Event]] = {}
        with Store(Log(self.engine), "default") as store:
            for name in stream_names(self.engine):
                try:
                    stored[name] = list(store.stream(name).read())
                except HoldfastError as error:
                    return [f"{name} cannot be read: {error!r}"]
        verdict, _ = judge(self.notes, stored, {})
        return verdict.violations


def violations_of(
    seed: int, log: type[Log] = Log, engine: Callable[[], Backend] = MemoryBackend
) -> tuple[Run, Sequence[str]]:
    """A whole run with this seed, and what is wrong with it."""
    run = Run(seed, log, engine)
    try:
        run.work()
        run.settle()
        return run, run.violations()
    finally:
        run.log.close()


injected: Counter[str] = Counter()
outcomes: Counter[str] = Counter()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_append_ends_truthfully_whatever_the_engine_does(chunk: int) -> None:
    for seed in range(FIRST_SEED + chunk, FIRST_SEED + SEEDS, CHUNKS):
        run, found = violations_of(seed)
        assert not found, (seed, found)
        injected.update(run.faulty.injected)
        outcomes.update(run.outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "files", *SERVERS])
def test_every_append_ends_truthfully_on_every_engine(engine: str, tmp_path: Path) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(
        FIRST_SEED,
        FIRST_SEED
        + (max(2, SEEDS // 1000) if engine in ("dynamodb", "s3") else max(10, SEEDS // 200)),
    ):
        place = tmp_path / f"{seed}"
        place.mkdir()
        run, found = violations_of(
            seed, engine=lambda place=place: open_backend(url_of(engine, place), "disk")
        )  # type: ignore[misc]
        assert not found, (seed, found)
        kinds.update(run.faulty.injected)
    assert len(kinds) > 4


class LateTogether(MemoryBackend):
    """The first batch of two is under way for a while; of its members sent again, the first gets
    lost, and just before the second is sent for the third time, the batch arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: Sequence[Append] = ()
        self.sent = 0

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | SeamConflict]:
        if len(batch) == 2:
            self.in_flight = batch
        if not self.in_flight:
            return super().append(batch)
        self.sent += 1
        if self.sent <= 2:
            raise OutcomeUnknown("no answer")
        if self.sent == 4:
            super().append(self.in_flight)
        return super().append(batch)


def late_together(log_type: type[Log], *, if_version: int | None) -> tuple[list[object], list[str]]:
    """Two appends in one batch, the second after the first: how they end, and what is stored in the
    end."""
    engine = LateTogether()
    log = log_type(engine, timeout=0, pause=lambda seconds: None)
    stream = Store(log, "default").aio.stream("s")

    async def main() -> list[object]:
        await stream.append(("begun", None))
        first, second = (
            stream.append(("first", None)),
            stream.append(("second", None), if_version=if_version),
        )
        return list(await asyncio.gather(first, second, return_exceptions=True))

    answers = asyncio.run(main())
    if engine.sent < 4:
        MemoryBackend.append(engine, engine.in_flight)
    stored = [event.type for event in Store(Log(engine), "default").stream("s").read()]
    log.close()
    return answers, stored


def test_an_append_that_arrives_late_with_its_predecessor_is_not_stored_again() -> None:
    (first, second), stored = late_together(Log, if_version=None)
    assert isinstance(first, OutcomeUnknown)
    assert isinstance(second, AppendResult) and (second.first, second.last) == (3, 3)
    assert stored == ["begun", "first", "second"]


def test_a_conditional_append_that_may_arrive_late_with_its_predecessor_is_no_conflict() -> None:
    (_, second), stored = late_together(Log, if_version=2)
    assert isinstance(second, OutcomeUnknown)
    assert stored == ["begun", "first", "second"]


class Gate(MemoryBackend):
    """Appends of two events wait until the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = threading.Event(), threading.Event()

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | SeamConflict]:
        if any(len(append.records) == 2 for append in batch):
            self.reached.set()
            self.opened.wait()
        return super().append(batch)


@pytest.mark.timeout(60)
def test_closing_lets_those_finish_who_wait_behind_another_threads_commit() -> None:
    gate = Gate()
    store = Store(Log(gate), "default")

    async def main() -> int:
        stream = store.aio.stream("s")
        await stream.append(("first", None))
        slow = threading.Thread(
            target=lambda: store.stream("s").append(("slow", None), ("slow", None))
        )
        slow.start()
        gate.reached.wait()
        waiting = asyncio.ensure_future(stream.append(("waiting", None)))
        while len(store._log._committer._pending) < 2:
            await asyncio.sleep(0)
        closing = threading.Thread(target=store.close)
        closing.start()
        while not store._log._committer._closed:
            await asyncio.sleep(0)
        gate.opened.set()
        answer = await asyncio.wait_for(waiting, 20)
        closing.join()
        slow.join()
        return answer.last

    assert asyncio.run(main()) == 4


@pytest.mark.slow
def test_every_kind_of_fault_and_every_outcome_came_up() -> None:
    if not injected:  # this test alone, or on another worker: make up for it
        for seed in range(FIRST_SEED, FIRST_SEED + 100):
            run, _ = violations_of(seed)
            injected.update(run.faulty.injected)
            outcomes.update(run.outcomes)
    print(dict(injected), dict(outcomes))
    assert {kind for kind in KINDS if injected[kind]} == KINDS
    assert outcomes["done"] and outcomes["not done"] and outcomes["unknown"]
