"""A store that is not there is not made by looking for it: on every engine, from Python and from a
shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import psycopg
import pytest
import redis

import holdfast
from helpers.run_cli import run
from helpers.servers import aws, postgres, url_on
from helpers.servers import redis as redis_url
from helpers.stores import url_of

ENGINES = ("sqlite", "files", "postgres", "redis", "dynamodb", "s3")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_URL", "HOLDFAST_TENANT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


def traces(engine: str, url: str) -> object:
    """What an engine has for this URL; something false if it has nothing."""
    name = url.partition("?")[0].rpartition("/")[2]
    if engine == "postgres":
        schema = url.rpartition("schema=")[2]
        with psycopg.connect(postgres()) as connection:
            return connection.execute(
                "SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]
            ).fetchone()
    if engine == "redis":
        with redis.Redis.from_url(redis_url(), protocol=2) as client:
            return client.keys(f"*{url.rpartition('prefix=')[2]}*")
    if engine in ("dynamodb", "s3"):
        client = boto3.session.Session().client(
            engine, region_name="eu-central-1", endpoint_url=aws()
        )
        try:
            if engine == "dynamodb":
                pages = client.get_paginator("list_tables").paginate()
                return any(name in page["TableNames"] for page in pages)
            return client.list_objects_v2(Bucket=urlsplit(url).hostname).get("Contents")
        finally:
            client.close()
    return list(Path(url.removeprefix("file://")).parent.iterdir())


def opened(url: str) -> None:
    holdfast.open(url, create=False)


def opened_async(url: str) -> None:
    async def enter() -> None:
        async with holdfast.aopen(url, create=False):
            pass

    asyncio.run(enter())


def copied(url: str) -> None:
    holdfast.copy(url, "memory://the-copy-of-nothing")


# -- from Python -----------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [opened, opened_async, copied])
@pytest.mark.parametrize("engine", ENGINES)
def test_where_no_store_is_it_is_said_and_nothing_is_made(
    engine: str, look: Callable[[str], None], tmp_path: Path
) -> None:
    url = url_of(engine, tmp_path)
    with pytest.raises(
        holdfast.errors.NotSetUp, match=r"there is no store at .*; check the "
    ) as caught:
        look(url)
    place = (
        str(tmp_path)
        if engine in ("sqlite", "files")
        else url_on(engine, tmp_path).partition("//")[2][:8]
    )
    assert place.partition(":")[0] in str(caught.value)
    assert not traces(engine, url)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_that_is_there_is_opened_and_written_to(engine: str, tmp_path: Path) -> None:
    url = url_of(engine, tmp_path)
    holdfast.open(url).close()
    with holdfast.open(url, create=False) as store:
        store.stream("s").append(("noted", 1))
        assert store.health().streams == {"stream": 1}
    assert traces(engine, url)


def test_a_store_in_memory_is_always_there() -> None:
    with holdfast.open("memory://", create=False) as store:
        assert store.stream("s").append(("noted", 1)).last == 1


def test_a_file_that_was_left_empty_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "agents.db").touch()
    with pytest.raises(holdfast.errors.NotSetUp):
        holdfast.open(tmp_path / "agents.db", create=False)
    assert (tmp_path / "agents.db").stat().st_size == 0


def test_an_empty_table_of_dynamodb_is_no_store_and_stays_empty(tmp_path: Path) -> None:
    from holdfast.backends.dynamodb.table import define_table

    url = url_on("dynamodb", tmp_path)
    name = url.partition("?")[0].rpartition("/")[2]
    client: Any = boto3.session.Session().client(
        "dynamodb", region_name="eu-central-1", endpoint_url=aws()
    )
    client.create_table(**define_table(name))
    with pytest.raises(holdfast.errors.NotSetUp, match="only an empty table"):
        holdfast.open(url, create=False)
    assert client.scan(TableName=name)["Count"] == 0
    holdfast.open(url).close()
    holdfast.open(url, create=False).close()
    client.close()


# -- from a shell ----------------------------------------------------------------------------------

COMMANDS = [
    "health URL",
    "streams URL",
    "read URL s",
    "conversations URL",
    "messages URL c",
    "tasks URL",
    "task URL t",
    "artifact URL t report.pdf --output OUT",
    "resolve URL t s --retry",
    "cancel URL t",
    "retry URL t",
    "retry URL --status failed",
    "questions URL",
    "answer URL t name true",
    "signal URL t paid",
    "sweep URL",
    "replay URL APP t",
    "copy URL OUT",
    "backup URL OUT",
    "memories URL",
    "memories URL m",
    "recall URL m q",
    "forget URL m id",
    "reindex URL m",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("engine", ["sqlite", "files", "postgres", "redis"])
def test_a_command_that_needs_a_store_makes_none(engine: str, command: str, tmp_path: Path) -> None:
    place = tmp_path / "stores"
    place.mkdir()
    names = {"URL": url_of(engine, place), "OUT": str(tmp_path / "out"), "APP": "json.tool"}
    result = run(*(names.get(word, word) for word in command.split()))
    assert result.exit_code == 1, result.output
    assert (
        result.stderr.startswith("holdfast: there is no store at ")
        and result.stderr.count("\n") == 1
    )
    assert not traces(engine, names["URL"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_submit_makes_the_store_and_says_so_once(engine: str, tmp_path: Path) -> None:
    url = url_of(engine, tmp_path).replace("postgres:@", "postgres:s3cret@")
    first, second = run("submit", url, "claims", "c"), run("submit", url, "claims", "c")
    made, submitted = first.output.splitlines()
    assert made.startswith(f"created {url.partition(':')[0]}") and submitted == "submitted c"
    assert "s3cret" not in first.output and second.output == "submitted c again\n"
    assert traces(engine, url.replace("s3cret", ""))


def test_copy_makes_its_destination(tmp_path: Path) -> None:
    holdfast.open(tmp_path / "a.db").close()
    assert run("copy", tmp_path / "a.db", tmp_path / "b.db").exit_code == 0
    assert (tmp_path / "b.db").exists()
