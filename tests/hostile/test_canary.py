"""Secrets in content, in URLs and in keys come out nowhere: not in logs, errors, traces, reprs,
metrics, nor at the command line.

What our own text shows is tested. What a user's own exception says is shown as it is
(`StepFailed`), because nothing else tells why a step failed; `redact=` is for that. Names stay too:
of streams, steps, events and people.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import msgspec
import pytest

import holdfast
from helpers.engines.postgres_server import PostgresServer
from helpers.engines.redis_server import Server
from helpers.run_cli import plain_terminal, run
from helpers.servers import aws
from helpers.stored import hostile_content as hostile
from helpers.stored.hostile_content import Lasting, cloned, places, plant, ways
from helpers.stores import url_of
from holdfast import keys, types
from holdfast.backends.memory import MemoryBackend

# Made anew for each run: a line of this file in a trace must not look like a leak.
WORD = "canary" + os.urandom(6).hex()
PASSWORD = "pass" + os.urandom(6).hex()
PHRASE = "phrase " + os.urandom(6).hex()
KEY, OTHER = keys.generate(), keys.generate()

SECRETS = {
    "content": [
        WORD,
        *(base64.b64encode(b"." * before + WORD.encode())[4:-4].decode() for before in range(3)),
    ],
    "password": [PASSWORD],
    "passphrase": [PHRASE],
    "key": [
        form
        for key in (KEY, OTHER)
        for form in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1])
    ],
}


def leaks(text: str) -> list[str]:
    return [name for name, forms in SECRETS.items() if any(form in text for form in forms)]


def told(error: BaseException) -> str:
    """All that an error says, to whoever prints it, logs it or sends it to a tracker."""
    texts = ["".join(traceback.format_exception(error))]
    while True:
        texts += [str(error), repr(error), repr(error.args), repr(vars(error))]
        following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if following is None:
            return "\n".join(texts)
        error = following


class Listening(logging.Handler):
    """Everything that is logged, by anybody, as text and as what hangs on it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts += [record.getMessage(), repr(vars(record))]
        if record.exc_info and record.exc_info[1] is not None:
            self.texts.append(told(record.exc_info[1]))


@contextmanager
def listening() -> Iterator[Listening]:
    handler, root = Listening(), logging.getLogger()
    level, ours = root.level, logging.getLogger("holdfast").level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    logging.getLogger("holdfast").setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        logging.getLogger("holdfast").setLevel(ours)


def exposed(calls: dict[str, Callable[[], Any]], *, results: bool = False) -> list[str]:
    """What of the secrets the calls have shown, and where.

    With `results`, also by the reprs of what they return: those show content, and no key or
    password.
    """
    found: list[str] = []
    with listening() as heard:
        for name, call in calls.items():
            try:
                answer = call()
            except (
                Exception,
                holdfast.Suspended,
            ) as error:  # which is no Exception: programs must not catch it
                found += [
                    f"{name}: {leak} in {type(error).__name__}" for leak in leaks(told(error))
                ]
            else:
                if results:
                    shown = [leak for leak in leaks(repr(answer)) if leak != "content"]
                    found += [
                        f"{name}: {leak} in the repr of {type(answer).__name__}" for leak in shown
                    ]
            found += [f"{name}: {leak} in a log" for text in heard.texts for leak in leaks(text)]
            heard.texts.clear()
    return sorted(set(found))


# -- content ---------------------------------------------------------------------------------------


class Person(msgspec.Struct):
    age: int


class Odd:
    """What cannot be stored, and says what it is."""

    def __repr__(self) -> str:
        return WORD

    __str__ = __repr__


def _broken(*_: object, **__: object) -> None:
    raise KeyError("no")


def _odd(*_: object) -> Any:
    return Odd()


def refused(store: holdfast.Store) -> dict[str, Callable[[], Any]]:
    """Calls with the secret in them that are refused, or fail."""
    chat, memory, events = store.conversation("chat"), store.memory("space"), store.stream("events")
    document, typed = store.state("document"), store.state("document", Person)

    def stepping(
        function: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Callable[[], Any]:
        def step() -> Any:
            with store.task("failing", goal=WORD, input={"x": WORD}, wait=0, **options) as task:
                return task.step("odd", function, *arguments)

        return step

    def asking() -> Any:
        with store.task("asks", goal=WORD, wait=0) as task:
            return task.ask("payout", WORD, {"x": WORD}, returns=Person)

    deep: Any = WORD
    for _ in range(200):
        deep = [deep]
    return {
        "an object": lambda: chat.append({"role": "user", "content": Odd()}),
        "a set": lambda: events.append(("n", {WORD})),
        "a key": lambda: events.append(("n", {7: WORD})),
        "a surrogate": lambda: events.append(("n", WORD + "\ud800")),
        "too deep": lambda: events.append(("n", deep)),
        "too large": lambda: events.append(("n", WORD * 1_500_000)),
        "no message": lambda: chat.append(WORD),
        "no role": lambda: chat.append({"content": WORD}),
        "an odd role": lambda: chat.append({"role": 7, "content": WORD}),
        "odd meta": lambda: chat.append({"role": "user", "content": WORD}, meta={"x": Odd()}),
        "an id again": lambda: events.append(("order.placed", {"x": WORD}), id="req-1"),
        "a version": lambda: events.append(("n", WORD), if_version=999),
        "a bare sync": lambda: chat.sync([{"role": "user", "content": WORD}, WORD]),
        "a window": lambda: chat.window(3),
        "a summary": lambda: chat.summarize(_odd, keep_last=1),
        "saved as": lambda: typed.save({"age": WORD}),
        "loaded as": lambda: (document.save({"age": WORD}), typed.load())[1],
        "a save": lambda: document.save(Odd()),
        "a version of it": lambda: document.save({"x": WORD}, if_version=999),
        "a memory": lambda: memory.remember(WORD * 20_000),
        "tags": lambda: memory.remember(WORD, tags=[7]),
        "a memory's meta": lambda: memory.remember(WORD, meta={"x": Odd()}),
        "no memory": lambda: memory.supersede("nobody", WORD),
        "an embedder": lambda: store.memory("space", embed=_broken).recall(WORD),
        "a step": stepping(_broken, WORD),
        "a step's result": stepping(_odd, WORD),
        "a step's argument": stepping(_odd, Odd()),
        "another input": lambda: store.task("failing", input={"x": WORD + "2"}, wait=0).__enter__(),
        "another goal": lambda: store.task("failing", goal=WORD + "2", wait=0).__enter__(),
        "a question": asking,
        "an answer": lambda: store.answer("asks", "payout", {"age": WORD}),
        "an answer that is odd": lambda: store.answer("asks", "payout", Odd()),
        "an answer to nobody": lambda: store.answer("nobody", "payout", WORD),
        "a signal": lambda: store.signal("asks", "poke", Odd()),
        "a result": lambda: store.resolve("failing", "odd", result=WORD),
        "an agent": lambda: store.run(_broken, "run", goal=WORD, input=WORD),
        "an agent's result": lambda: store.run(_odd, "run-2", goal=WORD),
        "a replay": lambda: store.replay(_broken, "task"),
        "a checkpoint": lambda: store.save_checkpoint(holdfast.AgentCheckpoint("a", "task", WORD,
        results={"0": Odd()})),
        "a type of event": lambda: list(store.stream("events",
        types=[holdfast.EventType("order.placed", Person)]).read()),
        "a file of messages": lambda: chat.import_json(Path(__file__)),
        "a file": lambda: store.artifact("task", "nothing"),
    }  # fmt: skip


def populate(store: holdfast.Store) -> None:
    """`hostile.populate`, and the secret in everything that is content."""
    hostile.populate(store)
    chat = store.conversation("chat")
    chat.append({"role": "user", "content": WORD}, meta={"note": WORD})
    chat.draft(WORD, of="reply-2")
    with store.task("task", wait=0) as task:
        task.step("secret", lambda _: WORD, WORD)
        task.step("large secret", lambda: WORD * 10_000)
        task.decide(WORD, why=WORD)
        task.discover(WORD)
        task.attach("secret.txt", WORD.encode())
        task.remember(WORD, meta={"x": WORD})
    with store.task("secret", goal=WORD, input=WORD, agent="hostile-healthy") as task:
        task.make_plan([{"name": "one", "more": WORD}])
        task.finish(WORD)
    store.memory("space").remember(WORD, tags=[WORD], meta={"x": WORD})
    store.state("document").save({"x": WORD})
    store.stream("events").append(("order.placed", {"x": WORD}))
    store.signal("asking", "poke", WORD)


def looks(store: holdfast.Store, folder: Path) -> dict[str, Callable[[], Any]]:
    """Ways of reading, and what they return as it is given, to be printed."""
    memory, task = store.memory("space"), store.task("secret")
    return {
        "store": lambda: store,
        "handles": lambda: [
            store.conversation("chat"),
            task,
            memory,
            store.state("document"),
            store.stream("events"),
            store.aio,
        ],
        "entries": store.conversation("chat").entries,
        "drafts": store.conversation("chat").drafts,
        "conversation": store.conversation("chat").view,
        "problems": store.conversation("chat").validate,
        "views": lambda: [store.get_task(name) for name in ("task", "secret", "asking")],
        "tasks": lambda: list(store.tasks()),
        "history": lambda: store.task("task").history(),
        "preview": lambda: store.task("task").preview(),
        "context": lambda: store.task("task").resume_context(),
        "checkpoint": lambda: store.task("secret").checkpoint(),
        "replay": lambda: store.replay(hostile.healthy, "secret"),
        "artifact": lambda: store.artifact("task", "secret.txt"),
        "memories": lambda: [*memory.all(), *memory.recall(WORD)],
        "stats": memory.stats,
        "versions": lambda: store.state("document").history(),
        "events": lambda: list(store.stream("events").read()),
        "audit": lambda: store.audit("task", content=True),
        "health": store.health,
        "verify": store.verify,
        "sweep": lambda: store.sweep(dry_run=True),
        "erase": lambda: store.erase(store.conversation("about")),
        "backend": lambda: [store._log.backend, store._log, store._log.cipher],
    }


def planted(backend: MemoryBackend) -> Iterator[MemoryBackend]:
    """Stores in which the secret stands where something else should."""
    bad = [
        json.dumps(WORD).encode(),
        WORD.encode(),
        hostile.envelope(json.dumps({"x": WORD}).encode()),
    ]
    for number, (stream, version) in enumerate(places(backend)):
        target = cloned(backend)
        body = bad[number % 3]
        old = target._streams[stream].records[version - 1].body
        if number % 2 and old.startswith(b"{"):
            whole = msgspec.json.decode(old)
            data = whole.get("data")
            whole["data"] = dict.fromkeys(data, WORD) if isinstance(data, dict) else WORD
            body = msgspec.json.encode(whole)
        plant(target, stream, version, body)
        yield target


def content_leaks(folder: Path) -> list[str]:
    found = []
    for key in (None, KEY):
        backend = Lasting()
        with holdfast.open(backend, key=key) as store:
            with listening() as heard:
                populate(store)
            found += [f"a log: {leak}" for text in heard.texts for leak in leaks(text)]
            found += exposed(refused(store))
            found += exposed(looks(store, folder), results=True)
            found += exposed(ways(store, folder))
        if key is None:
            for target in list(planted(backend))[::4]:
                with holdfast.open(target) as store:
                    found += exposed(ways(store, folder))
    return found


def test_content_is_in_no_log_or_error(tmp_path: Path) -> None:
    assert content_leaks(tmp_path) == []


@pytest.mark.parametrize(
    "key",
    [
        "ann@example.com",
        "4111 1111 1111 1111",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "+49 170 1234567",
    ],
)
@pytest.mark.parametrize("redact", [False, True])
def test_a_key_that_is_content_is_in_no_error(key: str, redact: bool) -> None:
    def refuse(field: str, text: str) -> str:
        raise ValueError(text)

    with (
        holdfast.open("memory://", redact=refuse if redact else False) as store,
        listening() as heard,
    ):
        for value in (Odd(), float("nan"), "\ud800", "text" if redact else Odd()):
            with pytest.raises(holdfast.errors.NotSerializable, match=r"\[…\]: ") as caught:
                store.stream("events").append(("n", {"list": [0, {key: value}]}))
            assert key not in told(caught.value)
    assert key not in "\n".join(heard.texts)


def test_the_listener_hears_and_the_secrets_are_found() -> None:
    def tells() -> None:
        logging.getLogger("anybody").debug("it is %s", WORD)
        raise ValueError("a key") from KeyError(KEY.hex())

    assert exposed({"x": tells}) == ["x: content in a log", "x: key in ValueError"]
    assert exposed({"y": lambda: PASSWORD}, results=True) == ["y: password in the repr of str"]


# -- reprs -----------------------------------------------------------------------------------------

NAMES_AND_NUMBERS = {
    "AsyncArtifact",
    "CacheSize",
    "Drift",
    "LeaseInfo",
    "RepairResult",
    "RunningStep",
    "SparedStream",
    "StreamProblem",
    "SweptStream",
    "WorkerInfo",
    "WorkerTask",
}
"""Of what is public, what no test here comes by: kept short, because each holds ids, kinds,
versions and words of ours alone."""

READABLE = {
    "AuditEntry", "Cancellation", "Draft", "Event", "Failure", "MemoryHit", "MemoryItem",
    "MessageEntry", "Note", "StepInfo", "StepProgress", "TaskInfo", "TaskView",
}  # fmt: skip
"""What people print to look at what is in it."""


class Printed:
    """Prints what it is shown, and all that is in it: what hides a part of itself does not hide
    that part from a debugger."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.found: set[str] = set()
        self.shows: set[str] = set()
        """What shows content."""

    def look(self, thing: Any) -> None:
        if isinstance(thing, list | tuple):
            for part in thing:
                self.look(part)
        elif type(thing).__module__.startswith("holdfast"):
            self.kinds.add(type(thing).__name__)
            for leak in leaks(repr(thing)):
                if leak == "content":
                    self.shows.add(type(thing).__name__)
                else:
                    self.found.add(f"{leak} in the repr of {type(thing).__name__}")
            for name in getattr(thing, "__struct_fields__", ()) or getattr(
                thing, "__dataclass_fields__", ()
            ):
                self.look(getattr(thing, name))


def test_what_is_printed_shows_content_and_no_secret(tmp_path: Path) -> None:
    printed, backend = Printed(), Lasting()

    @holdfast.agent("canary-agent", max_attempts=1)
    def agent(task: holdfast.Task) -> None:
        printed.look(task)
        task.step("one", lambda word: printed.look(holdfast.current_step()), WORD)
        task.step(
            "model",
            holdfast.step(kind="model")(lambda messages: WORD),
            store.conversation("chat").window(9_000),
        )
        printed.look(task.attach("x", WORD.encode()))
        raise ValueError(WORD)

    def saves() -> None:
        holdfast.current_step().save({"x": WORD}, done=1, total=2, flush=True)
        printed.look(store.get_task("saves"))
        raise ValueError(WORD)

    with holdfast.open(backend, key=KEY) as store:
        populate(store)
        for call in looks(store, tmp_path).values():
            printed.look(call())
        store.submit(agent, id="canary", goal=WORD, input=WORD)
        printed.look(
            [agent, store.run_due(), store.get_task("canary"), store.audit("canary", content=True)]
        )
        with pytest.raises(holdfast.StepFailed), store.task("saves") as task:
            task.step("saves", saves)
        store.task("saves").cancel(WORD)
        printed.look(store.get_task("saves"))
        printed.look(
            [holdfast.Worker(store), holdfast.step(agent), holdfast.EventType("x", Person)]
        )
        store.memory("printed").remember(WORD)
        [item] = store.memory("printed").all()
        printed.look([types.MemoryConflict(item, item), types.DraftPiece(1, "x", WORD, item.at)])
        printed.look(types.EntityInfo(WORD, "name", 1, item.at))
        chat = store.conversation("torn")
        chat.append({"role": "tool", "tool_call_id": "nobody's", "content": WORD})
        printed.look([chat.validate(), chat.append({"role": "user", "content": WORD})])
        (tmp_path / "messages.json").write_text(json.dumps([{"role": "user", "content": WORD}]))
        printed.look(store.conversation("imported").import_json(tmp_path / "messages.json"))
        twin = store.aio
        printed.look(
            [
                twin.conversation("x"),
                twin.task("x"),
                twin.memory("x"),
                twin.state("x"),
                twin.stream("x"),
            ]
        )
        printed.look(
            [
                store.rekey(OTHER),
                store.anchor(io.StringIO()),
                list(store.streams()),
                list(store.states()),
            ]
        )
        printed.look([list(store.conversations()), list(store.memory_namespaces())])
        store.verify(progress=printed.look)
    with holdfast.open(tmp_path / "clear.db") as store:
        store.state("document").save({"x": WORD})
    printed.look(holdfast.copy(tmp_path / "clear.db", tmp_path / "copy.db", progress=printed.look))
    printed.look(holdfast.encrypt(tmp_path / "clear.db", tmp_path / "sealed.db", key=KEY))
    assert printed.found == set()
    assert printed.shows >= READABLE
    named = {name: getattr(module, name) for module in (holdfast, types) for name in module.__all__}
    public = {
        name
        for name, kind in named.items()
        if isinstance(kind, type) and not issubclass(kind, BaseException)
    }
    assert public - printed.kinds == NAMES_AND_NUMBERS


# -- drivers ---------------------------------------------------------------------------------------


def few(store: holdfast.Store) -> None:
    """Enough to have each kind of request made, with the secret in it."""
    for _ in range(3):
        store.conversation("chat").append({"role": "user", "content": WORD * 9})
    store.conversation("chat").messages()
    with store.task("task", goal=WORD) as task:
        task.step("large", lambda: WORD * 10_000)
        task.attach("secret.txt", WORD.encode())
        task.finish(WORD)
    list(store.tasks())
    store.memory("space").remember(WORD)
    store.memory("space").recall(WORD)
    store.conversation("chat").delete()


@pytest.mark.parametrize("engine", ["sqlite", "files", "postgres", "redis", "dynamodb", "s3"])
def test_content_is_in_no_log_of_a_driver_either(engine: str, tmp_path: Path) -> None:
    def use() -> None:
        with holdfast.open(url_of(engine, tmp_path)) as store:
            few(store)

    assert exposed({engine: use}) == []


def test_a_key_in_kms_is_in_no_log() -> None:
    made, backend = boto3_key(), Lasting()
    with listening() as heard:
        for _ in range(2):
            with holdfast.open(
                backend, key=keys.kms(made, region="eu-central-1", endpoint=aws())
            ) as store:
                store.stream("s").append(("n", WORD))
    assert any("kms" in text for text in heard.texts)
    assert [text for text in heard.texts if "Plaintext" in text] == []


def test_what_the_client_of_aws_does_for_others_is_logged_as_before() -> None:
    with (
        holdfast.open(Lasting(), key=keys.kms(boto3_key(), region="eu-central-1", endpoint=aws())),
        listening() as heard,
    ):
        boto3_key()
    assert any(text.startswith("Response body") for text in heard.texts)


def boto3_key() -> str:
    vault = boto3.client("kms", region_name="eu-central-1", endpoint_url=aws())
    return str(vault.create_key()["KeyMetadata"]["KeyId"])


# -- passwords in URLs -----------------------------------------------------------------------------

URLS = [
    "postgresql://me:{}@127.0.0.1:1/agents?timeout=1", "postgresql://me:{}@127.0.0.1:port/agents",
    "postgresql://me:{}@[::1/agents", "postgresql://127.0.0.1:1/agents?timeout=1&password={}",
    "postgresql://me:{}@127.0.0.1:1/agents?bogus=1", "postgres:/me:{}@host/x",
    "postgresql://me:{}@127.0.0.1:1/agents?schema=1-2",
    "postgresql://me:{}@127.0.0.1:1/agents?timeout=x", "postgresql://me:{}@host/a#b",
    "redis://:{}@127.0.0.1:1/0?timeout=1", "redis://me:{}@127.0.0.1:port",
    "redis://me:{}@127.0.0.1:1/x", "redis://me:{}@host/0?bogus=1",
    "rediss://me:{}@127.0.0.1:1?timeout=1", "s3://id:{}@bucket/prefix",
    "s3://bucket/x?secret={}", "dynamodb://id:{}@table?region=eu-west-1",
    "dynamodb://table?region=eu-west-1&endpoint=http://id:{}@127.0.0.1:1", "mysql://me:{}@host/x",
    "sqlite://me:{}@host/x", "file://me:{}@host/x", "memory://me:{}@x/y",
    "POSTGRESQL://me:{}@127.0.0.1:1/a?timeout=1", "postgresql:me:{}@host",
]  # fmt: skip


def url_leaks(folder: Path) -> list[str]:
    calls: dict[str, Callable[[], Any]] = {}
    for url in URLS:
        whole = url.format(PASSWORD)
        calls[f"open {url}"] = lambda whole=whole: holdfast.open(whole).health()  # type: ignore[misc]
    whole = URLS[1].format(PASSWORD)
    calls["copy to"] = lambda: holdfast.copy("memory://", whole)
    calls["copy from"] = lambda: holdfast.copy(whole, "memory://")
    calls["backup"] = lambda: holdfast.backup(whole, folder / "copy.db")
    return exposed(calls, results=True)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are not there are given up at once."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, PASSWORD)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.mark.usefixtures("at_once")
def test_a_password_in_a_url_is_shown_nowhere(tmp_path: Path) -> None:
    assert url_leaks(tmp_path) == []


def passwords_tried(right: str, wrong: str, kill: Callable[[], None]) -> list[str]:
    """What is shown on a server that asks for a password: of the wrong one, the right one, and when
    the server dies."""
    with pytest.raises(holdfast.errors.AccessDenied):
        holdfast.open(wrong)
    store = holdfast.open(right)
    few(store)
    calls: dict[str, Callable[[], Any]] = {
        "wrong": lambda: holdfast.open(wrong),
        "right": lambda: [few(store), store],
    }
    found = exposed(calls, results=True)
    kill()
    calls = {
        "gone": lambda: store.stream("s").append(("n", WORD)),
        "closed": store.close,
        "again": lambda: holdfast.open(right).health(),
    }
    return found + exposed(calls, results=True)


def test_a_password_that_redis_asks_for_is_shown_nowhere(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis")
    try:
        server("CONFIG", "SET", "requirepass", PASSWORD)
        options = "?timeout=1"
        right, wrong = (
            server.url(options, user=f":{password}@") for password in (PASSWORD, PASSWORD + "x")
        )
        assert passwords_tried(right, wrong, server.kill) == []
    finally:
        server.kill()


def test_a_password_that_postgresql_asks_for_is_shown_nowhere() -> None:
    server = PostgresServer(
        hba="host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
        memory=True,
    )
    try:
        server.start()
        server.sql(f"CREATE ROLE canary LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        right, wrong = (
            server.url(user="canary", password=word) + "&timeout=1"
            for word in (PASSWORD, PASSWORD + "x")
        )
        assert passwords_tried(right, wrong, server.kill) == []
    finally:
        server.close()


# -- keys ------------------------------------------------------------------------------------------


def key_leaks(folder: Path) -> list[str]:
    backend = Lasting()
    holdfast.open(backend, key=KEY).stream("s").append(("n", 1))
    phrased = Lasting()
    holdfast.open(phrased, key=keys.passphrase(PHRASE, n=1 << 14)).stream("s").append(("n", 1))
    file = folder / "master.key"
    file.write_text(KEY.hex() + "00")
    file.chmod(0o600)
    os.environ["CANARY_KEY"], text = KEY.hex(), base64.b64encode(KEY).decode()
    bad: list[Any] = [
        KEY[:31], KEY + b"x", KEY.hex(), text, f"base64:{text}x", f"base64:{text[:-4]}",
        "env:CANARY_KEY", file, f"file:{file}", OTHER,
        [OTHER, KEY[:3]], lambda: KEY[:30], lambda: KEY.hex(),
        keys.from_function(lambda _: KEY.hex(), id="2026"),  # type: ignore[arg-type, return-value]
        f"passphrase:{PHRASE}", keys.raw(OTHER, id="other"), {"key": KEY}, 7, f"kms {KEY.hex()}",
        f"{KEY.hex()}:x",
    ]  # fmt: skip
    calls: dict[str, Callable[[], Any]] = {}
    for number, key in enumerate(bad):
        calls[f"key {number}"] = lambda key=key: holdfast.open(backend, key=key)  # type: ignore[misc]
        calls[f"rekey {number}"] = lambda key=key: holdfast.open(cloned(backend), key=KEY).rekey(
            key
        )  # type: ignore[misc]
        calls[f"anchor {number}"] = lambda key=key: holdfast.open(backend, key=KEY).anchor(
            io.StringIO(), key=key
        )  # type: ignore[misc]
    store = holdfast.open(backend, key=[KEY, OTHER])
    cipher: Any = store._log.cipher
    calls["reprs"] = lambda: [
        keys.raw(KEY), keys.raw(KEY, id="mine"), keys.from_function(lambda: KEY),
        keys.passphrase(PHRASE, n=1 << 14), keys.parse_keys([KEY, OTHER]),
        store, cipher, cipher.keys, cipher.keys.ring, list(cipher.keys.ring.masters.values()),
        cipher.keys.tenant_key("default", create=True),
    ]  # fmt: skip
    calls["none"] = lambda: holdfast.open(backend)
    calls["phrase"] = lambda: holdfast.open(phrased, key=f"passphrase:{PHRASE}x")
    calls["short"] = lambda: holdfast.open(phrased, key=f"passphrase:{PHRASE[:5]}")
    return exposed(calls, results=True)


def test_keys_and_passphrases_are_shown_nowhere(tmp_path: Path) -> None:
    assert key_leaks(tmp_path) == []


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_the_errors_of_commands_show_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_terminal(monkeypatch)
    path, sealed = tmp_path / "agents.db", tmp_path / "sealed.db"
    with holdfast.open(path) as store:
        store.submit("hostile-healthy", "t", goal=WORD, input={"x": WORD})
        store.stream("s").append(("n", WORD))
    with holdfast.open(sealed, key=KEY) as store:
        store.stream("s").append(("n", WORD))
    text = base64.b64encode(KEY).decode()
    commands: list[tuple[object, ...]] = [
        *(("health", url.format(PASSWORD)) for url in URLS[1:4:2] + URLS[10:14] + URLS[18:22]),
        ("copy", URLS[1].format(PASSWORD), path), ("copy", path, URLS[1].format(PASSWORD)),
        ("backup", URLS[10].format(PASSWORD), tmp_path / "x"),
        ("schema", URLS[1].format(PASSWORD)), ("--key", f"base64:{text}x", "health", sealed),
        ("--key", KEY.hex(), "health", sealed),
        ("--key", f"passphrase:{PHRASE}", "health", sealed),
        ("--key", f"base64:{base64.b64encode(OTHER).decode()}", "read", sealed, "s"),
        ("--key", f"base64:{text}", "health", path),
        ("--key", f"base64:{text}", "rekey", sealed, "--to", KEY.hex()), ("health", sealed),
        ("answer", path, "t", "payout", json.dumps(WORD)), ("answer", path, "t", "payout", WORD),
        ("signal", path, "nobody", "x", "--payload", WORD),
        ("resolve", path, "t", "one", "--result", WORD),
        ("resolve", path, "t", "one", "--result", json.dumps(WORD)),
        ("submit", path, "hostile-healthy", "t", "--input", WORD),
        ("submit", path, "hostile-healthy", "t", "--goal", WORD + "2"),
        ("tasks", path, "--status", "odd"), ("retry", path, "nobody"), ("read", path, "nobody"),
        ("remember", path, "space", WORD, "--at", WORD),
        ("remember", path, "", WORD), ("recall", path, "space", WORD),
        ("forget", path, "space", "nobody"), ("cancel", path, "nobody", "--reason", WORD),
        ("encrypt", path, sealed, "--to", KEY.hex()),
        ("encrypt", sealed, tmp_path / "y", "--to", f"base64:{text}"),
        ("decrypt", path, tmp_path / "y"),
        ("--key", f"base64:{base64.b64encode(OTHER).decode()}", "decrypt", sealed, tmp_path / "z"),
        ("anchor", path, "--to", tmp_path / "a", "--anchor-key", KEY.hex()),
        ("anchor", path, "--to", tmp_path / "a", "--anchor-key", f"base64:{text}x"),
        ("verify", path, "--anchor", Path(__file__)), ("verify", sealed),
        ("--key", f"base64:{text}", "erase", sealed, "--stream", "nobody", "--yes", "--reason",
        WORD), ("erase", path, "--stream", "s", "--yes", "--reason", WORD),
        ("audit", path, "nobody"), ("audit", path, "t"), ("messages", path, "nobody"),
        ("artifact", path, "t", "nothing"), ("health", path), ("streams", path),
        ("worker", path, "nothing.py"), ("replay", path, "t", "nothing.py"),
        ("replay", path, "t", "hostile"), ("sweep", path, "--dry-run"),
    ]  # fmt: skip
    found = []
    with listening() as heard:
        for command in commands:
            result = run(*command)
            shown = result.output + (told(result.exception) if result.exception is not None else "")
            found += [(command[0], leak) for leak in leaks(shown)]
            assert result.exit_code in (0, 1, 2), result.output
        found += [("log", leak) for text in heard.texts for leak in leaks(text)]
    assert found == []


# -- without asserts, and traced -------------------------------------------------------------------

_OPTIMIZED = """
import sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
import test_canary

folder = Path(sys.argv[1])
with trace.get_tracer("test").start_as_current_span("all"):
    found = test_canary.content_leaks(folder) + test_canary.key_leaks(folder)
told = [span.to_json() for span in spans.get_finished_spans()]
found += [f"a span: {leak}" for text in told for leak in test_canary.leaks(text)]
print(sum(len(span.events) for span in spans.get_finished_spans()), sys.flags.optimize, found)
"""


def test_the_same_without_asserts_and_in_the_spans_of_a_trace(tmp_path: Path) -> None:
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-O", "-c", _OPTIMIZED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    events, optimized, *found = done.stdout.split(maxsplit=2)
    assert int(events) > 10 and optimized == "1"
    assert found == ["[]\n"]
    assert leaks(done.stderr) == []
