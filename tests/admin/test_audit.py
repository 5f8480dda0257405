"""`store.audit()`: who did what when, on every engine; and neither a terminal nor a spreadsheet is
moved by what is stored."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import NotFound, Suspended
from holdfast.admin.audit import FORMULA_STARTS
from holdfast.backends.clock import to_datetime
from holdfast.tasks.audit import _FACTS, _WORDS, EventDescriber
from holdfast.tasks.state import events as ev
from holdfast.types import Audit, AuditEntry

SECRET = "the secret of the claim"


@holdfast.agent("audit-part")
def part(task: holdfast.Task) -> str:
    return SECRET


def worked(store: holdfast.Store) -> None:
    """A task with something of everything that others do to it."""
    with holdfast.correlate("req-17", actor="ann"):
        with pytest.raises(Suspended):
            with store.task("claim-42", goal=SECRET, input=SECRET, agent=None) as task:
                task.make_plan(lambda: [SECRET])
                task.step("look", lambda: SECRET)
                task.decide(SECRET, why=SECRET)
                task.attach("claims.bin", b"claim")
                task.run_child(part, "part", goal=SECRET)
                task.ask("approve", question=SECRET)
    store.answer("claim-42", "approve", {"text": SECRET}, by="bob")
    store.signal("claim-42", "hurry", SECRET)
    with pytest.raises(KeyError):
        with store.task("claim-42"):
            raise KeyError(SECRET)
    store.task("claim-42").cancel(reason=SECRET)


def told(audit: Audit) -> list[tuple[str, str | None]]:
    return [(entry.what, entry.by) for entry in audit]


@pytest.mark.every_engine
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_audit_of_a_task_says_who_did_what(asynchronous: bool, store: holdfast.Store) -> None:
    worked(store)
    audit = asyncio.run(store.aio.audit("claim-42")) if asynchronous else store.audit("claim-42")
    assert [entry.version for entry in audit] == list(range(1, len(audit) + 1))
    for expected in [
        ("created", "ann"),
        ("claimed", "ann"),
        ("plan created", "ann"),
        ("step completed", "ann"),
        ("decision recorded", "ann"),
        ("file attached", "ann"),
        ("child task completed", "ann"),
        ("question asked", "ann"),
        ("suspended", "ann"),
        ("question answered", "bob"),
        ("signal received", None),
        ("run failed", None),
        ("cancelled", None),
    ]:
        assert expected in told(audit), (expected, told(audit))
    claimed = next(entry for entry in audit if entry.what == "claimed")
    assert claimed.owner is not None and claimed.owner.startswith("process ")
    assert (claimed.correlation, claimed.event) == ("req-17", "task.claimed")
    answered = next(entry for entry in audit if entry.by == "bob")
    assert answered.owner is None  # the answer came from outside, whoever held the task
    failed = next(entry for entry in audit if entry.what == "run failed")
    assert failed.details["type"] == "KeyError"
    child = next(entry for entry in audit if entry.what == "child task completed")
    assert child.step == "audit-part[part]"
    assert store.audit("part").entries[0].details["parent"] == "claim-42"


def test_an_audit_tells_content_only_if_it_is_asked_to(store: holdfast.Store) -> None:
    worked(store)
    audit = store.audit("claim-42")
    for written in (audit.text(), audit.jsonl(), audit.csv(), repr(audit)):
        assert SECRET not in written
    audit = store.audit("claim-42", content=True)
    for written in (audit.text(), audit.jsonl(), audit.csv()):
        assert SECRET in written
    assert audit.entries[0].data["goal"] == SECRET


@pytest.mark.every_engine
def test_a_deletion_stays_in_the_audit_when_all_else_is_gone(store: holdfast.Store) -> None:
    with store.task("t", goal="g") as task:
        task.finish("done")
    with holdfast.correlate("req-18", actor="dpo"):
        store.task("t").delete(reason="asked to")
    [entry] = store.audit("t")
    assert (entry.source, entry.what, entry.by, entry.correlation) == (
        "audit",
        "deletion decided",
        "dpo",
        "req-18",
    )
    assert entry.details["reason"] == "asked to" and entry.details["version"] == 3
    with store.task("t", goal="again"):
        pass
    assert [entry.what for entry in store.audit("t")] == [
        "deletion decided",
        "created",
        "claimed",
        "released",
    ]


def test_of_what_was_erased_the_audit_says_that_it_was() -> None:
    with holdfast.open("memory://", key=bytes(range(32))) as store:
        with store.task("t", goal=SECRET) as task:
            task.finish("done")
        with holdfast.correlate("req-19", actor="dpo"):
            store.erase(store.task("t"), reason="asked to")
        [entry] = store.audit("t", content=True)
        assert (entry.what, entry.by, entry.details["reason"]) == (
            "erasure decided",
            "dpo",
            "asked to",
        )


def test_what_is_not_known_is_not_found(store: holdfast.Store) -> None:
    with pytest.raises(NotFound, match="there is no task 'x'"):
        store.audit("x")
    with pytest.raises(ValueError, match="kind must be one of"):
        store.audit("x", kind="blob")


@pytest.mark.parametrize("kind", ["conversation", "memory", "state", "stream"])
def test_other_streams_have_an_audit_too(kind: str) -> None:
    with holdfast.open("memory://") as store, holdfast.correlate("req-1", actor="ann"):
        store.conversation("x").append({"role": "user", "content": SECRET})
        store.memory("x").remember(SECRET)
        store.state("x").save({"text": SECRET})
        store.stream("x").append(("noted", SECRET * 10_000))
        audit = store.audit("x", kind=kind)
        assert len(audit) >= 1 and all(
            (entry.by, entry.correlation) == ("ann", "req-1") for entry in audit
        )
        assert SECRET not in audit.jsonl()
        assert SECRET in store.audit("x", kind=kind, content=True).jsonl()


def test_a_takeover_is_told_as_one() -> None:
    teller = EventDescriber()
    one, two = "vm/boot/17/1/a", "vm/boot/18/1/b"
    assert teller.describe(ev.CLAIMED, {"owner": one, "lease": 30.0}).what == "claimed"
    taken = teller.describe(ev.CLAIMED, {"owner": two, "lease": 30.0})
    assert (taken.what, taken.owner) == ("taken over from process 17 on vm", "process 18 on vm")
    stolen = teller.describe(ev.CLAIMED, {"owner": one, "lease": 30.0, "stolen": True})
    assert stolen.what == "lease stolen from process 18 on vm"
    teller.describe(ev.RELEASED, {})
    assert teller.describe(ev.CLAIMED, {"owner": two}).what == "claimed"
    assert teller.describe(ev.STEP_RESOLVED, {"step": "pay", "again": True})[:3] == (
        "step retry ordered by an operator",
        "pay",
        None,
    )
    assert teller.describe(ev.STEP_RESOLVED, {"step": "pay"}).owner is None


def test_attempts_and_doubt_are_told() -> None:
    tell = EventDescriber().describe
    assert tell(ev.STEP_STARTED, {"step": "pay", "attempt": 2}).what == "step started (attempt 2)"
    failed = tell(
        ev.STEP_FAILED,
        {"step": "pay", "attempt": 2, "doubt": True, "error": "Timeout", "message": SECRET},
    )
    assert failed.what == "step failed (attempt 2), in doubt"
    assert failed.details == {"attempt": 2, "doubt": True, "error": "Timeout"}
    waited = tell(ev.ASKED, {"wait": "w", "kind": "timer", "until": 1794843900.5})
    assert (waited.what, waited.details["until"]) == (
        "wait for a time started",
        "2026-11-16T15:45:00+00:00",
    )
    assert tell(ev.ANSWERED, {"wait": "w", "how": "passed"}).what == "wait for a time ended"


def test_every_event_of_a_task_has_words() -> None:
    assert set(_WORDS) == set(ev._TYPES)
    assert set(_FACTS) <= set(ev._TYPES)
    for name, facts in _FACTS.items():
        assert set(facts) <= set(ev._TYPES[name].__struct_encode_fields__), name


FIELDS = sorted({field for kind in ev._TYPES.values() for field in kind.__struct_encode_fields__})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.sampled_from([*ev._TYPES, "unknown"]), VALUES)
def test_whatever_is_stored_is_told_without_an_error(name: str, data: Any) -> None:
    EventDescriber().describe(name, data)


# -- hostile text ----------------------------------------------------------------------------------


def entry(**fields: Any) -> AuditEntry:
    return AuditEntry(
        **{
            "version": 1,
            "at": datetime(2026, 1, 2, tzinfo=timezone.utc),
            "event": "e",
            "what": "w",
            **fields,
        }
    )


def audit_of(*entries: AuditEntry) -> Audit:
    return Audit("default", "task", "t", list(entries), True)


@given(
    st.text(max_size=20),
    st.sampled_from(["", " ", "\t", "\r", "\n", "\x00", "\x1b"]),
    st.sampled_from(sorted(FORMULA_STARTS)),
)
def test_no_cell_is_a_formula_or_holds_a_control_character(
    rest: str, before: str, first: str
) -> None:
    text = before + first + rest
    written = audit_of(
        entry(by=text, step=text, correlation=text, details={"name": text}, data=text)
    ).csv()
    [names, row] = csv.reader(io.StringIO(written, newline=""))
    assert names[-1] == "data" and len(row) == len(names)
    for cell in row:
        assert cell.lstrip()[:1] not in FORMULA_STARTS and cell.isprintable()


def test_what_begins_a_formula_is_known() -> None:
    assert set("=+-@") <= FORMULA_STARTS


def test_a_harmless_cell_stays_as_it_is() -> None:
    written = audit_of(entry(by='Ann "A." O\'Neil, Dr.', details={"a": [1]})).csv()
    [_, row] = csv.reader(io.StringIO(written, newline=""))
    assert row[0] == "1" and row[4] == 'Ann "A." O\'Neil, Dr.' and row[8] == '{"a":[1]}'


@given(st.text(max_size=30))
def test_a_line_of_the_table_is_one_line_and_moves_no_cursor(text: str) -> None:
    lines = (
        audit_of(entry(by=text, step=text, correlation=text, details={text: text}, data=text))
        .text()
        .split("\n")
    )
    assert len(lines) == 2 and all(line.isprintable() for line in lines)


def test_json_lines_hold_everything_exactly() -> None:
    text = "a\nb\x1b[31m \U0001f600"
    [line] = audit_of(entry(by=text, data={"text": text})).jsonl().splitlines()
    assert json.loads(line)["by"] == text and json.loads(line)["data"] == {"text": text}


def test_a_time_that_no_calendar_has_is_no_error() -> None:
    for at in (1e300, -1e300, float("inf"), float("nan")):
        assert to_datetime(at).year in (1, 9999)


def test_renewals_are_left_out_of_the_table_and_not_of_the_files() -> None:
    audit = audit_of(
        entry(event="task.claimed", what="claimed"),
        entry(event="task.renewed", what="lease renewed"),
    )
    assert "renewed" not in audit.text()
    assert "renewed" in audit.csv() and "renewed" in audit.jsonl()
