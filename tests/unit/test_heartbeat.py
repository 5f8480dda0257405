"""The thread that renews leases, and the names of their owners."""

from __future__ import annotations

import os
import threading

import pytest

from holdfast.log.leases import (
    MAX_STALE_BEATS,
    Heartbeat,
    WithStatement,
    is_dead,
    is_own,
    new_owner,
)


def test_a_heartbeat_whose_thread_never_started_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(self: threading.Thread) -> None:
        raise KeyboardInterrupt

    heartbeat = Heartbeat()
    heartbeat.register("owner", 60.0, lambda: None, WithStatement())
    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        heartbeat.start("owner")
    heartbeat.stop()


def test_the_thread_stays_for_the_next_lease() -> None:
    heartbeat = Heartbeat()
    threads = set()
    for number in range(20):
        owner = f"owner {number}"
        heartbeat.register(owner, 60.0, lambda: None, WithStatement())
        heartbeat.start(owner)
        threads |= {t for t in threading.enumerate() if t.name == "holdfast-leases"}
        heartbeat.remove(owner)
    heartbeat.stop()
    assert len(threads) == 1
    assert not threads.pop().is_alive()


def test_a_short_lease_wakes_a_thread_that_waits_for_a_long_one() -> None:
    heartbeat, beaten = Heartbeat(), threading.Event()
    heartbeat.register("long", 3600.0, lambda: None, WithStatement())
    heartbeat.start("long")
    heartbeat.register("short", 0.01, beaten.set, WithStatement())
    heartbeat.start("short")
    assert beaten.wait(30)
    heartbeat.stop()


def test_what_is_kept_of_leases_that_are_gone_is_bounded() -> None:
    heartbeat = Heartbeat()
    for number in range(3 * MAX_STALE_BEATS):
        heartbeat.register(str(number), 3600.0, lambda: None, WithStatement())
        heartbeat.start(str(number))
        heartbeat.remove(str(number))
    assert len(heartbeat._due) <= MAX_STALE_BEATS + 2
    heartbeat.stop()


def test_an_owner_name_is_of_this_process_and_not_of_its_child() -> None:
    owner = new_owner()
    assert is_own(owner)
    assert not is_dead(owner)
    child = os.fork()
    if not child:
        os._exit(int(is_own(new_owner()) and not is_own(owner) and not is_dead(owner)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
