"""Complete names in a store for a shell: ids of tasks, agents, conversations and so on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from .declare import Completer

if TYPE_CHECKING:
    from ... import Store

_STATUSES: Final = (
    *("pending", "running", "suspended", "retrying", "failed", "finished", "cancelled"),
    "stuck",
)
_MAX_LOOKED_AT: Final = 5000
_MAX_SHOWN: Final = 200
_PLAIN_NAME: Final = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*")
"""Bash inserts a completed name as it is, so `$(…)` in a stored name would be run with the line."""


def complete_name(
    ctx: click.Context,
    text: str,
    complete: Completer | None,
    given: Mapping[str, Any],
    url: str | None,
) -> list[str]:
    """Return the names that begin with the text; none if the store cannot be read.

    A shell then completes the names of files, which is right for a store.
    """
    url = url or ctx.params.get("store") or ctx.find_root().params.get("store")
    url = url or os.environ.get("HOLDFAST_URL")
    if complete is None or not url:
        return []
    import holdfast

    from ..stores import extend_store_options, given_keys

    for each in (ctx.find_root(), ctx):
        extend_store_options(each.params.get("key") or (), False, None)
    tenant = ctx.params.get("tenant") or "default"
    try:
        with holdfast.open(url, tenant=tenant, create=False, key=given_keys() or None) as store:
            fitting = (name for name in _iterate(complete(store, given)) if name.startswith(text))
            return list(islice(fitting, _MAX_SHOWN))
    except Exception:  # a shell must not print it in the middle of a line
        return []


def _iterate(names: Iterable[str]) -> Iterator[str]:
    """Yield each name once, and skip names that a shell would interpret."""
    seen = set[str]()
    for name in islice(names, _MAX_LOOKED_AT):
        if name not in seen and name.isprintable() and _PLAIN_NAME.fullmatch(name):
            seen.add(name)
            yield name


def complete_tasks(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    return (info.id for info in store.tasks())


def complete_agents(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    return (info.agent for info in store.tasks() if info.agent is not None)


def complete_conversations(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    return (info.id for info in store.conversations())


def complete_streams(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    return (info.id for info in store.streams())


def complete_namespaces(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    return (info.namespace for info in store.memory_namespaces())


def complete_steps(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the steps of the task that a person may resolve; all of them if there is none."""
    view = store.get_task(given.get("task_id") or "")
    steps = () if view is None else view.steps
    unsure = [step.path for step in steps if step.in_doubt or step.final]
    return iter(unsure or [step.path for step in steps])


def complete_questions(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    view = store.get_task(given.get("task_id") or "")
    questions = () if view is None else view.questions
    return (question.name for question in questions if question.status == "open")


def complete_artifacts(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    view = store.get_task(given.get("task_id") or "")
    return (file.name for file in (() if view is None else view.artifacts))


def complete_statuses(store: Store, given: Mapping[str, Any]) -> Iterator[str]:
    return iter(_STATUSES)
