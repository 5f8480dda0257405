"""A chat on the web whose answers survive kill -9 of the server.

    pip install '.[web]' fastapi openai          # in a clone of the repository
    OPENAI_API_KEY=… uvicorn --app-dir examples fastapi_chat:app

Open http://127.0.0.1:8000, ask something, kill the server in the middle of the answer and start it
again: the page continues. A message with the word "refund" has to be approved first. Any server
that speaks OpenAI's API will do: set OPENAI_BASE_URL.
"""

import os
from collections.abc import AsyncIterator
from typing import Annotated

import openai
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse
from starlette.requests import HTTPConnection

import holdfast
from holdfast.integrations.starlette import (
    ChatTurn,
    CorrelationMiddleware,
    DurableChat,
    StoreLifespan,
    get_store,
)

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")


def find_tenant(request: HTTPConnection) -> str:
    """Name the customer. A real application takes it from the log-in, not from a header."""
    return request.headers.get("x-tenant", "default")


store_lifespan = StoreLifespan(os.environ.get("CHAT_STORE", "chat.db"), tenant=find_tenant)
chat = DurableChat("support", user=lambda request: request.headers.get("x-user"))
app = FastAPI(lifespan=store_lifespan)
app.add_middleware(CorrelationMiddleware)
app.router.routes.append(chat.mount("/chat"))


def pay_refund(conversation: str) -> str:
    return f"refund for {conversation}"  # a stand-in for the bank


@chat.answer
async def answer(turn: ChatTurn) -> AsyncIterator[str]:
    """Answer a message: after an approval if it is about a refund."""
    task = turn.task
    if "refund" in turn.message["content"].lower():
        if not await task.ask("refund", "Pay this refund?", turn.message, returns=bool):
            yield "The refund was not approved."
            return
        await task.step("pay", pay_refund, task.input["conversation"])
    async with openai.AsyncOpenAI() as client:
        chunks = await client.chat.completions.create(
            model=MODEL, messages=await turn.chat.window(8000), stream=True
        )
        async for chunk in chunks:
            for choice in chunk.choices:
                if choice.delta.content:
                    yield choice.delta.content


@app.get("/conversations")
async def list_conversations(
    store: Annotated[holdfast.AsyncStore, Depends(get_store)],
) -> list[str]:
    return [info.id async for info in store.conversations()]


@app.get("/")
async def show_page() -> HTMLResponse:
    return HTMLResponse(PAGE)


PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title>
<style>body{font:16px system-ui;max-width:40em;margin:2em auto} p{white-space:pre-wrap}</style>
<div id="log"></div><form><input name="text" size="40" autofocus><button>Send</button></form>
<script>
const log = document.querySelector("#log"), drafts = {};
let source, shown;
function line(text) { const p = document.createElement("p"); p.textContent = text; log.append(p);
                      return p; }
function post(path, value) {
  const headers = {"content-type": "application/json"};
  return fetch(path, {method: "POST", headers, body: JSON.stringify(value)});
}
function follow(version) {
  source = new EventSource("/chat/browser/events?after=" + version);  // it reconnects by itself
  source.addEventListener("delta", event => {
    const {of, text} = JSON.parse(event.data);
    if (!drafts[of]) { shown?.remove(); shown = line(""); drafts[of] = ""; }  // a new attempt
    shown.textContent = drafts[of] += text;
  });
  source.addEventListener("message", event => {
    const {message} = JSON.parse(event.data);
    if (message.role === "assistant") { shown?.remove(); shown = null; line(message.content); }
  });
  source.addEventListener("question", async event => {
    source.close();
    for (const question of JSON.parse(event.data).questions) {
      const value = confirm(question.text);
      await post("/chat/browser/answer", {question: question.id, value});
    }
    follow((await (await fetch("/chat/browser")).json()).version);
  });
  source.addEventListener("done", event => source.close());
}
document.querySelector("form").onsubmit = async event => {
  event.preventDefault();
  const text = event.target.text.value;
  event.target.reset();
  line("> " + text);
  const {version} = await (await fetch("/chat/browser")).json();
  const sent = await post("/chat/browser", {id: crypto.randomUUID(), message: text});
  if (!sent.ok) return line((await sent.json()).message);
  sent.body.cancel();
  follow(version);
};
</script>"""
