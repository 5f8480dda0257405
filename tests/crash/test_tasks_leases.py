"""Who may write to a task: one lease owner at a time, whatever is stopped, killed, stolen, forked
or raced."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast import Event
from holdfast.backends import Record, StreamKey
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.errors import LeaseHeld, LeaseLost

from .crew import program
from .lease_owners import LONG, SHORT, mark

pytestmark = pytest.mark.unencrypted("about processes and their leases")

WRITES = ("step", "once", "decide", "discover", "plan", "replan", "chat", "fail", "finish")
REFUSED = [f"{what}: LeaseLost" for what in WRITES]
PATIENCE_SECONDS = 60.0


class OwnerProcess:
    """A process of `lease_owners.py`: what it prints, and what is done to it."""

    def __init__(self, *args: object) -> None:
        self.process = subprocess.Popen(
            program("lease_owners", *args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """What it says next; "" if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, word: str = "go on") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Suspend it, and see that it is."""
        self.process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    def rest(self) -> list[str]:
        """All that it says from now on; it ends well."""
        rest = self.process.communicate(timeout=PATIENCE_SECONDS)[0].splitlines()
        assert self.process.returncode == 0, rest
        return rest


@pytest.fixture
def start() -> Iterator[Callable[..., OwnerProcess]]:
    """Start lease owners, which end with the test."""
    owners: list[OwnerProcess] = []

    def started(*args: object) -> OwnerProcess:
        owners.append(OwnerProcess(*args))
        return owners[-1]

    yield started
    for owner in owners:
        owner.process.kill()
        owner.process.wait()
        for pipe in (owner.process.stdin, owner.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def durable_store(durable_url: str) -> Iterator[holdfast.Store]:
    with holdfast.open(durable_url) as store:
        yield store


@pytest.fixture
def local_store(local_url: str) -> Iterator[holdfast.Store]:
    with holdfast.open(local_url) as store:
        yield store


def check_owners(history: Sequence[Event]) -> list[int]:
    """Check that between two claims only the owner of the first one wrote. Return the ids of the
    processes that claimed, in order."""
    claims: list[int] = []
    for number, event in enumerate(history, 1):
        assert event.version == number
        if event.type == "task.claimed":
            claims.append(int(event.data["owner"].split("/")[2]))
        elif event.type == "step.completed":
            assert event.data["result"] == claims[-1], (
                f"version {number} is not by who had claimed the task"
            )
        elif event.type == "task.renewed":
            assert int(event.data["owner"].split("/")[2]) == claims[-1]
    return claims


def check_only_refusal(after: Sequence[Event], before: Sequence[Event], pid: int) -> None:
    """Check that of all that a process wrote too late, only the refusal itself was stored."""
    assert after[:-1] == before
    assert after[-1].type == "task.write_refused"
    assert int(after[-1].data["owner"].split("/")[2]) == pid


def take_over(store: holdfast.Store, finish: bool = True) -> list[Event]:
    """Take the task when its lease ends, work on it, and finish it; what is recorded then."""
    with store.task("t", lease=LONG, wait=PATIENCE_SECONDS) as task:
        assert task.resumed
        task.step("by the second", mark)
        if finish:
            task.finish("by the second")
            return task.history()
    return store.task("t").history()


def steps_of(history: Sequence[Event]) -> list[str]:
    return [event.data["step"] for event in history if event.type == "step.completed"]


# -- stopped beyond its lease ----------------------------------------------------------------------


@pytest.mark.parametrize("finish", [True, False], ids=["finished", "left"])
@pytest.mark.parametrize(
    ("what", "first_word", "refused"),
    [("between", "began", []), ("inside", "inside", ["save: LeaseLost", "slow step: LeaseLost"])],
)
def test_a_lease_owner_stopped_beyond_its_lease_writes_nothing_more(
    durable_url: str,
    durable_store: holdfast.Store,
    start: Callable[..., OwnerProcess],
    what: str,
    first_word: str,
    refused: list[str],
    finish: bool,
) -> None:
    owner = start(what, durable_url)
    assert owner.hear() == first_word
    owner.stop()
    history = take_over(durable_store, finish)
    owner.go_on()
    owner.tell()
    assert owner.rest() == [*refused, *REFUSED, "left"]
    check_only_refusal(durable_store.task("t").history(), history, owner.pid)
    assert check_owners(history) == [owner.pid, os.getpid()]
    assert durable_store.conversation("t").messages() == []


def first_place(local_url: str) -> str:
    """In an append, before the engine's lock is taken."""
    return "before the append" if local_url.startswith("file") else "before begin"


def last_place(local_url: str) -> str:
    """In an append, with the engine's lock, before anything is stored."""
    return "in the middle of the write" if local_url.startswith("file") else "before commit"


def test_a_lease_owner_stopped_inside_an_append_stores_nothing_of_it(
    local_url: str, local_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("appending", local_url, f"{first_place(local_url)}: step.completed second")
    assert owner.hear() == "paused"
    owner.stop()
    history = take_over(local_store)
    assert steps_of(history) == ["first", "by the second"]
    owner.go_on()
    owner.tell()
    assert owner.rest() == ["second: LeaseLost", *REFUSED, "left"]
    check_only_refusal(local_store.task("t").history(), history, owner.pid)
    assert check_owners(history) == [owner.pid, os.getpid()]


def test_a_lease_owner_stopped_with_the_lock_of_the_engine_writes_before_the_next_or_not_at_all(
    local_url: str, local_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("appending_on", local_url, f"{last_place(local_url)}: step.completed second")
    assert owner.hear() == "paused"
    owner.stop()
    successor = start("racing", local_url, 1)
    assert successor.hear() == "ready"
    successor.tell()  # nobody can claim anything while the lock is held
    owner.go_on()
    owner.tell()
    said = owner.rest()
    assert successor.rest() == ["done"]
    history = local_store.task("t").history()
    assert check_owners(history) == [owner.pid, successor.pid]
    assert said[0] in ("second: done", "second: LeaseLost") and said[1] in (
        "leave: done",
        "leave: LeaseLost",
    )
    assert ("second" in steps_of(history)) == (said[0] == "second: done")


def test_a_lease_owner_stopped_while_its_lease_is_renewed_is_refused(
    local_url: str, local_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("beating", local_url, f"{first_place(local_url)}: task.renewed")
    assert owner.hear() == "paused"
    owner.stop()
    history = take_over(local_store)
    owner.go_on()
    owner.tell()
    assert owner.rest() == ["idle step: LeaseLost", *REFUSED, "left"]
    check_only_refusal(local_store.task("t").history(), history, owner.pid)
    assert check_owners(history) == [owner.pid, os.getpid()]
    assert "task.renewed" not in [event.type for event in history]


def test_a_lease_owner_stopped_with_several_threads_writing_stores_nothing_more(
    local_url: str, local_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("threads", local_url, f"{first_place(local_url)}: step.completed c 10")
    said = list(iter(owner.hear, "paused"))
    owner.stop()
    history = take_over(local_store)
    owner.go_on()
    owner.tell()
    said += owner.rest()
    assert said[-len(REFUSED) - 1 :] == [*REFUSED, "left"]
    words = said[: -len(REFUSED) - 1]
    assert sorted(word for word in words if word.endswith("LeaseLost")) == [
        f"{name}: LeaseLost" for name in "abcd"
    ]
    check_only_refusal(local_store.task("t").history(), history, owner.pid)
    assert check_owners(history) == [owner.pid, os.getpid()]
    acknowledged = {word for word in words if not word.endswith("LeaseLost")}
    assert acknowledged <= set(steps_of(history)), "what was acknowledged is stored"


# -- taking over -----------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_killed_lease_owner_of_this_machine_is_taken_over_at_once(
    durable_url: str, durable_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("robbed", durable_url)
    assert owner.hear() == "began"
    with pytest.raises(LeaseHeld), durable_store.task("t", wait=0):
        pass
    owner.kill()
    with durable_store.task("t", wait=0) as task:  # its lease would last for an hour
        assert task.resumed
        task.step("by the second", mark)
    assert check_owners(durable_store.task("t").history()) == [owner.pid, os.getpid()]


def test_a_lease_owner_of_another_machine_is_waited_for_until_its_lease_ends(
    durable_url: str, durable_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("elsewhere", durable_url, 1.0)
    assert owner.hear() == "began"
    owner.kill()
    with pytest.raises(LeaseHeld) as held, durable_store.task("t", wait=0):
        pass
    view = durable_store.get_task("t")
    assert view is not None and view.lease_until is not None
    assert held.value.owner == view.owner and held.value.owner.startswith("elsewhere/")
    assert held.value.until == view.lease_until
    with durable_store.task("t", wait=PATIENCE_SECONDS):
        assert time.time() >= held.value.until.timestamp()
    assert check_owners(durable_store.task("t").history()) == [owner.pid, os.getpid()]


def test_a_task_that_is_held_for_longer_than_one_waits_is_not_taken(
    durable_url: str, durable_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("elsewhere", durable_url, LONG)
    assert owner.hear() == "began"
    owner.kill()
    before = durable_store.task("t").history()
    with (
        pytest.raises(LeaseHeld, match="elsewhere"),
        durable_store.task("t", lease=SHORT),
    ):  # waits for one lease of its own
        pass
    assert durable_store.task("t").history() == before


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_a_robbed_lease_owner_is_refused(
    durable_url: str, durable_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("robbed", durable_url)
    assert owner.hear() == "began"
    with durable_store.task("t", wait=0, steal=True) as task:
        task.step("by the second", mark)
        history = task.history()
        owner.tell()
        assert owner.rest() == [*REFUSED, "left"]
        check_only_refusal(task.history(), history, owner.pid)
        task.finish("by the second")
    assert [
        event.data.get("stolen", False) for event in history if event.type == "task.claimed"
    ] == [False, True]
    assert check_owners(history) == [owner.pid, os.getpid()]


def test_a_fork_of_the_lease_owner_cannot_write_and_does_not_disturb_it(
    durable_url: str, durable_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    owner = start("forking", durable_url)
    assert owner.rest() == [
        *REFUSED,
        "current task: NoTask",
        "leave: LeaseLost",
        "parent: done",
        "parent finish: done",
        "left",
    ]
    history = durable_store.task("t").history()
    assert check_owners(history) == [owner.pid]
    assert [event.type for event in history[2:]] == [
        "step.completed",
        "step.completed",
        "task.finished",
    ]


# -- racing ----------------------------------------------------------------------------------------


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_processes_that_race_for_a_task_have_it_one_after_the_other(
    durable_url: str, durable_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    times = 5 if durable_url.startswith(("dynamodb", "s3")) else 25  # simulated servers are slow
    racers = [start("racing", durable_url, times) for _ in range(3)]
    assert [racer.hear() for racer in racers] == ["ready"] * 3
    for racer in racers:
        racer.tell()
    assert [racer.rest() for racer in racers] == [["done"]] * 3
    history = durable_store.task("t").history()
    claims = check_owners(history)
    assert sorted(claims) == sorted(racer.pid for racer in racers for _ in range(times))
    shape = [event.type for event in history[1:]]
    assert shape == ["task.claimed", "step.completed", "step.completed", "task.released"] * (
        3 * times
    )


def test_of_two_who_want_the_task_of_a_dead_one_at_the_same_time_one_gets_it(
    durable_url: str, durable_store: holdfast.Store, start: Callable[..., OwnerProcess]
) -> None:
    rounds = 20
    hoarder, *contenders = (
        start("hoarding", durable_url, rounds),
        *(start("contending", durable_url) for _ in range(2)),
    )
    assert hoarder.hear() == "began"
    assert [contender.hear() for contender in contenders] == ["ready"] * 2
    hoarder.kill()
    for number in range(rounds):
        for contender in contenders:
            contender.tell(f"t{number}")
        answers = [contender.hear() for contender in contenders]
        winner = contenders[answers.index("held") - 1]
        assert sorted(answers) == ["held", f"won {winner.pid}"]
        assert check_owners(durable_store.task(f"t{number}").history()) == [hoarder.pid, winner.pid]
    for contender in contenders:
        contender.tell("end")
        assert contender.rest() == []


# -- within one process ----------------------------------------------------------------------------


@pytest.mark.parametrize("stores", ["one store", "two stores"])
def test_a_thread_whose_lease_has_run_out_is_refused_when_another_has_taken_over(
    url: str, stores: str
) -> None:
    if stores == "two stores" and url == "memory://":
        url = "memory://leases"
    with holdfast.open(url) as first, holdfast.open(url) as second:
        other = first if stores == "one store" else second
        taken, refused = threading.Event(), threading.Event()
        failed: list[BaseException] = []

        def take() -> None:
            try:
                with other.task("t", lease=LONG, wait=PATIENCE_SECONDS) as task:
                    task.step("by the second", mark)
                    taken.set()
                    assert refused.wait(PATIENCE_SECONDS)
                    task.finish("by the second")
            except BaseException as error:
                failed.append(error)
                taken.set()

        with first.task("t", lease=SHORT) as task:
            task.step("first", mark)
            first._log.heartbeat.remove(task._require_session().lease.owner)
            thread = threading.Thread(target=take)
            thread.start()
            assert taken.wait(PATIENCE_SECONDS) and not failed
            history = task.history()
            for write in (
                lambda: task.step("late", mark),
                lambda: task.decide("late"),
                lambda: task.conversation().append({"role": "user", "content": "late"}),
                lambda: task.finish("late"),
            ):
                with pytest.raises(LeaseLost):
                    write()
            check_only_refusal(task.history(), history, os.getpid())
            refused.set()
            thread.join()
        assert not failed
        view = first.get_task("t")
        assert view is not None and (view.status, view.result) == ("finished", "by the second")
        assert [step.path for step in view.steps] == ["first", "by the second"]
        assert [event.type for event in first.task("t").history()].count("task.claimed") == 2


class Interrupted(SQLiteBackend):
    """Lets something else happen before its next read of a task's events: what was decided by the
    head may be wrong by then."""

    meanwhile: Callable[[], None] | None = None

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().read(stream, after=after, limit=limit, reverse=reverse)


def test_a_task_that_is_claimed_while_its_events_are_read_is_held(tmp_path: Path) -> None:
    backend = Interrupted(tmp_path / "agents.db")
    with (
        holdfast.open(backend) as store,
        holdfast.open(tmp_path / "agents.db") as other,
        ExitStack() as held,
    ):
        with other.task("t"):
            pass
        backend.meanwhile = lambda: held.enter_context(other.task("t", lease=LONG)).decide(
            "it is mine"
        )
        with pytest.raises(LeaseHeld), store.task("t", wait=0):
            pass
        assert [event.type for event in store.task("t").history()][-2:] == [
            "task.claimed",
            "task.decided",
        ]


def test_a_step_that_is_begun_again_while_somebody_settles_it_is_not_settled(
    tmp_path: Path,
) -> None:
    backend = Interrupted(tmp_path / "agents.db")
    begun, second, asked = threading.Event(), threading.Event(), threading.Event()

    def pay() -> str:
        if not begun.is_set():
            begun.set()
            raise KeyboardInterrupt
        second.set()
        assert asked.wait(PATIENCE_SECONDS)
        return "receipt"

    declared = holdfast.step(pay, check=lambda: None)

    def pay_again() -> None:
        with other.task("t", lease=LONG) as task:
            task.step("pay", declared)

    def begin_again() -> None:
        again.start()
        assert second.wait(PATIENCE_SECONDS)

    with holdfast.open(backend) as store, holdfast.open(tmp_path / "agents.db") as other:
        with pytest.raises(KeyboardInterrupt), other.task("t") as task:
            task.step("pay", declared)
        again = threading.Thread(target=pay_again)
        backend.meanwhile = begin_again
        try:
            with pytest.raises(LeaseHeld):
                store.resolve("t", "pay", result="nothing")
        finally:
            asked.set()
            again.join()
        view = store.get_task("t")
        assert view is not None
        assert [(step.how, step.result) for step in view.steps] == [("ran", "receipt")]
