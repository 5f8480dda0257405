"""Threads of LangGraph's own savers, imported into a store without creating what they contain."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import holdfast
from helpers.servers import postgres
from holdfast.integrations.langgraph import HoldfastSaver, import_checkpoints
from holdfast.integrations.langgraph import importer as importer_module
from holdfast.testing import fake_clock

from .graphs import Steps, Writer, chat_graph, checkpoint, step_graph, thread
from .test_graphs import extend

THREADS = ("a", "b", "waiting")


class Counted(TypedDict):
    log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)]


def ask(state: Steps) -> Any:
    return {"log": [interrupt("Pay?")]}


def count_graph(saver: Any) -> Any:
    builder = StateGraph(Counted)
    builder.add_node("count", lambda state: {"log": [str(len(state["log"]))]})
    builder.add_edge(START, "count")
    builder.add_edge("count", END)
    return builder.compile(checkpointer=saver)


def fill(saver: Any) -> None:
    for name in ("a", "b"):
        for turn in range(4):
            said = HumanMessage(f"{name} {turn}", id=f"{name}{turn}")
            chat_graph(saver).invoke({"messages": [said]}, thread(name))
    step_graph(saver, [ask]).invoke({"log": ["start"]}, thread("waiting"))
    for turn in range(4):
        count_graph(saver).invoke({"log": [f"turn {turn}"]}, thread("delta"))


@contextmanager
def source_of(kind: str, place: Path) -> Iterator[tuple[str, Any]]:
    """The address of a database with threads in it, and the saver that made it."""
    if kind == "sqlite":
        with closing(sqlite3.connect(place / "old.db", check_same_thread=False)) as connection:
            saver: Any = SqliteSaver(connection)
            fill(saver)
            yield str(place / "old.db"), saver
        return
    name = f"old_{uuid4().hex}"
    with psycopg.connect(postgres(), autocommit=True) as connection_:
        connection_.execute(f"CREATE DATABASE {name}")
    address = postgres().replace("/postgres?", f"/{name}?")
    assert name in address
    with PostgresSaver.from_conn_string(address) as saver:
        saver.setup()
        fill(saver)
        yield address, saver


def history(graph: Any, name: str) -> list[Any]:
    return [
        (one.values, one.next, one.metadata, one.config, one.parent_config, one.tasks)
        for one in graph.get_state_history(thread(name))
    ]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_thread_has_the_same_history_and_goes_on(kind: str, tmp_path: Path) -> None:
    with source_of(kind, tmp_path) as (address, old), holdfast.open(tmp_path / "new.db") as store:
        result = import_checkpoints(address, store)
        assert (result.threads, result.unreadable) == (4, [])
        assert result.checkpoints == len(list(old.list(None)))
        assert str(result).startswith(f"imported {result.checkpoints} checkpoints and ")
        new = HoldfastSaver(store)
        for build, names in ((chat_graph, ("a", "b")), (count_graph, ("delta",))):
            for name in names:
                assert history(build(new), name) == history(build(old), name)
        waiting = [step_graph(saver, [ask]) for saver in (new, old)]
        assert history(waiting[0], "waiting") == history(waiting[1], "waiting")
        assert waiting[0].invoke(Command(resume="yes"), thread("waiting"))["log"] == [
            "start",
            "yes",
        ]
        said = {"messages": [HumanMessage("more")]}
        assert len(chat_graph(new).invoke(said, thread("a"))["messages"]) == 10
        assert count_graph(new).invoke({"log": ["more"]}, thread("delta"))["log"][-2:] == [
            "more",
            "9",
        ]
        assert store.verify().ok


def test_an_import_that_was_cut_off_continues_and_a_second_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer_module, "MAX_BATCH_BYTES", 2000)
    with source_of("sqlite", tmp_path) as (address, old), holdfast.open(tmp_path / "n.db") as store:
        begun: list[str] = []

        def cut_off(name: str) -> None:
            begun.append(name)
            if len(begun) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_checkpoints(address, store, on_thread=cut_off)
        new = HoldfastSaver(store)
        some = len(list(new.list(None)))
        assert 0 < some < len(list(old.list(None)))
        result = import_checkpoints(address, store)
        assert result.checkpoints == len(list(old.list(None))) - some
        assert history(chat_graph(new), "b") == history(chat_graph(old), "b")
        again = import_checkpoints(address, store)
        assert (again.checkpoints, again.writes) == (0, 0)
        # A thread that went on here is not set back.
        chat_graph(new).invoke({"messages": [HumanMessage("more")]}, thread("a"))
        newest = new.get_tuple(thread("a"))
        import_checkpoints(address, store)
        assert new.get_tuple(thread("a")) == newest


class Bomb:
    """A class whose creation would be noticed."""

    created = 0

    def __init__(self, number: int = 0) -> None:
        Bomb.created += 1

    def model_dump(self) -> dict[str, int]:
        return {"number": 7}


def test_nothing_in_the_source_is_created_while_it_is_imported(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db", check_same_thread=False)) as connection:
        serde = JsonPlusSerializer(pickle_fallback=True)
        writer = Writer(SqliteSaver(connection, serde=serde))
        writer.save({"bombs": [Bomb(), Bomb()]})
        writer.saver.put_writes(writer.config, [("bombs", Bomb())], "task")
        writer.saver.put_writes(writer.config, [("odd", {1j})], "pickled")
    Bomb.created = 0
    with holdfast.open(tmp_path / "new.db") as store:
        result = import_checkpoints(tmp_path / "old.db", store)
        assert (result.checkpoints, result.writes, Bomb.created) == (1, 2, 0)
        with holdfast.open(tmp_path / "new.db") as other:
            found = HoldfastSaver(other, types=[Bomb], serde=None).get_tuple
            with pytest.raises(NotImplementedError, match="pickle"):
                found(thread())  # the pickled write is there, and nothing unpickles it
        assert Bomb.created > 0  # the classes that were allowed


def test_a_checkpoint_that_only_code_could_read_is_named_and_left_out(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db", check_same_thread=False)) as connection:
        writer = Writer(SqliteSaver(connection))
        kept = writer.save({"n": 1})
        made = checkpoint({"n": 2})
        bad = writer.saver.put(kept, made, {}, made["channel_versions"])
        bad_id = bad["configurable"]["checkpoint_id"]
        connection.execute(
            "UPDATE checkpoints SET type = 'pickle' WHERE checkpoint_id = ?", [bad_id]
        )
        connection.commit()
    with holdfast.open(tmp_path / "new.db") as store:
        result = import_checkpoints(tmp_path / "old.db", store)
        assert result.checkpoints == 1
        assert len(result.unreadable) == 1
        assert bad_id in result.unreadable[0] and "'pickle'" in result.unreadable[0]
        assert str(result).endswith("; left out 1")
        assert [one.config for one in HoldfastSaver(store).list(None)] == [kept]


def test_an_import_redacts_what_it_stores(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db", check_same_thread=False)) as connection:
        said = {"messages": [HumanMessage("card 4111 1111 1111 1111", id="1")]}
        chat_graph(SqliteSaver(connection)).invoke(said, thread())
    with holdfast.open(tmp_path / "new.db", redact=True) as store:
        import_checkpoints(tmp_path / "old.db", store)
        found = HoldfastSaver(store).get_tuple(thread())
        assert found is not None
        messages = found.checkpoint["channel_values"]["messages"]
        assert messages[0] == HumanMessage("card [redacted: card]", id="1")


def test_an_import_starts_an_expired_thread_again(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db", check_same_thread=False)) as connection:
        Writer(SqliteSaver(connection)).save({"n": 1})
    with fake_clock() as clock, holdfast.open(tmp_path / "new.db") as store:
        Writer(HoldfastSaver(store, ttl=60)).save({"n": 0})
        clock.advance(100)
        assert import_checkpoints(tmp_path / "old.db", store).checkpoints == 1
        [found] = HoldfastSaver(store).list(None)
    assert found.checkpoint["channel_values"] == {"n": 1}


def test_an_import_redacts_by_the_names_of_channels(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db", check_same_thread=False)) as connection:
        writer = Writer(SqliteSaver(connection))
        writer.save({"api_key": "hunter2"})
        writer.saver.put_writes(writer.config, [("api_key", "hunter3")], "task")
    with holdfast.open(tmp_path / "new.db", redact=True) as store:
        import_checkpoints(tmp_path / "old.db", store)
        found = HoldfastSaver(store).get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"api_key": "[redacted: api_key]"}
    assert found.pending_writes == [("task", "api_key", "[redacted: api_key]")]


def test_a_source_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        with pytest.raises(ValueError, match="must be an SQLite file or a postgresql:// URL"):
            import_checkpoints(tmp_path / "missing.db", store)
        sqlite3.connect(tmp_path / "empty.db").close()
        (tmp_path / "text.db").write_text("not a database, but long enough to look like a file")
        for name in ("empty.db", "text.db"):
            with pytest.raises(ValueError, match="no checkpoints of LangGraph"):
                import_checkpoints(tmp_path / name, store)
