"""Which stores the tests run on. Engines are chosen here, and nowhere else.

A test that uses `url`, `store` or `ways` is about a feature. What is above the backend interface
doesn't know the engine, so it runs on memory and on SQLite. Tests with `@pytest.mark.every_engine`
run on all engines, and on encrypted SQLite: together they are the table of all features in
docs/reference/backends.md. A few of them start many processes or send many requests;
`@pytest.mark.long("s3", ...)` names the engines that they run on only in `make soak`.

`HOLDFAST_ENGINES` chooses other stores, and then all tests run on just those:

    HOLDFAST_ENGINES=all                every engine, and encrypted SQLite
    HOLDFAST_ENGINES=encrypted          every engine, encrypted
    HOLDFAST_ENGINES=memory,postgres    those that are named; `postgres-encrypted` is one, too
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.servers import SERVERS, url_on

ENGINES = ("memory", "sqlite", "files", *SERVERS)
USUAL = ("memory", "sqlite")
SUFFIX = "-encrypted"
EVERY = (*ENGINES, "sqlite" + SUFFIX)
CHOSEN = os.environ.get("HOLDFAST_ENGINES", "")
KEY = "base64:" + "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
KEY_VARIABLE = "HOLDFAST_KEY"
"""How the command line, and programs that tests start, get the key of an encrypted store."""

ON_MEMORY = pytest.mark.parametrize("url", ["memory://"], ids=["memory"])
"""For logic far above the backends that is tried on many inputs."""


def _named(text: str) -> tuple[str, ...]:
    if text == "all":
        return EVERY
    if text == "encrypted":
        return tuple(engine + SUFFIX for engine in ENGINES)
    kinds = tuple(text.split(","))
    unknown = {kind.removesuffix(SUFFIX) for kind in kinds} - set(ENGINES)
    if unknown:
        raise pytest.UsageError(
            f"HOLDFAST_ENGINES must name some of {', '.join(ENGINES)}, got {', '.join(unknown)}"
        )
    return kinds


def kinds(*, every: bool = False) -> tuple[str, ...]:
    """The kinds of stores that a test runs on. `every`: it has the mark `every_engine`."""
    if CHOSEN:
        return _named(CHOSEN)
    return EVERY if every else USUAL


def kinds_for(test: pytest.Item, fixture: str) -> Sequence[str]:
    """The kinds that a fixture of a test goes through."""
    found = kinds(every=test.get_closest_marker("every_engine") is not None)
    long = test.get_closest_marker("long")
    if long is not None and not CHOSEN:
        found = tuple(kind for kind in found if kind not in long.args)
    if test.get_closest_marker("unencrypted") is not None:
        found = tuple(kind for kind in found if not kind.endswith(SUFFIX))
    if fixture == "durable_kind":
        found = tuple(kind for kind in found if kind.removesuffix(SUFFIX) != "memory")
    return found


def summary() -> str:
    """For the head of pytest's report: what runs where, and how to run more."""
    if CHOSEN:
        return f"stores: {', '.join(kinds())} (HOLDFAST_ENGINES={CHOSEN})"
    others = ", ".join(kind for kind in EVERY if kind not in USUAL)
    return (
        f"stores: {', '.join(USUAL)}; tests marked every_engine also on {others}; "
        "left out: those marked long on some; HOLDFAST_ENGINES=all for all tests"
    )


def url_of(kind: str, place: Path) -> str:
    """The URL of an empty store of this kind below `place`."""
    engine = kind.removesuffix(SUFFIX)
    if engine in SERVERS:
        return url_on(engine, place)
    return {
        "memory": "memory://",
        "sqlite": str(place / "agents.db"),
        "files": f"file://{place}/agents",
    }[engine]


def encrypt_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a key to every store that a test, or a program it starts, opens without one."""
    for name in ("open", "aopen"):
        monkeypatch.setattr(holdfast, name, functools.partial(_with_key, getattr(holdfast, name)))
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def _with_key(function: Any, *args: Any, **options: Any) -> Any:
    return function(*args, **{"key": KEY, **options})
