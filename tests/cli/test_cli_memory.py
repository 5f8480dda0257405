"""The commands about long-term memory: what a person sees of it, and what changes it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.run_cli import plain_terminal, run
from helpers.stores import url_of
from holdfast.cli.text import printable
from holdfast.memory.embedders import Embedder

JANUARY = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
MARCH = datetime(2026, 3, 1, tzinfo=timezone.utc)
COMMANDS = ("memories", "recall", "remember", "forget", "consolidate", "reindex")


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain_terminal(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store whose buyer knows three things, and whose clerk knows one."""
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        buyer = store.memory("buyer")
        buyer.remember(
            "Ann signs the orders", tags=["people", "orders"], author="person", at=JANUARY
        )
        buyer.remember("Vendor B quotes without tax", source="offer-17", at=MARCH, meta={"page": 3})
        buyer.remember("Laptops come within two weeks", tags=["orders"])
        store.memory("clerk").remember("The archive is in the cellar")
    return path


def typed(answer: str, *arguments: object) -> Result:
    """Run a command with somebody, or something, at its standard input."""
    return run(*arguments, input=answer)


def texts(url: str, namespace: str = "buyer") -> list[str]:
    with holdfast.open(url) as store:
        return [known.text for known in store.memory(namespace).all()]


def ids(url: str) -> list[str]:
    with holdfast.open(url) as store:
        return [known.id for known in store.memory("buyer").all()]


def listed(*arguments: object) -> list[str]:
    """The texts that a command prints as JSON, after it has worked."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line)["text"] for line in result.output.splitlines()]


# -- looking ---------------------------------------------------------------------------------------


def test_namespaces_are_listed_with_how_many_memories_each_has(url: str) -> None:
    assert run("memories", url).output == "        3  buyer\n        1  clerk\n"
    facts = [json.loads(line) for line in run("memories", url, "--json").output.splitlines()]
    assert [(each["namespace"], each["memories"], each["sources"]) for each in facts] == [
        ("buyer", 3, 1),
        ("clerk", 1, 0),
    ]
    assert facts[0]["oldest"] == "2026-01-31T12:00:00+00:00"


def test_memories_of_a_namespace_are_one_line_each(url: str) -> None:
    first, second, third = run("memories", url, "buyer").output.splitlines()
    one, two, _ = ids(url)
    assert (
        first == f"{one}  2026-01-31 12:00:00  by person  -  [people, orders]  Ann signs the orders"
    )
    assert second == f"{two}  2026-03-01 00:00:00  offer-17  Vendor B quotes without tax"
    assert third.endswith("  -  [orders]  Laptops come within two weeks")


def test_a_source_cannot_pass_for_an_author(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        store.memory("buyer").remember("Pay at once", source="by person  -")
    assert run("memories", path, "buyer").output.endswith("  by model  by person  -  Pay at once\n")


def test_memories_as_json_have_all_that_is_known_of_them(url: str) -> None:
    facts = json.loads(run("memories", url, "buyer", "--source", "offer-17", "--json").output)
    assert facts.pop("told_at") > facts["at"]
    assert facts == {
        "id": ids(url)[1],
        "text": "Vendor B quotes without tax",
        "variants": [],
        "at": "2026-03-01T00:00:00+00:00",
        "first_at": "2026-03-01T00:00:00+00:00",
        "source": "offer-17",
        "sources": ["offer-17"],
        "tags": [],
        "meta": {"page": 3},
        "author": "model",
        "importance": 0.5,
        "subject": None,
        "expires_at": None,
        "mentions": 1,
        "valid_from": None,
        "valid_until": None,
        "evidence": [],
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tag", "orders"], ["Ann", "Laptops"]),
        (["--tag", "orders", "--tag", "people"], ["Ann"]),
        (["--source", "offer-17"], ["Vendor"]),
        (["--author", "person"], ["Ann"]),
        (["--author", "model", "--tag", "orders"], ["Laptops"]),
        (["--since", "2026-02-01"], ["Vendor", "Laptops"]),
        (["--since", "2026-01-31T12:00"], ["Ann", "Vendor", "Laptops"]),
        (["--since", "2026-01-31T12:00:01Z"], ["Vendor", "Laptops"]),
        (["--since", "2026-01-31T14:00+02:00"], ["Ann", "Vendor", "Laptops"]),
        (["--until", "2026-01-31"], ["Ann"]),
        (["--until", "2026-01-31T12:00"], ["Ann"]),
        (["--until", "2026-01-31T11:59"], []),
        (["--since", "2026-02-01", "--until", "2026-03-01"], ["Vendor"]),
        (["--last", "2"], ["Vendor", "Laptops"]),
        (["--last", "1", "--until", "2026-04-01"], ["Vendor"]),
    ],
)
def test_memories_are_chosen_by_options(url: str, options: list[str], expected: list[str]) -> None:
    assert [text.split()[0] for text in listed("memories", url, "buyer", *options)] == expected


def test_a_question_is_answered_best_first_with_score_and_signals(url: str) -> None:
    first = run("recall", url, "buyer", "who signs an order?").output.splitlines()[0]
    score, name, rest = first.split("  ", 2)
    assert float(score) > 0.3
    assert (name, rest) == (
        ids(url)[0],
        "2026-01-31 12:00:00  by person  -  [people, orders]  Ann signs the orders",
    )
    told = run(
        "recall", url, "buyer", "who signs an order?", "--why", "-k", "1"
    ).output.splitlines()
    assert told[0] == first
    assert told[1].strip().startswith("words ")
    assert len(told) == 2
    [facts] = map(
        json.loads, run("recall", url, "buyer", "signs", "-k", "1", "--json").output.splitlines()
    )
    assert facts["text"] == "Ann signs the orders"
    assert facts["score"] > 0.3
    assert facts["why"]["words"] > 0


def test_a_question_gives_what_a_program_gets(url: str) -> None:
    with holdfast.open(url) as store:
        hits = store.memory("buyer").recall("orders, laptops and tax", 2, tags=["orders"])
    assert listed(
        "recall", url, "buyer", "orders, laptops and tax", "-k", 2, "--tag", "orders"
    ) == [hit.text for hit in hits]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-k", "1", "--tag", "people"], ["Ann"]),
        (["--source", "offer-17"], ["Vendor"]),
        (["--author", "person"], ["Ann"]),
        (["--until", "2026-01-31"], ["Ann"]),
        (["--since", "2026-02-01", "--until", "2026-03-01"], ["Vendor"]),
    ],
)
def test_answers_are_chosen_by_options(url: str, options: list[str], expected: list[str]) -> None:
    found = listed("recall", url, "buyer", "who signs orders, quotes of vendor, laptops", *options)
    assert [text.split()[0] for text in found] == expected


def test_a_question_that_nothing_answers_says_so_beside_the_output(url: str) -> None:
    result = run("recall", url, "buyer", "zebra")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "",
        "buyer has no matching memory\n",
    )
    assert run("recall", url, "buyer", "zebra", "--json").output == ""


def test_one_namespace_says_nothing_of_another(url: str) -> None:
    assert listed("recall", url, "buyer", "where is the archive?") == []
    assert listed("recall", url, "clerk", "where is the archive?") == [
        "The archive is in the cellar"
    ]
    assert run("memories", url, "--tenant", "other").output == ""


# -- changing --------------------------------------------------------------------------------------


def test_what_is_remembered_at_the_shell_is_a_persons_and_is_told_to_programs(
    tmp_path: Path,
) -> None:
    url = tmp_path / "new.db"
    result = run(
        "remember", url, "buyer", "Ann signs the orders", "--tag", "people", "--tag", "orders"
    )
    assert result.output.startswith(f"created {url}\nremembered ")
    with holdfast.open(url) as store:
        [known] = store.memory("buyer").all()
        assert result.output.split()[-1] == known.id
        assert (
            known.text,
            known.tags,
            known.author,
            known.importance,
            known.source,
            known.expires_at,
        ) == ("Ann signs the orders", ("people", "orders"), "person", 0.5, None, None)


def test_all_that_can_be_said_of_a_memory_is_kept(url: str) -> None:
    options = [
        "--importance",
        "0.9",
        "--source",
        "mail-3",
        "--author",
        "bob",
        "--at",
        "2026-01-31T13:00+01:00",
    ]
    told = run("remember", url, "notes", "Desks take a month", *options, "--ttl", "36500d").output
    with holdfast.open(url) as store:
        known = store.memory("notes").get(told.split()[1])
    assert known is not None
    assert (known.importance, known.source, known.author, known.at, known.mentions) == (
        0.9,
        "mail-3",
        "bob",
        JANUARY,
        1,
    )
    assert known.expires_at is not None
    assert known.expires_at.year >= 2120


def test_what_is_known_already_is_reinforced(url: str) -> None:
    first, again = (
        run("remember", url, "notes", text).output for text in ("Bob is late", "bob is late.")
    )
    assert again == f"remembered {first.split()[1]} again, mentioned 2 times\n"
    assert texts(url, "notes") == ["Bob is late"]


def test_a_text_may_come_from_standard_input(url: str) -> None:
    assert typed("two lines\nof text\n", "remember", url, "notes", "-").exit_code == 0
    assert texts(url, "notes") == ["two lines\nof text"]


@pytest.mark.parametrize("how", ["argument", "stdin"])
def test_a_text_that_is_no_utf_8_is_refused(url: str, how: str) -> None:
    if how == "argument":
        result = run("remember", url, "notes", "caf\udce9")
    else:
        result = run("remember", url, "notes", "-", input=b"caf\xe9")
    assert result.exit_code == 1
    assert result.stderr == "holdfast: the text is not valid UTF-8; nothing was remembered\n"
    assert texts(url, "notes") == []


def test_an_empty_text_is_refused(url: str) -> None:
    result = typed("\n", "remember", url, "notes", "-")
    assert (result.exit_code, result.stderr) == (1, "holdfast: text must not be empty\n")


def test_one_memory_is_forgotten_by_its_id(url: str) -> None:
    first = ids(url)[0]
    assert run("forget", url, "buyer", first, "--dry-run").output.startswith(
        f"would forget  {first}  "
    )
    assert len(texts(url)) == 3
    assert run("forget", url, "buyer", first).output.startswith(f"forgot  {first}  ")
    assert texts(url) == ["Vendor B quotes without tax", "Laptops come within two weeks"]
    again = run("forget", url, "buyer", first)
    assert again.exit_code == 1
    assert "it may have been superseded or forgotten" in again.stderr


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--source", "offer-17"], ["Ann", "Laptops"]),
        (["--tag", "orders"], ["Vendor"]),
        (["--tag", "orders", "--tag", "people"], ["Vendor", "Laptops"]),
        (["--author", "person"], ["Vendor", "Laptops"]),
        (["--older-than", "1d"], ["Laptops"]),
        (["--older-than", "1d", "--tag", "people"], ["Vendor", "Laptops"]),
        (["--older-than", "36500d"], ["Ann", "Vendor", "Laptops"]),
        (["--older-than", "0"], []),
    ],
)
def test_several_are_forgotten_by_options_and_a_dry_run_names_the_same(
    url: str, options: list[str], left: list[str]
) -> None:
    gone = 3 - len(left)
    what = f"{gone} {'memory' if gone == 1 else 'memories'} of buyer"
    *named, total = run("forget", url, "buyer", *options, "--dry-run").output.splitlines()
    assert (len(named), total) == (gone, f"would forget {what}")
    assert len(texts(url)) == 3
    assert run("forget", url, "buyer", *options, "--yes").output == f"forgot {what}\n"
    known = texts(url)
    assert [text.split()[0] for text in known] == left
    assert not any(text in line for line in named for text in known)


def test_a_person_is_asked_first_and_told_how_many(url: str) -> None:
    declined = typed("n\n", "forget", url, "buyer", "--tag", "orders")
    assert (declined.exit_code, len(texts(url))) == (1, 3)
    assert "forget 2 memories of buyer? [y/N]" in declined.output
    assert "nothing was forgotten" in declined.stderr
    nobody = typed("", "forget", url, "buyer", "--tag", "orders")
    assert (nobody.exit_code, len(texts(url))) == (1, 3)
    assert "use --yes" in nobody.stderr
    agreed = typed("y\n", "forget", url, "buyer", "--tag", "orders")
    assert (agreed.exit_code, texts(url)) == (0, ["Vendor B quotes without tax"])
    assert agreed.output.endswith("forgot 2 memories of buyer\n")


def test_nothing_is_asked_where_nothing_fits(url: str) -> None:
    assert (
        typed("", "forget", url, "buyer", "--tag", "none").output == "forgot 0 memories of buyer\n"
    )


def test_an_index_is_made_anew_and_lost_vectors_are_told(url: str) -> None:
    assert run("reindex", url, "buyer").output == "rebuilt the index of buyer: 3 memories\n"
    with holdfast.open(url) as store:
        store.memory(
            "buyer", embed=Embedder(lambda found: [[1.0, 2.0] for _ in found], name="flat")
        ).recall("tax")
    assert run("reindex", url, "buyer").output == (
        "rebuilt the index of buyer: 3 memories\nremoved 3 vectors; recalls with an embedder "
        "compute them again\n"
    )
    assert listed("recall", url, "buyer", "tax", "-k", 1) == ["Vendor B quotes without tax"]
    assert json.loads(run("memories", url, "--json").output.splitlines()[0])["vectors"] == 0


@pytest.mark.parametrize("engine", ["sqlite", "files", "postgres", "redis"])
def test_the_commands_work_wherever_the_index_lies(engine: str, tmp_path: Path) -> None:
    url = url_of(engine, tmp_path)
    for text in ("Ann signs the orders", "Laptops come within two weeks"):
        assert run("remember", url, "buyer", text).exit_code == 0
    assert run("memories", url).output == "        2  buyer\n"
    assert listed("recall", url, "buyer", "who signs?") == ["Ann signs the orders"]
    assert run("reindex", url, "buyer").output == "rebuilt the index of buyer: 2 memories\n"
    assert (
        run("forget", url, "buyer", "--author", "person", "--yes").output
        == "forgot 2 memories of buyer\n"
    )
    assert listed("memories", url, "buyer") == []
    assert run("memories", url).output == "        0  buyer\n"


# -- names, and text that means harm ---------------------------------------------------------------

CALLS = {
    "memories": ["buyer"],
    "recall": ["buyer", "tax"],
    "remember": ["buyer", "tea"],
    "forget": ["buyer", "--tag", "x", "--yes"],
    "consolidate": ["buyer"],
    "reindex": ["buyer"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_environment_may_name_the_store(
    url: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    result = run(command, *CALLS[command])
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_environment_may_name_the_store_whose_namespaces_are_listed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    assert run("memories").output == "        3  buyer\n        1  clerk\n"


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "remember"])
def test_a_namespace_that_is_not_there_is_one_line_and_exit_code_1(url: str, command: str) -> None:
    result = run(command, url, "nobody", *CALLS[command][1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr
        == "holdfast: tenant 'default' has no memory 'nobody' in this store; check the names\n"
    )
    assert run("memories", url).output == "        3  buyer\n        1  clerk\n"


@pytest.mark.parametrize("engine", ["sqlite", "files"])
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "remember"])
def test_no_store_is_made_by_looking_for_one(tmp_path: Path, engine: str, command: str) -> None:
    result = run(command, url_of(engine, tmp_path), *CALLS[command])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no store at" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("recall", "agents.db"),
        ("recall", "agents.db", "buyer", "tax", "more"),
        ("remember", "buyer"),
        ("forget", "agents.db"),
        ("forget", "agents.db", "buyer", "id", "--tag", "people"),
        ("reindex",),
        ("memories", "agents.db", "--tag", "people"),
        ("memories", "agents.db", "--source", "x"),
        ("memories", "agents.db", "--author", "x"),
        ("memories", "agents.db", "--since", "2026-01-31"),
        ("memories", "agents.db", "--until", "2026-01-31"),
        ("memories", "agents.db", "--last", "1"),
        ("memories", "agents.db", "buyer", "--since", "yesterday"),
        ("remember", "agents.db", "buyer", "tea", "--importance", "1.1"),
        ("remember", "agents.db", "buyer", "tea", "--ttl", "1e12"),
        ("forget", "agents.db", "buyer", "--older-than", "1e12"),
        ("recall", "agents.db", "buyer", "tax", "-k", "0"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments).exit_code == 2
    assert list(tmp_path.iterdir()) == []


HOSTILE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).map(
    lambda text: f"tea{text}\x1b]0;owned\x07"
)


# Each example runs six commands: to look for the shortest one that fails would take minutes.
@settings(
    max_examples=examples(8),
    deadline=None,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=HOSTILE, tag=HOSTILE)
def test_nothing_that_is_remembered_reaches_the_terminal_as_it_is(
    tmp_path: Path, text: str, tag: str
) -> None:
    url = str(tmp_path / "hostile.db")
    with holdfast.open(url) as store:
        store.memory("m").delete()
        try:
            name = store.memory("m").remember(
                f"tea {text}", tags=[tag], source=tag, author=tag, meta={text: text}
            )
        except holdfast.errors.InvalidId:
            name = store.memory("m").remember(f"tea {text}", meta={text: text})
    outputs = [
        run(*arguments).output
        for arguments in (
            ("memories", url, "m"),
            ("memories", url, "m", "--json"),
            ("recall", url, "m", "tea", "--why"),
            ("recall", url, "m", "tea", "--json"),
            ("forget", url, "m", "--older-than", "0", "--dry-run"),
            ("forget", url, "m", name),
        )
    ]
    for output in outputs:
        assert output.replace("\n", "").isprintable()
    assert len(outputs[0].splitlines()) == 1
    assert json.loads(outputs[1])["text"] == f"tea {text}"


def test_a_namespace_whose_name_means_harm_is_printed_harmlessly(url: str) -> None:
    name = "evil\x1b[2J\n[bold]"
    with holdfast.open(url) as store:
        store.memory(name).remember("tea")
    assert printable(name) in run("memories", url).output
    for arguments in (
        ("memories", url),
        ("recall", url, name, "zebra"),
        ("reindex", url, name),
        ("recall", url, "\x1b[2J", "tea"),
    ):
        assert "\x1b" not in run(*arguments).output
    assert "\x1b" not in typed("y\n", "forget", url, name, "--older-than", "0").output


def test_long_memories_are_cut_for_people_and_whole_in_json(url: str) -> None:
    text = "tea " * 200
    with holdfast.open(url) as store:
        store.memory("m").remember(text)
    for arguments in (
        ("memories", url, "m"),
        ("recall", url, "m", "tea"),
        ("forget", url, "m", "--older-than", "0", "--dry-run"),
    ):
        line = run(*arguments).output.splitlines()[0]
        assert len(line) == 200
        assert line.endswith("…")
    assert listed("memories", url, "m") == [text]


# -- consolidate -----------------------------------------------------------------------------------


@pytest.fixture
def doubled(url: str) -> str:
    """The store, with the same words twice for no one and for a subject, and a conflict."""
    with holdfast.open(url) as store:
        buyer = store.memory("buyer")
        for subject in (None, "person-7"):
            for minute in (1, 2):
                buyer.remember(
                    f"The contract of {subject} ends in May",
                    at=JANUARY.replace(minute=minute),
                    subject=subject,
                )
        buyer.remember("Ann lives in Ghent", at=JANUARY)
        buyer.remember("Ann lives in Rome", at=MARCH)
    return url


def test_consolidate_prints_proposals_and_changes_nothing(doubled: str) -> None:
    before = texts(doubled)
    done = run("memory", "consolidate", doubled, "buyer")
    assert done.exit_code == 0, done.output
    assert [line.split()[:2] for line in done.output.splitlines()[:3]] == [
        ["proposed", "duplicate"],
        ["proposed", "supersede"],
        ["proposed", "duplicate"],
    ]
    assert done.output.splitlines()[3:] == ["3 proposals for buyer; nothing was changed"]
    assert "needs approval" in done.output.splitlines()[1]
    assert texts(doubled) == before
    with holdfast.open(doubled) as store:
        assert list(store.tasks()) == []


def test_consolidate_applies_what_is_safe_and_undoes_it(doubled: str) -> None:
    before = texts(doubled)
    done = run("consolidate", doubled, "buyer", "--apply", "--json")
    *proposals, summary = [json.loads(line) for line in done.output.splitlines()]
    assert [(each["kind"], each["status"], each["subject"]) for each in proposals] == [
        ("duplicate", "applied", None),
        ("supersede", "left", None),
        ("duplicate", "applied", "person-7"),
    ]
    assert (summary["proposed"], summary["applied"]) == (3, 2)
    assert len(texts(doubled)) == len(before) - 2
    for name in summary["runs"]:
        undone = run("consolidate", doubled, "buyer", "--undo", name)
        assert undone.output == "undid 1 changes of buyer\n"
    assert texts(doubled) == before
    again = run("consolidate", doubled, "buyer", "--apply")
    assert "applied 0 of them" in again.output.splitlines()[-1]


def test_consolidate_says_what_to_check_if_there_is_nothing_to_undo(doubled: str) -> None:
    done = run("consolidate", doubled, "buyer", "--undo", "no-such-run")
    assert done.exit_code == 1 and "check the names" in done.stderr
    done = run("consolidate", doubled, "buyer", "--undo", "r", "--apply")
    assert done.exit_code == 2 and "not both" in done.stderr
