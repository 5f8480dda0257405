"""Stores and durable chats in web applications: FastAPI, Starlette and others built on it.

    lifespan = StoreLifespan("agents.db")
    chat = DurableChat("support")

    @chat.answer
    async def answer(turn: ChatTurn) -> AsyncIterator[str]: ...

    app = FastAPI(lifespan=lifespan)
    app.router.routes.append(chat.mount("/chat"))

An answer is a task: it is completed even if the browser disconnects or the server is killed. A
browser that reconnects with the id of the last event it has seen misses nothing.
"""

from __future__ import annotations

try:
    import starlette  # noqa: F401
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.starlette needs Starlette: pip install starlette, or fastapi"
    ) from error

from .chat import ChatTurn, DurableChat
from .lifespan import CorrelationMiddleware, StoreLifespan, get_store

__all__ = ["ChatTurn", "CorrelationMiddleware", "DurableChat", "StoreLifespan", "get_store"]
