"""List the conversations of a framework by the prefix of their ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast
from urllib.parse import quote

from .. import AsyncStore, ConversationInfo


def join_id(*parts: str) -> str:
    """Join parts to an id. Different parts give different ids, even if they contain slashes."""
    return "/".join(quote(part, safe="") for part in parts)


async def list_ids(store: AsyncStore, *place: str) -> list[str]:
    """Return the ids of all conversations that start with the parts `place`, without these."""
    prefix = join_id(*place) + "/"
    found: list[str] = []
    async with aclosing(
        cast("AsyncGenerator[ConversationInfo]", store.conversations(after=prefix))
    ) as infos:
        async for info in infos:
            if not info.id.startswith(prefix):
                break
            found.append(info.id.removeprefix(prefix))
    return found
