"""`holdfast copy`, `holdfast backup` and `holdfast schema`: what they print, and how they fail."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import holdfast
from helpers.run_cli import plain_terminal, run
from helpers.servers import url_on
from helpers.stored.store_copies import dump, many
from holdfast.backends import Append, AppendResult, VersionMismatch, retrying
from holdfast.cli import copy


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_terminal(monkeypatch)


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        many(store, 3)
    return path


# -- copy ------------------------------------------------------------------------------------------


def test_copy_says_what_it_did(source: str, tmp_path: Path) -> None:
    result = run("copy", source, tmp_path / "b.db")
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    assert last.startswith("copied 4 streams, 19 records, ") and last.endswith(
        "; 0 already there; 4 verified"
    )
    assert dump(source) == dump(tmp_path / "b.db")
    again = run("copy", source, tmp_path / "b.db", "--no-verify").stdout.splitlines()[-1]
    assert again == "copied 0 streams, 0 records, 0 B; 4 already there; records not read back"


def test_copy_as_json_prints_nothing_else(source: str, tmp_path: Path) -> None:
    report = json.loads(run("copy", source, tmp_path / "b.db", "--json").stdout)
    assert (report["streams"], report["records"], report["verified"], report["extra_names"]) == (
        4,
        19,
        4,
        [],
    )


@pytest.mark.parametrize("engine", ["files", "postgres", "redis"])
def test_copy_goes_to_another_engine_and_back(engine: str, source: str, tmp_path: Path) -> None:
    there = f"file://{tmp_path}/files" if engine == "files" else url_on(engine, tmp_path)
    for pair in ((source, there), (there, tmp_path / "back.db")):
        result = run("copy", *pair)
        assert result.exit_code == 0, result.output
    assert dump(source) == dump(tmp_path / "back.db")


def test_copy_takes_neither_place_from_the_environment(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", source)
    for arguments in ([], [tmp_path / "b.db"], [source]):
        result = run("copy", *arguments)
        assert (
            result.exit_code == 2
            and "holdfast copy agents.db postgresql://host/agents" in result.output
        )
    assert not (tmp_path / "b.db").exists()


def test_copy_says_first_from_where_to_where(source: str, tmp_path: Path) -> None:
    server = url_on("postgres", tmp_path).replace("postgres:@", "postgres:s3cret@")
    for src, dst in ((source, server), (server, tmp_path / "b.db")):
        result = run("copy", src, dst)
        first = result.stdout.splitlines()[0]
        shown = [re.sub(r":s3cret@", "@", str(place)) for place in (src, dst)]
        assert first == f"from {shown[0]} to {shown[1]}" and "s3cret" not in result.output


def test_copy_says_where_it_looked_for_a_source_that_is_not_there(tmp_path: Path) -> None:
    result = run("copy", url_on("redis", tmp_path), tmp_path / "b.db")
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert url_on("redis", tmp_path) in result.stderr


def test_copy_names_what_only_the_destination_has_and_deletes_it_only_if_told(
    source: str, tmp_path: Path
) -> None:
    target = str(tmp_path / "b.db")
    run("copy", source, target)
    with holdfast.open(source) as store:
        store.stream("s-0001").delete()
    with holdfast.open(target) as store:
        for number in range(25):
            store.stream(f"theirs \x1b[2J {number:02}").append(("noted", 1))
    lines = run("copy", source, target).stdout.splitlines()
    assert (
        "26 streams at the destination only:" in lines
        and "  stream 's-0001'" in lines
        and lines[-1] == "  …"
    )
    assert all(line.isprintable() for line in lines)
    lines = run("copy", source, target, "--delete").stdout.splitlines()
    assert "deleted 1 stream that the source has deleted" in lines
    assert "25 streams at the destination only:" in lines


@pytest.mark.parametrize("scheme", ["", "sqlite:///", "file://"])
@pytest.mark.parametrize("command", ["copy", "backup"])
def test_a_source_that_is_not_there_is_an_error_and_nothing_is_made(
    scheme: str, command: str, tmp_path: Path
) -> None:
    result = run(command, f"{scheme}{tmp_path}/typo", tmp_path / "b.db")
    assert result.exit_code == 1
    assert result.stderr == f"holdfast: there is no store at {tmp_path}/typo; check the path\n"
    assert list(tmp_path.iterdir()) == []


def test_copy_refuses_a_store_inside_a_process(source: str, tmp_path: Path) -> None:
    for pair in ((source, "memory://x"), ("memory://x", tmp_path / "b.db")):
        result = run("copy", *pair)
        assert result.exit_code == 1 and "memory://" in result.stderr


def test_copy_reports_a_stream_that_it_did_not_overwrite(source: str, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "b.db") as store:
        store.stream("s-0001").append(("mine", 1))
    result = run("copy", source, tmp_path / "b.db")
    assert result.exit_code == 1
    assert result.stderr.startswith("holdfast: stream 's-0001' at the destination is not a copy")


def test_a_bad_url_never_shows_its_password(source: str) -> None:
    for url in (
        "postgresql://me:secret@[bad/agents",
        "nosql://me:secret@host/x",
        "postgresql://me:secret@h/x?schema=A-",
    ):
        result = run("copy", source, url)
        assert result.exit_code == 1
        assert "secret" not in result.output


def test_elsewhere_than_on_a_terminal_copy_prints_lines(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "_REPORT_SECONDS", 0.0)
    lines = run("copy", source, tmp_path / "b.db").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("copying")] == ["copying"] * 2
    assert any(line.startswith("verifying  4") for line in lines)
    assert "19 records" in lines[-2]


def test_the_last_line_of_progress_does_not_look_as_if_streams_were_left_out(
    source: str, tmp_path: Path
) -> None:
    lines = run("copy", source, tmp_path / "b.db").stdout.splitlines()
    assert lines[1:-1] == ["copied; now comparing with the source"]


def test_an_interrupted_copy_says_that_it_can_go_on_and_does(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = retrying.RetryingBackend.append

    def interrupted(
        self: retrying.RetryingBackend, batch: Sequence[Append]
    ) -> Sequence[AppendResult | VersionMismatch]:
        answers = append(self, batch)
        if len(batch) > 1:
            raise KeyboardInterrupt
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(retrying.RetryingBackend, "append", interrupted)
        result = run("copy", source, tmp_path / "b.db")
    assert result.exit_code == 130
    assert result.stderr == "holdfast: stopped; run the same command again to continue\n"
    assert run("copy", source, tmp_path / "b.db").exit_code == 0
    assert dump(source) == dump(tmp_path / "b.db")


def test_on_a_terminal_copy_shows_a_bar(source: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "copy", source, str(tmp_path / "b.db")]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    copying = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 10_000):
            shown += piece
    except OSError:
        pass  # Linux says the end like this
    finally:
        os.close(ours)
    assert copying.wait(60) == 0
    assert "━" in shown.decode() and b"verifying" in shown
    assert shown.rstrip().endswith(b"0 already there; 4 verified")


# -- backup ----------------------------------------------------------------------------------------


def test_backup_writes_the_file_and_says_so(source: str, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    result = run("backup", source, target)
    assert (result.exit_code, result.stdout.split(", ")[0]) == (0, f"wrote {target}")
    assert dump(source) == dump(target)


def test_backup_replaces_a_file_only_with_overwrite(source: str, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    target.write_text("precious")
    result = run("backup", source, target)
    assert result.exit_code == 1 and result.stderr.endswith("or replace it with --overwrite\n")
    assert target.read_text() == "precious"
    assert run("backup", source, target, "--overwrite").exit_code == 0
    assert dump(source) == dump(target)


def test_backup_of_another_engine_names_copy(source: str, tmp_path: Path) -> None:
    run("copy", source, f"file://{tmp_path}/files")
    result = run("backup", f"file://{tmp_path}/files", tmp_path / "backup.db")
    assert result.exit_code == 1
    assert "copy SRC backup.db" in result.stderr


# -- schema ----------------------------------------------------------------------------------------


def test_schema_prints_sql_for_postgresql_without_connecting() -> None:
    result = run("schema", "postgresql://me:secret@nowhere.invalid/agents?schema=ours")
    assert result.exit_code == 0, result.output
    assert 'CREATE TABLE "ours".' in result.stdout
    assert '-- GRANT USAGE ON SCHEMA "ours" TO me;' in result.stdout
    assert "secret" not in result.output


def test_schema_of_a_url_that_says_how_durable_is_the_same() -> None:
    for url in (
        "postgresql://me@nowhere.invalid/agents",
        "dynamodb://Agents",
        "redis://h/0",
        "sqlite:///agents.db",
    ):
        assert run("schema", url).stdout == run("schema", f"{url}?durability=process").stdout != ""


def test_schema_prints_a_table_for_dynamodb_without_connecting() -> None:
    result = run("schema", "dynamodb://Agents?region=eu-central-1&endpoint=http://127.0.0.1:9")
    assert json.loads(result.stdout)["TableName"] == "Agents"


@pytest.mark.parametrize(
    "url",
    ["agents.db", "sqlite:///agents.db", "file:///agents", "redis://h/0", "s3://b/p", "memory://"],
)
def test_schema_says_where_nothing_is_needed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("schema", url)
    needed = "only the bucket" if url.startswith("s3:") else "nothing"
    assert (result.exit_code, result.stdout.split(" is needed")[0]) == (0, needed)
    assert list(tmp_path.iterdir()) == []


def test_schema_of_an_unknown_kind_is_an_error() -> None:
    result = run("schema", "nosql://me:secret@host")
    assert result.exit_code == 1
    assert "secret" not in result.output
