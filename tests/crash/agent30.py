"""An agent of thirty steps, plain and async: ordinary, `check` and `once` ones, nested and
parallel; with a plan, progress, notes and a conversation. Nothing in it knows that it will be
killed.

The world that it acts on is a file: each run of a step's function and each effect is one line,
added at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import holdfast
from helpers.stored.notes import Notes, read_notes
from holdfast import AsyncStore, Store
from holdfast.errors import StepFailed

ID, GOAL = "agent-30", "See every step done once, whatever happens"
LARGE = 70_000
"""More characters than are kept inside an event."""
PAGES = 3
PLAN = ["collect", "assess", {"name": "draft", "tone": "plain"}]
WHOLE_PLAN = [*PLAN, "send"]


class World:
    """The outside world, shared by all processes, and by the person who resolves steps in doubt."""

    def __init__(self, path: Path) -> None:
        self._path, self._notes = path, Notes(path)

    def note(self, what: str, **facts: object) -> None:
        self._notes.write(what=what, by=os.getpid(), **facts)

    def receipt(self, **facts: str) -> str | None:
        """The receipt of the effect that was noted with these facts, if there is one."""
        for note in read_notes(self._path):
            if note["what"] == "effect" and facts.items() <= note.items():
                return str(note["receipt"])
        return None

    def ack(self, step: str, value: Any) -> Any:
        """The program has got the result of a step: from now on it is finished, come what may."""
        self.note("ack", step=step)
        return value

    def close(self) -> None:
        self._notes.close()


# -- what the steps do -----------------------------------------------------------------------------


def begun(world: World) -> holdfast.StepRun:
    step = holdfast.current_step()
    world.note("run", step=step.path)
    return step


def look_up(world: World, number: int) -> dict[str, int]:
    begun(world)
    return {"number": number, "square": number * number}


def produce(world: World) -> str:
    begun(world)
    return "x" * LARGE


def fail(world: World) -> None:
    begun(world)
    raise ValueError("as always")


def act(world: World, what: str) -> str:
    """Something that must not be done twice."""
    step = begun(world)
    receipt = f"{step.name} {what}"
    world.note("effect", step=step.path, key=step.idempotency_key, receipt=receipt)
    return receipt


def find(world: World, what: str) -> str | None:
    world.note("asked", step=holdfast.current_step().path)
    return world.receipt(key=holdfast.idempotency_key())


async def act_async(world: World, what: str) -> str:
    return act(world, what)


async def find_async(world: World, what: str) -> str | None:
    return find(world, what)


# check_after=0: what a dead process had done to the world is visible at once.
checked = holdfast.step(act, check=find, check_after=0)
unchecked = holdfast.step(act, once=True)
checked_async = holdfast.step(act_async, check=find_async, check_after=0)
unchecked_async = holdfast.step(act_async, once=True)


def resumed_at(world: World, step: holdfast.StepRun) -> range:
    world.note("resumed", step=step.path, cursor=step.cursor or 0)
    return range(step.cursor or 0, PAGES)


# -- the plain agent -------------------------------------------------------------------------------


def collect(world: World) -> list[Any]:
    step, task = begun(world), holdfast.current_task()
    assert isinstance(task, holdfast.Task)
    found = [
        world.ack(path, task.step("fetch", look_up, world, n))
        for n, path in enumerate(numbered("collect/fetch"))
    ]
    for page in resumed_at(world, step):
        step.save(page + 1, done=page + 1, total=PAGES, flush=True)
        world.note("saved", step=step.path, cursor=page + 1)
    return found


def assess(world: World) -> list[Any]:
    begun(world)
    task = holdfast.current_task()
    assert isinstance(task, holdfast.Task)

    def score(number: int) -> Any:
        return task.step("score", holdfast.step(look_up).using(key=number), world, number)

    def within(number: int) -> Callable[[], Any]:
        context = copy_context()
        return lambda: world.ack(f"assess/score[{number}]", context.run(score, number))

    return at_once(map(within, range(4)))


def draft(world: World) -> list[Any]:
    begun(world)
    task = holdfast.current_task()
    assert isinstance(task, holdfast.Task)
    task.decide("a plain tone", why="the plan says so")
    reserved = world.ack("draft/reserve", task.step("reserve", checked, world, "paper"))
    task.conversation().append({"role": "assistant", "content": "drafting"})
    stamped = world.ack("draft/stamp", task.step("stamp", unchecked, world, "the draft"))
    task.discover("the stamp is blue")
    return [reserved, stamped]


WORK: dict[str, Any] = {"collect": collect, "assess": assess, "draft": draft}


def run(store: Store, world: World) -> None:
    with store.task(ID, goal=GOAL, input={"size": 30}, agent="thirty") as task:
        chat = task.conversation()
        chat.append({"role": "user", "content": GOAL})
        task.make_plan(lambda: PLAN)
        returned = [world.ack("look up", task.step("look up", look_up, world, 1))]
        task.replan(WHOLE_PLAN)
        for item in task.remaining():
            name = item if isinstance(item, str) else item["name"]
            if name == "send":
                world.ack(name, task.step(item, checked, world, "the draft"))
            else:
                world.ack(name, task.step(item, WORK[name], world))
        chat.append(
            {"role": "assistant", "content": "planned work is done"},
            {"role": "user", "content": "go on"},
        )
        returned.append(world.ack("look up#2", task.step("look up", look_up, world, 2)))
        for _ in range(2):
            task.decide("the same again")
        returned += at_once(
            [
                *(lambda n=n: world.ack(f"pay[{n}]",
                task.step("pay", checked.using(key=n), world, f"bill {n}")) for n in range(3)),
                *(lambda n=n: world.ack(f"tell[{n}]",
                task.step("tell", unchecked.using(key=n), world, f"friend {n}")) for n in range(2)),
                *(lambda n=n: world.ack(f"probe {n}", task.step(f"probe {n}", look_up, world, n))
                for n in range(5)),
            ]
        )  # fmt: skip
        for number, path in enumerate(numbered("mail")):
            returned.append(
                world.ack(path, task.step("mail", unchecked, world, f"letter {number}"))
            )
        try:
            task.step("flaky", fail, world)
        except StepFailed as error:
            returned.append(error.type)
        task.discover("flaky fails")
        world.ack("big", task.step("big", produce, world))
        chat.append({"role": "assistant", "content": "done"})
        chat.append({"role": "assistant", "content": "done"})
        task.finish(
            {
                "returned": returned,
                "steps": {step.path: step.result for step in in_order(task.view())},
            }
        )


def at_once(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """What all of them give. All are waited for, whatever one of them raises."""
    with ThreadPoolExecutor(8) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def numbered(path: str) -> list[str]:
    return [path, f"{path}#2", f"{path}#3"]


def in_order(view: holdfast.TaskView) -> list[holdfast.StepInfo]:
    return sorted(view.steps, key=lambda step: step.path)


# -- the async agent -------------------------------------------------------------------------------


async def collect_async(world: World) -> list[Any]:
    step, task = begun(world), holdfast.current_task()
    assert isinstance(task, holdfast.AsyncTask)
    found = [
        world.ack(path, await task.step("fetch", look_up, world, n))
        for n, path in enumerate(numbered("collect/fetch"))
    ]
    for page in resumed_at(world, step):
        await step.save(page + 1, done=page + 1, total=PAGES, flush=True)
        world.note("saved", step=step.path, cursor=page + 1)
    return found


async def assess_async(world: World) -> list[Any]:
    begun(world)
    task = holdfast.current_task()
    assert isinstance(task, holdfast.AsyncTask)

    async def score(number: int) -> Any:
        value = await task.step("score", holdfast.step(look_up).using(key=number), world, number)
        return world.ack(f"assess/score[{number}]", value)

    return await together(map(score, range(4)))


async def draft_async(world: World) -> list[Any]:
    begun(world)
    task = holdfast.current_task()
    assert isinstance(task, holdfast.AsyncTask)
    await task.decide("a plain tone", why="the plan says so")
    reserved = world.ack("draft/reserve", await task.step("reserve", checked_async, world, "paper"))
    await task.conversation().append({"role": "assistant", "content": "drafting"})
    stamped = world.ack(
        "draft/stamp", await task.step("stamp", unchecked_async, world, "the draft")
    )
    await task.discover("the stamp is blue")
    return [reserved, stamped]


WORK_ASYNC: dict[str, Any] = {
    "collect": collect_async,
    "assess": assess_async,
    "draft": draft_async,
}


async def run_async(store: AsyncStore, world: World) -> None:
    async with store.task(ID, goal=GOAL, input={"size": 30}, agent="thirty") as task:
        chat = task.conversation()
        await chat.append({"role": "user", "content": GOAL})
        await task.make_plan(lambda: PLAN)
        returned = [world.ack("look up", await task.step("look up", look_up, world, 1))]
        await task.replan(WHOLE_PLAN)
        for item in task.remaining():
            name = item if isinstance(item, str) else item["name"]
            if name == "send":
                world.ack(name, await task.step(item, checked_async, world, "the draft"))
            else:
                world.ack(name, await task.step(item, WORK_ASYNC[name], world))
        await chat.append(
            {"role": "assistant", "content": "planned work is done"},
            {"role": "user", "content": "go on"},
        )
        returned.append(world.ack("look up#2", await task.step("look up", look_up, world, 2)))
        for _ in range(2):
            await task.decide("the same again")

        async def one(path: str, name: str, fn: Any, *args: Any) -> Any:
            return world.ack(path, await task.step(name, fn, world, *args))

        returned += await together(
            [
                *(
                    one(f"pay[{n}]", "pay", checked_async.using(key=n), f"bill {n}")
                    for n in range(3)
                ),
                *(
                    one(f"tell[{n}]", "tell", unchecked.using(key=n), f"friend {n}")
                    for n in range(2)
                ),
                *(one(f"probe {n}", f"probe {n}", look_up, n) for n in range(5)),
            ]
        )
        for number, path in enumerate(numbered("mail")):
            returned.append(
                world.ack(path, await task.step("mail", unchecked_async, world, f"letter {number}"))
            )
        try:
            await task.step("flaky", fail, world)
        except StepFailed as error:
            returned.append(error.type)
        await task.discover("flaky fails")
        world.ack("big", await task.step("big", produce, world))
        await chat.append({"role": "assistant", "content": "done"})
        await chat.append({"role": "assistant", "content": "done"})
        steps = {step.path: step.result for step in in_order(await task.view())}
        await task.finish({"returned": returned, "steps": steps})


async def together(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """What all of them give. All are waited for, whatever one of them raises."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found
