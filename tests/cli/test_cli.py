"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from helpers.run_cli import plain_terminal, run
from holdfast.cli import streams
from holdfast.cli.text import event_line, format_size
from holdfast.log.ids import COUNTED_KINDS


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_terminal(monkeypatch)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with one stream of three events."""
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store, holdfast.correlate("req-17"):
        for number in (1, 2, 3):
            store.stream("orders-7").append(("order.placed", {"number": number}))
    return path


def test_version_is_printed() -> None:
    assert run("--version").stdout == f"holdfast {holdfast.__version__}\n"


def test_health_says_where_the_state_is_and_how_durable(url: str) -> None:
    result = run("health", url)
    assert result.exit_code == 0
    assert url in result.stdout
    assert "sqlite" in result.stdout
    assert "disk (an acknowledged append survives power loss)" in result.stdout
    assert "1 of kind stream" in result.stdout


def test_health_as_json_has_the_fields_of_the_library(url: str) -> None:
    report = json.loads(run("health", url, "--json").stdout)
    assert (report["location"], report["durability"], report["streams"]) == (
        url,
        "disk",
        {"stream": 1},
    )


def test_health_counts_the_tasks_that_have_not_ended_by_status(url: str) -> None:
    def failing(task: holdfast.Task) -> None:
        raise ValueError

    assert json.loads(run("health", url, "--json").stdout)["tasks"] == {}
    assert "failed" not in run("health", url).stdout
    with holdfast.open(url) as store:
        for name in ("a", "b"):
            with pytest.raises(ValueError):
                store.run(failing, name)
        store.submit("claims", "c")
        store.run(lambda task: None, "d")
    assert json.loads(run("health", url, "--json").stdout)["tasks"] == {"pending": 1, "failed": 2}
    assert "1 pending, 2 failed" in run("health", url).stdout


def test_streams_are_listed_with_their_newest_version(url: str) -> None:
    assert run("streams", url).stdout == "        3  orders-7\n"
    assert json.loads(run("streams", url, "--json").stdout) == {"id": "orders-7", "version": 3}
    assert run("streams", url, "--tenant", "nobody").stdout == ""


def test_streams_of_other_kinds_are_listed_by_kind_and_named_where_there_are_no_own_ones(
    tmp_path: Path,
) -> None:
    url = str(tmp_path / "agents.db")
    with holdfast.open(url) as store:
        with store.task("claim-7"):
            pass
        store.conversation("support-1").append({"role": "user", "content": "hi"})
    listed = run("streams", url)
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert listed.stderr == (
        "tenant default has no streams of kind stream; use --kind: task, conversation\n"
    )
    assert run("streams", url, "--kind", "conversation").stdout == "        1  support-1\n"
    [line] = run("streams", url, "--kind", "task", "--json").stdout.splitlines()
    assert json.loads(line)["id"] == "claim-7"
    wrong = run("streams", url, "--kind", "key")
    assert wrong.exit_code == 1 and "kind must be one of audit" in wrong.stderr
    empty = run("streams", url, "--tenant", "nobody").stderr
    assert empty == "tenant nobody has no streams of kind stream\n"


def test_every_kind_that_health_counts_can_be_listed(url: str) -> None:
    assert set(streams._KINDS) == set(COUNTED_KINDS)


def test_read_prints_one_event_per_line_oldest_first(url: str) -> None:
    lines = run("read", url, "orders-7").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert lines[0].endswith('order.placed  {"number":1}')


def test_read_as_json_prints_whole_events(url: str) -> None:
    events = [
        json.loads(line) for line in run("read", url, "orders-7", "--json").stdout.splitlines()
    ]
    assert [event["data"] for event in events] == [{"number": 1}, {"number": 2}, {"number": 3}]
    assert events[0].keys() == {"version", "id", "type", "at", "correlation", "data"}


@pytest.mark.parametrize(
    ("option", "versions"),
    [(["--after", "1"], [2, 3]), (["--last", "1"], [3]), (["--last", "9"], [1, 2, 3])],
)
def test_read_takes_a_part_of_the_stream(url: str, option: list[str], versions: list[int]) -> None:
    lines = run("read", url, "orders-7", "--json", *option).stdout.splitlines()
    assert [json.loads(line)["version"] for line in lines] == versions


def test_the_store_may_be_named_by_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    assert len(run("read", "orders-7").stdout.splitlines()) == 3
    assert url in run("health").stdout


def test_the_tenant_may_be_named_by_option_or_environment(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(url, tenant="acme") as store:
        store.stream("orders-8").append(("order.placed", None))
    assert run("read", url, "orders-8").exit_code == 1
    assert run("read", url, "orders-8", "--tenant", "acme").exit_code == 0
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    assert run("read", url, "orders-8").exit_code == 0


def test_stored_text_cannot_control_the_terminal(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    hostile = "\x1b[2J\x9b31m\u202e[red]"
    with holdfast.open(path) as store:
        store.stream("s").append((hostile, {hostile: hostile}))
    for option in ([], ["--json"]):
        output = run("read", path, "s", *option).stdout
        assert output.rstrip("\n").isprintable()
        assert "[red]" in output
    assert json.loads(output)["data"] == {hostile: hostile}


def test_a_long_event_is_cut_for_people_and_whole_as_json(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        store.stream("s").append(("long", "x" * 100_000))
    assert len(run("read", path, "s").stdout) == 201
    assert json.loads(run("read", path, "s", "--json").stdout)["data"] == "x" * 100_000


@pytest.mark.parametrize("command", [["health"], ["read", "STREAM"]])
@pytest.mark.parametrize("scheme", ["", "sqlite:///", "file://", "SQLITE:///", "File://"])
def test_looking_for_a_store_that_is_not_there_says_so_and_creates_none(
    tmp_path: Path, command: list[str], scheme: str
) -> None:
    missing = tmp_path / "typo"
    result = run(command[0], f"{scheme}{missing}", *command[1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: there is no store at {missing}; check the path\n"
    assert not missing.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["read", "URL", "nothing"], "has no stream 'nothing'"),
        (["read", "URL", "orders-7", "--tenant", "$system"], "reserved"),
        (["health", "mongodb://host/db"], "a store URL must be"),
        (["health", "memory://"], "exists only inside its own process"),
        (["health", "MEMORY://x"], "exists only inside its own process"),
        (["health", "NOT A STORE"], "not an SQLite database"),
    ],
)
def test_what_goes_wrong_is_one_line_and_exit_code_1(
    url: str, arguments: list[str], says: str
) -> None:
    stranger = Path(url).with_name("stranger")
    stranger.write_text("something else, and long enough to be looked at" * 100)
    names = {"URL": url, "NOT A STORE": str(stranger)}
    result = run(*(names.get(argument, argument) for argument in arguments))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("holdfast: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["health"],
        ["read"],
        ["read", "URL", "s", "--after", "-1"],
        ["read", "URL", "s", "--after", "1", "--last", "1"],
    ],
)
def test_wrong_usage_has_exit_code_2(url: str, arguments: list[str]) -> None:
    result = run(*(url if argument == "URL" else argument for argument in arguments))
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_sizes_are_readable() -> None:
    assert [format_size(n) for n in (0, 1023, 1536, 5 * 1024**2, 3 * 1024**5)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3072.0 TiB",
    ]


def test_a_line_for_people_shows_version_time_type_and_data() -> None:
    event = holdfast.Event(7, "0192", "order.placed", {"sku": "Ä1"}, 0.0)
    assert event_line(event) == '     7  1970-01-01 00:00:00  order.placed  {"sku":"Ä1"}'


@pytest.fixture
def chat_url(tmp_path: Path) -> str:
    """A store with a conversation in which somebody tries to move the cursor."""
    path = str(tmp_path / "chats.db")
    with holdfast.open(path) as store:
        chat = store.conversation("support-42")
        chat.append(
            {"role": "user", "content": "Hello \x1b[2J"},
            {"role": "assistant", "content": None, "tool_calls": []},
        )
        store.conversation("b").append({"type": "function_call", "call_id": "1"})
    return path


def test_conversations_are_listed_with_their_length(chat_url: str) -> None:
    assert run("conversations", chat_url).stdout.split() == ["1", "b", "2", "support-42"]
    lines = run("conversations", chat_url, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": "b", "messages": 1},
        {"id": "support-42", "messages": 2},
    ]


def test_messages_are_printed_without_moving_the_cursor(chat_url: str) -> None:
    lines = run("messages", chat_url, "support-42").stdout.splitlines()
    assert lines[0].endswith("user: Hello \\u001b[2J") and "tool_calls" in lines[1]
    assert run("messages", chat_url, "support-42", "--last", "1").stdout.splitlines() == lines[1:]
    assert json.loads(run("messages", chat_url, "b", "--json").stdout) == {
        "type": "function_call",
        "call_id": "1",
    }


def test_messages_of_a_conversation_that_is_not_there_is_an_error(
    chat_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("messages", chat_url, "nobody")
    assert result.exit_code == 1 and "no conversation 'nobody'" in result.stderr
    assert run("messages").exit_code == 2
    monkeypatch.setenv("HOLDFAST_URL", chat_url)
    assert run("messages", "b").exit_code == 0


def run_as_a_process(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.returncode, done.stdout, done.stderr


def test_a_process_has_the_help_and_the_errors_that_the_tests_see() -> None:
    for arguments in (["tasks", "--help"], ["tasks", "--no-option"], ["no-command"], ["--help"]):
        code, output, errors = run_as_a_process(*arguments)
        whole = run(*arguments)
        assert code == whole.exit_code
        assert (output + errors).split() == whole.output.split()
