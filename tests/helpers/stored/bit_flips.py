"""Flip one bit of a stored sample at a time, and judge what a reader of it sees.

    with Flipper(kind, place) as flipper:
        for place in flipper.choose(500, seed):
            judgement = flipper.judge(place)

What is judged is in a process of its own, which is ended if it takes too long: a loop in a database
driver cannot be interrupted. Each judgement opens a copy of the sample with one bit flipped, calls
`verify()`, reads everything in every way, and repeats appends by their ids.

- "refused": something is refused with an error of ours, and all other answers are right;
- "reported": `verify()` reports a problem;
- "no effect": every answer is right, and `verify()` finds nothing;
- "silent": an answer is wrong, and neither is it refused nor does `verify()` report anything;
- "hang" and "untyped" (an error that is not ours).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from unittest import mock

import msgspec

import holdfast
from helpers.stores import KEY, SUFFIX, url_of
from holdfast.backends import clock
from holdfast.log import operations as ops
from holdfast.log.operations import stream_ops
from holdfast.tasks.run import writer
from holdfast.testing import seeded_ids

CPU_SECONDS = 10.0
"""How long one judgement may compute. It takes 20 milliseconds."""
WAIT_SECONDS = 240.0
"""How long one judgement may take on a machine that is busy with other things."""
BAD = ("silent", "hang", "untyped")
READINGS = 1 if "HOLDFAST_FLIPS" in os.environ else 3
SPANS = 4096
"""Random places are spread over parts of this size: each part gets about as many."""
MAX_SPANS = 40
"""A large file gets no more than this many parts' share."""

STATUSES = ("pending", "running", "suspended", "finished")
KINDS = ("conversation", "task", "state", "stream", "memory", "closed", "subject", "audit", "blob")
TENANTS = ("default", "second")
QUERIES = ("who likes tea", "Bern")


class Place(NamedTuple):
    """A bit of a file of the sample."""

    file: str
    bit: int


class Judgement(NamedTuple):
    how: str
    details: str


# -- the sample ------------------------------------------------------------------------------------


def write_sample(url: str, key: str | None, seed: int = 0) -> None:
    """Something of every kind, small, in two tenants, about the same for the same seed.

    A few hundred bytes count as large.
    """
    chance, ticks = random.Random(seed), itertools.count(1.75e9 + seed, 0.001)
    with (
        seeded_ids(seed),
        mock.patch("os.urandom", chance.randbytes),
        mock.patch.object(clock, "time", lambda: next(ticks)),
        mock.patch.object(stream_ops, "INLINE_BYTES", 700),
        mock.patch.object(writer, "INLINE_BYTES", 700),
    ):
        for tenant in TENANTS:
            with holdfast.open(url, tenant=tenant, key=key, durability="process") as store:
                _write_tenant(store)
                _read_all(store)  # the index of memories is made when it is first needed


def _write_tenant(store: holdfast.Store) -> None:
    chat = store.conversation("chat")
    chat.append({"role": "user", "content": "hello"}, id="m-1")
    chat.append({"role": "assistant", "content": "hi there"})
    chat.append({"role": "user", "content": "large " * 200})
    store.conversation("other").append({"role": "user", "content": "else"})
    store.conversation("short").append({"role": "user", "content": "soon gone"})
    store.conversation("short").expire(timedelta(days=10_000))
    with store.task("works", goal="reach it") as task:
        task.step("one", lambda: 1)
        task.step("two", lambda: "result " * 150)
        task.attach("note.txt", b"content " * 100)
    for name, days in (("sleeps", 10_000), ("naps", 9_000)):
        try:
            with store.task(name, goal="wait") as task:
                task.sleep(timedelta(days=days))
        except holdfast.Suspended:
            pass
    with store.task("done", goal="finish") as task:
        task.finish({"sum": 3})
    store.state("document").save({"round": 1})
    store.state("document").save({"round": 2})
    events = store.stream("events")
    events.append(("order.placed", {"n": 1}), id="req-1")
    events.append(("order.paid", [1, 2.5]), ("order.sent", None), id="req-2")
    memory = store.memory("space")
    memory.remember("Ann likes tea", tags=["drink"])
    memory.remember("Bob lives in Bern")
    store.stream("gone").append(("noted", 1))
    store.stream("gone").delete()


# -- every way of reading it -----------------------------------------------------------------------

Reading = tuple[str, Callable[[], Any]]


def _readings(store: holdfast.Store) -> Iterator[Reading]:
    """Named ways to read a tenant. Each returns something that can be compared as JSON."""
    log, tenant = store._log, store.tenant
    yield "conversations", lambda: sorted(each.id for each in store.conversations())
    for name in ("chat", "other", "short"):
        yield name, lambda name=name: store.conversation(name).messages()  # type: ignore[misc]
        yield (
            f"window of {name}",
            lambda name=name: store.conversation(name).window(  # type: ignore[misc]
                max_tokens=10_000
            ),
        )
    yield "tasks", lambda: sorted((each.id, each.status) for each in store.tasks())
    for status in STATUSES:
        yield (
            f"{status} tasks",
            lambda status=status: sorted(each.id for each in store.tasks(status=status)),  # type: ignore[misc]
        )
    for name in ("works", "sleeps", "naps", "done"):
        yield f"task {name}", lambda name=name: store.get_task(name)  # type: ignore[misc]
    yield "artifact", lambda: store.artifact("works", "note.txt").read().decode()
    yield "states", lambda: sorted(each.id for each in store.states())
    yield "state", lambda: [store.state("document").load(), store.state("document").history()]
    yield "streams", lambda: sorted(each.id for each in store.streams())
    yield "stream", lambda: list(store.stream("events").read())
    yield "namespaces", lambda: sorted(each.namespace for each in store.memory_namespaces())
    yield "memories", lambda: sorted(each.text for each in store.memory("space").all())
    for query in QUERIES:
        yield (
            f"recall {query}",
            lambda query=query: [each.text for each in store.memory("space").recall(query)],  # type: ignore[misc]
        )
    for kind in KINDS:
        yield (
            f"due {kind}",
            lambda kind=kind: [  # type: ignore[misc]
                (head.stream.id, head.fields.due) for head in log.handle(ops.ListDue(tenant, kind))
            ],
        )
    yield "health", lambda: store.health().streams


def _repeats(store: holdfast.Store) -> Iterator[Reading]:
    """Appends that are stored already, and must not be stored again; then a new one."""

    def repeat_message() -> Any:
        before = len(store.conversation("chat").messages())
        store.conversation("chat").append({"role": "user", "content": "hello"}, id="m-1")
        return len(store.conversation("chat").messages()) - before

    def repeat_events() -> Any:
        again = store.stream("events").append(
            ("order.paid", [1, 2.5]), ("order.sent", None), id="req-2"
        )
        return again.first, again.last, again.duplicate

    def write_more() -> Any:
        store.stream("new").append(("noted", 1))
        return [event.data for event in store.stream("new").read()]

    yield "repeated message", repeat_message
    yield "repeated events", repeat_events
    yield "new stream", write_more


def _read_all(store: holdfast.Store) -> dict[str, Any]:
    return {name: _comparable(read()) for name, read in _readings(store)}


def _comparable(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value, enc_hook=repr))


# -- judging, in the process of its own ------------------------------------------------------------


class Judge:
    """Knows the right answers, and judges a copy of the sample with one bit flipped.

    What `verify` reports is not silent; reading it can only show an error that is not ours. Of such
    a copy every so-many-th reading is enough, others each time: `readings` says how many of all.
    """

    def __init__(self, url: str, key: str | None, readings: int = 1) -> None:
        self._url, self._key, self._readings = url, key, readings
        self._judged = 0
        self._right: dict[tuple[str, str], Any] = {}

    def learn(self) -> None:
        """Remember what an undamaged copy answers."""
        wrong = self._look(self._right.__setitem__)
        assert not wrong, wrong
        assert len(self._right) > 50

    def judge(self) -> Judgement:
        found: list[tuple[str, str]] = []

        def compare(name: tuple[str, str], answer: Any) -> None:
            if answer != self._right[name]:
                found.append(("silent", f"{'/'.join(name)}: {answer!r:.200}"))

        found += self._look(compare)
        kinds = {how for how, _ in found}
        if not kinds:
            return Judgement("no effect", "")
        for how in ("untyped", "reported", "silent", "refused"):
            if how in kinds:
                return Judgement(how, next(details for each, details in found if each == how))
        raise AssertionError(kinds)

    def _look(self, check: Callable[[tuple[str, str], Any], object]) -> list[tuple[str, str]]:
        """Call `check` with each answer. Return the errors, and what `verify` reports."""
        found: list[tuple[str, str]] = []

        def attempt(name: tuple[str, str], read: Callable[[], Any]) -> None:
            try:
                answer = _comparable(read())
            except holdfast.HoldfastError as error:
                found.append(("refused", f"{'/'.join(name)}: {error!r:.200}"))
            except Exception as error:
                found.append(("untyped", f"{'/'.join(name)}: {error!r:.300}"))
            else:
                check(name, answer)

        def verify() -> Any:
            report = store.verify(all_tenants=True)
            found.extend(("reported", str(problem)[:300]) for problem in report.problems[:3])
            return [report.ok]

        try:
            store = holdfast.open(self._url, key=self._key, create=False, durability="process")
        except holdfast.HoldfastError as error:
            return [("refused", f"open: {error!r:.200}")]
        except Exception as error:
            return [("untyped", f"open: {error!r:.300}")]
        try:
            attempt(("all", "verify"), lambda: verify() and None)
            stores = [store.for_tenant(tenant) for tenant in TENANTS]
            self._judged += 1
            of = self._readings if any(how == "reported" for how, _ in found) else 1
            for each in stores:
                for name, read in islice(_readings(each), self._judged % of, None, of):
                    attempt((each.tenant, name), read)
            if not found:  # otherwise it is known by now, and must not be written to
                for each in stores:
                    for name, read in _repeats(each):
                        attempt((each.tenant, name), read)
        finally:
            try:
                store.close()
            except Exception as error:
                found.append(("untyped", f"close: {error!r:.300}"))
        return found


class _Job(msgspec.Struct):
    file: str
    bit: int


def _serve(kind: str, pristine: Path, scratch: Path, key: str | None) -> None:
    """Judge the places that are read from stdin, one per line."""
    import logging

    logging.getLogger("holdfast").setLevel(logging.CRITICAL + 1)
    judge = Judge(url_of(kind, scratch), key, READINGS)
    restore = _Snapshot(pristine).restore if scratch == pristine else _copy
    restore(pristine, scratch)
    judge.learn()
    print("ready", flush=True)
    for line in sys.stdin:
        job = msgspec.json.decode(line, type=_Job)
        restore(pristine, scratch)
        flip(scratch / job.file, job.bit)
        print(json.dumps(judge.judge()), flush=True)


def _copy(pristine: Path, scratch: Path) -> None:
    if scratch.exists():
        shutil.rmtree(scratch)
    shutil.copytree(pristine, scratch)


class _Snapshot:
    """The content of files, which can be brought back in place: each keeps its inode."""

    def __init__(self, root: Path) -> None:
        self._files = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def restore(self, pristine: Path, _: Path) -> None:
        for path in sorted(pristine.rglob("*"), reverse=True):
            if path.is_file() and path not in self._files:
                path.unlink()
        for path, data in self._files.items():
            if not path.exists() or path.read_bytes() != data:
                with path.open("r+b" if path.exists() else "wb") as file:
                    file.write(data)
                    file.truncate()


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        [old] = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


# -- the process of the tests ----------------------------------------------------------------------


class Flipper:
    """Makes a sample of a kind of store (see `helpers.stores`), and judges flips of it.

    `in_place` flips bits of the sample itself instead of a copy: an index that knows its folder is
    still believed.
    """

    def __init__(self, kind: str, place: Path, *, seed: int = 0, in_place: bool = False) -> None:
        self.kind, self.pristine = kind, place / "pristine"
        self._scratch = self.pristine if in_place else place / "scratch"
        self.pristine.mkdir()
        self._key = KEY if kind.endswith(SUFFIX) else None
        write_sample(url_of(kind, self.pristine), self._key, seed)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Flipper:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._stop()

    def files(self) -> dict[str, int]:
        """The files of the sample, with their sizes."""
        return {
            str(path.relative_to(self.pristine)): path.stat().st_size
            for path in sorted(self.pristine.rglob("*"))
            if path.is_file() and path.stat().st_size
        }

    def choose(self, count: int, seed: int) -> list[Place]:
        """Random places, spread evenly over all parts of all files, but of large ones.

        Most are in bytes that are not zero: where there is nothing, nothing can be damaged.
        """
        chance = random.Random(seed)
        contents = {name: (self.pristine / name).read_bytes() for name in self.files()}
        parts = {
            name: [(name, start, min(start + SPANS, size)) for start in range(0, size, SPANS)]
            for name, size in self.files().items()
        }
        found: list[Place] = []
        spans: list[tuple[str, int, int]] = []
        for number in range(count):
            if not spans:
                for some in parts.values():
                    spans += chance.sample(some, min(len(some), MAX_SPANS))
                chance.shuffle(spans)
            name, start, end = spans.pop()
            full = [byte for byte in range(start, end) if contents[name][byte]]
            byte = chance.choice(full if full and number % 5 else range(start, end))
            found.append(Place(name, byte * 8 + chance.randrange(8)))
        return found

    def every(self, bits: Sequence[int] = range(8)) -> Iterator[Place]:
        """Every byte of every file, with these bits of each."""
        for name, size in self.files().items():
            for byte in range(size):
                for bit in bits:
                    yield Place(name, byte * 8 + bit)

    def judge(self, place: Place) -> Judgement:
        process = self._process or self._start()
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(place._asdict()) + "\n")
        process.stdin.flush()
        answer = self._read_line(process)
        if answer is None:
            hung = process.poll() is None
            self._stop()
            return Judgement("hang" if hung else "untyped", "" if hung else "the process died")
        return Judgement(*json.loads(answer))

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "helpers.stored.bit_flips", self.kind]
        command += [str(self.pristine), str(self._scratch), *([self._key] if self._key else [])]
        tests = str(Path(__file__).parents[2])
        path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert self._read_line(process) == "ready\n"
        return process

    def _read_line(self, process: subprocess.Popen[str]) -> str | None:
        """Return what the process answers; None if it died, or computes for too long."""
        assert process.stdout
        start, deadline = _cpu_seconds(process.pid), time.monotonic() + WAIT_SECONDS
        while not select.select([process.stdout], [], [], 0.5)[0]:
            computed = _cpu_seconds(process.pid) - start
            if computed > CPU_SECONDS or time.monotonic() > deadline:
                return None
        return process.stdout.readline() or None

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _cpu_seconds(pid: int) -> float:
    """How long a process has computed; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), (*sys.argv[4:], None)[0])
