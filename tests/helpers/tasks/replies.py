"""A model that counts its calls, and a chat with it, for tests of replies."""

from __future__ import annotations

from typing import Any

from helpers.sync_and_async import Ways


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Model:
    """A model that counts how often it is asked, and says that."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, chat: Any, about: str = "") -> dict[str, Any]:
        self.asked += 1
        return said(f"answer {self.asked}{about}")


def chatting(ways: Ways, ask: Any, turns: int = 2, chat: Any = "c") -> Any:
    """A program: the user says something, the model replies, N times."""

    async def work(task: Any) -> list[Any]:
        found = []
        for n in range(turns):
            ways.store.conversation("c").append(user(f"q{n}"), id=f"q{n}")
            found.append(await task.reply(chat, ask))
        return found

    return work


def messages(ways: Ways, id: str = "c") -> list[Any]:
    return ways.store.conversation(id).messages()


def plainly(fn: Any) -> Any:
    """The function alone: a bound method brings its object along, which may be another one in each
    run."""

    def ask(chat: Any, *args: Any) -> Any:
        return fn(chat, *args)

    return ask
