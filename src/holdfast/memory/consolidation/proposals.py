"""Proposals to change a memory, and what became of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from ..model import MemoryDoc
from ..trust import OUTSIDE_AUTHORS

ProposalKind = Literal["duplicate", "merge", "summary", "supersede", "archive", "expire"]
"""What a proposal does.

duplicate: one of several memories with the same words stands for all. merge: a new text replaces
memories that say the same in other words. summary: a new text is added, and its evidence is still
recalled. supersede: a newer memory replaces an outdated one. archive: memories are no longer
recalled. expire: memories whose time to live is over are removed from the search index.
"""
Decision = Literal["apply", "ask", "leave"]
"""What a policy says about a proposal: apply it, ask a person, or leave it."""

PINNED_IMPORTANCE = 1.0


class Proposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A proposed change of a memory: memories as `evidence`, and what to do with them.

    `closes` are the memories that are no longer recalled afterwards. The memory `keep`, or a new
    one with the `text`, stands for them. The id depends on the kind, the memories and the text
    alone. A `safe` proposal loses nothing that can be recalled. A `protected` one closes a pinned
    memory or one by a trusted author, or resolves a conflict: a person must approve it.
    """

    id: str
    kind: ProposalKind
    evidence: tuple[str, ...]
    closes: tuple[str, ...] = ()
    keep: str | None = None
    text: str | None = None
    author: str | None = None
    reason: str = ""
    safe: bool = False
    protected: bool = False


class ConsolidationResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a consolidation did. Pass its `run_id` to `undo_consolidation` to undo it.

    `applied` are the proposals that were applied, `left` those that the policy or the person did
    not accept, and `stale` those whose memories changed before they could be applied. `rejected`
    counts what the model proposed and a check refused, by reason. `model_calls` is the number of
    model calls. With `budget_exceeded`, the budget ended before all memories were shown to it.
    """

    run_id: str
    applied: list[Proposal] = []
    left: list[Proposal] = []
    stale: list[Proposal] = []
    rejected: dict[str, int] = {}
    model_calls: int = 0
    budget_exceeded: bool = False


class UndoResult(msgspec.Struct, frozen=True):
    """What `undo_consolidation` did: how many proposals it undid, and how many it left.

    A proposal is left if the memory that it made was superseded or forgotten since, or if a later
    run replaced other memories with it: undo that run first.
    """

    undone: int
    left: int


def build_proposal(
    kind: ProposalKind,
    evidence: Sequence[MemoryDoc],
    trusted: Sequence[str],
    reason: str = "",
    *,
    closes: Sequence[MemoryDoc] = (),
    keep: MemoryDoc | None = None,
    text: str | None = None,
    safe: bool = False,
    protected: bool = False,
) -> Proposal:
    """Return a proposal with its id. Without `safe`, it is protected if what it closes is."""
    ids = tuple(doc.id for doc in evidence)
    closed = tuple(doc.id for doc in closes)
    kept = None if keep is None else keep.id
    identity = msgspec.json.encode((kind, sorted(ids), sorted(closed), kept, text))
    return Proposal(
        id=hashlib.blake2b(identity, digest_size=8).hexdigest(),
        kind=kind,
        evidence=ids,
        closes=closed,
        keep=kept,
        text=text,
        author=None if text is None else choose_author(evidence, text),
        reason=reason,
        safe=safe,
        protected=protected or (not safe and any(is_protected(doc, trusted) for doc in closes)),
    )


def choose_author(evidence: Sequence[MemoryDoc], text: str) -> str:
    """Return the author of a text that was made from memories.

    A new text is the model's, unless it was made from texts of strangers: those stay theirs.
    """
    authors = {doc.author for doc in evidence}
    outside = sorted(authors & set(OUTSIDE_AUTHORS))
    if outside:
        return outside[-1]
    if len(authors) == 1 and all(doc.text == text for doc in evidence):
        return authors.pop()
    return "model"


def is_protected(doc: MemoryDoc, trusted: Sequence[str]) -> bool:
    """Whether a memory is pinned or by a trusted author, so that only a person may close it."""
    return doc.importance >= PINNED_IMPORTANCE or doc.author in trusted
