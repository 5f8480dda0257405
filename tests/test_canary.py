"""Secrets in content, in URLs and in keys come out nowhere: not in logs, errors, traces, reprs, metrics, nor at the command line.

What our own text shows is tested. What a user's own exception says is shown as it is (`StepFailed`), because nothing else tells
why a step failed; `redact=` is for that. Names stay too: of streams, steps, events and people.
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

import msgspec
import pytest

import holdfast
import hostile
from cli_runs import plain_terminal, run
from holdfast import keys
from holdfast.backends.memory import MemoryBackend
from hostile import Lasting, cloned, places, plant, ways

# Made anew for each run: a line of this file in a trace must not look like a leak.
WORD = "canary" + os.urandom(6).hex()
PASSWORD = "pass" + os.urandom(6).hex()
PHRASE = "phrase " + os.urandom(6).hex()
KEY, OTHER = keys.generate(), keys.generate()

SECRETS = {
    "content": [WORD],
    "password": [PASSWORD],
    "passphrase": [PHRASE],
    "key": [form for key in (KEY, OTHER) for form in (key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1])],
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
    """What of the secrets the calls have shown, and where; with `results`, also by the reprs of what they return."""
    found: list[str] = []
    with listening() as heard:
        for name, call in calls.items():
            try:
                answer = call()
            except (Exception, holdfast.Suspended) as error:  # which is no Exception: programs must not catch it
                found += [f"{name}: {leak} in {type(error).__name__}" for leak in leaks(told(error))]
            else:
                if results:
                    found += [f"{name}: {leak} in the repr of {type(answer).__name__}" for leak in leaks(repr(answer))]
            found += [f"{name}: {leak} in a log" for text in heard.texts for leak in leaks(text)]
            heard.texts.clear()
    return sorted(set(found))


# -- content ---------------------------------------------------------------------------------------------------------------------


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

    def stepping(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
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
        "a checkpoint": lambda: store.save_checkpoint(holdfast.AgentCheckpoint("a", "task", WORD, results={"0": Odd()})),
        "a type of event": lambda: list(store.stream("events", types=[holdfast.EventType("order.placed", Person)]).read()),
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
        "conversation": store.conversation("chat").info,
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
    bad = [json.dumps(WORD).encode(), WORD.encode(), hostile.envelope(json.dumps({"x": WORD}).encode())]
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


def test_content_is_in_no_log_error_or_repr(tmp_path: Path) -> None:
    assert content_leaks(tmp_path) == []


def test_the_listener_hears_and_the_secrets_are_found() -> None:
    def tells() -> None:
        logging.getLogger("anybody").debug("it is %s", WORD)
        raise ValueError("a key") from KeyError(KEY.hex())

    assert exposed({"x": tells}) == ["x: content in a log", "x: key in ValueError"]
    assert exposed({"y": lambda: PASSWORD}, results=True) == ["y: password in the repr of str"]


# -- passwords in URLs -------------------------------------------------------------------------------------------------------------------

URLS = [
    "postgresql://me:{}@127.0.0.1:1/agents?timeout=1", "postgresql://me:{}@127.0.0.1:port/agents", "postgresql://me:{}@[::1/agents",
    "postgresql://127.0.0.1:1/agents?timeout=1&password={}", "postgresql://me:{}@127.0.0.1:1/agents?bogus=1", "postgres:/me:{}@host/x",
    "postgresql://me:{}@127.0.0.1:1/agents?schema=1-2", "postgresql://me:{}@127.0.0.1:1/agents?timeout=x", "postgresql://me:{}@host/a#b",
    "redis://:{}@127.0.0.1:1/0?connect_timeout_ms=500", "redis://me:{}@127.0.0.1:port", "redis://me:{}@127.0.0.1:1/x", "redis://me:{}@host/0?bogus=1",
    "rediss://me:{}@127.0.0.1:1?connect_timeout_ms=500", "s3://id:{}@bucket/prefix", "s3://bucket/x?secret={}", "dynamodb://id:{}@table?region=eu-west-1",
    "dynamodb://table?region=eu-west-1&endpoint=http://id:{}@127.0.0.1:1", "mysql://me:{}@host/x", "sqlite://me:{}@host/x", "file://me:{}@host/x",
    "memory://me:{}@x/y", "POSTGRESQL://me:{}@127.0.0.1:1/a?timeout=1", "postgresql:me:{}@host",
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


# -- keys ----------------------------------------------------------------------------------------------------------------------------------


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
        KEY[:31], KEY + b"x", KEY.hex(), text, f"base64:{text}x", f"base64:{text[:-4]}", "env:CANARY_KEY", file, f"file:{file}", OTHER,
        [OTHER, KEY[:3]], lambda: KEY[:30], lambda: KEY.hex(), keys.from_function(lambda _: KEY.hex(), id="2026"),  # type: ignore[arg-type, return-value]
        f"passphrase:{PHRASE}", keys.raw(OTHER, id="other"), {"key": KEY}, 7, f"kms {KEY.hex()}", f"{KEY.hex()}:x",
    ]  # fmt: skip
    calls: dict[str, Callable[[], Any]] = {}
    for number, key in enumerate(bad):
        calls[f"key {number}"] = lambda key=key: holdfast.open(backend, key=key)  # type: ignore[misc]
        calls[f"rekey {number}"] = lambda key=key: holdfast.open(cloned(backend), key=KEY).rekey(key)  # type: ignore[misc]
        calls[f"anchor {number}"] = lambda key=key: holdfast.open(backend, key=KEY).anchor(io.StringIO(), key=key)  # type: ignore[misc]
    store = holdfast.open(backend, key=[KEY, OTHER])
    cipher: Any = store._log.cipher
    calls["reprs"] = lambda: [
        keys.raw(KEY), keys.raw(KEY, id="mine"), keys.from_function(lambda: KEY), keys.passphrase(PHRASE, n=1 << 14), keys.given([KEY, OTHER]),
        store, cipher, cipher.keys, cipher.keys.ring, list(cipher.keys.ring.masters.values()), cipher.keys.house("default", make=True),
    ]  # fmt: skip
    calls["none"] = lambda: holdfast.open(backend)
    calls["phrase"] = lambda: holdfast.open(phrased, key=f"passphrase:{PHRASE}x")
    calls["short"] = lambda: holdfast.open(phrased, key=f"passphrase:{PHRASE[:5]}")
    return exposed(calls, results=True)


def test_keys_and_passphrases_are_shown_nowhere(tmp_path: Path) -> None:
    assert key_leaks(tmp_path) == []


# -- the command line ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("at_once")
def test_the_errors_of_commands_show_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("copy", URLS[1].format(PASSWORD), path), ("copy", path, URLS[1].format(PASSWORD)), ("backup", URLS[10].format(PASSWORD), tmp_path / "x"),
        ("schema", URLS[1].format(PASSWORD)), ("--key", f"base64:{text}x", "health", sealed), ("--key", KEY.hex(), "health", sealed),
        ("--key", f"passphrase:{PHRASE}", "health", sealed), ("--key", f"base64:{base64.b64encode(OTHER).decode()}", "read", sealed, "s"),
        ("--key", f"base64:{text}", "health", path), ("--key", f"base64:{text}", "rekey", sealed, "--to", KEY.hex()), ("health", sealed),
        ("answer", path, "t", "payout", json.dumps(WORD)), ("answer", path, "t", "payout", WORD), ("signal", path, "nobody", "x", "--payload", WORD),
        ("resolve", path, "t", "one", "--result", WORD), ("resolve", path, "t", "one", "--result", json.dumps(WORD)),
        ("submit", path, "hostile-healthy", "t", "--input", WORD), ("submit", path, "hostile-healthy", "t", "--goal", WORD + "2"),
        ("tasks", path, "--status", "odd"), ("retry", path, "nobody"), ("read", path, "nobody"),
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


# -- without asserts, and traced -------------------------------------------------------------------------------------------------------------

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
