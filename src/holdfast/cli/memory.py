"""The commands about long-term memory: list, search, add, forget, rebuild an index."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import Erased
from .durations import duration_option
from .questions import Subject
from .stores import Json, Tenant, Url, confirm, fail, open_store, split_names
from .text import cut, printable, to_json

if TYPE_CHECKING:
    from .. import Memory, MemoryItem, Store

Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Only memories with this tag. Repeatable: all must match.",
        show_default=False,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Only memories from this source, such as task/claim-42.",
        show_default=False,
    ),
]
Authors = Annotated[
    list[str] | None,
    typer.Option(
        "--author",
        metavar="WHO",
        help="Only memories by this author. Repeatable: any may match.",
        show_default=False,
    ),
]
_TIMES = "A date, or a time such as 2026-01-31T14:30; UTC by default."
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Only memories from this time or later. {_TIMES}", show_default=False
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only memories until this time; a date includes the whole day.",
        show_default=False,
    ),
]


def memories(
    url: Url = None,
    namespace: Annotated[
        str | None,
        typer.Argument(metavar="NAMESPACE", help="The namespace to list.", show_default=False),
    ] = None,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only the newest N memories.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List memory namespaces, or the memories of one.

    Prints one line per memory: id, time, source, tags and text.
    """
    if namespace is None and os.environ.get("HOLDFAST_URL"):
        url, namespace = None, url
    if namespace is None:
        if any((tag, source, author, since, until, last)):
            raise typer.BadParameter(
                "name the namespace too: holdfast memories agents.db buyer --tag people"
            )
        with open_store(url, tenant) as store:
            _print_namespaces(store, as_json)
        return
    start, end = _parse_time(since, "since"), _parse_time(until, "until", end_of_day=True)
    with open_store(url, tenant) as store:
        memory = _existing_memory(store, namespace)
        items = memory.all(tags=tag or (), source=source, author=author or None)
        found = _between(items, start, end)
        for item in found if last is None else deque(found, maxlen=last):
            typer.echo(_item_json(item) if as_json else _item_line(item))


def recall(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] NAMESPACE QUERY", help="The namespace to search, and the question."
        ),
    ],
    k: Annotated[
        int, typer.Option("-k", metavar="N", min=1, help="Maximum number of results.")
    ] = 5,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also print the signals behind each score.")
    ] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Search a memory.

    Prints the best matches first, each with its score. Searches by words, without an embedder.
    """
    url, namespace, query = _split_names(
        names, "NAMESPACE", "QUERY", usage="holdfast recall agents.db buyer 'who signs the orders?'"
    )
    start, end = _parse_time(since, "since"), _parse_time(until, "until", end_of_day=True)
    with open_store(url, tenant) as store:
        hits = _existing_memory(store, namespace).recall(
            query, k, tags=tag or (), source=source, author=author or None, since=start, until=end
        )
    for hit in hits:
        typer.echo(_item_json(hit) if as_json else cut(f"{hit.score:.3f}  {_item_line(hit)}"))
        if why and not as_json:
            signals = ", ".join(f"{name} {value:.3f}" for name, value in hit.why.items())
            typer.echo(f"       {signals}")
    if not hits and not as_json:
        typer.echo(f"{printable(namespace)} has no matching memory", err=True)


def _print_namespaces(store: Store, as_json: bool) -> None:
    for info in store.memory_namespaces():
        facts: dict[str, object] = {"namespace": info.namespace}
        try:
            facts |= msgspec.to_builtins(store.memory(info.namespace).stats())
        except Erased:  # an erased namespace must not end the listing
            facts |= {"memories": None, "erased": True}
        count = "erased" if "erased" in facts else facts["memories"]
        typer.echo(to_json(facts) if as_json else f"{count:>9}  {printable(info.namespace)}")


def remember(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] NAMESPACE TEXT",
            help="The namespace, and the text to remember; - reads it from stdin.",
        ),
    ],
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="A tag. Repeatable.", show_default=False),
    ] = None,
    importance: Annotated[float, typer.Option(min=0, max=1, help="From 0 to 1.")] = 0.5,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where it comes from.", show_default=False)
    ] = None,
    author: Annotated[str, typer.Option(metavar="WHO", help="The author.")] = "person",
    subject: Subject = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"When it was said. {_TIMES} [default: now]", show_default=False
        ),
    ] = None,
    ttl: Annotated[float | None, duration_option("How long to remember it.")] = None,
    tenant: Tenant = "default",
) -> None:
    """Add a memory.

    Prints the memory's id. If the author has said the same before, that memory is reinforced and
    keeps its id.
    """
    url, namespace, given = _split_names(
        names,
        "NAMESPACE",
        "TEXT",
        usage="holdfast remember agents.db buyer 'Ann signs the orders' --tag people",
    )
    text, moment = _read_text(given), _parse_time(at, "at")
    with open_store(url, tenant, create=True) as store:
        memory = store.memory(namespace)
        name = memory.remember(
            text,
            tags=tag or (),
            importance=importance,
            source=source,
            author=author,
            subject=subject,
            at=moment,
            ttl=ttl,
        )
        item = memory.get(name)
    mentions = 1 if item is None else item.mentions
    typer.echo(f"remembered {name}{'' if mentions == 1 else f' again, mentioned {mentions} times'}")


def forget(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] NAMESPACE [ID]",
            help="The namespace, and a memory's id or options that select memories.",
        ),
    ],
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    older_than: Annotated[float | None, duration_option("Only memories older than this.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be forgotten; forget nothing.")
    ] = False,
    tenant: Tenant = "default",
) -> None:
    """Remove memories from recall.

    Removes one memory, or after confirmation all that match the options. The texts stay in the
    event log.
    """
    filters: dict[str, Any] = {"tags": tag or (), "source": source, "author": author or None}
    if older_than is None and not any(filters.values()):
        usage = "holdfast forget agents.db buyer ID, or --source offer-17 instead of an id"
        url, namespace, name = _split_names(names, "NAMESPACE", "ID", usage=usage)
        with open_store(url, tenant) as store:
            _forget_one(_existing_memory(store, namespace), name, dry_run)
        return
    usage = "an id, or options that select memories: holdfast forget agents.db buyer --tag people"
    url, namespace = _split_names(names, "NAMESPACE", usage=usage)
    with open_store(url, tenant) as store:
        memory = _existing_memory(store, namespace)
        _forget_matching(memory, filters, older_than, yes=yes, dry_run=dry_run)


def reindex(
    names: Annotated[
        list[str], typer.Argument(metavar="[URL] NAMESPACE", help="The namespace to reindex.")
    ],
    tenant: Tenant = "default",
) -> None:
    """Rebuild a memory index.

    An index keeps itself up to date; this is for one that was damaged.
    """
    url, namespace = _split_names(names, "NAMESPACE", usage="holdfast reindex agents.db buyer")
    with open_store(url, tenant) as store:
        memory = _existing_memory(store, namespace)
        vectors = memory.stats().vectors
        memory.rebuild()
        count = _format_memories(memory.stats().memories)
        typer.echo(f"rebuilt the index of {printable(namespace)}: {count}")
    if vectors:
        typer.echo(f"removed {vectors:,} vectors; recalls with an embedder compute them again")


def _forget_one(memory: Memory, id: str, dry_run: bool) -> None:
    item = memory.get(id)
    if item is None or not (dry_run or memory.forget(id)):
        fail(f"{memory.namespace!r} has no memory {id!r}; it may have been superseded or forgotten")
    typer.echo(cut(f"{'would forget' if dry_run else 'forgot'}  {_item_line(item)}"))


def _forget_matching(
    memory: Memory, filters: dict[str, Any], older_than: float | None, *, yes: bool, dry_run: bool
) -> None:
    """Forget all matching memories at once, including those added while the user confirms."""
    age = None if older_than is None else timedelta(seconds=older_than)
    end = None if age is None else datetime.now(timezone.utc) - age
    count = 0
    for item in _between(memory.all(**filters), None, end):
        count += 1
        if dry_run:
            typer.echo(cut(f"would forget  {_item_line(item)}"))
    what = f"{_format_memories(count)} of {printable(memory.namespace)}"
    if dry_run:
        typer.echo(f"would forget {what}")
        return
    if count and not yes and not confirm(f"forget {what}?"):
        fail("nothing was forgotten; use --yes to skip the confirmation")
    forgotten = memory.forget_where(**filters, older_than=age) if count else 0
    typer.echo(f"forgot {_format_memories(forgotten)} of {printable(memory.namespace)}")


def _split_names(names: list[str], *wanted: str, usage: str) -> tuple[Any, ...]:
    """Return the store's URL, or None if it is left out, and then the wanted names."""
    if len(names) == len(wanted) and not os.environ.get("HOLDFAST_URL"):
        is_store = "://" in names[0] or names[0].endswith(".db") or os.path.exists(names[0])
        missing = " or ".join(wanted) if is_store else "the store"
        raise typer.BadParameter(
            f"{missing} is missing: {usage}" + ("" if is_store else "; or set HOLDFAST_URL")
        )
    return split_names(names, len(wanted), usage)


def _existing_memory(store: Store, namespace: str) -> Memory:
    """Return the memory of a namespace, or exit: a mistyped name would look like an empty one."""
    memory = store.memory(namespace)
    if not memory.stats().version:
        fail(f"tenant {store.tenant!r} has no memory {namespace!r} in this store; check the names")
    return memory


def _between(
    items: Iterable[MemoryItem], since: datetime | None, until: datetime | None
) -> Iterator[MemoryItem]:
    return (
        item
        for item in items
        if (since is None or item.at >= since) and (until is None or item.at <= until)
    )


def _parse_time(text: str | None, option: str, *, end_of_day: bool = False) -> datetime | None:
    """Parse the time of an option. With `end_of_day`, a date means its last moment."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
    except ValueError:
        raise typer.BadParameter(
            f"--{option} must be a date or a time, like 2026-01-31 or 2026-01-31T14:30"
        ) from None
    if end_of_day and len(text) <= len("2026-01-31"):
        moment = datetime.combine(moment, time.max)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def _read_text(given: str) -> str:
    try:
        if given == "-":
            return typer.get_binary_stream("stdin").read().decode().strip("\n")
        given.encode()
    except UnicodeError:
        fail("the text is not valid UTF-8; nothing was remembered")
    return given


def _item_line(item: MemoryItem) -> str:
    """Return a memory as one human-readable line. It names the author, unless that is the model."""
    # A source that looks like an author must not pass for one: then the author is named as well.
    is_model = item.author == "model" and not (item.source or "").startswith("by ")
    author = "" if is_model else f"by {printable(item.author)}  "
    tags = f"[{printable(', '.join(item.tags))}]  " if item.tags else ""
    facts = f"{item.id}  {item.at:%Y-%m-%d %H:%M:%S}  {author}{printable(item.source or '-')}"
    return cut(f"{facts}  {tags}{printable(item.full_text)}")


def _item_json(item: MemoryItem) -> str:
    return to_json(msgspec.to_builtins(item))


def _format_memories(number: int) -> str:
    return f"{number:,} {'memory' if number == 1 else 'memories'}"
