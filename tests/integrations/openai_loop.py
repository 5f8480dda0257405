"""A chat loop on the OpenAI SDK in all its four forms, for tests that hold for each of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import openai

import holdfast
from helpers.model_server import ModelServer
from holdfast.integrations.openai import TurnAnswer, complete

HELLO = {"role": "user", "content": "hello"}


@dataclass
class Loop:
    """A chat loop in one of the two dialects, with a client of one of the two kinds."""

    server: ModelServer
    store: holdfast.Store
    api: Literal["chat", "responses"]
    awaited: bool

    @property
    def chat(self) -> holdfast.Conversation:
        return self.store.conversation("chat")

    def complete(self, **options: Any) -> TurnAnswer:
        if self.awaited:
            return asyncio.run(self._complete(**options))
        with openai.OpenAI(**settings(self.server, self.awaited)) as client:
            answer: TurnAnswer = complete(client, self.chat, model="any", api=self.api, **options)
            return answer

    async def _complete(self, **options: Any) -> TurnAnswer:
        async with openai.AsyncOpenAI(**settings(self.server, self.awaited)) as client:
            answer: TurnAnswer = await complete(
                client, self.store.aio.conversation("chat"), model="any", api=self.api, **options
            )
            return answer

    def pieces(self, *, take: int | None = None, **options: Any) -> list[str]:
        """What is streamed; all of it, or the first pieces, as a listener hears who then leaves."""
        if self.awaited:
            return asyncio.run(self._pieces(take, **options))
        heard: list[str] = []
        with openai.OpenAI(**settings(self.server, self.awaited)) as client:
            for piece in complete(
                client, self.chat, model="any", api=self.api, stream=True, **options
            ):
                heard.append(piece)
                if len(heard) == take:
                    break
        return heard

    async def _pieces(self, take: int | None, **options: Any) -> list[str]:
        heard: list[str] = []
        chat = self.store.aio.conversation("chat")
        async with openai.AsyncOpenAI(**settings(self.server, self.awaited)) as client:
            async with complete(
                client, chat, model="any", api=self.api, stream=True, **options
            ) as pieces:
                async for piece in pieces:
                    heard.append(piece)
                    if len(heard) == take:
                        break
        return heard

    def shown(self) -> list[dict[str, Any]]:
        """What the model was shown last."""
        return self.server.shown()[-1]


def settings(server: ModelServer, awaited: bool = False) -> dict[str, Any]:
    """For a client of that server. It speaks plain HTTP, so no time is spent on certificates."""
    http = (openai.DefaultAsyncHttpxClient if awaited else openai.DefaultHttpxClient)(verify=False)
    return {"base_url": server.base_url, "api_key": "none", "max_retries": 0, "http_client": http}
