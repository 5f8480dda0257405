"""Any program that waits and has children, cut off anywhere and told things at any time, ends as if
nothing had happened."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.sync_and_async import AwaitedTask, Ways
from holdfast import NotFound, StepFailed, Store, Suspended
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import AlreadyAnswered, Retryable, TaskEnded
from holdfast.tasks.agents import declare
from holdfast.testing import fake_clock

LEAVES = ("step", "ask", "patient_ask", "wait", "patient_wait", "sleep", "greedy")
MINUTE = 60.0


@dataclass(frozen=True)
class Node:
    """Something that a program does; `scope`, `map` and `child` do other things inside."""

    kind: str
    inside: tuple[Node, ...] = ()


class Cut(BaseException):
    """The program ends here."""


class World:
    """What is outside: people who answer, others who signal, and where a program is cut off."""

    def __init__(self, ways: Ways, program: tuple[Node, ...]) -> None:
        self.ways, self.store = ways, ways.store
        self.programs = [program]
        self.observed: dict[tuple[str, str], Any] = {}
        self.wrong: list[str] = []
        self.waits: set[tuple[str, str]] = set()
        self.points, self.cut_at, self.told_at = 0, None, list[int]()
        self.cut_at: int | None
        self.told: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    # -- the program -------------------------------------------------------------------------------

    def register(self) -> None:
        async def later(task: Any) -> Any:
            return await self.all(task, self.programs[task.input], "")

        def now(task: Any) -> Any:
            return self.ways.run(self.all(AwaitedTask(task), self.programs[task.input], ""))

        holdfast.agent("model", max_attempts=1000)(later if self.ways.asynchronous else now)

    async def all(self, task: Any, nodes: tuple[Node, ...], path: str) -> list[Any]:
        return [await self.do(task, node, f"{path}.{number}") for number, node in enumerate(nodes)]

    async def do(self, task: Any, node: Node, path: str) -> Any:
        self.point()
        found = await getattr(self, node.kind)(task, node, path)
        before = self.observed.setdefault((task.id, path), found)
        if before != found:
            self.wrong.append(f"{path} of {task.id} was {before!r}, and is {found!r}")
        self.point()
        return found

    async def step(self, task: Any, node: Node, path: str) -> Any:
        def fn() -> str:
            if (task.id, path) in self.observed:
                self.wrong.append(f"{path} of {task.id} was finished, and ran again")
            return path

        return await task.step(f"s{path}", fn)

    async def ask(self, task: Any, node: Node, path: str) -> Any:
        return await task.ask(f"q{path}", "Which?", {"path": path}, returns=str)

    async def patient_ask(self, task: Any, node: Node, path: str) -> Any:
        try:
            return await task.ask(f"q{path}", "Which?", {"path": path}, returns=str, timeout=MINUTE)
        except TimeoutError:
            return "nobody"

    async def wait(self, task: Any, node: Node, path: str) -> Any:
        self.waits.add((task.id, f"w{path}"))
        return await task.wait_for(f"w{path}", returns=str)

    async def patient_wait(self, task: Any, node: Node, path: str) -> Any:
        self.waits.add((task.id, f"w{path}"))
        try:
            return await task.wait_for(f"w{path}", returns=str, timeout=MINUTE)
        except TimeoutError:
            return "nobody"

    async def sleep(self, task: Any, node: Node, path: str) -> Any:
        await task.sleep(MINUTE)
        return "slept"

    async def greedy(self, task: Any, node: Node, path: str) -> Any:
        async def swallow(task: Any) -> Any:
            try:
                return await self.ask(task, node, path)
            except Cut:
                raise
            except BaseException as error:
                return "wrong" if isinstance(error, Suspended) else await give_up(error)

        async def give_up(error: BaseException) -> Any:
            raise error

        return await task.step(f"g{path}", self.inside(swallow))

    async def scope(self, task: Any, node: Node, path: str) -> Any:
        return await task.step(
            f"s{path}", self.inside(lambda task: self.all(task, node.inside, path))
        )

    async def map(self, task: Any, node: Node, path: str) -> Any:
        def one(task: Any, number: int) -> Any:
            return self.do(task, node.inside[number], f"{path}.{number}")

        return await task.map(
            f"m{path}", self.inside(one), range(len(node.inside)), key=str, concurrency=3
        )

    async def child(self, task: Any, node: Node, path: str) -> Any:
        if node.inside not in self.programs:
            self.programs.append(node.inside)
        return await task.run_child(
            "model", f"{task.id}{path}", input=self.programs.index(node.inside)
        )

    def inside(self, work: Any) -> Callable[..., Any]:
        if self.ways.asynchronous:

            async def later(*args: Any) -> Any:
                return await work(holdfast.current_task(), *args)

            return later

        def now(*args: Any) -> Any:
            task: Any = holdfast.current_task()
            return self.ways.run(work(AwaitedTask(task), *args))

        return now

    def point(self) -> None:
        with self._lock:
            self.points += 1
            now = self.points
        if now in self.told_at:
            self.told()
        if now == self.cut_at:
            raise Cut

    # -- what happens outside ----------------------------------------------------------------------

    def tell(self, chooser: random.Random | None = None) -> None:
        """Answer and signal: some, or all."""
        for info in list(self.store.tasks()):
            seen = self.store.get_task(info.id)
            for ask in seen.questions if seen is not None else ():
                if ask.status == "open" and (chooser is None or chooser.random() < 0.5):
                    answer = partial(self.store.answer, info.id, ask.name, f"to {ask.name}")
                    self._told(partial(answer, question=ask.id))
        for task, name in sorted(self.waits):
            if chooser is None or chooser.random() < 0.5:
                self._told(lambda: self.store.signal(task, name, f"by {name}", id=name))  # noqa: B023

    def _told(self, tell: Callable[[], object]) -> None:
        try:
            tell()
        except (NotFound, TaskEnded, AlreadyAnswered, Retryable):
            pass  # somebody else did, or there is none any more

    def run(self, by_worker: bool) -> Any:
        """Run what can be run. The result, if the task was run to its end here."""
        self.points = 0
        if by_worker:
            return self.store.run_due(limit=10)
        if self.ways.asynchronous:
            return asyncio.run(self.store.aio.run("model", "t", input=0))
        return self.store.run("model", "t", input=0)

    # -- what has to come of it --------------------------------------------------------------------

    def expected(self, nodes: tuple[Node, ...], task: str, path: str) -> list[Any]:
        return [self._expected(node, task, f"{path}.{number}") for number, node in enumerate(nodes)]

    def _expected(self, node: Node, task: str, path: str) -> Any:
        if node.kind.startswith("patient"):
            found = self.observed[task, path]
            assert found in ("nobody", f"to q{path}", f"by w{path}")
            return found
        if node.kind == "child":
            return self.expected(node.inside, task + path, "")
        if node.kind in ("scope", "map"):
            return self.expected(node.inside, task, path)
        asked = f"to q{path}"
        return {
            "step": path,
            "ask": asked,
            "greedy": asked,
            "wait": f"by w{path}",
            "sleep": "slept",
        }[node.kind]


leaves = st.sampled_from(LEAVES).map(Node)
nodes = st.recursive(
    leaves,
    lambda inner: st.builds(
        Node,
        st.sampled_from(["scope", "map", "child"]),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=6,
)
programs = st.lists(nodes, min_size=1, max_size=4).map(tuple)


@pytest.fixture(autouse=True, scope="module")
def own_agents() -> Iterator[None]:
    before = dict(declare.registered_agents)
    yield
    declare.registered_agents.clear()
    declare.registered_agents.update(before)


def play(
    store: Store,
    program: tuple[Node, ...],
    asynchronous: bool,
    seed: int,
    disturb: Callable[[bool], None],
) -> int:
    """Run a program under all sorts of disturbances, then without; check what came of it. How often
    it was cut off."""
    chooser, cuts = random.Random(seed), 0
    with fake_clock() as clock:
        world = World(Ways(store, asynchronous=asynchronous), program)
        world.register()
        world.told = lambda: world.tell(chooser)
        result = None
        for number in range(150):
            disturbed = number < 12
            disturb(disturbed)
            world.cut_at = chooser.randint(1, 30) if disturbed and chooser.random() < 0.7 else None
            world.told_at = [chooser.randint(1, 30) for _ in range(2)] if disturbed else []
            try:
                result = world.run(by_worker=disturbed and chooser.random() < 0.5)
                if not disturbed:
                    break
            except (Suspended, Retryable, StepFailed):
                pass
            except Cut:
                cuts += 1
            if chooser.random() < 0.5 or not disturbed:
                clock.advance(chooser.choice([1, 40, 100]))
            if chooser.random() < 0.5 or not disturbed:
                try:
                    world.tell(chooser if disturbed else None)
                except Retryable:
                    pass
        assert world.wrong == []
        assert result == world.expected(program, "t", "")
        assert {info.status for info in store.tasks()} == {"finished"}
        assert [info.owner for info in store.tasks() if info.owner] == []
        assert store.run_due() == []
    return cuts


@pytest.mark.slow
@given(programs, st.booleans(), st.integers(0, 1 << 32))
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_program_that_waits_is_cut_off_anywhere_and_ends_as_if_it_had_not_been(
    program: tuple[Node, ...], asynchronous: bool, seed: int
) -> None:
    with holdfast.open("memory://") as store:
        cuts = play(store, program, asynchronous, seed, lambda disturbed: None)
    event(f"cut off {cuts} times")


RATES = {"lost_answer": 0.04, "lost_request": 0.02, "unavailable": 0.04, "read_unavailable": 0.01}


@pytest.mark.slow
@given(programs, st.booleans(), st.integers(0, 1 << 32))
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_program_that_waits_on_a_storage_that_fails_ends_as_if_it_had_not(
    program: tuple[Node, ...], asynchronous: bool, seed: int
) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=seed)

    def disturb(disturbed: bool) -> None:
        backend._rates.update(RATES if disturbed else dict.fromkeys(RATES, 0.0))

    with holdfast.open(backend) as store:
        play(store, program, asynchronous, seed, disturb)
    event(f"{sum(backend.injected.values())} faults")
