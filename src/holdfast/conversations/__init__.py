"""Conversations: messages appended turn by turn, windows that fit a token budget, repairs, forks and turns."""

from ._conversation import AsyncConversation, Conversation
from ._entries import ConversationInfo, ConversationView, Draft, ImportResult, MessageEntry, MessageProblem
from ._tokens import text_counter

__all__ = [
    "AsyncConversation",
    "Conversation",
    "ConversationInfo",
    "ConversationView",
    "Draft",
    "ImportResult",
    "MessageEntry",
    "MessageProblem",
    "text_counter",
]
