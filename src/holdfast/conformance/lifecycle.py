"""Tests of the backend object: describe, close, fork and the clock."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ..backends import AppendResult, Backend, VersionMismatch
from ..errors import StoreClosed
from .build import (
    KIND,
    TENANT,
    StreamTracker,
    all_heads,
    at,
    bodies,
    ids,
    must_head,
    read_all,
    versions,
)

DAY = 86_400.0


class LifecycleTests:
    def test_it_is_a_backend(self, backend: Backend) -> None:
        assert isinstance(backend, Backend)

    def test_it_says_what_it_is_where_it_is_and_what_it_guarantees(self, backend: Backend) -> None:
        StreamTracker().write(backend, b"x")
        described = backend.describe()
        assert described.engine
        assert described.version
        assert described.location
        assert described.durability in ("disk", "process", "memory")
        for numbers in (described.limits, described.sizes):
            assert all(value >= 0 for value in numbers.values())

    def test_every_call_after_close_says_closed(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        head = must_head(backend, tracker.stream)
        backend.close()
        calls: list[Callable[[], object]] = [
            lambda: backend.append([tracker.next(b"b")]),
            lambda: backend.read(tracker.stream),
            lambda: backend.head(tracker.stream),
            lambda: backend.heads(tenant=TENANT, kind=KIND),
            lambda: backend.due(tenant=TENANT, kind=KIND),
            lambda: backend.delete(tracker.stream, expected=head),
            lambda: backend.describe(),
        ]
        for call in calls:
            with pytest.raises(StoreClosed):
                call()

    def test_closing_twice_is_harmless(self, backend: Backend) -> None:
        StreamTracker().write(backend)
        backend.close()
        backend.close()

    def test_closing_while_others_call_ends_their_calls_with_an_answer_or_closed(
        self, backend: Backend
    ) -> None:
        running = threading.Barrier(4)

        def call(number: int) -> None:
            tracker = StreamTracker(f"{number}")
            tracker.write(backend)
            running.wait()
            with pytest.raises(StoreClosed):
                while True:
                    tracker.write(backend, b"x")
                    read_all(backend, tracker.stream, limit=1000)

        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(call, number) for number in range(3)]
            running.wait()
            backend.close()
            for one in calls:
                one.result()

    def test_now_is_the_present_in_every_answer(self, backend: Backend) -> None:
        tracker = StreamTracker()
        stale = tracker.next(b"stale")
        [appended] = backend.append([tracker.follow(tracker.next(b"x"))])
        [refused] = backend.append([stale])
        assert isinstance(appended, AppendResult)
        assert isinstance(refused, VersionMismatch)
        assert refused.head is not None
        [listed] = backend.heads(tenant=TENANT, kind=KIND)
        for now in (
            appended.now,
            refused.head.now,
            listed.now,
            must_head(backend, tracker.stream).now,
        ):
            assert math.isfinite(now)
            # The clock of a server may be wrong by minutes, or by a time zone, but not by a day.
            assert abs(now - time.time()) < DAY

    if hasattr(os, "fork"):

        def test_it_works_in_a_forked_child_and_afterwards_in_the_parent(
            self, backend: Backend
        ) -> None:
            tracker = StreamTracker()
            tracker.write(backend, b"a")
            read_all(backend, tracker.stream)

            def child() -> None:
                assert bodies(read_all(backend, tracker.stream)) == [b"a"]
                tracker.write(backend, b"child")
                StreamTracker("child").write(backend, b"x")
                assert bodies(read_all(backend, tracker.stream)) == [b"a", b"child"]
                assert set(ids(all_heads(backend))) == {"s", "child"}
                assert backend.delete(tracker.stream, expected=at(tracker))
                backend.close()

            assert exit_code(fork(child)) == 0
            other = StreamTracker("parent")
            other.write(backend, b"x")
            other.write(backend, b"y")
            assert bodies(read_all(backend, other.stream)) == [b"x", b"y"]
            assert "parent" in ids(all_heads(backend))

        def test_it_works_in_a_child_forked_while_other_threads_were_busy(
            self, backend: Backend
        ) -> None:
            done = threading.Event()

            def be_busy(number: int) -> None:
                tracker = StreamTracker(f"busy {number}")
                while not done.is_set():
                    # Bounded: every child reads the whole stream.
                    if tracker.version < 100:
                        tracker.write(backend, b"x", b"y")
                    backend.read(tracker.stream, reverse=True, limit=10)

            def child() -> None:
                tracker = StreamTracker(f"child {os.getpid()}")
                tracker.write(backend, b"x")
                tracker.write(backend, b"y")
                assert bodies(read_all(backend, tracker.stream)) == [b"x", b"y"]
                for number in range(2):
                    records = read_all(backend, StreamTracker(f"busy {number}").stream)
                    assert versions(records) == list(range(1, len(records) + 1))
                    assert len(records) % 2 == 0

            with ThreadPoolExecutor(2) as pool:
                busy = [pool.submit(be_busy, number) for number in range(2)]
                try:
                    for _ in range(5):
                        assert exit_code(fork(child)) == 0
                finally:
                    done.set()
                for one in busy:
                    one.result()


def fork(work: Callable[[], object]) -> int:
    """Start `work` in a forked child and return its process id, for `exit_code`."""
    with warnings.catch_warnings():
        # Python warns about forking with threads, which is exactly what the caller tests.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # A child that inherited a lock waits forever; SIGALRM ends it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def exit_code(pid: int) -> int:
    """Wait for a child; return 0 if its work returned, 1 if it raised, -n if signal n ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
