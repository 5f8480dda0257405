"""Typical use of the public API, checked by `mypy --strict` and never run.

Not named typing.py: the crash tests start programs with this folder on the path, where that would
hide the standard module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI
from typing_extensions import assert_type

import holdfast
from holdfast import (
    AsyncConversation,
    AsyncStore,
    AsyncStream,
    Conversation,
    Event,
    EventType,
    Health,
    MemoryHit,
    MemoryItem,
    Store,
    Stream,
)
from holdfast.backends import Backend
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.conformance import DurableBackendConformance
from holdfast.integrations.openai import AnswerStream, AsyncAnswerStream, TurnAnswer, complete
from holdfast.memory import quoted
from holdfast.types import AppendResult, LeaseInfo, MessageEntry, MessageProblem


@dataclass
class Order:
    sku: str


def a_store_is_opened_by_path_or_url() -> None:
    assert_type(holdfast.open("agents.db"), Store)
    assert_type(
        holdfast.open(Path("agents.db"), tenant="acme", durability="process", create=False), Store
    )
    with holdfast.open("memory://") as store:
        assert_type(store, Store)
        assert_type(store.for_tenant("globex"), Store)
        assert_type(store.aio, AsyncStore)
        assert_type(store.tenant, str)
    holdfast.open("agents.db", durability="none")  # type: ignore[arg-type]


def a_memory_is_asked(store: Store) -> None:
    memory = store.memory("buyer")
    assert_type(
        memory.remember_many([{"text": "Ann signs", "tags": ["people"], "at": 1.7e9}]), list[str]
    )
    memory.remember_many([{"text": "Ann signs", "typo": 1}])  # type: ignore[typeddict-unknown-key]
    memory.remember_many([{"tags": ["people"]}])  # type: ignore[typeddict-item]
    memory.remember("Ann signs", source=5)  # type: ignore[arg-type]
    memory.remember("Ann signs", source=store.conversation("talk"))
    assert_type(memory.recall("who signs?", 3, subject="ann", since=1.7e9), list[MemoryHit])
    assert_type(memory.all(subject="ann", until=1.7e9), Iterator[MemoryItem])
    assert_type(quoted(memory.recall("who signs?", author={"person", "system"})), str)
    memory.recall("who signs?", author=5)  # type: ignore[arg-type]
    store.task("buy").resume_context(trust=["person"])
    store.task("buy").resume_context(trust=5)  # type: ignore[arg-type]


def a_stream_is_appended_to_and_read(store: Store) -> None:
    stream = store.stream(
        "orders-7", types=[EventType("order.placed", Order, version=2, upcasters={1: dict})]
    )
    assert_type(stream, Stream)
    assert_type(stream.id, str)
    appended = stream.append(
        ("order.placed", Order("A1")), ("order.paid", None), id="req-17", if_version=0
    )
    assert_type(appended, AppendResult)
    assert_type((appended.first, appended.last, appended.duplicate), tuple[int, int, bool])
    assert_type(stream.read(after=3), Iterator[Event])
    assert_type(stream.last(20), list[Event])
    assert_type(stream.version(), int)
    assert_type(stream.delete(reason="asked for"), bool)
    stream.append("order.placed")  # type: ignore[arg-type]


def an_event_has_typed_fields(event: Event) -> None:
    assert_type(event.version, int)
    assert_type(event.type, str)
    assert_type(event.data, Any)
    assert_type(event.at, datetime)
    assert_type((event.by, event.correlation), tuple[str | None, str | None])


def what_is_audited(store: Store, path: Path) -> None:
    assert_type(store.anchor(path, key=b"k" * 32), holdfast.types.Anchor)
    report = store.verify(path, anchor_key="anchor.key", progress=print)
    assert_type(report, holdfast.types.VerifyResult)
    assert_type(report.problems[0].version, int | None)
    assert_type([entry.by for entry in store.audit("t", content=True)], list[str | None])
    assert_type(store.audit("c", kind="conversation").csv(), str)


def health_is_plain_data(health: Health) -> None:
    assert_type(health.location, str)
    assert_type(health.oldest_lease, LeaseInfo | None)
    assert_type(health.sizes["wal"], int)


async def the_async_store_has_the_same_names() -> None:
    async with holdfast.aopen("agents.db", tenant="acme") as store:
        assert_type(store, AsyncStore)
        stream = store.stream("orders-7")
        assert_type(stream, AsyncStream)
        assert_type(await stream.append(("order.placed", {"sku": "A1"}), id="req-17"), AppendResult)
        assert_type(stream.read(after=1), AsyncIterator[Event])
        assert_type([event async for event in stream.read()], list[Event])
        assert_type(await stream.last(20), list[Event])
        assert_type(await stream.version(), int)
        assert_type(await store.health(), Health)
    assert_type(await holdfast.aopen("agents.db"), AsyncStore)
    assert_type(await holdfast.aopen("agents.db", durability="process", create=False), AsyncStore)


def a_window_is_what_the_openai_sdk_takes(store: Store, client: OpenAI) -> None:
    chat = store.conversation("support-42")
    assert_type(chat, Conversation)
    answer = client.chat.completions.create(
        model="gpt-5", messages=chat.window(8000, system="Be brief.")
    )
    assert_type(chat.append(answer.choices[0].message, id="req-17"), AppendResult)
    client.responses.create(
        model="gpt-5", input=chat.window(8000, counter=lambda message: len(str(message)))
    )
    client.chat.completions.create(model="gpt-5", messages=chat.messages(last=20))


def a_completion_is_typed_by_its_client(store: Store, client: OpenAI) -> None:
    chat = store.conversation("support-42")
    assert_type(complete(client, chat, model="gpt-5", window=8000), TurnAnswer)
    assert_type(complete(client, chat, model="gpt-5", stream=True), AnswerStream)


async def an_async_completion_is_awaited(store: AsyncStore, client: AsyncOpenAI) -> None:
    chat = store.conversation("support-42")
    assert_type(await complete(client, chat, model="gpt-5", api="responses"), TurnAnswer)
    assert_type(complete(client, chat, model="gpt-5", stream=True), AsyncAnswerStream)


def a_conversation_is_read_and_changed(chat: Conversation) -> None:
    assert_type(chat.entries(last=3), list[MessageEntry])
    assert_type(chat.count(), int)
    assert_type(chat.pending(), MessageEntry | None)
    assert_type(chat.repair(), list[MessageProblem])
    with chat.turn(wait=5) as turn:
        assert_type(turn, Conversation)
    assert_type(chat.fork("b", version=3), Conversation)
    assert_type(
        chat.summarize(lambda messages: f"{len(messages)} messages", keep_last=4),
        MessageEntry | None,
    )
    assert_type(chat.follow(after=3), Iterator[MessageEntry])
    assert_type(chat.follow_with_drafts(), Iterator[MessageEntry | holdfast.types.DraftPiece])


async def the_async_conversation_has_the_same_names(store: AsyncStore, client: AsyncOpenAI) -> None:
    chat = store.conversation("support-42")
    assert_type(chat, AsyncConversation)
    assert_type(await chat.pending(), MessageEntry | None)
    assert_type(await chat.count(), int)
    async with chat.turn() as turn:
        assert_type(turn, AsyncConversation)
    await client.chat.completions.create(model="gpt-5", messages=await chat.window(8000))
    assert_type(chat.follow(), AsyncIterator[MessageEntry])
    assert_type(chat.follow_with_drafts(), AsyncIterator[MessageEntry | holdfast.types.DraftPiece])
    assert_type([item async for item in store.conversations()], list[holdfast.ConversationInfo])
    assert_type(await chat.view(), holdfast.types.ConversationView)


@dataclass
class Receipt:
    number: str


def find_payment(order: str, *, amount: int) -> Receipt | None:
    assert_type(holdfast.current_step().started_at, datetime)
    return None


@holdfast.step(check=find_payment, check_after=5, max_attempts=3, retry_on=(TimeoutError,))
def pay(order: str, *, amount: int) -> Receipt:
    assert_type(holdfast.idempotency_key(), str)
    return Receipt(order)


@holdfast.step
async def fetch(page: int) -> str:
    step = holdfast.current_step()
    await step.save(page, done=1, total=9, flush=True)
    return str(page)


@holdfast.step(kind="model", price=(1.25, 10))
def answer(question: str) -> Iterator[str]:
    holdfast.current_step().use(input_tokens=3, output_tokens=4, cost=0.1, model="gpt-5")
    yield question


@holdfast.step
async def answer_later(question: str) -> AsyncIterator[str]:
    yield question


def model_steps(store: Store) -> None:
    with store.task("claims-42", budget=holdfast.Budget(tokens=100_000, cost=1.5)) as task:
        assert_type(list(answer("why?")), list[str])
        assert_type(list(task.step("answer", answer, "why?")), list[str])
        assert_type(task.usage, holdfast.Usage)
    assert_type(store.model_input("claims-42", "answer"), list[Any])
    view = store.get_task("claims-42")
    if view is not None:
        assert_type(view.steps[0].usage, holdfast.Usage | None)
        assert_type(view.steps[0].model_input, list[holdfast.types.ModelInput])


def next_message(chat: Conversation, temperature: float = 0.0) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{chat.count()} {temperature}"}


async def next_message_later(chat: AsyncConversation) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{await chat.count()}"}


def replies(store: Store) -> None:
    with store.task("claims-42") as task:
        assert_type(task.reply(task.conversation(), next_message, 0.5), dict[str, Any])
        assert_type(
            task.reply("chat-7", holdfast.step(next_message, max_attempts=3)), dict[str, Any]
        )
        task.reply("chat-7", next_message, "warm")  # type: ignore[arg-type]


async def async_replies(store: AsyncStore) -> None:
    async with store.task("claims-42") as task:
        assert_type(await task.reply(task.conversation(), next_message_later), dict[str, Any])
        assert_type(await task.reply("chat-7", next_message, temperature=0.5), dict[str, Any])


async def async_model_steps(store: AsyncStore) -> None:
    async with store.task("claims-42") as task:
        assert_type([chunk async for chunk in answer_later("why?")], list[str])
        assert_type([chunk async for chunk in task.step("answer", answer_later, "why?")], list[str])
        assert_type([chunk async for chunk in task.step("plain", answer, "why?")], list[str])
    assert_type(await store.model_input("claims-42", "answer"), list[Any])


def tasks(store: Store) -> None:
    with store.task(
        "claims-42", goal="Draft the checklist", agent="claims", input={"claim": 7}
    ) as task:
        assert_type(task, holdfast.Task)
        assert_type(task.make_plan(["a", {"name": "b"}]), list[holdfast.types.PlanItem])
        for item in task.remaining():
            assert_type(task.step(item, len, "four"), int)
        assert_type(pay("order-7", amount=3), Receipt)
        assert_type(pay.using(key="order-7")("order-7", amount=3), Receipt)
        assert_type(task.step("pay", pay, "order-8", amount=3), Receipt)
        task.decide("vendor A", why="cheapest")
        assert_type(task.resume_context(500).messages(), list[dict[str, Any]])
        assert_type(task.preview(), holdfast.types.Preview)
        assert_type(task.remember("Ann signs the orders", tags=["people"], ttl=60), str)
        assert_type(task.remember("For everybody", subject=None), str)
        assert_type(task.subject, str | None)
        assert_type(task.resume_context(memories=0).memories, dict[str, str])
        assert_type(task.finish("done", remember=False), str)
        assert_type(task.finish(len, "done"), int)
        task.finish(
            "done", remember=lambda view: [f"{view.goal}: {view.result}", {"text": "and this"}]
        )
        task.finish("done", remember="all of it")  # type: ignore[call-overload]
    store.resolve("claims-42", "pay", retry=True)
    store.resolve("claims-42", "pay", result=Receipt("7"), by="ann", override=True)
    view = store.get_task("claims-42")
    if view is not None:
        assert_type(view.steps[0].started_at, datetime)
        assert_type(view.checkpoint(), holdfast.AgentCheckpoint)
        assert_type(view.checkpoint().resume_context(500, notes=["a"]), holdfast.ResumeContext)
    for info in store.tasks(status="failed"):
        assert_type(info.in_doubt, bool)


async def async_tasks(store: AsyncStore) -> None:
    async with store.task("claims-42") as task:
        assert_type(task, holdfast.AsyncTask)
        assert_type(await fetch(3), str)
        assert_type(await task.step("fetch", fetch, 3), str)
        assert_type(await task.step("count", len, "four"), int)
        await task.conversation().append({"role": "user", "content": "Hello"})
    assert_type(await store.get_task("claims-42"), holdfast.TaskView | None)


@holdfast.agent("claims", memory=lambda task: f"claims/{task.subject}")
def claims(task: holdfast.Task) -> Receipt:
    if not task.ask("payout", "Pay?", returns=bool, timeout=timedelta(days=3)):
        raise ValueError("refused")
    return task.wait_for("paid", returns=Receipt)


@holdfast.agent("letters", memory="office")
async def letters(task: holdfast.AsyncTask) -> str:
    assert_type(await task.ask("sign", "Sign?", returns=bool), bool)
    assert_type(await task.wait_for("signed", returns=int, timeout=60), int)
    assert_type(await task.run_child(claims, "claim-1"), Receipt)
    assert_type(await task.run_child("claims", "claim-1", returns=Receipt), Receipt)
    return "sent"


def agents_keep_their_types(store: Store, task: holdfast.Task) -> None:
    assert_type(task.ask("payout", "Pay?"), Any)
    assert_type(task.wait_for("paid"), Any)
    assert_type(task.run_child(claims, "claim-1", goal="Settle it"), Receipt)
    assert_type(store.run(claims, "claim-1", wait=timedelta(seconds=5)), Receipt)
    assert_type(store.run("claims", "claim-1"), Any)
    assert_type(task.version(), int)
    assert_type(task.view(version=3), holdfast.TaskView)
    task.at(3)  # type: ignore[attr-defined]


async def async_agents_keep_their_types(store: AsyncStore) -> None:
    assert_type(await store.run(letters, "letter-1"), str)
    assert_type(await store.run("letters", "letter-1"), Any)


def documents_keep_their_types(store: Store) -> None:
    plain = store.state("team-1")
    assert_type(plain.load({}), Any)
    document = store.state("receipt-7", Receipt)
    assert_type(document, holdfast.State[Receipt])
    assert_type(document.load(), Receipt)
    assert_type(document.load(None), Receipt | None)
    assert_type(document.load(version=3), Receipt)
    assert_type(document.save(Receipt("7"), if_version=0), int)
    document.save("7")  # type: ignore[arg-type]


async def async_documents_keep_their_types(store: AsyncStore) -> None:
    document = store.state("receipt-7", Receipt)
    assert_type(await document.load(), Receipt)
    assert_type(await document.load(None), Receipt | None)
    assert_type(await document.save(Receipt("7")), int)


@dataclass
class ClaimCheckpoint(holdfast.AgentCheckpoint):
    amount: int = 0


def checkpoints(store: Store) -> None:
    checkpoint = ClaimCheckpoint("claims", "claims-42", amount=120)
    assert_type(store.save_checkpoint(checkpoint), int)
    store.save_checkpoint(checkpoint, ttl=timedelta(days=30))
    store.save_checkpoint(checkpoint, ttl=None)
    assert_type(store.load_checkpoint("claims-42"), holdfast.AgentCheckpoint | None)
    assert_type(store.load_checkpoint("claims-42", type=ClaimCheckpoint), ClaimCheckpoint | None)
    assert_type(ClaimCheckpoint.from_dict(checkpoint.to_dict()), ClaimCheckpoint)
    assert_type(store.delete_checkpoint("claims-42"), bool)
    store.load_checkpoint("claims-42", type=dict)  # type: ignore[type-var]


async def async_checkpoints(store: AsyncStore) -> None:
    checkpoint = ClaimCheckpoint("claims", "claims-42")
    assert_type(await store.save_checkpoint(checkpoint, ttl=3600), int)
    assert_type(await store.load_checkpoint("claims-42"), holdfast.AgentCheckpoint | None)
    assert_type(
        await store.load_checkpoint("claims-42", type=ClaimCheckpoint), ClaimCheckpoint | None
    )
    assert_type(await store.delete_checkpoint("claims-42", reason="done"), bool)


def what_is_listed(store: Store) -> None:
    assert_type(next(store.conversations()), holdfast.ConversationInfo)
    assert_type(next(store.tasks()), holdfast.TaskInfo)
    assert_type(next(store.streams()), holdfast.StreamInfo)
    assert_type(next(store.states()), holdfast.StateInfo)
    assert_type(next(store.memory_namespaces()), holdfast.MemoryInfo)


def errors_carry_facts(stream: Stream) -> None:
    with holdfast.correlate("req-17", actor="checkout"):
        try:
            stream.append(("order.placed", {"sku": "A1"}), if_version=3)
        except holdfast.Conflict as conflict:
            assert_type((conflict.stream, conflict.expected, conflict.actual), tuple[str, int, int])
        except holdfast.OutcomeUnknown as unknown:
            assert_type(unknown.id, str | None)
        except holdfast.errors.NotSerializable as refused:
            assert_type(refused.path, str)


def a_store_is_copied_and_backed_up(store: Store, path: Path) -> None:
    def show(progress: holdfast.types.CopyProgress) -> None:
        assert_type((progress.streams, progress.of), tuple[int, int | None])

    copied = holdfast.copy(store, "postgresql://host/agents", progress=show, delete=True)
    assert_type(copied, holdfast.types.CopyResult)
    assert_type((copied.records, copied.extra_names), tuple[int, list[str]])
    assert_type(holdfast.backup(path, "backup.db"), int)


def shipped_backends_are_backends(path: Path) -> list[Backend]:
    return [
        MemoryBackend(),
        SQLiteBackend(path),
        FaultyBackend(MemoryBackend(), seed=7, lost_answer=0.1),
    ]


class MyBackendConformance(DurableBackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return SQLiteBackend(place / "store.db")
