"""Agents whose tasks need attention, each for its reason."""

from __future__ import annotations

import holdfast
from holdfast import AsyncTask, Budget, Task

MESSAGE = "message-canary"  # not where it is raised: tracebacks in logs show lines of code
SECRETS = ("goal-canary", "question-canary", "payload-canary", MESSAGE, "input-canary")
"""The content of their tasks."""


class BankError(Exception):
    pass


def register_needy_agents(*, asynchronous: bool = False) -> None:
    """Register the agent "needy". The input of a task says what it will need."""

    @holdfast.step(once=True)
    def pay() -> None:
        raise BankError(MESSAGE)

    @holdfast.step(kind="model")
    def think() -> str:
        holdfast.current_step().use(input_tokens=1000, output_tokens=1000)
        return "thought"

    if asynchronous:

        @holdfast.agent("needy", max_attempts=1)
        async def needy_async(task: AsyncTask) -> object:
            match task.input["need"]:
                case "question":
                    return await task.ask("payout", "question-canary", "payload-canary")
                case "failed":
                    raise BankError(MESSAGE)
                case "doubt":
                    return await task.step("pay", pay)
            return None

        return

    @holdfast.agent("needy", max_attempts=1)
    def needy(task: Task) -> object:
        match task.input["need"]:
            case "question":
                return task.ask("payout", "question-canary", "payload-canary")
            case "failed":
                raise BankError(MESSAGE)
            case "doubt":
                return task.step("pay", pay)
            case "budget":
                task.step("think", think)
                return task.step("think", think)
        return None


def submit_needy(store: holdfast.Store, need: str, id: str | None = None) -> None:
    """Submit a task that will need something; "nothing" for one that finishes."""
    budget = Budget(tokens=100) if need == "budget" else None
    given = {"need": need, "about": "input-canary"}
    store.submit("needy", id or need, goal="goal-canary", input=given, budget=budget)
