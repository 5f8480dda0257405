"""What is kept of an exception: chains, groups, hostile classes, and the limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.redaction.apply import Redaction
from holdfast.tasks.run.traceback import (
    MAX_ERRORS,
    MAX_FRAMES,
    build_failure,
    capture_trace,
    describe_failure,
)
from holdfast.tasks.state import events as ev
from holdfast.tasks.state.failure import Failure, FailureFrame

LOG: Any = SimpleNamespace(redaction=Redaction(None), tracebacks=True)


class Group(Exception):
    """Has parts, like an ExceptionGroup, which Python 3.10 lacks."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("several")
        self.exceptions = exceptions


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def chain_of(count: int) -> BaseException:
    error: BaseException | None = None
    for number in range(count):
        error = raised(ValueError(number), error)
    assert error is not None
    return error


def walk(trace: ev.Trace | None) -> list[ev.Trace]:
    if trace is None:
        return []
    return [trace, *walk(trace.cause), *(each for part in trace.group for each in walk(part))]


def test_a_long_chain_keeps_its_ends() -> None:
    failure = describe_failure(LOG, chain_of(20))
    messages = []
    found: Failure | None = failure
    while found is not None:
        messages.append(found.message)
        found = found.cause
    assert messages == ["19", "18", "17", "16", "3", "2", "1", "0"]
    assert "[12 more causes]" in str(failure)


def test_a_chain_that_is_a_circle_ends() -> None:
    first, second = raised(ValueError("a")), raised(ValueError("b"))
    first.__cause__, second.__cause__ = second, first
    assert [trace.message for trace in walk(capture_trace(LOG, first))] == ["", "b"]


def test_the_parts_of_a_group_are_kept_with_their_causes() -> None:
    error = raised(
        Group(raised(KeyError("one"), raised(OSError("disk"))), raised(TypeError("two")))
    )
    failure = describe_failure(LOG, error)
    assert [(part.type, part.message) for part in failure.group] == [
        ("KeyError", "'one'"),
        ("TypeError", "two"),
    ]
    assert failure.group[0].cause is not None and failure.group[0].cause.message == "disk"
    text = str(failure)
    assert text.index("Group: several") < text.index("-- 1 of the group --") < text.index("disk")
    assert "  TypeError: two" in text.splitlines()


def test_groups_of_groups_stay_within_the_limits() -> None:
    def grow(depth: int) -> BaseException:
        return chain_of(9) if depth == 0 else raised(Group(*(grow(depth - 1) for _ in range(9))))

    found = walk(capture_trace(LOG, grow(3)))
    assert len(found) <= MAX_ERRORS + 8
    assert sum(len(trace.frames) for trace in found) <= MAX_FRAMES


def test_classes_that_misbehave_do_not_hide_the_failure() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Odd(Exception):
        exceptions = property(lambda self: 1 / 0)

    assert describe_failure(LOG, raised(Mute())).message == ""
    assert describe_failure(LOG, raised(Odd("x"))).message == "x"
    assert describe_failure(LOG, raised(ValueError("\ud800"))).message == "?"


def test_without_messages_only_types_and_places_are_printed() -> None:
    text = describe_failure(LOG, raised(ValueError("secret"), raised(KeyError("other")))).format(
        messages=False
    )
    assert "secret" not in text and "other" not in text
    assert text.splitlines()[-1] == "ValueError"


def test_the_gap_is_printed_where_frames_are_left_out() -> None:
    frames = [FailureFrame("app.py", number, f"f{number}") for number in range(18)]
    lines = str(Failure("ValueError", "", frames=frames, omitted_frames=3)).splitlines()
    assert lines[2:5] == [
        '  File "app.py", line 1, in f1',
        "  [3 more frames]",
        '  File "app.py", line 2, in f2',
    ]


def test_a_stored_failure_without_a_trace_is_type_and_message() -> None:
    failure = build_failure("ValueError", "no", None, attempt=2)
    assert (failure, str(failure)) == (Failure("ValueError", "no", 2), "ValueError: no")


def test_a_forged_trace_without_end_is_cut() -> None:
    trace = None
    for _ in range(5000):
        trace = ev.Trace(type="E", cause=trace)
    assert len(str(build_failure("E", "", trace)).splitlines()) < 200
