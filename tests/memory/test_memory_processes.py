"""Many processes share the index of memories: at once, killed in the middle of it, and forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from helpers.memory.memory_facts import FACTS, QUESTIONS, STORES, answers, fill, right_answers
from helpers.stores import url_of
from holdfast.memory.resources import get_follower


@pytest.fixture(params=STORES)
def filled_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with facts that nobody has indexed yet."""
    url = url_of(request.param, tmp_path)
    fill(url)
    return url


CHILD = """
import sys, os, signal, holdfast
from holdfast.memory.search import catch_up, locate, sqlite_file
url = sys.argv[1]
{more}
with holdfast.open(url) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    memory = store.memory("m")
    hits = [[hit.text for hit in memory.recall(question, k=4)] for question in {questions!r}]
    print(repr((hits, memory.stats().memories)), flush=True)
"""


def child(url: str, more: str = "") -> subprocess.Popen[str]:
    code = CHILD.format(more=more, questions=QUESTIONS)
    return subprocess.Popen(
        [sys.executable, "-c", code, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )


@pytest.mark.slow
def test_sixteen_processes_that_catch_up_at_once_leave_one_right_index(filled_url: str) -> None:
    children = [child(filled_url, "catch_up.BATCH_EVENTS = 3") for _ in range(16)]
    for one in children:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in children:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    expected = repr((right_answers(filled_url), len(FACTS)))
    for one in children:
        said, _ = one.communicate(timeout=120)
        assert (one.returncode, said.strip()) == (0, expected)
    with holdfast.open(filled_url) as store:
        assert answers(store) == right_answers(filled_url)
        assert store.memory("m").stats().memories == len(FACTS)


KILLED_AROUND = """
catch_up.BATCH_EVENTS = 3
write, calls = locate.FallbackIndex.write, []
def killed(self, *args):
    calls.append(None)
    if len(calls) == 4 and {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    done = write(self, *args)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
locate.FallbackIndex.write = killed
"""
KILLED_IN_COMMIT = """
catch_up.BATCH_EVENTS = 3
configure, commits = sqlite_file.SQLiteFile._configure, []
def hooked(self, connection):
    configure(self, connection)
    def commit():
        commits.append(None)
        if len(commits) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return False
    connection.set_commit_hook(commit)
sqlite_file.SQLiteFile._configure = hooked
"""


@pytest.mark.slow
@pytest.mark.unencrypted(
    "the index of an encrypted store is in memory, and gone with who was killed"
)
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *(
            (name, KILLED_AROUND.format(before=before))
            for name in STORES
            for before in (True, False)
        ),
        ("sqlite", KILLED_IN_COMMIT),
        ("files", KILLED_IN_COMMIT),
    ],
)
def test_whoever_comes_after_one_that_was_killed_while_catching_up_finds_it_right(
    name: str, more: str, tmp_path: Path
) -> None:
    filled_url = url_of(name, tmp_path)
    fill(filled_url)
    victim = child(filled_url, more)
    victim.communicate("go\n", timeout=60)
    assert victim.returncode == -signal.SIGKILL
    with holdfast.open(filled_url) as store:
        position = get_follower(store._log, store.memory("m")._key).index.position(
            store.memory("m")._key
        )
        assert position is not None and 0 < position.version < len(FACTS), (
            "it was in the middle of it"
        )
        assert answers(store) == right_answers(filled_url)
        assert store.memory("m").stats().memories == len(FACTS)


@pytest.mark.slow
def test_a_forked_child_recalls_beside_its_parent(filled_url: str) -> None:
    with holdfast.open(filled_url) as store:
        expected = answers(store)
        child = os.fork()
        if child == 0:
            try:
                store.memory("m").remember("Customer Kim ordered 5 lamps")
                os._exit(
                    0
                    if len(store.memory("m").recall("Kim")) > 0 and len(answers(store)) == 4
                    else 1
                )
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert [hit.text for hit in store.memory("m").recall("Kim", k=1)] == [
            "Customer Kim ordered 5 lamps"
        ]
        assert answers(store)[1] == expected[1]


@pytest.mark.every_engine
def test_a_store_is_opened_again_after_its_index_was_made(durable_url: str) -> None:
    for turn in range(3):
        with holdfast.open(durable_url) as store:
            store.memory("m").remember(f"{FACTS[turn]} in turn {turn}")
            assert len(store.memory("m").recall("customer", k=9)) == turn + 1


def test_what_was_deleted_and_begun_anew_is_another_memory(filled_url: str) -> None:
    with holdfast.open(filled_url) as store, holdfast.open(filled_url) as other:
        assert answers(store) == answers(other) == right_answers(filled_url)
        store.memory("m").delete()
        assert answers(other) == [[], [], [], []] and other.memory("m").stats().memories == 0
        other.memory("m").remember("Customer Eve ordered nothing")
        assert answers(store)[1] == ["Customer Eve ordered nothing"]
        assert store.memory("m").stats() == other.memory("m").stats()
