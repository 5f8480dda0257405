"""A chat loop on the SDKs of OpenAI and Anthropic in all its six forms, for tests that hold for
each of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import anthropic
import openai
import pytest

import holdfast
from helpers.model_server import ModelServer
from holdfast.integrations import anthropic as our_anthropic
from holdfast.integrations import openai as our_openai
from holdfast.integrations.openai import TurnAnswer

FORMS = [f"{api}-{kind}" for api in ("chat", "responses", "messages") for kind in ("sync", "async")]
of_openai = pytest.mark.parametrize("loop", FORMS[:4], indirect=True)
"""Marks tests that are about the forms of OpenAI's messages, not about the loop."""

HELLO = {"role": "user", "content": "hello"}


@dataclass
class Loop:
    """A chat loop in one of the three dialects, with a client of one of the two kinds."""

    server: ModelServer
    store: holdfast.Store
    api: Literal["chat", "responses", "messages"]
    awaited: bool

    @property
    def chat(self) -> holdfast.Conversation:
        return self.store.conversation("chat")

    def complete(self, **options: Any) -> TurnAnswer:
        if self.awaited:
            return asyncio.run(self._complete(**options))
        with self._client() as client:
            answer: TurnAnswer = self._start(client, self.chat, **options)
            return answer

    async def _complete(self, **options: Any) -> TurnAnswer:
        async with self._client() as client:
            chat = self.store.aio.conversation("chat")
            answer: TurnAnswer = await self._start(client, chat, **options)
            return answer

    def pieces(self, *, take: int | None = None, **options: Any) -> list[str]:
        """What is streamed; all of it, or the first pieces, as a listener hears who then leaves."""
        if self.awaited:
            return asyncio.run(self._pieces(take, **options))
        heard: list[str] = []
        with self._client() as client:
            for piece in self._start(client, self.chat, stream=True, **options):
                heard.append(piece)
                if len(heard) == take:
                    break
        return heard

    async def _pieces(self, take: int | None, **options: Any) -> list[str]:
        heard: list[str] = []
        chat = self.store.aio.conversation("chat")
        async with self._client() as client:
            async with self._start(client, chat, stream=True, **options) as pieces:
                async for piece in pieces:
                    heard.append(piece)
                    if len(heard) == take:
                        break
        return heard

    def _client(self) -> Any:
        if self.api == "messages":
            return anthropic_client(self.server, self.awaited)
        kind = openai.AsyncOpenAI if self.awaited else openai.OpenAI
        return kind(**settings(self.server, self.awaited))

    def _start(self, client: Any, chat: Any, **options: Any) -> Any:
        if self.api == "messages":
            options = {"max_tokens": 1000, **options}
            return our_anthropic.complete(client, chat, model="any", **options)
        return our_openai.complete(client, chat, model="any", api=self.api, **options)

    def shown(self) -> list[dict[str, Any]]:
        """What the model was shown last."""
        return self.server.shown()[-1]


def settings(server: ModelServer, awaited: bool = False) -> dict[str, Any]:
    """For a client of that server. It speaks plain HTTP, so no time is spent on certificates."""
    http = (openai.DefaultAsyncHttpxClient if awaited else openai.DefaultHttpxClient)(verify=False)
    return {"base_url": server.base_url, "api_key": "none", "max_retries": 0, "http_client": http}


def anthropic_client(server: ModelServer, awaited: bool = False) -> Any:
    kind = anthropic.AsyncAnthropic if awaited else anthropic.Anthropic
    http = anthropic.DefaultAsyncHttpxClient if awaited else anthropic.DefaultHttpxClient
    return kind(
        base_url=server.base_url.removesuffix("/v1"),
        api_key="none",
        max_retries=0,
        http_client=http(verify=False),
    )
