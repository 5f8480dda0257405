"""Redaction: what is to be taken out is nowhere in the store and in no log, and what you get is
what you will get again."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, SecretBytes, SecretStr

import holdfast
from helpers.run_cli import run
from helpers.sync_and_async import Ways, view
from holdfast import StepFailed, Store, keys
from holdfast._open import open_backend
from holdfast.errors import IdReused, NotSerializable, ReplayMismatch
from holdfast.log import operations as ops
from holdfast.log.operations.stream_ops import audit_key
from holdfast.redact import Redactor
from holdfast.tasks.redaction import CONTENT
from holdfast.tasks.state import events as ev

CARD, KEY, PASSWORD, MAIL = (
    "4111 1111 1111 1111",
    "sk-proj-cANARY0123456789abcdef",
    "hunter2-canary",
    "canary@example.com",
)
TEXT = f"pay with {CARD}, ask {MAIL}, use {KEY}"
STORED = "pay with [redacted: card], ask [redacted: email], use [redacted: key]"
VALUE = {
    "text": TEXT,
    "deep": [{"password": PASSWORD}],
    "arguments": f'{{"api_key": "{PASSWORD}"}}',
}
STORED_VALUE = {
    "text": STORED,
    "deep": [{"password": "[redacted: password]"}],
    "arguments": '{"api_key":"[redacted: api_key]"}',
}
LARGE = [TEXT] * 1000
SECRETS = [CARD, "1111 1111", KEY, "cANARY", PASSWORD, MAIL]


def say(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def watched(backend: Any) -> Any:
    """A backend that notes everything it is ever given."""
    append, seen = backend.append, list[str]()

    def noting(appends: Sequence[Any]) -> Any:
        seen.extend(map(repr, appends))
        return append(appends)

    backend.append, backend.seen = noting, seen
    return backend


@pytest.fixture
def backend(url: str) -> Any:
    return watched(open_backend(url, None, create=True))


@pytest.fixture
def store(backend: Any) -> Iterator[Store]:
    with holdfast.open(backend, redact=True) as store:
        yield store


@pytest.fixture(params=["plain", "async"])
def ways(request: pytest.FixtureRequest, store: Store) -> Ways:
    return Ways(store, asynchronous=request.param == "async")


def found_in(backend: Any, folder: Path) -> list[str]:
    everything = "\n".join(backend.seen)
    files = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [secret for secret in SECRETS if secret in everything or secret.encode() in files]


# -- nowhere ---------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    note: str


def failing() -> None:
    raise ValueError(f"{TEXT} password={PASSWORD}")


def saves(cursor: Any) -> None:
    step = holdfast.current_step()
    step.save(cursor, flush=True)
    assert step.cursor == STORED_VALUE


def conversations(store: Store) -> None:
    chat = store.conversation("chat")
    chat.append(say(TEXT), meta={"token": PASSWORD})
    chat.append({"role": "user", "content": LARGE})
    chat.sync([say(TEXT), {"role": "user", "content": LARGE}, say(TEXT, "assistant"), say(TEXT)])
    chat.summarize(lambda messages: TEXT, keep_last=1)
    for piece in (TEXT[:12], TEXT[12:20], TEXT[20:], " and so on.\n", "the rest"):
        chat.draft(piece, of="answer")
    chat.repair()
    with chat.turn() as turn:
        turn.append(say(TEXT))
    fork = chat.fork("fork")
    fork.append(say(TEXT))
    fork.delete(reason=TEXT)
    chat.delete(reason=TEXT)


def imported(store: Store, folder: Path) -> None:
    path = folder.parent / "messages.json"
    path.write_bytes(msgspec.json.encode([say(TEXT), say(TEXT)]))
    store.conversation("imported").import_json(path)


def tasks(store: Store) -> None:
    with store.task("task", goal=TEXT, input=VALUE, agent="agent") as task:
        task.make_plan([TEXT, {"name": "b", "why": TEXT}])
        task.replan(["c", TEXT])
        task.step("one", lambda: VALUE)
        task.step("large", lambda: LARGE)
        task.step("saves", saves, VALUE)
        for kind in ("failing", "again"):
            with pytest.raises(StepFailed):
                task.step(kind, failing)
        task.decide(TEXT, why=TEXT)
        task.discover(TEXT)
        task.remember(TEXT, meta=VALUE)
        task.conversation("said").append(say(TEXT))
        task.reply("said", lambda chat: say(TEXT, "assistant"))
        task.step("model", model, [*task.conversation("said").messages(), say(TEXT, "system")])
        list(task.step("stream", streaming))
        task.finish(VALUE, remember=lambda view: [TEXT, {"text": TEXT + "!", "meta": VALUE}])
    for how in ("raise", "fail", "cancel"):
        try:
            with store.task(how, goal=TEXT, agent="agent") as task:
                {
                    "raise": failing,
                    "fail": lambda: task.fail(TEXT),
                    "cancel": lambda: task.cancel(TEXT),
                }[how]()
        except ValueError:
            pass
    store.task("fail").delete(reason=TEXT)


@holdfast.step(kind="model")
def model(messages: list[Any]) -> dict[str, Any]:
    return {"content": TEXT}


def streaming() -> Iterator[str]:
    yield from (CARD[:9], CARD[9:], " ", KEY[:10], KEY[10:])


def waits(store: Store) -> None:
    def ask(task: Any) -> None:
        task.ask("approve", TEXT, payload=VALUE)

    def wait(task: Any) -> None:
        task.wait_for("paid")

    for name, work in (("asks", ask), ("waits", wait)):
        with pytest.raises(holdfast.Suspended), store.task(name) as task:
            work(task)
    store.answer("asks", "approve", VALUE)
    store.signal("waits", "paid", VALUE, id="once")
    store.signal("waits", "paid", VALUE, id="once")
    with store.task("asks") as task:
        assert task.ask("approve", TEXT, payload=VALUE) == STORED_VALUE
    with store.task("waits") as task:
        assert task.wait_for("paid") == STORED_VALUE


def doubts(store: Store) -> None:
    @holdfast.step(once=True)
    def pays() -> dict[str, Any]:
        raise ConnectionError(TEXT)

    with pytest.raises(holdfast.StepInDoubt), store.task("doubt") as task:
        task.step("pay", pays)
    store.resolve("doubt", "pay", result=VALUE)
    with store.task("doubt") as task:
        assert task.results() == {"pay": STORED_VALUE}


def workers(store: Store) -> None:
    @holdfast.agent("redacted-child", max_attempts=1)
    def child(task: holdfast.Task) -> Any:
        return {**VALUE, "goal": task.goal}

    @holdfast.agent("redacted-parent", max_attempts=1)
    def parent(task: holdfast.Task) -> Any:
        found = task.run_child(child, id="child", goal=TEXT, input=VALUE)
        assert found["goal"] == STORED
        raise ValueError(TEXT)

    store.submit(parent, id="submitted", goal=TEXT, input=VALUE)
    assert [ran.status for ran in store.run_due()] == ["failed"]


def the_rest(store: Store) -> None:
    memory = store.memory("space")
    known = memory.remember(TEXT, meta=VALUE)
    memory.remember_many([{"text": TEXT + " twice", "meta": VALUE}])
    memory.supersede(known, TEXT + " more")
    assert MAIL not in memory.recall("pay", 9)[0].text
    memory.delete(reason=TEXT)
    state = store.state("state")
    for number in range(3):
        state.save({**VALUE, "number": number, "large": LARGE})
    state.delete(reason=TEXT)
    checkpoint = holdfast.AgentCheckpoint(
        "agent", MAIL, TEXT, [TEXT], [0], {"0": VALUE}, [VALUE], [TEXT]
    )
    checkpoint.task_id = checkpoint.agent_id = "checkpoint"
    store.save_checkpoint(checkpoint)
    stream = store.stream("events", types=[holdfast.EventType("placed", Order)])
    stream.append(("placed", Order(TEXT)), id="1")
    stream.append(("placed", Order(TEXT)), id="1")
    store.stream("others").append(("said", VALUE), ("large", LARGE))
    store.stream("others").delete(reason=TEXT)


USES: dict[str, Callable[[Store], None]] = {
    "conversations": conversations,
    "tasks": tasks,
    "waits": waits,
    "doubts": doubts,
    "workers": workers,
    "the rest": the_rest,
}


@pytest.mark.slow
@pytest.mark.unencrypted("looks for text in the records")
@pytest.mark.parametrize("use", USES)
def test_what_is_redacted_is_nowhere_in_the_store_and_in_no_log(
    backend: Any, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, use: str
) -> None:
    caplog.set_level(logging.DEBUG)
    USES[use](store)
    assert "[redacted: card]" in "\n".join(backend.seen)
    store.close()
    assert found_in(backend, tmp_path) == []
    assert not any(secret in caplog.text for secret in SECRETS)


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.unencrypted("looks for text in the records")
def test_no_engine_is_given_what_is_redacted(backend: Any, store: Store, tmp_path: Path) -> None:
    the_rest(store)
    store.close()
    assert "[redacted: card]" in "\n".join(backend.seen)
    assert found_in(backend, tmp_path) == []


@pytest.mark.unencrypted("looks for text in the records")
def test_without_a_redactor_the_same_is_stored_as_it_is(tmp_path: Path) -> None:
    backend = watched(open_backend(tmp_path / "store.db", None, create=True))
    with holdfast.open(backend) as store:
        store.conversation("chat").append(say(f"{TEXT} {PASSWORD}"))
    assert found_in(backend, tmp_path) == SECRETS


def test_what_is_imported_is_redacted(backend: Any, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    imported(store, folder)
    imported(store, folder)  # the same file again adds nothing
    assert store.conversation("imported").messages() == [say(STORED), say(STORED)]
    assert found_in(backend, folder) == []


@pytest.mark.every_engine
def test_the_async_twins_redact_as_well(backend: Any, store: Store, tmp_path: Path) -> None:
    async def program() -> None:
        twin = store.aio
        chat = twin.conversation("chat")
        await chat.append(say(TEXT), meta=VALUE)
        await chat.sync([say(TEXT), say(TEXT, "assistant")])
        for piece in (TEXT[:12], TEXT[12:], ".\n"):
            await chat.draft(piece, of="answer")
        await twin.state("state").save(VALUE)
        await twin.stream("events").append(("said", VALUE))
        await twin.memory("space").remember(TEXT, meta=VALUE)
        await twin.submit("nobody", id="submitted", goal=TEXT, input=VALUE)
        async with twin.task("task", goal=TEXT, input=VALUE) as task:
            assert await task.step("one", lambda: VALUE) == STORED_VALUE
            assert await task.finish(VALUE) == STORED_VALUE
        assert await chat.messages() == [say(STORED), say(STORED, "assistant")]
        for deleted in (
            chat,
            twin.state("state"),
            twin.stream("events"),
            twin.memory("space"),
            twin.task("task"),
        ):
            assert await deleted.delete(reason=TEXT)

    asyncio.run(program())
    store.close()
    assert found_in(backend, tmp_path) == []


def test_why_something_was_erased_is_redacted() -> None:
    with holdfast.open("memory://", redact=True, key=keys.generate()) as store:
        store.conversation("chat", subject="somebody").append(say(TEXT))
        store.state("state").save(VALUE)
        store.erase(store.state("state"), reason=TEXT)
        store.erase(subject="somebody", reason=TEXT)
        told = [
            stored.envelope.data
            for stored in ops.run(store._log, ops.read(audit_key("default"), decoded=True))
        ]
        assert {entry["reason"] for entry in told} == {STORED}


def test_a_store_opened_by_aopen_redacts(tmp_path: Path) -> None:
    async def program() -> Any:
        async with holdfast.aopen(tmp_path / "store.db", redact=True) as store:
            await store.conversation("chat").append(say(TEXT))
            return await store.conversation("chat").messages()

    assert asyncio.run(program()) == [say(STORED)]


# -- what you get is what you will get again -------------------------------------------------------


def test_the_first_run_sees_what_all_later_ones_will_see(ways: Ways) -> None:
    async def work(task: Any) -> list[Any]:
        found: list[Any] = [task.goal, task.input]
        found.append(await task.make_plan([TEXT, {"name": "b", "why": TEXT}]))
        found.append(await task.step("one", lambda: VALUE))
        found.append(await task.step("order", order))
        found.append(await task.reply("chat", lambda chat: say(TEXT, "assistant")))
        try:
            await task.step("failing", failing)
        except StepFailed as error:
            found.append((error.type, error.message, str(error)))
        return found

    first = ways.resume(work, goal=TEXT, input=VALUE)
    again = ways.resume(work, goal=TEXT, input=VALUE)
    assert (
        first[:-1]
        == again[:-1]
        == [
            STORED,
            STORED_VALUE,
            [STORED, {"name": "b", "why": STORED}],
            STORED_VALUE,
            Order(STORED),
            say(STORED, "assistant"),
        ]
    )
    assert first[-1] == again[-1]
    assert first[-1][:2] == ("ValueError", f"{STORED} password=[redacted: password]")
    assert [item.goal for item in ways.store.tasks()] == [STORED]
    assert view(ways).decisions == []


def order() -> Order:
    return Order(TEXT)


def test_a_finished_task_gives_the_same_result_in_every_run_and_replays(ways: Ways) -> None:
    def agent(task: Any) -> Any:
        task.decide(TEXT)
        return {"found": task.step("one", lambda: VALUE), "own": TEXT}

    async def awaited(task: Any) -> Any:
        await task.decide(TEXT)
        return {"found": await task.step("one", lambda: VALUE), "own": TEXT}

    if ways.asynchronous:
        results = [asyncio.run(ways.store.aio.run(awaited, id="t", goal=TEXT)) for _ in range(2)]
        replayed = asyncio.run(ways.store.aio.replay(awaited, "t"))
    else:
        results = [ways.store.run(agent, id="t", goal=TEXT) for _ in range(2)]
        replayed = ways.store.replay(agent, "t")
    assert results == [{"found": STORED_VALUE, "own": STORED}] * 2
    assert replayed.divergence is None


def test_giving_up_for_a_reason_that_is_redacted_replays(store: Store) -> None:
    def agent(task: holdfast.Task) -> None:
        task.fail(TEXT)

    with pytest.raises(Exception, match=re.escape(STORED)):
        store.run(agent, id="t")
    assert store.replay(agent, "t").divergence is None


def test_what_a_model_saw_beside_a_conversation_is_redacted(store: Store) -> None:
    chat = store.conversation("chat")
    chat.append(say(TEXT))
    with store.task("t") as task:
        task.step("model", model, chat.window(4000, system=TEXT))
    assert store.model_input("t", "model") == [say(STORED, "system"), say(STORED)]


def test_what_a_step_that_streams_says_in_pieces_is_redacted_as_a_whole(store: Store) -> None:
    with store.task("t") as task:
        list(task.step("stream", streaming))
        assert task.results() == {"stream": ["[redacted: card] [redacted: key]"]}
    with store.task("t") as task:
        assert list(task.step("stream", streaming)) == ["[redacted: card] [redacted: key]"]


def test_goal_and_input_given_again_are_compared_as_they_are_stored(
    backend: Any, store: Store
) -> None:
    for _ in range(2):
        with store.task("t", goal=TEXT, input=VALUE):
            pass
    with store.task("t", goal=STORED, input=STORED_VALUE):
        pass
    with pytest.raises(ReplayMismatch), store.task("t", goal=TEXT + "!"):
        pass
    store.submit("nobody", id="s", goal=TEXT, input=VALUE)
    store.submit("nobody", id="s", goal=TEXT, input=VALUE)


def test_what_was_stored_before_anything_was_redacted_still_fits(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        with store.task("t", goal=TEXT, input=VALUE):
            pass
        store.conversation("chat").append(say(TEXT), say(TEXT, "assistant"))
        store.stream("events").append(("said", VALUE), id="1")
    with holdfast.open(path, redact=True) as store:
        with store.task("t", goal=TEXT, input=VALUE) as task:
            assert task.goal == TEXT
        chat = store.conversation("chat")
        assert chat.sync([say(TEXT), say(TEXT, "assistant"), say(TEXT)]) == 1
        assert chat.messages() == [say(TEXT), say(TEXT, "assistant"), say(STORED)]
        assert store.stream("events").append(("said", VALUE), id="1").duplicate
        with pytest.raises(IdReused):
            store.stream("events").append(("said", "other"), id="1")


def test_sync_does_not_rewind_for_what_is_redacted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [
        say(TEXT),
        {"role": "assistant", "content": "", "tool_calls": [{"arguments": VALUE["arguments"]}]},
    ]
    for length in (1, 2, 2):
        store.conversation("chat").sync(messages[:length])
    assert store.conversation("chat").version() == 2
    assert store.conversation("chat").sync([*messages, say("thanks")]) == 1
    assert "rewound" not in caplog.text


def test_an_append_repeated_under_its_id_is_the_same_append(store: Store) -> None:
    assert not store.conversation("chat").append(say(TEXT), id="1").duplicate
    assert store.conversation("chat").append(say(TEXT), id="1").duplicate
    with pytest.raises(IdReused):
        store.conversation("chat").append(say("other"), id="1")


def test_an_equal_document_writes_nothing(store: Store) -> None:
    state = store.state("state", Order)
    assert (
        state.save(Order(TEXT))
        == state.save(Order(TEXT))
        == store.state("state", Order).save(Order(TEXT))
        == 1
    )
    assert state.load() == Order(STORED)


def test_a_draft_is_kept_as_far_as_it_can_be_told_that_nothing_secret_is_in_it(
    store: Store,
) -> None:
    chat = store.conversation("chat")
    for piece in ("Your card", " is 4111 11", "11 1111", " 1111. And", " now"):
        chat.draft(piece, of="one")
    chat.draft("Hello.\n", of="two")
    assert [(draft.of, draft.text) for draft in chat.drafts()] == [
        ("one", "Your card is [redacted: card]. "),
        ("two", "Hello.\n"),
    ]


def test_ids_and_names_stay_as_they_are(store: Store) -> None:
    store.conversation(MAIL).append(say("hello"))
    with store.task(MAIL) as task:
        task.step(MAIL, lambda: 1)
    assert [info.id for info in store.conversations()] == [MAIL]
    assert [step.path for step in store.get_task(MAIL).steps] == [MAIL]  # type: ignore[union-attr]


def test_files_are_not_looked_into(store: Store) -> None:
    with store.task("t") as task:
        task.attach("card.txt", CARD.encode())
    assert store.artifact("t", "card.txt").read() == CARD.encode()


# -- types -----------------------------------------------------------------------------------------


@dataclass
class Login:
    user: str
    password: int


def finishing(task: holdfast.Task) -> Login:
    return Login("me", 1234)


def test_a_type_that_has_no_place_for_what_stands_in_is_refused(
    backend: Any, store: Store, tmp_path: Path
) -> None:
    for save in (
        lambda: store.state("state", Login).save(Login("me", 1234)),
        lambda: store.stream("s", types=[holdfast.EventType("login", Login)]).append(
            ("login", Login("me", 1234))
        ),
        lambda: store.task("t", input=Login("me", 1234)),
        lambda: store.run(finishing, id="finished"),
    ):
        with pytest.raises(NotSerializable, match=r"must be redacted.*\$\.password") as caught:
            save()
        assert "1234" not in str(caught.value)


class Settings(BaseModel):
    name: str
    key: SecretStr


class Sealed:
    def get_secret_value(self) -> str:
        return PASSWORD


def secrets() -> list[tuple[object, Any]]:
    return [
        (SecretStr(PASSWORD), Any),
        ({"deep": [SecretBytes(PASSWORD.encode())]}, Any),
        (Settings(name="x", key=SecretStr(PASSWORD)), Settings),
        ({"key": SecretStr(PASSWORD)}, dict[str, str]),
        (Sealed(), Any),
    ]


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize("place", range(5))
def test_values_whose_type_says_that_they_are_secret_are_never_stored(
    place: int, redact: bool
) -> None:
    value, declared = secrets()[place]
    with holdfast.open("memory://", redact=redact) as store:
        with pytest.raises(
            NotSerializable, match="is a secret, and secrets are never stored: leave it out"
        ) as caught:
            store.state("state", declared).save(value)
        assert PASSWORD not in str(caught.value)
        assert store.state("state").version() == 0


# -- choosing --------------------------------------------------------------------------------------


def test_a_function_alone_is_all_that_is_done() -> None:
    with holdfast.open(
        "memory://", redact=lambda field, text: text.replace("Rosebud", "[a name]")
    ) as store:
        store.state("state").save({"who": "Rosebud", "password": "x"})
        assert store.state("state").load() == {"who": "[a name]", "password": "x"}


def test_a_function_that_fails_stops_the_write() -> None:
    def hook(field: str, text: str) -> str:
        raise ValueError(text)

    with holdfast.open("memory://", redact=Redactor(hook=hook)) as store:
        with pytest.raises(
            NotSerializable, match="the redactor's hook raised ValueError"
        ) as caught:
            store.conversation("chat").append(say(TEXT))
        assert CARD not in str(caught.value)
        assert store.conversation("chat").version() == 0


def test_that_a_step_has_failed_is_recorded_even_if_its_words_cannot_be_redacted() -> None:
    def hook(field: str, text: str) -> str:
        if "4111" in text:
            raise RuntimeError(text)
        return text

    with holdfast.open("memory://", redact=hook) as store:
        with pytest.raises(StepFailed), store.task("t") as task:
            task.step("failing", failing)
        found = store.get_task("t")
        assert found is not None and found.status == "failed"
        assert [(step.status, step.error.message) for step in found.steps if step.error] == [
            ("retrying", "")
        ]
        with pytest.raises(ValueError, match="pay with"), store.task("u"):
            failing()
        assert [(info.id, info.status) for info in store.tasks()] == [
            ("t", "failed"),
            ("u", "failed"),
        ]


def test_redact_is_one_of_few_things() -> None:
    with pytest.raises(TypeError, match="redact must be True"):
        holdfast.open("memory://", redact="cards")  # type: ignore[arg-type]
    with holdfast.open("memory://", redact=False) as store:
        store.state("state").save(VALUE)
        assert store.state("state").load() == VALUE


@pytest.mark.parametrize(
    ("before", "environment"), [(["--redact"], {}), ([], {"HOLDFAST_REDACT": "1"})]
)
def test_what_is_said_at_the_command_line_is_redacted_if_asked_for(
    tmp_path: Path, before: list[str], environment: dict[str, str]
) -> None:
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        with pytest.raises(holdfast.Suspended), store.task("t") as task:
            task.ask("approve", "May I?", returns=str)
    done = run(*before, "answer", path, "t", "approve", json.dumps(TEXT), env=environment)
    assert done.exit_code == 0, done.output
    with holdfast.open(path) as store, store.task("t") as task:
        assert task.ask("approve", "May I?", returns=str) == STORED


# -- nothing forgotten -----------------------------------------------------------------------------

OURS = {
    "Created": "salt ttl agent parent budget subject",
    "Branched": "parent incarnation at",
    "Forked": "child at",
    "Claimed": "owner lease stolen alive_at timeout",
    "Renewed": "owner",
    "Planned": "id paths steps",
    "Noted": "id step",
    "Attached": "name blob",
    "Recalled": "ids",
    "MemoryNamed": "namespace",
    "Asked": "wait kind name until schema",
    "Answered": "wait how by signal",
    "Signalled": "name",
    "TaskSuspended": "waits children checks",
    "ChildEnded": "child status",
    "Reported": "",
    "Queued": "at timeout",
    "MarkedStuck": "crashes",
    "Budgeted": "budget",
    "Released": "orphaned drift why unchanged",
    "Failed": "steps orphaned drift retry_at",
    "Cancelled": "by",
    "Lingered": "owner steps",
    "WriteRefused": "owner steps",
    "Finished": "orphaned drift",
    "StepEvent": "step args nth parallel mode kind code model attempt since how causes doubt again "
    "final function mapped by override schema done total usage reply blob expect abandoned cut "
    "idempotency_key",
    "ModelInputPart": "conversation incarnation at versions digest",
}
"""The fields of a task's events that hold no content: ids, names, numbers, hashes."""


@pytest.mark.parametrize(
    "kind", sorted({*ev._TYPES.values(), ev.ModelInputPart}, key=lambda kind: kind.__name__)
)
def test_of_each_field_of_a_tasks_events_it_is_said_whether_it_holds_content(
    kind: type[msgspec.Struct],
) -> None:
    ours, content = OURS[kind.__name__].split(), CONTENT.get(kind, ())
    assert sorted([*ours, *content]) == sorted(kind.__struct_fields__)
