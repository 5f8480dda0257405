"""What the tests of hostile stores share: a store with something of everything, what somebody could
plant in it, and every way of reading it."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import holdfast
from helpers.stored.encrypted_stores import chain_records
from holdfast.backends import HeadFields, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.log.ids import SYSTEM_TENANT

T = TypeVar("T")

ALL = os.environ.get("HOLDFAST_HOSTILE") == "all"
LARGE = "large " * 15_000
CONTENT = "planted-content"
"""A part of some of what is planted: no error shows it."""
TRIPPED: list[str] = []
"""What was planted and then run: nothing ever."""


def trip(*what: object) -> str:
    """What everything that is planted tries to call."""
    TRIPPED.append(repr(what))
    return "tripped"


def share(jobs: list[T], of: int, asynchronous: bool = False) -> list[T]:
    """Every so-many-th, which is prime to the numbers of what is planted and of the places.

    For the async interface others, and a fifth as many: what is under it is the same."""
    return jobs if ALL else jobs[1 :: 5 * of] if asynchronous else jobs[::of]


class Tripwire:
    """An object whose pickle calls `trip`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return trip, ("pickle",)


@holdfast.agent("hostile-waiting")
def waiting(task: holdfast.Task) -> bool:
    return bool(task.ask("payout", question="Pay it out?", payload={"amount": 7}, returns=bool))


@holdfast.agent("hostile-healthy")
def healthy(task: holdfast.Task) -> int:
    return task.step("one", int)


def populate(store: holdfast.Store) -> None:
    """Something of every kind of event, small."""
    chat = store.conversation("chat")
    for number in range(3):
        chat.append(
            {"role": "user", "content": f"question {number}"}, id=f"m-{number}", meta={"n": number}
        )
        chat.append({"role": "assistant", "content": f"answer {number}"})
    chat.append({"role": "user", "content": LARGE})
    chat.summarize(lambda _: "what was said", keep_last=2)
    chat.draft("so far", of="reply-1")
    chat.rewind(version=chat.version() - 1)
    chat.fork("fork")
    with chat.turn():
        pass
    with store.task("task", goal="reach it", input={"n": 1}, agent="hostile-healthy") as task:
        task.make_plan(["one", {"name": "two", "more": 1}])
        task.step("one", lambda: 1)
        task.step("two", lambda: LARGE)
        try:
            task.step("three", _fail)
        except holdfast.StepFailed:
            pass
        task.decide("so", why="because")
        task.discover("that")
        task.attach("file.txt", b"content " * 140_000)
        task.map("each", lambda n: n + 1, [1, 2])
        task.conversation().append({"role": "user", "content": "in a task"})
        task.remember("the user likes tea")
    store.task("task").fork("forked")
    with store.task("done", goal="finish", agent="hostile-healthy") as task:
        task.finish({"sum": 3})
    store.submit("hostile-waiting", "asking", input={"n": 1}, budget=holdfast.Budget(tokens=1000))
    store.run_due()
    store.signal("asking", "poke", {"n": 1})
    memory = store.memory("space")
    first = memory.remember(
        "Ann prefers tea to coffee", tags=["drink"], meta={"n": 1}, importance=0.7
    )
    memory.remember("Bob lives in Bern since May 2021")
    memory.feedback(first, useful=True)
    memory.supersede(first, "Ann prefers water")
    memory.forget(memory.remember("to be forgotten"))
    document = store.state("document")
    for number in range(4):
        document.save({"round": number, "text": "word " * 40, "list": list(range(number))})
    document.expire(10_000_000)
    store.state("large").save(LARGE)
    checkpoint = store.load_checkpoint("task")
    assert checkpoint is not None
    store.save_checkpoint(holdfast.AgentCheckpoint.from_dict(checkpoint.to_dict()))
    events = store.stream("events")
    events.append(("order.placed", {"n": 1}), id="req-1")
    events.append(("order.paid", [1, 2.5, None]), ("order.sent", LARGE))
    store.stream("gone").append(("noted", LARGE))
    store.stream("gone").delete()
    for number in range(4):
        store.conversation(f"old-{number}").append({"role": "user", "content": LARGE})
    store.conversation("old-1").expire(0)
    store.sweep(grace=0)
    store.conversation("about", subject="person-7").append(
        {"role": "user", "content": "about a person"}
    )


def _fail() -> None:
    raise ValueError("no")


# -- what is planted -------------------------------------------------------------------------------

_DEEP = 100_000
_DIGITS = b"9" * 100_000
_ENVELOPE = b'{"id":"x","type":"%b","at":%b,"data":%b}'


def envelope(data: bytes, type: bytes = b"noted", at: bytes = b"1.0") -> bytes:
    return _ENVELOPE % (type, at, data)


RAW: dict[str, bytes] = {
    "nothing": b"",
    "pickle": pickle.dumps(Tripwire()),
    "old pickle": pickle.dumps(Tripwire(), protocol=0),
    "pickle in JSON": msgspec.json.encode({"py/object": "hostile.Tripwire",
    "data": pickle.dumps(Tripwire())}),
    "msgpack": msgspec.msgpack.encode({"id": "x", "type": "noted", "at": 1.0, "data": None}),
    "msgpack extension": b"\xc7\x05\x01hello",
    "yaml": b'!!python/object/apply:hostile.trip ["yaml"]',
    "yaml alias bomb": b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n",
    "template": b'{"id":"{{7*7}}",'
                b'"type":"${jndi:x}","at":1.0,"data":"__import__(\'hostile\').trip()"}',
    "deep list": b"[" * _DEEP + b"]" * _DEEP,
    "deep, cut short": b'{"data":' * _DEEP,
    "deep data": envelope(b"[" * _DEEP + b"]" * _DEEP),
    "deep data within the limit of the parser": envelope(b"[" * 500 + b"]" * 500),
    "deep in a field that nobody "
    "knows": b'{"id":"x","type":"n",'
             b'"at":1.0,"more":' + b'{"a":' * _DEEP + b"1" + b"}" * (_DEEP + 1),
    "deep fold": b'{"id":"x","type":"state.saved",'
                 b'"at":1.0,"fold":' + b"[" * 900 + b"]" * 900 + b',"data":null}',
    "a huge number": envelope(_DIGITS),
    "a huge time": envelope(b"null", at=_DIGITS),
    "a time of no calendar": envelope(b"null", at=b"1e300"),
    "a time before all": envelope(b"null", at=b"-1e18"),
    "an endless time": envelope(b"null", at=b"1e999"),
    "a huge version": b'{"id":"x","type":"n","v":' + _DIGITS + b',"at":1.0}',
    "a huge exponent": envelope(b"1e999999999"),
    "NaN": envelope(b"NaN"),
    "Infinity": envelope(b"null", at=b"Infinity"),
    "not UTF-8": envelope(b'"\xff\xfe"'),
    "a type that is not UTF-8": envelope(b"null", type=b"\xff\xfe"),
    "lone surrogate": envelope(b'"\\ud800"'),
    "a type of a lone surrogate": envelope(b"null", type=b"\\udcff"),
    "twice the same "
    "key": b'{"id":"x","type":"noted","type":"task.created","at":1.0,"at":"x","data":1,"data":{}}',
    "NULs": b"\0" * 1000,
    "a NUL in a text": envelope(b'"a\\u0000b"', type=b"a\\u0000b"),
    "a body that goes on": envelope(b"null") + envelope(b"null"),
    "an empty object": b"{}",
    "text for a number": b'{"id":7,"type":[],"at":"now","data":null}',
    "a blob of no "
    "size": b'{"id":"x","type":"noted","at":1,"blob":{"digest":"00","size":-1,"incarnation":"x"}}',
    "a blob of all "
    "memory": b'{"id":"x","type":"noted",'
              b'"at":1.0,"blob":{"digest":"../'
              b'../etc","size":9000000000000000000,"incarnation":"\\u0000"}}',
    "sealed by nobody": b"\1\0" + b"n" * 12 + b"c" * 40,
    "a key of a long name": b"\1\xff" + b"k" * 300,
    "a key of no name": b"\1\x05\xff\xfe\xfd\xfc\xfb" + b"n" * 40,
    "half a header": b"\1",
}  # fmt: skip
"""What a body can be, by a name."""

VALUES: list[Any] = [
    None, True, -1, 0, 2**63 - 1, -(2**63), 2**64 - 1, 1e300, -1e300, 0.5, "", "x", "\0",
    "9" * 5000, "\U0010ffff", [], {}, [[]],
    [None], [7], ["x"], {"": None}, {"name": 7}, {"digest": "00", "size": -1, "incarnation": "x"},
    {"digest": "x", "size": 2**62, "incarnation": "\0"},
]  # fmt: skip
"""What a field of a JSON object can be in place of what it was."""

FIELDS: list[HeadFields] = [
    HeadFields(status="\0"), HeadFields(status="x" * 10_000), HeadFields(status=""),
    HeadFields(label=b""), HeadFields(label=b"\xff" * 50),
    HeadFields(label=b"[" * _DEEP), HeadFields(label=b'{"goal":' + _DIGITS + b"}"),
    HeadFields(label=pickle.dumps(Tripwire())),
    HeadFields(label=b'{"goal":7}'), HeadFields(label=b"null"), HeadFields(label=b"\1" + b"x" * 60),
    HeadFields(owner=""), HeadFields(owner="\0/\0/\0/\0"),
    HeadFields(owner="a/b/" + "9" * 5000 + "/c"), HeadFields(due_at=-1e308),
    HeadFields(due_at=1e308), HeadFields(due_at=0.0, expires_at=0.0),
    HeadFields(expires_at=-1.0), HeadFields(expires_at=1e308), HeadFields(expires_at=-1e308),
    HeadFields(expires_at=float("inf")),
    HeadFields(expires_at=float("-inf")), HeadFields(due_at=float("nan"), expires_at=float("nan")),
    *(HeadFields(status=status, label=label, owner="x", due_at=1.0)
      for status in ("pending", "running", "suspended", "retrying", "finished", "failed", "stuck",
      "waiting") for label in (None, b"{}", b"\xff", b'{"goal":7}')),
]  # fmt: skip
"""What the fields of a head can be."""


# -- planting it in memory -------------------------------------------------------------------------


class Lasting(MemoryBackend):
    """A backend in memory that outlives the stores that are opened on it."""

    def close(self) -> None:
        pass


def cloned(backend: MemoryBackend) -> Lasting:
    """The same content, to be changed."""
    new = Lasting()
    for key, stream in backend._streams.items():
        copy = type(stream)(stream.incarnation)
        copy.records, copy.ids, copy.fields = list(stream.records), dict(stream.ids), stream.fields
        copy.version, copy.hash = stream.version, stream.hash
        new._streams[key] = copy
    return new


def plant(backend: MemoryBackend, key: StreamKey, version: int, body: bytes) -> None:
    """Replace one body, with a chain that fits."""
    stream = backend._streams[key]
    parts = [(record.append_id, record.body) for record in stream.records]
    parts[version - 1] = (parts[version - 1][0], body)
    stream.records[:] = chain_records(key, stream.incarnation, parts)
    stream.hash = stream.records[-1].hash


def places(backend: MemoryBackend) -> Iterator[tuple[StreamKey, int]]:
    """One record for each type of event of each kind of stream, and the chunks of large values."""
    seen = set()
    for key, stream in backend._streams.items():
        for record in stream.records:
            try:
                name = msgspec.json.decode(record.body)["type"]
            except (msgspec.DecodeError, UnicodeDecodeError):
                name = "raw"
            if (key.kind, name) not in seen:
                seen.add((key.kind, name))
                yield key, record.version


def variants(body: bytes) -> Iterator[tuple[str, bytes]]:
    """The event in a body with one field wrong, or gone; also fields of fields."""
    whole = msgspec.json.decode(body)
    for path in list(_paths(whole)):
        for value in [*VALUES, ...]:
            yield f"{path} = {value!r:.40}", msgspec.json.encode(_changed(whole, path, value))


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        if len(before) < 4 and (not isinstance(value, list) or key < 2):
            yield (*before, key)
            yield from _paths(item, (*before, key))


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if not rest and new is ...:
        del copy[key]
    else:
        copy[key] = _changed(value[key], tuple(rest), new) if rest else new
    return copy


# -- reading it ------------------------------------------------------------------------------------


def ways(store: holdfast.Store, folder: Path) -> dict[str, Callable[[], Any]]:
    """Every public way of looking at what is stored, and of going on with it."""
    chat, task, memory, document = (
        store.conversation("chat"),
        store.task("task"),
        store.memory("space"),
        store.state("document"),
    )
    events, system = store.stream("events"), store.for_tenant("default")

    def enter() -> Any:
        with store.task("task", wait=0, steal=True) as entered:
            entered.make_plan(["one"])
            for item in entered.remaining():
                entered.step(item, int)
            return (
                entered.step("two", str),
                entered.decide("x"),
                entered.results(),
                entered.artifacts,
            )

    def turn() -> None:
        with chat.turn(wait=0):
            chat.append({"role": "user", "content": "x"}, id="m-0")

    def written(event: Any) -> tuple[Any, ...]:
        return event.at, repr(event)

    return {
        "messages": chat.messages, "entries": lambda: [written(entry) for entry in chat.entries()],
        "last": lambda: chat.messages(last=2),
        "count": chat.count, "view": chat.view, "pending": chat.pending, "drafts": chat.drafts,
        "validate": chat.validate,
        "window": lambda: chat.window(1000), "answer": lambda: chat.answer(1),
        "follow": lambda: list(chat.follow(timeout=0)),
        "export": lambda: chat.export_json(folder / "chat.json"),
        "fork": lambda: store.conversation("fork").messages(),
        "conversations": lambda: [store.conversation(one.id).view()
        for one in store.conversations()],
        "sync": lambda: chat.sync(chat.messages() or [{"role": "user", "content": "x"}]),
        "repair": chat.repair, "turn": turn, "pop": chat.pop,
        "summarize": lambda: chat.summarize(lambda _: "s", keep_last=1),
        "get task": lambda: repr(store.get_task("task")),
        "get asking": lambda: repr(store.get_task("asking")),
        "get done": lambda: repr(store.get_task("done")),
        "forked": lambda: store.task("forked").view(),
        "tasks": lambda: list(store.tasks()),
        "running": lambda: list(store.tasks(status="running")),
        "history": lambda: [written(event) for event in task.history()],
        "at": lambda: task.view(version=3), "preview": task.preview,
        "context": lambda: (task.resume_context(), store.task("asking").resume_context()),
        "checkpoint": task.checkpoint,
        "load checkpoint": lambda: store.load_checkpoint("task"),
        "artifact": lambda: store.artifact("task", "file.txt").read(),
        "artifact info": lambda: (lambda found: (found.at, found.size,
        found.digest))(store.artifact("task", "file.txt")),
        "prompt": lambda: store.model_input("task", "one"),
        "replay": lambda: store.replay(healthy, "task"),
        "task talk": lambda: task.conversation().messages(),
        "recall": lambda: [written(hit) for hit in memory.recall("what does Ann drink?")],
        "all": lambda: [written(one) for one in memory.all()],
        "stats": memory.stats, "rebuild": memory.rebuild,
        "remember": lambda: memory.remember("Ann prefers tea to coffee"),
        "memories": lambda: list(store.memory_namespaces()),
        "forget where": lambda: memory.forget_where(tags=["drink"]),
        "load": document.load, "large": lambda: store.state("large").load(),
        "state at": lambda: document.load(version=2),
        "state history": lambda: [written(version) for version in document.history()],
        "save": lambda: document.save({"n": 1}),
        "states": lambda: list(store.states()),
        "events": lambda: [written(event) for event in events.read()],
        "last event": lambda: events.last(2), "version": events.version,
        "streams": lambda: list(store.streams()),
        "append": lambda: events.append(("order.placed", {"n": 1}), id="req-1"),
        "new": lambda: store.stream("new").append(("n", 1)),
        "health": lambda: repr(system.health()),
        "verify": lambda: repr(store.verify(all_tenants=True)),
        "anchor": lambda: store.anchor(io.StringIO(), key=b"k" * 31 + b"l"),
        "audit": lambda: [store.audit("task", content=True).text(), store.audit("task").csv(),
        store.audit("task").jsonl()],
        "audit of all": lambda: [store.audit(name, kind=kind, content=True).text() for kind,
        name in AUDITED],
        "audit of what is gone": lambda: store.audit("gone", kind="stream").text(),
        "closed": lambda: store.conversation("old-1").append({"role": "user", "content": "x"}),
        "look": lambda: store.run_due(limit=3),
        "answer ask": lambda: store.answer("asking", "payout", True, by="ann"),
        "signal": lambda: store.signal("task", "poke"),
        "resolve": lambda: store.resolve("task", "one", retry=True), "enter": enter,
        "submit": lambda: store.submit("hostile-healthy", "task"),
        "copy": lambda: holdfast.copy(store._log.backend, MemoryBackend()),
        "sweep dry": lambda: str(store.sweep(dry_run=True, grace=0)),
        "sweep": lambda: str(store.sweep(grace=0, force=True)),
        "cancel": task.cancel, "delete": document.delete,
    }  # fmt: skip


AUDITED = [
    ("conversation", "chat"),
    ("memory", "space"),
    ("state", "document"),
    ("stream", "events"),
]

SYSTEM_KEYS = [
    StreamKey(SYSTEM_TENANT, "key", "ring"),
    StreamKey(SYSTEM_TENANT, "tenant", "default"),
]


def foreign_errors(
    open_store: Callable[[], holdfast.Store],
    folder: Path,
    *,
    asynchronous: bool = False,
    of: int = 1,
) -> list[str]:
    """Every way of reading that ends in an error that is not ours, or that shows content, and what
    had been imported for it.

    With `of`, every so-many-th way."""
    before = set(sys.modules)
    found, opened = list[str](), list[holdfast.Store]()
    if foreign := attempted("open", lambda: opened.append(open_store())):
        return [foreign]
    for store in opened:
        with store, Loop() as loop:
            looked_at: Any = Awaited(store.aio, loop) if asynchronous else store
            tries = [
                attempted(name, way) for name, way in list(ways(looked_at, folder).items())[::of]
            ]
            found += [foreign for foreign in tries if foreign]
    found += [
        f"imported {name}" for name in set(sys.modules) - before if not name.startswith(_OURS)
    ]
    return found + [f"executed {what}" for what in TRIPPED]


def found_in_turn(jobs: Iterable[tuple[str, Callable[[], Iterable[str]]]]) -> dict[str, str]:
    """Each kind of thing that went wrong, and the name of the first job that it came of. A job
    plants something, and looks."""
    found: dict[str, str] = {}
    for name, job in jobs:
        for wrong in job():
            found.setdefault(wrong, name)
    return found


def attempted(name: str, way: Callable[[], object]) -> str | None:
    """What is wrong with how this ends: nothing, if it ends well or with an error of ours that
    shows no content."""
    try:
        way()
    except holdfast.HoldfastError as error:
        return (
            f"{name} shows content: {type(error).__name__}" if CONTENT in said_by(error) else None
        )
    except Exception as error:
        return f"{name}: {error!r:.200}"
    return None


def said_by(error: BaseException | None) -> str:
    """All that a traceback would print of it."""
    said = ""
    while error is not None:
        said += f"{error} {error!r} {vars(error)}\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return said


class Loop:
    """An event loop that a plain program runs bit by bit."""

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        return self._loop

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class Awaited:
    """Something async, used as if it were plain: what it gives is awaited here. So that one list of
    ways is of both interfaces."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def _given(self, value: Any) -> Any:
        if inspect.isawaitable(value):

            async def wait() -> Any:
                return await value

            return self._given(self._loop.run_until_complete(wait()))
        if hasattr(value, "__aiter__"):

            async def drained() -> list[Any]:
                return [item async for item in value]

            return [self._given(item) for item in self._loop.run_until_complete(drained())]
        if isinstance(value, _TWINS) or hasattr(value, "__aenter__"):
            return Awaited(value, self._loop)
        return value

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.ismethod(found):
            return self._given(found)
        return lambda *args, **kwargs: self._given(found(*args, **kwargs))

    def __enter__(self) -> Any:
        return self._given(self._inner.__aenter__())

    def __exit__(self, *error: Any) -> Any:
        return self._given(self._inner.__aexit__(*error))


_TWINS = (
    holdfast.AsyncArtifact,
    holdfast.AsyncConversation,
    holdfast.AsyncMemory,
    holdfast.AsyncState,
    holdfast.AsyncStore,
    holdfast.AsyncStream,
    holdfast.AsyncTask,
)

_OURS = (
    "holdfast",
    "msgspec",
    "encodings",
    "_",
    "asyncio",
    "concurrent",
    "csv",
    "multiprocessing",
    "numpy",
    "apsw",
    "cryptography",
)
