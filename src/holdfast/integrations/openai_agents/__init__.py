"""The OpenAI Agents SDK: runs that resume after a crash, and sessions kept in a store.

result = await HoldfastRunner(store).run(agent, "Pay bill 7", task_id="bill-7")

result = await Runner.run(agent, "Hello", session=HoldfastSession("user-42", store))
"""

from __future__ import annotations

try:
    import agents  # noqa: F401
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.openai_agents needs the Agents SDK: pip install openai-agents"
    ) from error

from .runner import HoldfastRunner, RunStream
from .scope import ToolDecision
from .session import HoldfastSession

__all__ = ["HoldfastRunner", "HoldfastSession", "RunStream", "ToolDecision"]
