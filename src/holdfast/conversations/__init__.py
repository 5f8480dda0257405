"""Conversations: append messages, read windows within a token budget, repair, fork, turns."""

from .conversation import AsyncConversation, Conversation
from .entries import (
    ConversationInfo,
    ConversationView,
    Draft,
    DraftPiece,
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
    "DraftPiece",
    "ImportResult",
    "MessageEntry",
    "MessageProblem",
    "text_counter",
]
