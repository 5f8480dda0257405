"""Conversations: messages appended turn by turn, windows that fit a token budget, repairs, forks and turns."""

from ._conversation import AsyncConversation, Conversation
from ._entries import ConversationInfo, Draft, Entry, Imported, Problem
from ._tokens import text_counter

__all__ = [
    "AsyncConversation",
    "Conversation",
    "ConversationInfo",
    "Draft",
    "Entry",
    "Imported",
    "Problem",
    "text_counter",
]
