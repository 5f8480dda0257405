"""What a URL says beside the place: how durable, and what of it may be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast
from helpers.engines.redis_server import Server
from helpers.servers import url_on
from holdfast.backends.urls import pop_option, redact_url

SECRET = "s3cret"


@pytest.fixture
def everysec(tmp_path: Path) -> Iterator[Server]:
    """A Redis that syncs once a second, as most are set."""
    server = Server(
        tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "everysec", durable=False
    )
    yield server
    server.kill()


# -- durability ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "files", "postgres"])
def test_the_url_says_how_durable(engine: str, tmp_path: Path) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path}/a.db?", "files": f"file://{tmp_path}/a?"}
    url = urls.get(engine) or url_on("postgres", tmp_path) + "&"
    for told, kept in ((f"{url}durability=process", "process"), (f"{url}durability=disk", "disk")):
        with holdfast.open(told) as store:
            assert store.health().durability == kept


@pytest.mark.parametrize("engine", ["dynamodb", "s3"])
def test_an_engine_that_keeps_more_than_it_is_asked_for_is_taken(
    engine: str, tmp_path: Path
) -> None:
    with holdfast.open(url_on(engine, tmp_path) + "&durability=process") as store:
        assert store.health().durability == "disk"


def test_a_redis_that_syncs_every_second_says_what_to_write_into_the_url_and_takes_it(
    everysec: Server,
) -> None:
    with pytest.raises(holdfast.errors.UnsupportedServer, match=r"\?durability=process"):
        holdfast.open(everysec.url())
    with holdfast.open(everysec.url("?durability=process&prefix=mine")) as store:
        store.stream("s").append(("noted", 1))
        assert store.health().durability == "process"
    with pytest.raises(holdfast.errors.UnsupportedServer):
        holdfast.open(everysec.url("?durability=disk&prefix=mine"))


def test_a_redis_that_syncs_every_second_is_copied_from_and_to(
    everysec: Server, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.stream("s").append(("noted", 1))
    url = everysec.url("?durability=process")
    assert (
        holdfast.copy(tmp_path / "a.db", url).records
        == holdfast.copy(url, tmp_path / "b.db").records
        > 0
    )


def test_url_and_keyword_must_agree(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db?durability=process"
    holdfast.open(url, durability="process").close()
    with pytest.raises(holdfast.errors.InvalidURL, match="one of them"):
        holdfast.open(url, durability="disk")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///a.db?durability=eternal", "'disk', 'process' or 'memory'"),
        ("sqlite:///a.db?durability=disk&durability=disk", "twice"),
        (
            "sqlite:///a.db?durability=disk&mode=rw",
            "no options except 'timeout', 'tracebacks' and 'durability'",
        ),
        ("file:///a?durability=", "'disk', 'process' or 'memory'"),
        ("memory://a?durability=disk", "takes no options"),
        ("redis://host?durability=eternal", "'disk', 'process' or 'memory'"),
    ],
)
def test_a_wrong_option_is_named(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(holdfast.errors.InvalidURL, match=says):
        holdfast.open(url)
    assert list(tmp_path.iterdir()) == []


def test_in_a_path_a_question_mark_is_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.db?durability=process"
    with holdfast.open(str(path)) as store:
        assert store.health().durability == "disk"
    assert path.exists()


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.text("xyz%=", max_size=5)), max_size=6),
    st.sampled_from("abcd"),
)
def test_an_option_is_taken_out_and_the_others_stay_as_they_are(
    pairs: list[tuple[str, str]], name: str
) -> None:
    url = "redis://me@h/0" + ("?" + "&".join(map("=".join, pairs)) if pairs else "")
    mine = [pair for pair in pairs if pair[0] == name]
    if len(mine) > 1:
        with pytest.raises(holdfast.errors.InvalidURL, match="twice"):
            pop_option(url, name)
        return
    rest = [pair for pair in pairs if pair[0] != name]
    left, value = pop_option(url, name)
    assert left == "redis://me@h/0" + ("?" + "&".join(map("=".join, rest)) if rest else "")
    assert (value is None) == (not mine)


# -- what is shown ---------------------------------------------------------------------------------

PIECES = st.text("ab1:/?#@%=&[], host", max_size=6)


@given(PIECES, PIECES, st.booleans())
@example("?host=", "", False)
@example("p@ss/", "", False)
def test_no_part_of_a_password_is_shown_even_if_it_was_not_encoded(
    front: str, back: str, encoded: bool
) -> None:
    password = f"{front}{SECRET}{back}"
    given = quote(password, safe="") if encoded else password
    assert SECRET not in redact_url(f"postgresql://me:{given}@db.internal/agents?schema=x")
    assert SECRET not in redact_url(f"postgresql://me@db.internal/agents?password={given}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("agents.db", "agents.db"),
        ("sqlite:////data/agents.db?durability=process", "sqlite:////data/agents.db"),
        ("postgresql://me:pw@db:5432/agents?sslmode=require", "postgresql://me@db:5432/agents"),
        (
            "postgresql://me:pw@/agents?host=/run/pg&schema=x",
            "postgresql://me@/agents?host=/run/pg&schema=x",
        ),
        ("redis://:pw@h:6379/7?prefix=mine&wait_aof=on", "redis://h:6379/7?prefix=mine"),
        ("postgresql:///agents", "postgresql:///agents"),
        ("file:///data/me@home", "file:///data/me@home"),
        ("s3://bucket/prefix?region=eu-central-1", "s3://bucket/prefix"),
        ("postgresql://me:p@ss/word@db/agents", "postgresql://…"),
        ("redis://pw@h:6379/7", "redis://…@h:6379/7"),
        ("rediss://me:pw@h", "rediss://me@h"),
        ('"postgresql://me:pw@db/agents"', "…"),
        (" postgresql://me:pw@db/agents", "…"),
        ("postgresql//me:pw@db/agents", "…"),
        ("host=db user=me password=pw", "…"),
    ],
)
def test_what_is_shown_says_which_store_it_is(url: str, shown: str) -> None:
    assert redact_url(url) == shown
