"""What every server has to come through behind a network that loses answers: nothing acknowledged
is lost, nothing is stored twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

import holdfast
from helpers.engines.network_proxy import Action, Proxy, When
from holdfast import Store
from holdfast.backends import Backend
from holdfast.errors import OutcomeUnknown
from holdfast.log.log import Log

from .server_kills import CUTS


class Case(NamedTuple):
    """A server behind a proxy, and how one looks at it from outside."""

    url: str
    proxy: Proxy
    backend: Callable[[str], Backend]
    hurry: float
    """The timeout of a store that does not wait long for an answer."""
    appends: When
    times_stored: Callable[[Sequence[str]], list[int]]


class LostAnswers:
    """The tests, for a class that has the fixture `case`."""

    @pytest.mark.timeout(120 + CUTS)
    @pytest.mark.parametrize("action", ["cut", "cut before"])
    def test_every_append_whose_answer_is_cut_off_is_stored_exactly_once(
        self, action: Action, case: Case
    ) -> None:
        marks = [f"mark {number}" for number in range(CUTS)]
        last: Counter[str] = Counter()
        with holdfast.open(case.url) as store:
            for number, mark in enumerate(marks):
                name = f"s{number % 7}"
                case.proxy.arm(action, when=case.appends)
                answer = store.stream(name).append(("noted", mark), id=mark if number % 2 else None)
                last[name] += 1
                assert (answer.first, answer.last) == (last[name], last[name])
                assert case.proxy.did[action] == number + 1, "this append was not cut off"
        assert case.times_stored(marks) == [1] * CUTS
        print(f"{CUTS} of {CUTS} appends exactly once ({action})")

    @pytest.mark.timeout(120 + CUTS)
    @pytest.mark.parametrize("action", ["cut", "cut before"])
    @pytest.mark.parametrize("streams", [3, 8])
    def test_every_batch_of_async_appends_whose_answer_is_cut_off_is_stored_exactly_once(
        self, action: Action, streams: int, case: Case
    ) -> None:
        agents, marks = 8, [f"mark {number}" for number in range(CUTS)]

        async def main() -> None:
            async with holdfast.aopen(case.url) as store:
                for first in range(0, CUTS, agents):
                    case.proxy.arm(action, when=case.appends)
                    group = enumerate(marks[first : first + agents])
                    answers = await asyncio.gather(
                        *(
                            store.stream(f"s{number % streams}").append(
                                ("noted", mark), id=mark if number % 2 else None
                            )
                            for number, mark in group
                        )
                    )
                    assert not any(answer.duplicate for answer in answers)
                    assert case.proxy.did[action] == first // agents + 1, (
                        "this batch was not cut off"
                    )

        asyncio.run(main())
        assert case.times_stored(marks) == [1] * CUTS
        print(f"{CUTS} of {CUTS} appends exactly once ({action}, {case.proxy.did[action]} batches)")

    def test_an_append_that_is_cut_off_again_and_again_is_stored_once(self, case: Case) -> None:
        with holdfast.open(case.url) as store:
            case.proxy.arm("cut before", when=case.appends, times=4)
            assert store.stream("s").append(("noted", "mark")).last == 1
        assert case.proxy.did["cut before"] == 4
        assert case.times_stored(["mark"]) == [1]

    def test_a_call_whose_answer_never_comes_ends_and_is_settled(self, case: Case) -> None:
        with holdfast.open(case.url, timeout=case.hurry) as store:
            store.stream("s").append(("noted", "first"))
            case.proxy.arm("swallow", when=case.appends)
            answer = store.stream("s").append(("noted", "mark"), id="mark")
            assert case.proxy.did["swallow"] == 1
            assert (answer.first, answer.last) == (2, 2)
            assert store.stream("s").append(("noted", "mark"), id="mark").duplicate
        assert case.times_stored(["first", "mark"]) == [1, 1]

    @pytest.mark.parametrize("id", ["mark", None])
    def test_an_append_that_cannot_be_settled_is_unknown_until_it_is_repeated(
        self, id: str | None, case: Case
    ) -> None:
        with Store(Log(case.backend(case.url), timeout=0.5), "default") as store:
            store.stream("s").append(("noted", "first"))
            case.proxy.arm("cut", when=case.appends)
            case.proxy.refuse()
            with pytest.raises(OutcomeUnknown) as caught:
                store.stream("s").append(("noted", "mark"), id=id)
            assert case.proxy.did["cut"] == 1
            case.proxy.allow()
            again = store.stream("s").append(("noted", "mark"), id=caught.value.id)
            assert again.duplicate and (again.first, again.last) == (2, 2)
            assert store.stream("s").append(("noted", "last")).last == 3
        assert case.times_stored(["first", "mark", "last"]) == [1, 1, 1]

    def test_a_slow_network_changes_nothing(self, case: Case) -> None:
        marks = [f"mark {number}" for number in range(5)]
        case.proxy.delay = 0.02
        with holdfast.open(case.url) as store:
            for mark in marks:
                store.stream("s").append(("noted", mark))
            assert [event.data for event in store.stream("s").read()] == marks
        assert case.times_stored(marks) == [1] * 5
