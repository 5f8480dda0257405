"""PydanticAI: agent runs that resume after a crash, and conversations kept in a store.

agent = Agent("openai:gpt-5", name="clerk", capabilities=[HoldfastDurability(store)])
result = await agent.run("Pay bill 7", run_id="bill-7")
"""

from __future__ import annotations

try:
    import pydantic_ai
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.pydantic_ai needs PydanticAI: pip install pydantic-ai-slim"
    ) from error

try:
    from .conversations import HoldfastConversationStore
    from .durability import HoldfastDurability
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.pydantic_ai needs pydantic-ai-slim 2.66 or newer, got "
        f"{pydantic_ai.__version__} ({error}): pip install --upgrade pydantic-ai-slim"
    ) from error

__all__ = ["HoldfastConversationStore", "HoldfastDurability"]
