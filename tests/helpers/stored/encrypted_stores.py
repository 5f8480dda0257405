"""What the tests of encryption share: a store with something of everything, and a backend that
lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast import Store, keys
from holdfast.backends import Append, AppendResult, Head, Record, StreamKey, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.log import chain

CANARY = "CANARY-7f3a"

KEY, OTHER = keys.generate(), keys.generate()


class Lasting(MemoryBackend):
    """A backend in memory that outlives the stores that are opened on it."""

    def close(self) -> None:
        pass


def say(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def filled(store: Store) -> None:
    """Something of each kind, with a word in it that must be found nowhere."""
    chat = store.conversation("chat")
    chat.append(say(CANARY), meta={"note": CANARY})
    chat.append(say(f"large {CANARY}" + "x" * 100_000))
    chat.summarize(lambda _: CANARY, keep_last=1)
    with store.task("task", goal=f"goal {CANARY}", input={"name": CANARY}, agent="agent") as task:
        task.make_plan(lambda: [CANARY])
        task.step("one", lambda: f"result {CANARY}")
        task.step("large", lambda: CANARY * 20_000)
        with pytest.raises(holdfast.StepFailed):
            task.step("failing", failing)
        task.decide(CANARY, why=CANARY)
        task.attach("file.txt", CANARY.encode())
        task.finish(CANARY)
    store.memory("space").remember(f"{CANARY} likes tea", tags=[CANARY], meta={"x": CANARY})
    store.memory("space").recall("tea")
    store.state("document").save({"name": CANARY})
    store.stream("events").append(("said", {"name": CANARY}))


def failing() -> None:
    raise ValueError(CANARY)


def everything_in(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def chain_records(
    stream: StreamKey, incarnation: bytes, parts: Sequence[tuple[bytes, bytes]]
) -> list[Record]:
    """Records from version 1 on, of these append ids and bodies, with a chain that fits."""
    seed, digest, records = chain.seed(stream, incarnation), chain.GENESIS, list[Record]()
    for version, (append_id, body) in enumerate(parts, 1):
        digest = chain.link(seed, digest, version, append_id, body)
        records.append(Record(version, append_id, digest, body))
    return records


def planted(
    backend: MemoryBackend, stream: StreamKey, bodies: list[bytes], ids: list[bytes] | None = None
) -> None:
    """Put these in place of a stream's records, with a chain that fits: what only a key can
    show."""
    kept = backend._streams[stream]
    ids = ids or [record.append_id for record in kept.records]
    kept.records[:] = chain_records(stream, kept.incarnation, list(zip(ids, bodies, strict=True)))
    kept.version, kept.hash = kept.records[-1].version, kept.records[-1].hash


def bodies_of(backend: MemoryBackend, stream: StreamKey) -> list[bytes]:
    return [record.body for record in backend.read(stream)]


def replace_body(
    backend: MemoryBackend, stream: StreamKey, version: int, change: Callable[[bytes], bytes]
) -> None:
    bodies = bodies_of(backend, stream)
    bodies[version - 1] = change(bodies[version - 1])
    planted(backend, stream, bodies)


class Killed(BaseException):
    """The process ends here."""


class Mortal(Lasting):
    """Dies at one of its writes: before it (even numbers), or after it (odd ones)."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.dies_at = 0, -1

    def _boundary(self) -> None:
        if self.writes == self.dies_at:
            raise Killed
        self.writes += 1

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._boundary()
        answers = super().append(batch)
        self._boundary()
        return answers

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._boundary()
        done = super().delete(stream, expected=expected)
        self._boundary()
        return done


WHO = "person-7"


def about_somebody(store: Store) -> None:
    store.conversation("about", subject=WHO).append(say(CANARY), say("x" * 70_000))
    store.conversation("other", subject="person-8").append(say("stays"))
    with store.task("claim", goal=CANARY, agent="claims", subject=WHO) as task:
        task.conversation().append(say(CANARY))
        task.discover(f"{CANARY} lives in Berlin")
        task.finish("done")
    space = store.memory("notes")
    space.remember(f"{CANARY} likes tea", subject=WHO)
    space.remember("Ann likes coffee", subject="person-8")
    space.remember("The kettle is broken")
