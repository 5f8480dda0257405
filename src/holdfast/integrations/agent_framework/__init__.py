"""Sessions, histories and workflow checkpoints of the Microsoft Agent Framework, kept in a store.

agent = Agent(client, context_providers=[HoldfastHistoryProvider(store)])
await agent.run("Hello", session=agent.create_session(session_id="user-42"))

workflow = SequentialBuilder(
    participants=[writer, critic], checkpoint_storage=HoldfastCheckpointStorage(store)
).build()
"""

from .checkpoints import HoldfastCheckpointStorage
from .sessions import HoldfastAgentSessionStore, HoldfastHistoryProvider

__all__ = ["HoldfastAgentSessionStore", "HoldfastCheckpointStorage", "HoldfastHistoryProvider"]
