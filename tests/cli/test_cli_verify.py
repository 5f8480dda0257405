"""`holdfast verify`, `holdfast anchor` and `holdfast audit`: what they print, and how they end."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from helpers.run_cli import plain_terminal, run


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_terminal(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> str:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        for tenant in ("default", "acme"):
            stream = store.for_tenant(tenant).stream("orders")
            for number in range(3):
                stream.append(("order.placed", {"number": number}))
    return path


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "anchor.key"
    path.write_text("0123456789abcdef" * 4 + "\n")
    return path


def tamper(path: str, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            statement.format(
                acme="(SELECT stream FROM streams WHERE tenant = 'acme' AND id = 'orders')"
            )
        )
    connection.close()


ALTER = (
    "UPDATE records SET body = CAST(replace(body, '1', '2') AS BLOB) WHERE version = 2 AND "
    "stream = {acme}"
)
CUT = "DELETE FROM records WHERE version = 3 AND stream = {acme}"


# -- verify ----------------------------------------------------------------------------------------


def test_verify_says_that_all_tenants_are_in_order_and_that_it_had_no_anchor(place: str) -> None:
    result = run("verify", place)
    assert result.exit_code == 0
    assert result.stdout.startswith("no problem in 4 streams, 8 records; unanchored: ")


def test_verify_names_each_problem_and_fails(place: str) -> None:
    tamper(place, ALTER)
    result = run("verify", place)
    assert result.exit_code == 1
    first, last = result.stdout.splitlines()
    assert first.startswith("stream 'orders' of tenant 'acme' (version 2): altered: ")
    assert last.startswith("1 problem in 4 streams")
    assert run("verify", place, "--tenant", "default").exit_code == 0
    assert run("verify", place, "--tenant", "acme").exit_code == 1


def test_verify_takes_the_tenant_of_the_environment(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(place, ALTER)
    monkeypatch.setenv("HOLDFAST_TENANT", "default")
    assert run("verify", place).exit_code == 0


def test_verify_as_json_is_one_object(place: str) -> None:
    tamper(place, ALTER)
    result = run("verify", place, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (report["ok"], report["found"], report["anchored"]) == (False, 1, "unanchored")
    assert {
        key: report["problems"][0][key] for key in ("tenant", "kind", "id", "version", "what")
    } == {"tenant": "acme", "kind": "stream", "id": "orders", "version": 2, "what": "altered"}


def test_verify_makes_no_store(tmp_path: Path) -> None:
    result = run("verify", tmp_path / "none.db")
    assert result.exit_code == 1 and "there is no store" in result.stderr
    assert not list(tmp_path.iterdir())


def test_what_a_stream_is_called_does_not_reach_the_terminal(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path, tenant="acme") as store:
        for number in range(2):
            store.stream("a\x1b[31m").append(("noted", number))
    tamper(path, "UPDATE records SET hash = x'00' WHERE version = 2")
    result = run("verify", path)
    assert result.exit_code == 1 and "\x1b" not in result.stdout and r"\x1b" in result.stdout


def test_of_very_many_problems_verify_says_how_many_more(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.admin.verify.store.MAX_PROBLEMS", 1)
    tamper(place, "UPDATE records SET hash = x'00' WHERE version = 2")
    assert run("verify", place).stdout.splitlines()[1] == "… and 1 more"


def test_on_a_terminal_verify_shows_a_bar_and_leaves_what_it_has_to_say(place: str) -> None:
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "verify", place]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # what a terminal says when nobody writes to it any more
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert process.wait(60) == 0, process.communicate()[1]
    process.communicate()
    assert b"verifying" in shown and b"no problem in 4 streams" in shown.rpartition(b"verifying")[2]


# -- anchor ----------------------------------------------------------------------------------------


def test_an_anchor_shows_that_the_end_was_cut_off(
    place: str, key_file: Path, tmp_path: Path
) -> None:
    anchor = tmp_path / "monday"
    made = run("anchor", place, "--anchor-key", key_file, "--to", anchor)
    assert made.exit_code == 0
    assert made.stdout == f"wrote an anchor of 4 streams to {anchor}, hmac-sha256\n"
    for option in ("--anchor", "--since"):
        result = run("verify", place, option, anchor, "--anchor-key", key_file)
        assert result.exit_code == 0 and "compared with an anchor (hmac-sha256)" in result.stdout
    tamper(place, CUT)
    assert run("verify", place).exit_code == 0
    for option in ("--anchor", "--since"):
        result = run("verify", place, option, anchor, "--anchor-key", key_file)
        assert result.exit_code == 1
        assert "stream 'orders' of tenant 'acme' (version 2): truncated: " in result.stdout


def test_an_anchor_is_printed_if_no_file_is_named(place: str, tmp_path: Path) -> None:
    result = run("anchor", place, "--tenant", "acme")
    header, *_, seal = map(json.loads, result.stdout.splitlines())
    assert (header["tenant"], seal["streams"], seal["signed"]) == ("acme", 2, "unsigned")
    assert result.stderr == "wrote an anchor of 2 streams, unsigned\n"
    anchor = tmp_path / "printed"
    anchor.write_text(result.stdout)
    assert (
        "an unsigned anchor" in run("verify", place, "--anchor", anchor, "--tenant", "acme").stdout
    )


def test_an_anchor_is_not_overwritten_unless_that_is_said(place: str, tmp_path: Path) -> None:
    anchor = tmp_path / "monday"
    assert run("anchor", place, "--to", anchor).exit_code == 0
    again = run("anchor", place, "--to", anchor)
    assert again.exit_code == 1 and again.stderr.endswith("or replace it with --overwrite\n")
    assert run("anchor", place, "--to", anchor, "--overwrite").exit_code == 0


def test_an_anchor_that_is_refused_is_one_line(place: str, key_file: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "monday"
    run("anchor", place, "--anchor-key", key_file, "--to", anchor)
    other = tmp_path / "other.key"
    other.write_text("f0" * 20 + "0a" * 20)
    for options in ((), ("--anchor-key", other), ("--anchor-key", tmp_path / "none")):
        result = run("verify", place, "--anchor", anchor, *options)
        assert result.exit_code == 1
        assert (
            result.stderr.startswith("holdfast: ")
            and "anchor" in result.stderr
            and result.stderr.count("\n") == 1
        )
        assert "f0f0" not in result.output


# -- audit -----------------------------------------------------------------------------------------


@pytest.fixture
def claims(tmp_path: Path) -> str:
    path = str(tmp_path / "claims.db")
    with holdfast.open(path) as store, holdfast.correlate("=req-17", actor="ann"):
        with store.task("claim-42", goal="The secret goal") as task:
            task.decide("pay")
            task.finish("paid")
        store.conversation("chat").append({"role": "user", "content": "Hello"})
    return path


def test_audit_prints_a_table(claims: str) -> None:
    result = run("audit", claims, "claim-42")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["time", "(UTC)", "version", "what", "who", "correlation", "details"]
    words = ("created", "claimed", "decision recorded", "finished")
    assert [what for line in lines[1:] for what in words if what in line] == list(words)
    assert all("ann" in line and "=req-17" in line for line in lines[1:])
    assert "secret" not in result.stdout


def test_audit_as_csv_has_no_formula(claims: str) -> None:
    result = run("audit", claims, "claim-42", "--format", "csv")
    names, *rows = csv.reader(io.StringIO(result.stdout, newline=""))
    assert [row[names.index("correlation")] for row in rows] == ["'=req-17"] * 4


def test_audit_as_json_lines_with_content(claims: str) -> None:
    result = run("audit", claims, "claim-42", "--format", "jsonl", "--content")
    lines = list(map(json.loads, result.stdout.splitlines()))
    assert lines[0]["data"]["goal"] == "The secret goal" and lines[0]["correlation"] == "=req-17"


def test_audit_of_a_conversation_and_of_nothing(
    claims: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "message.appended" in run("audit", claims, "chat", "--kind", "conversation").stdout
    for arguments in (("chat",), ("chat", "--kind", "blob")):
        result = run("audit", claims, *arguments)
        assert result.exit_code == 1 and result.stderr.startswith("holdfast: ")
    monkeypatch.setenv("HOLDFAST_URL", claims)
    assert run("audit", "claim-42").exit_code == 0
