"""Random sequences of calls, compared with a model on plain lists.

`BackendConformance` runs this as its last test. To run it alone, with your hypothesis settings:

    class MyModel(BackendModel):
        durable = True
        def open_backend(self, place):
            return MyBackend(place / "store")

    TestMyModel = MyModel.TestCase
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec

from ..backends import (
    Append,
    AppendResult,
    Backend,
    Head,
    HeadFields,
    StreamKey,
    SupportsCheck,
    VersionMismatch,
)
from .build import (
    KIND,
    TENANT,
    all_due,
    all_heads,
    append_id,
    assert_listed,
    key,
    read_all,
    timeless,
)
from .lists import ListModel

try:
    from hypothesis import HealthCheck, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import (
        RuleBasedStateMachine,
        invariant,
        precondition,
        rule,
        run_state_machine_as_test,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the model of holdfast.conformance needs hypothesis: pip install hypothesis"
    ) from error

STREAMS = [key("a"), key("\uff5e"), key("😀"), key("a", tenant="other")]
TIMES = [None, 0.0, 1.5, 2.0]

streams = st.sampled_from(STREAMS)
times = st.sampled_from(TIMES)
names = st.sampled_from(["", "A", "a", "b", "\uff5e", "😀"])
statuses = st.sampled_from([None, "open", "done"])
all_fields = st.builds(
    HeadFields,
    status=statuses,
    label=st.sampled_from([None, b"", b"\x00\xff"]),
    owner=st.sampled_from([None, "o"]),
    due_at=times,
    expires_at=times,
)


class Intent(msgspec.Struct, frozen=True):
    """A random append, which `_build` turns into an `Append` for the current stream."""

    what: str
    place: int
    size: int
    indexed: bool
    fields: HeadFields | None


intents = st.builds(
    Intent,
    # Mostly valid appends: otherwise streams would not grow, and nothing could be repeated.
    what=st.sampled_from(
        ["fits"] * 6
        + ["repeated"] * 2
        + ["known id", "stale", "ahead", "other hash", "other incarnation"]
    ),
    place=st.integers(0, 99),
    size=st.integers(1, 3),
    indexed=st.booleans(),
    fields=st.none() | all_fields,
)


class BackendModel(RuleBasedStateMachine):
    """Checks that a backend answers each call as plain lists do. Override `open_backend`."""

    durable: ClassVar[bool] = False

    def open_backend(self, place: Path) -> Backend:
        raise NotImplementedError("override open_backend(self, place) and return your backend")

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.place = Path(self._directory.name)
        self.backend = self.open_backend(self.place)
        self.lists = ListModel()
        self.sent: list[Append] = []
        self._count = 0

    def teardown(self) -> None:
        self.backend.close()
        self._directory.cleanup()

    # -- writing ---------------------------------------------------------------------------------

    @rule(wanted=st.lists(intents, min_size=1, max_size=6))
    def append(self, wanted: list[Intent]) -> None:
        batch, expected = [], []
        for intent in wanted:
            batch.append(self._build(intent))
            expected.append(self.lists.append(batch[-1]))
        self.sent += batch
        assert [_without_now(answer) for answer in self.backend.append(batch)] == expected

    @precondition(lambda self: bool(self._late_appends()))
    @rule(place=st.integers(0, 99))
    def append_of_a_former_incarnation(self, place: int) -> None:
        late = self._late_appends()[place % len(self._late_appends())]
        expected = self.lists.append(late)
        assert [_without_now(answer) for answer in self.backend.append([late])] == [expected]

    def _build(self, intent: Intent) -> Append:
        if intent.what == "repeated" and self.sent:
            return self.sent[intent.place % len(self.sent)]
        stream = STREAMS[intent.place % len(STREAMS)]
        head = self.lists.head(stream) or Head(
            stream, self._unique_bytes(), HeadFields(), 0.0, 0, b""
        )
        fits = Append(
            stream=stream,
            expected=head.version,
            expected_hash=head.hash,
            incarnation=head.incarnation,
            id=append_id(self._unique_bytes(), indexed=intent.indexed),
            records=[
                (self._unique_bytes() * 2, b"body %d" % self._count) for _ in range(intent.size)
            ],
            fields=intent.fields,
        )
        match intent.what:
            case "known id":
                known = self._indexed_appends(stream) or [fits]
                return msgspec.structs.replace(fits, id=known[intent.place % len(known)].id)
            case "stale":
                return msgspec.structs.replace(fits, expected=max(head.version - intent.size, 0))
            case "ahead":
                return msgspec.structs.replace(fits, expected=head.version + intent.size)
            case "other hash" if head.version:
                return msgspec.structs.replace(fits, expected_hash=self._unique_bytes() * 2)
            case "other incarnation":
                return msgspec.structs.replace(fits, incarnation=self._unique_bytes())
        return fits

    def _late_appends(self) -> list[Append]:
        return [
            append
            for append in self.sent
            if (append.stream, append.incarnation) in self.lists.former
        ]

    def _indexed_appends(self, stream: StreamKey) -> list[Append]:
        found = self.lists.streams.get(stream)
        return [append for append, _, _ in found.appends if append.indexed] if found else []

    def _unique_bytes(self) -> bytes:
        """Return 16 unused bytes, the same ones when hypothesis runs the example again."""
        self._count += 1
        return hashlib.sha256(b"%d" % self._count).digest()[:16]

    @rule(stream=streams, moved=st.sampled_from([False, False, True]))
    def delete(self, stream: StreamKey, moved: bool) -> None:
        head = self.lists.head(stream) or Head(
            stream, self._unique_bytes(), HeadFields(), 0.0, 1, self._unique_bytes()
        )
        expected = msgspec.structs.replace(head, hash=self._unique_bytes()) if moved else head
        done = self.lists.delete(stream, expected=expected)
        assert self.backend.delete(stream, expected=expected) is done

    @precondition(lambda self: self.durable)
    @rule()
    def close_and_open_again(self) -> None:
        self.backend.close()
        self.backend = self.open_backend(self.place)

    # -- reading ---------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.sent))
    @rule(stream=streams, place=st.integers(0, 99))
    def find_append(self, stream: StreamKey, place: int) -> None:
        sent = self.sent[place % len(self.sent)]
        for one in (sent.stream, stream):
            assert self.backend.find_append(one, sent.id) == self.lists.find_append(one, sent.id)

    @rule(
        stream=streams,
        after=st.integers(0, 12),
        limit=st.none() | st.integers(1, 5),
        reverse=st.booleans(),
    )
    def read(self, stream: StreamKey, after: int, limit: int | None, reverse: bool) -> None:
        page = list(self.backend.read(stream, after=after, limit=limit, reverse=reverse))
        records = self.lists.read(stream, after=after, reverse=reverse)
        assert page == records[: len(page)]
        assert len(page) <= (len(records) if limit is None else limit)
        assert bool(page) == bool(records), "only the end may be an empty page"

    @rule(
        tenant=st.sampled_from([TENANT, "other"]),
        status=statuses,
        after=names,
        limit=st.integers(1, 5),
    )
    def heads(self, tenant: str, status: str | None, after: str, limit: int) -> None:
        found = all_heads(self.backend, tenant=tenant, status=status, limit=limit)
        assert_listed(found, self.lists.heads(tenant=tenant, kind=KIND, status=status, after=""))
        page = self.backend.heads(tenant=tenant, kind=KIND, status=status, after=after)
        behind = self.lists.heads(tenant=tenant, kind=KIND, status=status, after=after)
        assert_listed(page, behind)

    @rule(
        before=times,
        after=st.tuples(st.sampled_from([0.0, 1.0, 1.5]), names),
        limit=st.integers(1, 5),
    )
    def due(self, before: float | None, after: tuple[float, str], limit: int) -> None:
        found = all_due(self.backend, before=before, limit=limit)
        assert_listed(found, self.lists.due(tenant=TENANT, kind=KIND, before=before, after=None))
        page = self.backend.due(tenant=TENANT, kind=KIND, before=before, after=after)
        behind = self.lists.due(tenant=TENANT, kind=KIND, before=before, after=after)
        assert_listed(page, behind)

    @invariant()
    def every_stream_is_as_in_the_lists(self) -> None:
        for stream in STREAMS:
            assert timeless(self.backend.head(stream)) == self.lists.head(stream)
            assert read_all(self.backend, stream) == self.lists.read(stream, after=0, reverse=False)

    @precondition(lambda self: isinstance(self.backend, SupportsCheck))
    @rule()
    def check(self) -> None:
        assert isinstance(self.backend, SupportsCheck)
        assert list(self.backend.check()) == []
        assert list(self.backend.list_scopes()) == sorted({key[:2] for key in self.lists.streams})


def _without_now(answer: AppendResult | VersionMismatch) -> AppendResult | VersionMismatch:
    if isinstance(answer, VersionMismatch):
        return VersionMismatch(timeless(answer.head))
    return msgspec.structs.replace(answer, now=0.0)


def check_against_model(
    open_backend: Callable[[Path], Backend], *, durable: bool, examples: int, steps: int
) -> None:
    """Run the state machine on this backend; print the shortest sequence that fails."""
    opener, is_durable = open_backend, durable

    class Model(BackendModel):
        durable = is_durable

        def open_backend(self, place: Path) -> Backend:
            return opener(place)

    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
