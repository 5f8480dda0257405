"""A chat of twenty turns on the SDK of OpenAI or Anthropic, killed at every boundary it has.

Arguments: BASE_URL STORE NOTES API. The API is chat, responses or messages. Turns are taken in four
ways in turn: sync, async, and both streamed. In every fifth turn the model calls a tool twice at
once. It is killed after each append
that was acknowledged, inside each tool, while each model call is in flight, in the middle of each
stream, and once when a good part of an answer has been streamed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, NamedTuple

import anthropic
import openai

import holdfast
from helpers.example_counts import LONG
from holdfast import AsyncConversation, Conversation
from holdfast.integrations import anthropic as our_anthropic
from holdfast.integrations import openai as our_openai

from .process_runs import REHEARSAL, ProcessRun, run_until_finished

TURNS = 20 if LONG else 10
TOOL_TURNS = range(5, TURNS + 1, 5)
STREAMED_TURNS = [turn for turn in range(1, TURNS + 1) if turn % 4 > 1]
LONG_TURN = 7


class Sdk(NamedTuple):
    """What differs between the two SDKs."""

    client: Any
    async_client: Any
    http: Any
    async_http: Any
    complete: Any
    base_url: str
    options: dict[str, Any]


def sdk_for(api: str, base_url: str) -> Sdk:
    if api != "messages":
        return Sdk(
            openai.OpenAI,
            openai.AsyncOpenAI,
            openai.DefaultHttpxClient,
            openai.DefaultAsyncHttpxClient,
            our_openai.complete,
            base_url,
            {"api": api},
        )
    return Sdk(
        anthropic.Anthropic,
        anthropic.AsyncAnthropic,
        anthropic.DefaultHttpxClient,
        anthropic.DefaultAsyncHttpxClient,
        our_anthropic.complete,
        base_url.removesuffix("/v1"),
        {"max_tokens": 1000},
    )


def question(turn: int) -> dict[str, Any]:
    text = f"turn {turn}"
    if turn in TOOL_TURNS:
        text += f': call tally {{"n": {turn}}} and call tally {{"n": {-turn}}}'
    if turn == LONG_TURN:
        text += " and so on" * 400
    return {"role": "user", "content": text}


def turns_begun(messages: list[Any]) -> int:
    said = (message for message in messages if message.get("role") == "user")
    return sum(isinstance(message["content"], str) for message in said)


def note_appends(process: ProcessRun, *, kill: bool = True) -> None:
    """Have each append noted when it is acknowledged, and the program killed right after."""
    plain, plain_async = Conversation.append, AsyncConversation.append

    def acknowledged(appended: Any, messages: tuple[Any, ...]) -> Any:
        if not appended.duplicate:
            process.note("ack", messages=messages)
            if kill:
                process.point(f"after version {appended.last}")
        return appended

    def append(self: Conversation, *messages: Any, **options: Any) -> Any:
        return acknowledged(plain(self, *messages, **options), messages)

    async def append_async(self: AsyncConversation, *messages: Any, **options: Any) -> Any:
        return acknowledged(await plain_async(self, *messages, **options), messages)

    Conversation.append = append  # type: ignore[method-assign]
    AsyncConversation.append = append_async  # type: ignore[method-assign]


class Program:
    """The work of one process."""

    def __init__(self, process: ProcessRun, store: holdfast.Store, base_url: str, api: str) -> None:
        self.process, self.model = process, "any"
        self.chat, self.chat_async = store.conversation("chat"), store.aio.conversation("chat")
        self.sdk = sdk = sdk_for(api, base_url)
        self.client: dict[str, Any] = {
            "base_url": sdk.base_url,
            "api_key": "none",
            "max_retries": 0,
        }
        self.options: dict[str, Any] = {**sdk.options, "tools": [self.tally]}

    def tally(self, n: int) -> str:
        """Count something."""
        self.process.note("tool", n=n)
        self.process.point(f"in tool {n}")
        return f"tallied {n}"

    def requesting(self, request: Any) -> None:
        """Called by the SDK before each request."""
        body = json.loads(request.content)
        if body["model"] == REHEARSAL:
            return
        shown = body.get("messages", body.get("input"))
        self.process.note("request")
        place = f"the call after {len(shown)} messages"
        says_text = "call tally" not in str(shown[-1].get("content"))
        if not self.process.die_in_flight(place) and body.get("stream") and says_text:
            self.process.die_in_flight(f"the stream of {place}", after=2)

    async def requesting_async(self, request: Any) -> None:
        self.requesting(request)

    def hear(self, turn: int, text: str) -> None:
        if turn == LONG_TURN and len(text) > 3000:
            self.process.point("a long way into a stream")

    def take(self, turn: int) -> str:
        """Say what the user says, and answer it; if that was done before, the answer."""
        if turn % 2:
            return asyncio.run(self.take_async(turn))
        self.chat.append(question(turn), id=f"turn {turn}")
        complete = self.sdk.complete
        with self.sdk.http(event_hooks={"request": [self.requesting]}, verify=False) as http:
            client = self.sdk.client(**self.client, http_client=http)
            if turn not in STREAMED_TURNS:
                return str(complete(client, self.chat, model=self.model, **self.options).text)
            text = ""
            for piece in complete(client, self.chat, model=self.model, stream=True, **self.options):
                text += piece
                self.hear(turn, text)
            return text

    async def take_async(self, turn: int) -> str:
        await self.chat_async.append(question(turn), id=f"turn {turn}")
        hooks = {"request": [self.requesting_async]}
        complete = self.sdk.complete
        async with self.sdk.async_http(event_hooks=hooks, verify=False) as http:
            client = self.sdk.async_client(**self.client, http_client=http)
            if turn not in STREAMED_TURNS:
                return str(
                    (await complete(client, self.chat_async, model=self.model, **self.options)).text
                )
            text = ""
            async for piece in complete(
                client, self.chat_async, model=self.model, stream=True, **self.options
            ):
                text += piece
                self.hear(turn, text)
            return text


def main() -> None:
    base_url, place, notes, api = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        note_appends(process)
        with holdfast.open(place) as store:
            program = Program(process, store, base_url, api)
            process.note("born", drafts=len(program.chat.drafts()))
            for turn in range(max(turns_begun(program.chat.messages()), 1), TURNS + 1):
                process.note("answer", turn=turn, text=program.take(turn))

    def rehearse() -> None:
        with holdfast.open(f"{place}.rehearsal") as store:
            program = Program(ProcessRun(notes, base_url), store, base_url, api)
            program.model = REHEARSAL
            for turn in range(1, 5):
                program.take(turn)

    run_until_finished(run, notes, base_url, rehearse)
