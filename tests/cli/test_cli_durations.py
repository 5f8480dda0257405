"""Options that take a length of time: `30s`, `5m`, `12h`, `60d`, or seconds."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

import holdfast
from helpers.run_cli import run
from holdfast.cli.parser.durations import duration_option

parse: typing.Any = duration_option("x", least=1).convert


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("12h", 43_200),
        ("60d", 5_184_000),
        ("45", 45),
        ("1.5h", 5400),
        (" 2 m ", 120),
    ],
)
def test_a_duration_has_a_unit_or_is_seconds(text: str, seconds: float) -> None:
    assert parse(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "0.5s", "1w", "1 h 5 m", "1e3", "٣s", "40000d", "nan", "1_0s"]
)
def test_anything_else_is_refused_with_what_was_given(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"must be a duration like 30s, 5m, 12h or 60d.*, got "
    ) as caught:
        parse(text)
    assert str(caught.value).endswith(repr(text))


def test_a_memory_is_kept_for_the_given_time(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    assert run("remember", url, "buyer", "Ann is away", "--ttl", "12h").exit_code == 0
    with holdfast.open(url) as store:
        [known] = store.memory("buyer").all()
    assert known.expires_at is not None
    assert round((known.expires_at - known.at).total_seconds()) == 43_200
    refused = run("sweep", url, "--grace", "1 day")
    assert (refused.exit_code, "got '1 day'" in refused.output) == (2, True)


def test_help_says_how_durations_are_written() -> None:
    for command in ("worker", "sweep", "remember", "forget", "crashtest"):
        shown = " ".join(run(command, "--help").output.replace("│", " ").split())
        assert "DURATION" in shown and "30s, 5m, 12h or 60d" in shown, command
