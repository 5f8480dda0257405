"""Finding one's way: the help of every command, names in groups, the store, completion."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import holdfast
from helpers.run_cli import plain_terminal, run
from holdfast.cli.app import COMMANDS, EXIT_CODES, GROUPS, PANELS, app, load_command

MAX_LINES = 40
WIDTH = 100


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(WIDTH))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two tasks, a conversation, a stream and a memory."""
    path = str(tmp_path / "agents.db")

    def asks(task: holdfast.Task) -> object:
        task.step("read", len, "four")
        return task.ask("payout", "May it be paid?")

    with holdfast.open(path) as store:
        store.submit("claims", "claim-1", goal="Settle it")
        store.submit("letters", "letter-1")
        with pytest.raises(holdfast.Suspended):
            store.run(asks, "asks-1")
        store.conversation("chat-1").append({"role": "user", "content": "hi"})
        store.stream("orders-7").append(("order.placed", None))
        store.memory("buyer").remember("Ann signs the orders")
    return path


# -- help ------------------------------------------------------------------------------------------


def read_help(*words: str) -> list[str]:
    """Return the lines of a help on a terminal of 100 columns."""
    terminal_width = WIDTH - 2  # click leaves a margin
    done = CliRunner().invoke(app, [*words, "--help"], terminal_width=terminal_width)
    assert done.exit_code == 0
    return done.stdout.splitlines()


WORDS = [
    *([name] for name in (*GROUPS, *COMMANDS)),
    *([name, command] for name, group in GROUPS.items() for command in group.commands),
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_the_help_of_a_command_fits_a_screen_and_has_examples(words: list[str]) -> None:
    lines = read_help(*words)
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].startswith(f"Usage: holdfast {' '.join(words)} ")
    examples = [line for line in lines[lines.index("Examples:") + 1 :] if line]
    assert examples and all("holdfast " in line for line in examples)


def test_the_help_of_all_commands_has_one_line_for_each_in_eight_panels() -> None:
    lines = read_help()
    assert len(PANELS) == 8 and next(iter(PANELS)) == "Start here"
    assert len(lines) <= 66 and max(map(len, lines)) <= WIDTH
    for title, panel in PANELS.items():
        start = lines.index(f"{title}:") + 1
        names = [path.rpartition(".")[2] for path in panel]
        assert [line.split()[0] for line in lines[start : start + len(names)]] == names
        assert lines[start + len(names)] == ""
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in " ".join(" ".join(lines).split())


def test_every_command_is_in_a_panel_or_in_a_group_of_one() -> None:
    shown = {path for panel in PANELS.values() for path in panel}
    in_groups = {
        path for name, group in GROUPS.items() if name in shown for path in group.commands.values()
    }
    assert set(COMMANDS.values()) <= shown | in_groups
    assert set(GROUPS) <= shown


def test_every_example_is_accepted() -> None:
    context = click.Context(app, info_name="holdfast")
    paths = {*COMMANDS.values(), *(p for group in GROUPS.values() for p in group.commands.values())}
    examples = [example for path in paths for example in load_command(path).examples]
    for example in examples:
        words = shlex.split(example)
        words = words[words.index("holdfast") + 1 :]
        ends = [words.index(end) for end in ("|", ">", "&&") if end in words]
        name, *arguments = words[: min(ends, default=len(words))]
        command = app.get_command(context, name)
        assert command is not None, example
        parsed = command.make_context(name, arguments, parent=context)
        assert parsed.params or isinstance(command, click.Group), example


def test_an_unknown_command_is_answered_with_similar_ones() -> None:
    assert "Did you mean task or tasks?" in run("taskz").stderr
    assert "Did you mean search?" in run("memory", "serach").stderr


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flat", "grouped"),
    [
        (["tasks", "URL"], ["task", "list", "URL"]),
        (["task", "URL", "asks-1"], ["task", "show", "URL", "asks-1"]),
        (["task", "--json", "URL", "asks-1"], ["task", "show", "URL", "asks-1", "--json"]),
        (["messages", "URL", "chat-1"], ["chat", "show", "URL", "chat-1"]),
        (["read", "URL", "orders-7"], ["stream", "show", "URL", "orders-7"]),
        (
            ["recall", "URL", "buyer", "who signs?"],
            ["memory", "search", "URL", "buyer", "who signs?"],
        ),
        (["questions", "URL"], ["question", "list", "URL"]),
        (["health", "URL"], ["store", "health", "URL"]),
    ],
)
def test_a_command_in_a_group_is_the_same_command(
    url: str, flat: list[str], grouped: list[str]
) -> None:
    one, other = (
        run(*(url if word == "URL" else word for word in words)) for words in (flat, grouped)
    )
    assert one.exit_code == other.exit_code == 0
    assert one.stdout == other.stdout != ""


def test_a_key_is_generated_with_and_without_the_verb(tmp_path: Path) -> None:
    for words in (["key"], ["key", "generate"]):
        path = tmp_path / "-".join(words)
        assert run(*words, path).exit_code == 0
        assert path.stat().st_mode & 0o777 == 0o600


# -- the store -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (["task", "URL", "asks-1"], False),
        (["task", "asks-1", "--store", "URL"], False),
        (["task", "-s", "URL", "asks-1"], False),
        (["--store", "URL", "task", "asks-1"], False),
        (["task", "asks-1"], True),
        (["task", "URL", "asks-1"], True),
        (["tasks"], True),
        (["tasks", "-s", "URL"], True),
        (["memories", "buyer"], True),
        (["memories", "URL"], True),
        (["memories", "URL", "buyer"], True),
        (["forget", "buyer", "--tag", "x", "--dry-run", "--json"], True),
        (["forget", "URL", "buyer", "--tag", "x", "--dry-run"], True),
        (["cancel", "asks-1", "--dry-run"], True),
        (["cancel", "URL", "--status", "suspended", "--dry-run"], True),
        (["cancel", "--status", "suspended", "--dry-run", "-s", "URL"], False),
    ],
)
def test_the_store_is_named_by_position_option_or_environment(
    url: str, words: list[str], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known:
        is_elsewhere = "URL" in words
        monkeypatch.setenv("HOLDFAST_URL", "/nowhere/at-all.db" if is_elsewhere else url)
    done = run(*(url if word == "URL" else word for word in words))
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["task"], "Show and control tasks"),
        (["task", "show"], "missing TASK, as in: holdfast task agents.db claim-42"),
        (["tasks"], "name a store"),
        (["task", "asks-1"], "missing the store (URL, --store or HOLDFAST_URL)"),
        (["task", "URL"], "missing TASK"),
        (["resolve", "URL", "asks-1", "--retry"], "missing STEP"),
        (["retry", "URL"], "missing TASK"),
        (["task", "URL", "asks-1", "-s", "URL"], "--store already names the store"),
        (["task", "URL", "asks-1", "more"], "unexpected extra argument"),
        (["-s", "URL", "copy", "URL", "b.db"], "needs a command on one store"),
    ],
)
def test_what_is_missing_is_named_with_an_example(url: str, words: list[str], says: str) -> None:
    done = run(*(url if word == "URL" else word for word in words))
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


# -- completion ------------------------------------------------------------------------------------


def complete(*words: str) -> list[str]:
    """Return what a shell offers for the last word."""
    *before, incomplete = words
    shell = ShellComplete(app, {}, "holdfast", "_HOLDFAST_COMPLETE")
    return [item.value for item in shell.get_completions(before, incomplete)]


def test_names_in_the_store_are_completed(url: str) -> None:
    assert complete("task", url, "") == ["asks-1", "claim-1", "letter-1"]
    assert complete("task", "show", url, "cl") == ["claim-1"]
    assert complete("retry", "-s", url, "cl") == ["claim-1"]
    assert complete("submit", url, "") == ["asks", "claims", "letters"]
    assert complete("messages", url, "") == ["chat-1"]
    assert complete("stream", "show", url, "") == ["orders-7"]
    assert complete("recall", url, "") == ["buyer"]
    assert complete("answer", url, "asks-1", "") == ["payout"]
    assert complete("resolve", url, "asks-1", "") == ["read"]
    assert complete("tasks", url, "--agent", "l") == ["letters"]
    assert complete("tasks", url, "--status", "su") == ["suspended"]


def test_a_stored_name_that_a_shell_would_run_is_not_completed(tmp_path: Path) -> None:
    url = str(tmp_path / "names.db")
    plain = ["a/b:1", "order-7", "tâche_2"]
    hostile = [
        "$(reboot)",
        "`reboot`",
        "a;reboot",
        "a|b",
        "a b",
        "*",
        "~",
        "--yes",
        "a\\b",
        "!1",
        "'",
    ]
    with holdfast.open(url) as store:
        for name in (*plain, *hostile):
            store.stream(name).append(("ordered", {}))
    assert complete("stream", "show", url, "") == plain


def test_names_are_completed_where_the_environment_names_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    assert complete("task", "cl") == ["claim-1"]
    assert complete("resolve", "asks-1", "") == ["read"]
    assert complete("answer", "asks-1", "") == ["payout"]
    assert complete("answer", url, "asks-1", "") == ["payout"]


def test_commands_are_completed_and_a_store_that_is_not_there_completes_nothing(
    tmp_path: Path,
) -> None:
    assert {"task", "tasks"} <= set(complete("ta"))
    assert "search" in complete("memory", "")
    assert complete("task", str(tmp_path / "typo.db"), "") == []
    assert not (tmp_path / "typo.db").exists()


def test_a_shell_gets_its_script_and_the_names(url: str) -> None:
    program = [sys.executable, "-m", "holdfast.cli"]
    for shell in ("bash", "zsh", "fish"):
        assert "_HOLDFAST_COMPLETE" in run("--completion", shell).stdout
    words = {"COMP_WORDS": f"holdfast task {url} cl", "COMP_CWORD": "3"}
    done = subprocess.run(
        program,
        env={**os.environ, **words, "_HOLDFAST_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "plain,claim-1\n"
