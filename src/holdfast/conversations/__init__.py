"""Conversations: messages appended turn by turn, windows that fit a token budget, repairs, forks and turns."""

from .conversation import AsyncConversation, Conversation
from .entries import (
    ConversationInfo,
    ConversationView,
    Draft,
    ImportResult,
    MessageEntry,
    MessageProblem,
)
from .tokens import text_counter

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
