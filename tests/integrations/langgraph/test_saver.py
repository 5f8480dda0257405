"""What a saver stores, gives back and forgets."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import holdfast
from helpers.example_counts import examples
from holdfast.errors import NotSerializable
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph.values import ValueCodec
from holdfast.testing import fake_clock

from .graphs import Writer, checkpoint, thread

STREAM = "langgraph/thread/t"
STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)


def events(store: holdfast.Store) -> list[Any]:
    return [(event.type, event.data) for event in store.stream(STREAM).read()]


def stored_bytes(store: holdfast.Store) -> list[int]:
    return [len(json.dumps(data)) for _, data in events(store)]


def values_of(saver: HoldfastSaver, config: Any = None) -> Any:
    found = saver.get_tuple(config or thread())
    assert found is not None
    return found.checkpoint["channel_values"]


# -- only what changed -----------------------------------------------------------------------------


def test_of_a_growing_list_only_the_new_items_are_stored(store: holdfast.Store) -> None:
    writer = Writer(HoldfastSaver(store))
    messages = [HumanMessage("word " * 50, id=str(n)) for n in range(200)]
    writer.save({"messages": messages})
    for n in range(200, 210):
        messages = [*messages, HumanMessage("word " * 50, id=str(n))]
        writer.save({"messages": messages})
    first, *others = stored_bytes(store)
    assert first > 200 * 250
    assert max(others) < 1000
    assert values_of(writer.saver) == {"messages": messages}


def test_a_window_that_slides_over_a_list_stores_only_what_enters_it(store: holdfast.Store) -> None:
    writer = Writer(HoldfastSaver(store))
    for start in range(5):
        window = [HumanMessage("word " * 50, id=str(n)) for n in range(start, start + 100)]
        writer.save({"messages": window})
    assert max(stored_bytes(store)[1:]) < 1000
    assert values_of(writer.saver) == {"messages": window}


def test_of_a_large_dict_only_the_changed_keys_are_stored(store: holdfast.Store) -> None:
    writer = Writer(HoldfastSaver(store))
    files = {f"file-{n}": "word " * 100 for n in range(50)}
    writer.save({"files": files})
    writer.save({"files": {**files, "file-7": "changed"}})
    assert stored_bytes(store)[1] < 500
    assert values_of(writer.saver) == {"files": {**files, "file-7": "changed"}}
    assert list(values_of(writer.saver)["files"]) == list(files)


def test_a_channel_with_the_same_version_is_not_stored_again(store: holdfast.Store) -> None:
    saver = HoldfastSaver(store)
    document = "word " * 1000
    first = checkpoint({"document": document, "n": 1})
    config = saver.put(thread(), first, {}, first["channel_versions"])
    second = checkpoint({"document": document, "n": 2})
    second["channel_versions"] = {"document": 1, "n": 2}
    saver.put(config, second, {}, {"n": 2})
    assert stored_bytes(store)[1] < 300
    assert values_of(saver) == {"document": document, "n": 2}


def test_equal_large_values_are_stored_once(tmp_path: Path) -> None:
    picture = b"picture" * 30_000
    with holdfast.open(tmp_path / "agents.db") as store:
        saver = HoldfastSaver(store)
        for name in ("a", "b"):
            writer = Writer(saver)
            writer.save({name: picture, "messages": [HumanMessage("x" * 100_000, id="1")]})
        saver.put_writes(writer.config, [("messages", [HumanMessage("x" * 100_000, id="1")])], "t1")
        assert store.health().streams["blob"] == 2
    with holdfast.open(tmp_path / "agents.db") as store:
        found = HoldfastSaver(store).get_tuple(thread())
        assert found is not None and found.pending_writes is not None
        assert found.checkpoint["channel_values"]["b"] == picture
        assert found.pending_writes[0][2] == found.checkpoint["channel_values"]["messages"]


# -- exact values ----------------------------------------------------------------------------------

MESSAGES = st.builds(
    lambda kind, text, more, name, number, metadata: kind(
        content=text, additional_kwargs=more, name=name, id=number, response_metadata=metadata
    ),
    st.sampled_from(
        [
            HumanMessage,
            AIMessage,
            SystemMessage,
            lambda **fields: ToolMessage(tool_call_id="call", artifact={"n": [1]}, **fields),
            lambda **fields: ChatMessage(role="critic", **fields),
            lambda **fields: FunctionMessage(**{**fields, "name": "f"}),
            lambda **fields: AIMessage(
                **fields, tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}]
            ),
            lambda **fields: HumanMessage(**fields, extra_field={"a": [1, None]}),
        ]
    ),
    st.text(max_size=5)
    | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()})),
    st.dictionaries(
        st.text(max_size=3), st.integers(-5, 5) | st.booleans() | st.none(), max_size=2
    ),
    st.none() | st.text(min_size=1, max_size=3),
    st.none() | st.text(min_size=1, max_size=3),
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False) | st.text(), max_size=2),
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(60))
@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_messages_come_back_as_the_serializer_would_load_them(messages: list[Any]) -> None:
    codec = ValueCodec(STRICT)
    stored = codec.build(messages)
    for _ in range(2):  # from the stored bytes, then from what is remembered of them
        loaded = codec.load(stored)
        expected = [STRICT.loads_typed(STRICT.dumps_typed(message)) for message in messages]
        assert loaded == expected
        for one, other in zip(loaded, expected, strict=True):
            assert type(one) is type(other)
            assert one.__dict__ == other.__dict__
            assert one.model_fields_set == other.model_fields_set
            assert one.__pydantic_extra__ == other.__pydantic_extra__


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (AIMessage("a"), {"additional_kwargs": None}),
        (AIMessage("a"), {"tool_calls": {}, "usage_metadata": {}, "id": None}),
        (AIMessage("a"), {"content": None}),
        (AIMessage("a"), {"content": [], "response_metadata": []}),
        (AIMessage("a"), {"type": "other"}),
        (HumanMessage("a"), {"name": 1}),
        (HumanMessage("a"), {"id": 1}),
        (ToolMessage("a", tool_call_id="c"), {"content": None}),
        (ToolMessage("a", tool_call_id="c"), {"content": {}}),
        (ToolMessage("a", tool_call_id="c"), {"status": "unknown", "tool_call_id": None}),
        (FunctionMessage("a", name="f"), {"name": None}),
    ],
)
def test_a_message_that_is_not_valid_comes_back_as_the_serializer_loads_it(
    message: Any, changes: dict[str, Any]
) -> None:
    message.__dict__.update(changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic warns about them
        stored = ValueCodec(STRICT).build([message])
        expected = STRICT.loads_typed(STRICT.dumps_typed(message))
    [loaded] = ValueCodec(STRICT).load(stored)
    assert type(loaded) is type(expected)
    assert loaded.__dict__ == expected.__dict__
    assert loaded.__pydantic_extra__ == (expected.__pydantic_extra__ or {})
    assert loaded.model_fields_set == expected.model_fields_set


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(PLAIN | MESSAGES, max_size=6) | PLAIN, min_size=1, max_size=6), st.booleans()
)
def test_each_version_of_a_channel_comes_back_exactly(versions: list[Any], reopen: bool) -> None:
    name = f"memory://{threading.get_ident()}"
    with holdfast.open(name) as store:
        writer = Writer(HoldfastSaver(store))
        configs = [writer.save({"c": value}) for value in versions]
        with holdfast.open(name) as other:  # it has read nothing yet
            saver = HoldfastSaver(other if reopen else store)
            for config, value in zip(configs, versions, strict=True):
                assert values_of(saver, config) == {"c": value}
        writer.saver.delete_thread("t")


def test_a_value_changed_in_place_after_it_was_loaded_or_saved_changes_nothing_that_is_stored(
    store: holdfast.Store,
) -> None:
    saver = HoldfastSaver(store)
    writer = Writer(saver)
    message = AIMessage("kept", id="1", additional_kwargs={"a": [1]})
    before = writer.save({"messages": [message]})
    message.content = "changed"
    message.additional_kwargs["a"].append(2)
    assert values_of(saver)["messages"] == [AIMessage("kept", id="1", additional_kwargs={"a": [1]})]
    loaded = values_of(saver)["messages"]
    loaded[0].additional_kwargs["a"].append(3)
    assert values_of(saver)["messages"][0].additional_kwargs == {"a": [1]}
    # What a node changed in place is part of the next checkpoint, and of no earlier one.
    writer.save({"messages": [*loaded, AIMessage("new", id="2")]})
    assert values_of(saver)["messages"][0].additional_kwargs == {"a": [1, 3]}
    assert values_of(saver, before)["messages"][0].additional_kwargs == {"a": [1]}


USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


class Incomparable:
    """What refuses to be compared, as an array does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: setattr(one, "content", "another text"),
        lambda one: setattr(one, "content", [{"type": "text", "text": "kept"}]),
        lambda one: setattr(one, "name", ""),
        lambda one: one.additional_kwargs.update(new=""),
        lambda one: one.response_metadata.update(flag=True),  # it equals 1
        lambda one: one.response_metadata.update(flag=1.0),
        lambda one: one.response_metadata.setdefault("usage", []).append(0),
        lambda one: one.response_metadata.update(usage=one.response_metadata.pop("usage", None)),
        lambda one: one.tool_calls.append(
            {"name": "f", "args": {}, "id": "c", "type": "tool_call"}
        ),
        lambda one: setattr(one, "hint", 1),  # a field that the class does not have
        lambda one: setattr(one, "usage_metadata", USAGE),
    ],
)
@pytest.mark.parametrize("place", [0, 99])
def test_a_message_that_a_node_changed_in_place_is_stored_exactly(
    tmp_path: Path, change: Any, place: int
) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        expected, extra = save_changed(HoldfastSaver(store), change, place)
        with holdfast.open(path) as other:  # it has read nothing yet
            for reader in (HoldfastSaver(store), HoldfastSaver(other)):
                found = values_of(reader)["messages"]
                assert [repr(message.__dict__) for message in found] == expected
                assert found[place].__pydantic_extra__ == extra


def save_changed(saver: HoldfastSaver, change: Any, place: int) -> tuple[list[str], Any]:
    """Save messages, change one in place, and save them again. Return what they then contain."""
    writer = Writer(saver)
    metadata = {"flag": 1, "usage": [1], "model": "m"}
    before = [
        AIMessage("kept", id=str(n), response_metadata={} if n % 2 else metadata)
        for n in range(100)
    ]
    writer.save({"messages": before})
    messages = values_of(saver)["messages"]
    messages.append(AIMessage("more", id="a"))
    writer.save({"messages": messages})  # now they were compared once
    change(messages[place])
    expected = [repr(message.__dict__) for message in messages]
    writer.save({"messages": messages})
    return expected, messages[place].__pydantic_extra__


def test_a_message_that_cannot_be_compared_is_left_to_the_serializer(store: holdfast.Store) -> None:
    saver = HoldfastSaver(store)
    writer = Writer(saver)
    writer.save({"messages": [AIMessage("kept", id="1", response_metadata={"a": "b"})]})
    messages = values_of(saver)["messages"]
    messages[0].response_metadata["a"] = Incomparable()
    with pytest.raises(TypeError, match="not msgpack serializable"):
        writer.save({"messages": messages})
    assert values_of(saver)["messages"][0].response_metadata == {"a": "b"}


def test_messages_of_two_threads_and_tenants_are_never_the_same_objects(
    store: holdfast.Store,
) -> None:
    message = AIMessage("kept", id="1", additional_kwargs={"a": []})
    savers = [HoldfastSaver(store), HoldfastSaver(store.for_tenant("other"))]
    for saver in savers:
        for name in ("t", "u"):
            Writer(saver, name).save({"messages": [message]})
    for saver in savers:
        for name in ("t", "u"):
            [loaded] = values_of(saver, thread(name))["messages"]
            assert loaded.additional_kwargs == {"a": []}
            loaded.additional_kwargs["a"].append(name)
            loaded.content = "changed"
            [again] = values_of(saver, thread(name))["messages"]
            assert again == message


@dataclass
class Order:
    number: int


def test_a_class_that_could_not_be_loaded_is_refused_before_anything_is_stored(
    store: holdfast.Store,
) -> None:
    writer = Writer(HoldfastSaver(store))
    with pytest.raises(NotSerializable, match=r"class .*\.Order, .*types=\[Order\]"):
        writer.save({"order": Order(7)})
    assert writer.saver.get_tuple(thread()) is None
    allowed = Writer(HoldfastSaver(store, types=[Order]))
    allowed.save({"order": Order(7), "orders": [Order(8)]})
    assert values_of(allowed.saver) == {"order": Order(7), "orders": [Order(8)]}


def test_stored_data_never_loads_a_class_that_was_not_allowed(store: holdfast.Store) -> None:
    Writer(HoldfastSaver(store, types=[Order])).save({"order": Order(7)})
    assert values_of(HoldfastSaver(store)) == {"order": {"number": 7}}


def test_a_serializer_of_the_user_is_used_as_it_is(store: holdfast.Store) -> None:
    key = b"0123456789abcdef"
    writer = Writer(HoldfastSaver(store, serde=EncryptedSerializer.from_pycryptodome_aes(key=key)))
    messages = [HumanMessage(f"secret {n}", id=str(n)) for n in range(20)]
    writer.save({"messages": messages})
    writer.save({"messages": [*messages, HumanMessage("more", id="more")]})
    assert values_of(writer.saver)["messages"] == [*messages, HumanMessage("more", id="more")]
    sizes = stored_bytes(store)
    assert sizes[1] < sizes[0] / 4  # they are compared without encryption
    with pytest.raises(TypeError, match="types= is for the default serializer"):
        HoldfastSaver(store, serde=STRICT, types=[Order])


def test_metadata_that_json_cannot_express_comes_back_too(store: holdfast.Store) -> None:
    writer = Writer(HoldfastSaver(store))
    writer.save({"n": 1}, tags={"a", "b"})
    writer.save({"n": 2}, tags=["a"])
    found = list(writer.saver.list(thread(), filter={"tags": {"a", "b"}}))
    assert [one.checkpoint["channel_values"] for one in found] == [{"n": 1}]


@pytest.mark.parametrize("depth", [80, 98, 120])
def test_deep_metadata_can_be_read_again(tmp_path: Path, depth: int) -> None:
    note: Any = "end"
    for _ in range(depth):
        note = [note]
    with holdfast.open(tmp_path / "a.db") as store:
        Writer(HoldfastSaver(store)).save({"n": 1}, note=note)
    with holdfast.open(tmp_path / "a.db") as store:
        found = HoldfastSaver(store).get_tuple(thread())
    assert found is not None and found.metadata["note"] == note  # type: ignore[typeddict-item]


# -- redaction, tenants, expiry --------------------------------------------------------------------


def test_redaction_reaches_into_messages_writes_and_metadata() -> None:
    card = "card 4111 1111 1111 1111"
    with holdfast.open("memory://", redact=True) as store:
        writer = Writer(HoldfastSaver(store))
        writer.save({"messages": [HumanMessage(card)], "odd": {1: card, "n": 1}}, note=card)
        writer.saver.put_writes(writer.config, [("messages", [AIMessage(card)])], "task")
        found = writer.saver.get_tuple(thread())
    assert found is not None and found.pending_writes is not None
    hidden = "card [redacted: card]"
    assert found.checkpoint["channel_values"]["messages"] == [HumanMessage(hidden)]
    assert found.checkpoint["channel_values"]["odd"] == {1: hidden, "n": 1}
    assert found.pending_writes[0][2] == [AIMessage(hidden)]
    assert found.metadata["note"] == hidden  # type: ignore[typeddict-item]
    with holdfast.open("memory://", redact=True) as store:
        with pytest.raises(TypeError, match="can't be redacted"):
            serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
            HoldfastSaver(store, serde=serde)


def test_redaction_goes_by_the_names_of_channels_and_of_keys() -> None:
    large = {"password": "hunter2", "filler": "x" * 3000}
    state = {
        "api_key": "hunter2",
        "config": large,
        "by_number": {1: {"password": "hunter2"}, "token": "hunter2"},
        "headers": [["authorization", "hunter2"], ["accept", "text/plain"]],
        "arguments": ["curl", "--password", "hunter2"],
        "secrets": [{"of": "hunter2"}],
        "branch:to:token": "a node",
    }
    with holdfast.open("memory://", redact=True) as store:
        writer = Writer(HoldfastSaver(store))
        writer.save(state)
        writer.save({**state, "config": {**large, "cookie": "hunter2"}})
        writer.saver.put_writes(writer.config, list(state.items()), "task")
        found = list(writer.saver.list(thread()))
    assert "hunter2" not in repr(found)
    assert found[0].checkpoint["channel_values"] == {
        "api_key": "[redacted: api_key]",
        "config": {**large, "password": "[redacted: password]", "cookie": "[redacted: cookie]"},
        "by_number": {1: {"password": "[redacted: password]"}, "token": "[redacted: token]"},
        "headers": [["authorization", "[redacted: authorization]"], ["accept", "text/plain"]],
        "arguments": ["curl", "--password", "[redacted: password]"],
        "secrets": [{"of": "[redacted: secret]"}],
        "branch:to:token": "a node",
    }


def test_each_tenant_has_threads_of_its_own(store: holdfast.Store) -> None:
    Writer(HoldfastSaver(store)).save({"n": 1})
    other = HoldfastSaver(store.for_tenant("other"))
    assert other.get_tuple(thread()) is None
    assert list(other.list(None)) == []
    Writer(other).save({"n": 2})
    other.delete_thread("t")
    assert values_of(HoldfastSaver(store)) == {"n": 1}


def test_a_thread_expires_after_its_last_checkpoint_and_can_start_again(tmp_path: Path) -> None:
    with fake_clock() as clock, holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store, ttl=60)
        writer = Writer(saver)
        writer.save({"n": 1})
        clock.advance(50)
        writer.save({"n": 2})
        clock.advance(50)
        assert values_of(saver) == {"n": 2}
        clock.advance(20)
        assert saver.get_tuple(thread()) is None
        assert list(saver.list(None)) == []
        Writer(saver).save({"n": 3})
        assert [one.checkpoint["channel_values"] for one in saver.list(thread())] == [{"n": 3}]
        clock.advance(100)
        assert [one.id for one in store.sweep(grace=0).deleted] == [STREAM]
        Writer(saver).save({"n": 4})
        assert values_of(saver) == {"n": 4}
        assert store.verify().ok


# -- lists, copies, pruning ------------------------------------------------------------------------


def test_without_a_config_the_checkpoints_of_all_threads_are_listed_newest_first(
    store: holdfast.Store,
) -> None:
    saver = HoldfastSaver(store)
    writers = [Writer(saver, name) for name in ("a", "b")]
    made = [writer.save({"n": n}) for n in range(3) for writer in writers]
    assert [one.config for one in saver.list(None)] == made[::-1]
    assert [one.config for one in saver.list(None, limit=2)] == made[:-3:-1]
    assert [one.config for one in saver.list(None, before=made[2])] == made[1::-1]
    assert list(saver.list(None, limit=0)) == []


def test_a_copy_goes_on_independently_also_onto_a_thread_that_exists(store: holdfast.Store) -> None:
    saver = HoldfastSaver(store)
    Writer(saver, "target").save({"messages": ["old"]})
    writer = Writer(saver)
    for n in range(3):
        writer.save({"messages": [f"{m}" for m in range(n + 1)], "large": "x" * 100_000})
    saver.copy_thread("t", "target")
    assert len(list(saver.list(thread("target")))) == 4
    assert values_of(saver, thread("target"))["messages"] == ["0", "1", "2"]
    saver.delete_thread("t")
    assert values_of(saver, thread("target"))["large"] == "x" * 100_000
    assert store.verify().ok
    with pytest.raises(ValueError, match="must be another thread"):
        saver.copy_thread("target", "target")


def test_pruning_frees_the_space_of_old_checkpoints(store: holdfast.Store) -> None:
    saver = HoldfastSaver(store)
    writer = Writer(saver)
    for n in range(20):
        writer.save({"messages": [HumanMessage("word " * 100, id=str(m)) for m in range(n, n + 5)]})
    saver.put_writes(writer.config, [("messages", "pending")], "task")
    expected, before = saver.get_tuple(thread()), sum(stored_bytes(store))
    assert expected is not None
    saver.prune(["t"])
    found = saver.get_tuple(thread())
    assert found == expected._replace(parent_config=None)
    assert sum(stored_bytes(store)) < before / 3
    assert [one.config for one in saver.list(thread())] == [writer.config]
    writer.save({"messages": ["on"]})
    assert len(list(saver.list(thread()))) == 2
    assert store.verify().ok
    with pytest.raises(ValueError, match="strategy must be one of keep_latest, delete, got 'all'"):
        saver.prune(["t"], strategy="all")


def test_deleting_runs_keeps_the_others_small(store: holdfast.Store) -> None:
    saver = HoldfastSaver(store)
    writer = Writer(saver)
    messages = [HumanMessage("word " * 100, id=str(n)) for n in range(30)]
    for n in range(1, 31):
        writer.save({"messages": messages[:n]}, run_id="odd" if n % 2 else "even")
    expected = [one.checkpoint for one in saver.list(thread(), filter={"run_id": "even"})]
    before = sum(stored_bytes(store))
    saver.delete_for_runs(["odd"])
    assert [one.checkpoint for one in saver.list(thread())] == expected
    assert sum(stored_bytes(store)) < before


@pytest.mark.parametrize("dies_at", ["audit", "delete", "append", "spare"])
def test_pruning_that_was_cut_off_is_finished_by_whoever_looks_for_the_thread(
    tmp_path: Path, dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.integrations.langgraph import operations

    class Died(BaseException):
        pass

    with holdfast.open(tmp_path / "a.db") as store:
        writer = Writer(HoldfastSaver(store))
        for n in range(5):
            writer.save({"n": n, "large": "x" * 100_000 * n})
        real = {
            name: getattr(operations, name)
            for name in ("append_audit_event", "append_events", "delete_stream")
        }
        appended: list[str] = []

        def audit(*args: Any) -> Any:
            if dies_at == "audit":
                raise Died
            result = yield from real["append_audit_event"](*args)
            if dies_at == "delete":
                raise Died
            return result

        def append(key: Any, *args: Any, **more: Any) -> Any:
            appended.append(key.id)
            if len(appended) == 2 and dies_at == "append":
                raise Died
            return (yield from real["append_events"](key, *args, **more))

        def delete(key: Any, *args: Any) -> Any:
            if len(appended) == 2 and dies_at == "spare":
                raise Died
            return (yield from real["delete_stream"](key, *args))

        monkeypatch.setattr(operations, "append_audit_event", audit)
        monkeypatch.setattr(operations, "append_events", append)
        monkeypatch.setattr(operations, "delete_stream", delete)
        with pytest.raises(Died):
            writer.saver.prune(["t"])
        monkeypatch.undo()
    with holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store)
        left = [one.checkpoint["channel_values"]["n"] for one in saver.list(None)]
        assert left == ([4] if dies_at in ("append", "spare") else [4, 3, 2, 1, 0])
        assert values_of(saver)["large"] == "x" * 400_000
        saver.prune(["t"])
        assert [one.checkpoint["channel_values"]["n"] for one in saver.list(None)] == [4]
        assert store.verify().ok
        saver.delete_thread("t")
        assert list(saver.list(None)) == []


def test_a_thread_expires_as_before_after_it_was_pruned_and_so_does_a_copy(tmp_path: Path) -> None:
    with fake_clock() as clock, holdfast.open(tmp_path / "a.db") as store:
        saver = HoldfastSaver(store, ttl=60)
        writer = Writer(saver)
        for n in range(3):
            writer.save({"n": n})
        clock.advance(30)
        saver.prune(["t"])
        saver.copy_thread("t", "copy")
        clock.advance(40)
        assert saver.get_tuple(thread()) is None
        assert values_of(saver, thread("copy")) == {"n": 2}
        Writer(saver, "new").save({"n": 9})
        clock.advance(50)
        assert saver.get_tuple(thread("copy")) is None
        saver.copy_thread("new", "copy")  # onto one that has expired, and is still there
        assert values_of(saver, thread("copy")) == {"n": 9}


def test_pruning_that_two_finish_at_once_is_finished_once(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.integrations.langgraph import operations

    saver = HoldfastSaver(store)
    writer = Writer(saver)
    for n in range(3):
        writer.save({"n": n})
    real = operations._finish_pruning
    others: list[Any] = []

    def finish(key: Any, stamp: Any) -> Any:
        steps = real(key, stamp)
        head = yield next(steps)
        if not others and head is not None:  # the second stream is there: another one is faster
            others.append((yield from real(key, stamp)))
        step = steps.send(head)
        while True:
            try:
                step = steps.send((yield step))
            except StopIteration as end:
                return end.value

    monkeypatch.setattr(operations, "_finish_pruning", finish)
    saver.prune(["t"])
    assert others and others[0] is not None
    assert [one.checkpoint["channel_values"] for one in saver.list(None)] == [{"n": 2}]


# -- concurrency -----------------------------------------------------------------------------------


def test_writers_with_stores_of_their_own_lose_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    holdfast.open(url).close()

    def work(name: str) -> None:
        with holdfast.open(url) as store:
            writer = Writer(HoldfastSaver(store))
            for n in range(10):
                writer.save({"messages": [f"{name} {m}" for m in range(n + 1)]}, by=name)
                writer.saver.put_writes(writer.config, [("messages", n)], f"task {name}")

    workers = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with holdfast.open(url) as store:
        saver = HoldfastSaver(store)
        for name in "abcd":
            found = list(saver.list(thread(), filter={"by": name}))
            assert [one.checkpoint["channel_values"]["messages"] for one in found] == [
                [f"{name} {m}" for m in range(n)] for n in range(10, 0, -1)
            ]
            assert [one.pending_writes for one in found] == [
                [(f"task {name}", "messages", n)] for n in range(9, -1, -1)
            ]
        assert store.verify().ok


def test_a_thread_that_another_process_deleted_or_pruned_is_not_mixed_with_what_is_remembered(
    tmp_path: Path,
) -> None:
    url = str(tmp_path / "agents.db")
    with holdfast.open(url) as store, holdfast.open(url) as other:
        mine, others = Writer(HoldfastSaver(store)), HoldfastSaver(other)
        mine.save({"messages": ["a", "b"]})
        others.delete_thread("t")
        mine.save({"messages": ["a", "b", "c"]})  # nothing to build on
        assert values_of(others) == {"messages": ["a", "b", "c"]}
        mine.save({"messages": ["a", "b", "c", "d"]})
        others.prune(["t"])
        mine.saver.put_writes(mine.config, [("messages", "e")], "task")
        mine.save({"messages": ["a", "b", "c", "d", "e"]})
        assert values_of(others) == {"messages": ["a", "b", "c", "d", "e"]}
        assert [len(one.pending_writes or ()) for one in others.list(thread())] == [0, 1]


def test_sync_and_async_calls_of_one_saver_see_the_same(store: holdfast.Store) -> None:
    for given_store in (store, store.aio):
        saver = HoldfastSaver(given_store)
        writer = Writer(saver)
        config = writer.save({"n": 1})

        async def check(saver: HoldfastSaver = saver, config: Any = config) -> None:
            found = await saver.aget_tuple(config)
            assert found == saver.get_tuple(config)
            assert [one async for one in saver.alist(None)] == list(saver.list(None))
            await saver.adelete_thread("t")

        asyncio.run(check())
        assert saver.get_tuple(thread()) is None


def test_a_saver_says_what_it_needs() -> None:
    with pytest.raises(TypeError, match=r'open store, like holdfast.open\("agents.db"\), got str'):
        HoldfastSaver("agents.db")  # type: ignore[arg-type]


def test_an_unsupported_version_is_refused_with_what_to_install() -> None:
    from holdfast.integrations.langgraph.versions import check_version

    for version in ("3.9.1", "4.2.0", "5.0.0"):
        with pytest.raises(ImportError, match=f"got {version}: pip install 'langgraph>=1.2,<2'"):
            check_version(version)
    check_version("4.3.1")
