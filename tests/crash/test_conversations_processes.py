"""Conversations used by several processes at once, some of which are killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

import holdfast

from .crew import program

pytestmark = pytest.mark.unencrypted("about processes and their leases")


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def start(
    processes: list[subprocess.Popen[str]], what: str, url: str, name: str, count: int
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        program("chatters", what, url, name, count),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    processes.append(process)
    return process


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_two_processes_interleave_without_loss(
    durable_url: str, started: list[subprocess.Popen[str]]
) -> None:
    two = [start(started, "append", durable_url, name, 150) for name in "ab"]
    assert [process.wait(120) for process in two] == [0, 0]
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        texts = [message["content"] for message in chat.messages()]
        assert chat.count() == len(texts) == 300
    for name in "ab":
        assert [text for text in texts if text.startswith(name)] == [
            f"{name} {number}" for number in range(150)
        ]


def test_no_two_processes_pop_the_same_message(
    durable_url: str, started: list[subprocess.Popen[str]]
) -> None:
    with holdfast.open(durable_url) as store:
        store.conversation("c").append(
            *[{"role": "user", "content": str(number)} for number in range(150)]
        )
    two = [start(started, "pop", durable_url, name, 0) for name in "ab"]
    popped = [process.communicate(timeout=120)[0].split() for process in two]
    assert [process.returncode for process in two] == [0, 0]
    assert sorted(map(int, popped[0] + popped[1])) == list(range(150))


def test_what_was_acknowledged_before_a_kill_is_there_once(
    durable_url: str, started: list[subprocess.Popen[str]]
) -> None:
    acknowledged: list[str] = []
    for kill in range(8):
        process = start(started, "append", durable_url, "a", 0)
        acknowledged += lines(process, 1 + 5 * kill)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert process.stdout is not None
        acknowledged += process.stdout.read().split("\n")[:-1]
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        texts = [message["content"] for message in chat.messages()]
        assert texts == [f"a {number}" for number in range(len(texts))]
        assert set(acknowledged) <= set(texts)
        assert chat.count() == len(texts)


def test_a_process_that_was_suspended_past_its_turn_writes_nothing_more(
    durable_url: str, started: list[subprocess.Popen[str]]
) -> None:
    process = start(started, "suspended", durable_url, "a", 0)
    assert lines(process, 1) == ["began"]
    process.send_signal(signal.SIGSTOP)
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        with chat.turn(wait=60):
            chat.append({"role": "user", "content": "in between"})
            process.send_signal(signal.SIGCONT)
            assert process.communicate("go on\n", timeout=60)[0] == "lost\n"
        assert [message["content"] for message in chat.messages()] == ["before", "in between"]


@pytest.mark.every_engine
def test_the_turn_of_a_killed_process_is_taken_over_at_once(
    durable_url: str, started: list[subprocess.Popen[str]]
) -> None:
    for _ in range(4):
        process = start(started, "turns", durable_url, "a", 0)
        lines(process, 3)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with holdfast.open(durable_url) as store:
        chat = store.conversation("c")
        with chat.turn(wait=5):  # the lease of the dead one is 30 seconds
            chat.append({"role": "user", "content": "after"})
        contents = [message["content"] for message in chat.messages()]
    # A question without its answer is where a process was killed; nobody else's words are in
    # between.
    broken = 0
    at = 0
    while at < len(contents) - 1:
        if contents[at] == contents[at + 1]:
            at += 2
        else:
            broken += 1
            at += 1
    assert broken <= 4
