"""Any program of steps, interrupted anywhere and run again, ends as if nothing had happened, and
does nothing finished twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.sync_and_async import Ways
from holdfast import HoldfastError, NotDone, StepFailed, StepInDoubt, Store
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import Retryable
from holdfast.tasks.steps import failures


@dataclass(frozen=True)
class Node:
    """A step: what it is called, how it runs, whether it fails, whether its caller minds, and the
    steps inside it."""

    name: str
    arg: int
    key: str | None = None
    fails: bool = False
    caught: bool = False
    mode: str = ""
    attempts: int = 1
    inside: tuple[Node, ...] = ()


class Cut(BaseException):
    """The program ends here, as if somebody had pulled the plug."""


class World:
    """What is outside of the store: the effects of steps, and where the program is to be cut
    off."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.guarded: set[str] = set()
        self.args: dict[str, int] = {}
        self.acknowledged: set[str] = set()
        self.wrong: list[str] = []
        self.cut_at: int | None = None
        self.points = 0

    def point(self) -> None:
        self.points += 1
        if self.points == self.cut_at:
            raise Cut

    def step_of(self, node: Node) -> Any:
        def fn(arg: int) -> Any:
            path = holdfast.current_step().path
            if path in self.acknowledged:
                self.wrong.append(f"{path} was finished, and ran again")
            self.args[path] = arg
            self.point()
            outcomes = [self.call(child) for child in node.inside]
            if node.fails:
                raise (NotDone if node.mode else ValueError)("no")
            self.effects[path] += 1
            if node.mode:
                self.guarded.add(path)
            self.point()
            return [path, arg, *outcomes]

        def find(arg: int) -> Any:
            path = holdfast.current_step().path
            self.point()
            return [path, arg] if self.effects[path] else None

        fn.__name__ = node.name
        modes: dict[str, Any] = {"": {}, "once": {"once": True}, "check": {"check": find}}
        made = holdfast.step(fn, max_attempts=node.attempts, returns=Any, **modes[node.mode])
        return made if node.key is None else made.using(key=node.key)

    def call(self, node: Node) -> Any:
        try:
            return self.done(self.step_of(node)(node.arg))
        except StepFailed as error:
            return self.failed(node, error)

    def done(self, value: Any) -> Any:
        self.acknowledged.add(value[0])
        self.point()
        return value

    def failed(self, node: Node, error: StepFailed) -> Any:
        if not node.caught or of_the_storage(error):
            raise error
        return "failed"

    async def work(self, task: Any, program: tuple[Node, ...], planned: bool) -> Any:
        if planned:
            await task.make_plan([node.name for node in program])
        outcomes: list[Any] = []
        for node in program:
            await task.decide(f"next is {node.name}")
            try:
                outcomes.append(self.done(await task.step(node.name, self.step_of(node), node.arg)))
            except StepFailed as error:
                outcomes.append(self.failed(node, error))
        return await task.finish(outcomes)


def of_the_storage(error: StepFailed) -> bool:
    return any(
        word in str(error) for word in ("Unavailable", "OutcomeUnknown", "StorageFull", "LeaseLost")
    )


@st.composite
def nodes(draw: st.DrawFn, depth: int = 2) -> Node:
    inside = (
        tuple(draw(st.lists(nodes(depth - 1), max_size=3))) if depth and draw(st.booleans()) else ()
    )
    return Node(
        draw(st.sampled_from(["a", "b", "a/b", "a#2"])),
        draw(st.integers(0, 1)),
        draw(st.sampled_from([None, None, "k", "a[k]"])),
        draw(st.sampled_from([False, False, False, True])),
        draw(st.sampled_from([True, True, False])),
        draw(st.sampled_from(["", "once", "check"])) if not inside else "",
        draw(st.sampled_from([1, 1, 2])),
        inside,
    )


def without_repeated_keys(program: tuple[Node, ...]) -> bool:
    """Two steps with one key are one step, which these programs do not mean."""
    keys = [(node.name, node.key) for node in program if node.key is not None]
    return len(keys) == len(set(keys)) and all(
        without_repeated_keys(node.inside) for node in program
    )


programs = st.lists(nodes(), min_size=1, max_size=4).map(tuple).filter(without_repeated_keys)


@pytest.fixture(autouse=True, scope="module")
def no_pause() -> Iterator[None]:
    before, failures.retry_delay = failures.retry_delay, lambda attempt: 0.0
    yield
    failures.retry_delay = before


def told(store: Store) -> Any:
    """How the task stands, in the words of any run."""
    seen = store.get_task("t")
    assert seen is not None
    steps = {
        step.path: (step.status, step.result, step.error, step.in_doubt) for step in seen.steps
    }
    return seen.status, seen.result, steps, seen.plan, sorted(note.text for note in seen.decisions)


def undisturbed(program: tuple[Node, ...], planned: bool) -> tuple[Any, Any, Any]:
    with holdfast.open("memory://") as store:
        world = World()
        outcome = run_once(Ways(store, asynchronous=False), world, program, planned)
        assert world.wrong == []
        return outcome, told(store), world.effects


def run_once(ways: Ways, world: World, program: tuple[Node, ...], planned: bool) -> Any:
    """What a run of the program comes to: a result, or the failure of a step that nobody caught."""
    world.points = 0
    try:
        return ways.resume(lambda task: world.work(task, program, planned), steal=True)
    except StepFailed as error:
        if of_the_storage(error):
            raise
        return "failed", error.step, error.type


def settle(store: Store, world: World, step: str) -> None:
    """What a person would do: find out, and say so."""
    if world.effects[step]:
        store.resolve("t", step, result=[step, world.args[step]])
    else:
        store.resolve("t", step, retry=True)


def check_effects(world: World, expected: Counter[str]) -> None:
    assert world.wrong == []
    assert set(+world.effects) == set(+expected)
    assert all(world.effects[path] == 1 for path in world.guarded), (
        "a guarded effect happened twice"
    )


@pytest.mark.slow
@given(programs, st.booleans(), st.booleans(), st.lists(st.integers(1, 25), max_size=6))
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_a_program_that_is_cut_off_anywhere_ends_as_if_it_had_not_been(
    program: tuple[Node, ...], planned: bool, asynchronous: bool, cuts: list[int]
) -> None:
    outcome, expected, effects = undisturbed(program, planned)
    with holdfast.open("memory://") as store:
        ways, world = Ways(store, asynchronous=asynchronous), World()
        left: list[int | None] = [*cuts]
        hits = 0
        for _ in range(200):
            world.cut_at = left.pop(0) if left else None
            try:
                found = run_once(ways, world, program, planned)
            except Cut:
                hits += 1
                continue
            except StepInDoubt as error:
                settle(store, world, error.step)
                continue
            if not left:
                break
        event(f"cut off {hits} times")
        assert found == outcome
        assert told(store) == expected
        check_effects(world, effects)


RATES = {
    "lost_answer": 0.06,
    "lost_request": 0.03,
    "unavailable": 0.06,
    "late": 0.03,
    "full": 0.02,
    "read_unavailable": 0.01,
}


@pytest.mark.slow
@given(programs, st.booleans(), st.booleans(), st.integers(0, 10_000))
@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_a_program_on_a_storage_that_fails_ends_as_if_it_had_not(
    program: tuple[Node, ...], planned: bool, asynchronous: bool, seed: int
) -> None:
    outcome, expected, effects = undisturbed(program, planned)
    backend, chooser = FaultyBackend(MemoryBackend(), seed=seed), random.Random(seed)
    with holdfast.open(backend) as store:
        ways, world = Ways(store, asynchronous=asynchronous), World()
        for number in range(200):
            disturbed = number < 20
            backend._rates.update(RATES if disturbed else dict.fromkeys(RATES, 0.0))
            world.cut_at = (
                chooser.choice([None, None, chooser.randint(1, 25)]) if disturbed else None
            )
            try:
                found = run_once(ways, world, program, planned)
            except Cut:
                continue
            except StepInDoubt as error:
                backend._rates.update(dict.fromkeys(RATES, 0.0))
                backend.deliver()
                try:
                    settle(store, world, error.step)
                except holdfast.NotFound:
                    pass  # what was late has arrived: it is in doubt no more
                except holdfast.LeaseHeld:
                    # its end could not be recorded: for all others, its lease owner still works
                    pass
                continue
            except (Retryable, StepFailed):
                continue
            if not disturbed:
                break
        event(f"{sum(backend.injected.values())} faults")
        assert found == outcome
        assert told(store)[:3] == expected[:3]
        check_effects(world, effects)


def test_the_model_notices_a_step_that_runs_twice() -> None:
    world = World()
    with holdfast.open("memory://") as store:
        ways = Ways(store, asynchronous=False)
        program = (Node("a", 1),)
        run_once(ways, world, program, False)
        store.task("t").delete()
        run_once(ways, world, program, False)
    assert world.wrong == ["a was finished, and ran again"]
    with pytest.raises(AssertionError):
        check_effects(world, Counter(a=1))


def test_errors_of_a_storage_are_told_apart() -> None:
    assert issubclass(holdfast.errors.Unavailable, HoldfastError)
    assert of_the_storage(
        StepFailed("t", step="a", type="StepFailed", message="… failed with Unavailable: x")
    )
    assert not of_the_storage(StepFailed("t", step="a", type="ValueError", message="no"))
