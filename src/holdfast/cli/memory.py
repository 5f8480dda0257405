"""The commands about long-term memory: list, search, add, forget, consolidate, rebuild an index."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from ..errors import Erased
from .parser.completion import complete_namespaces
from .parser.declare import Argument, Option, command
from .parser.durations import duration_option, parse_time
from .questions import Subject
from .stores import Json, Tenant, Url, confirm, fail, open_store
from .text import cut, printable, to_json

if TYPE_CHECKING:
    from .. import Memory, MemoryItem, Store
    from ..memory import Proposal

Namespace = Annotated[
    str, Argument(metavar="NAMESPACE", help="The namespace.", complete=complete_namespaces)
]
OptionalNamespace = Annotated[
    str | None, Argument(metavar="NAMESPACE", help="The namespace.", complete=complete_namespaces)
]
Tags = Annotated[
    list[str] | None,
    Option("--tag", metavar="TAG", help="Only memories with this tag. Repeatable: all must match."),
]
Source = Annotated[
    str | None,
    Option(metavar="NAME", help="Only memories from this source, such as task/claim-42."),
]
Authors = Annotated[
    list[str] | None,
    Option(
        "--author", metavar="WHO", help="Only memories by this author. Repeatable: any may match."
    ),
]
_TIMES = "A date, or a time such as 2026-01-31T14:30; UTC by default."
Since = Annotated[
    str | None, Option(metavar="TIME", help=f"Only memories from this time or later. {_TIMES}")
]
Until = Annotated[
    str | None,
    Option(metavar="TIME", help="Only memories until this time; a date includes the whole day."),
]


@command(
    "holdfast memories agents.db",
    "holdfast memories agents.db buyer --tag people --since 2026-01-31",
)
def memories(
    url: Url,
    namespace: OptionalNamespace = None,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    last: Annotated[int | None, Option(min=1, help="Only the newest N memories.")] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List memory namespaces, or the memories of one.

    Prints one line per memory: id, time, source, tags and text.
    """
    if namespace is None:
        if any((tag, source, author, since, until, last)):
            raise click.UsageError(
                "name the namespace too: holdfast memories agents.db buyer --tag people"
            )
        with open_store(url, tenant) as store:
            _print_namespaces(store, as_json)
        return
    start, end = parse_time(since, "since"), parse_time(until, "until", end_of_day=True)
    with open_store(url, tenant) as store:
        memory = _existing_memory(store, namespace)
        items = memory.all(tags=tag or (), source=source, author=author or None)
        found = _between(items, start, end)
        for item in found if last is None else deque(found, maxlen=last):
            click.echo(_item_json(item) if as_json else _item_line(item))


@command(
    "holdfast recall agents.db buyer 'who signs the orders?'",
    "holdfast recall agents.db buyer 'who signs the orders?' --since 2026-01-31 --why",
)
def recall(
    url: Url,
    namespace: Namespace,
    query: Annotated[str, Argument(metavar="QUERY", help="The text to look for.")],
    k: Annotated[int, Option("-k", metavar="N", min=1, help="Maximum number of results.")] = 5,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    why: Annotated[bool, Option("--why", help="Also print the signals behind each score.")] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Search a memory.

    Prints the best matches first, each with its score. Matches words only; no embedder is used.
    """
    start, end = parse_time(since, "since"), parse_time(until, "until", end_of_day=True)
    with open_store(url, tenant) as store:
        hits = _existing_memory(store, namespace).recall(
            query, k, tags=tag or (), source=source, author=author or None, since=start, until=end
        )
    for hit in hits:
        click.echo(_item_json(hit) if as_json else cut(f"{hit.score:.3f}  {_item_line(hit)}"))
        if why and not as_json:
            signals = ", ".join(f"{name} {value:.3f}" for name, value in hit.why.items())
            click.echo(f"       {signals}")
    if not hits and not as_json:
        click.echo(f"{printable(namespace)} has no matching memory", err=True)


@command(
    "holdfast memory about agents.db buyer Acme",
    "holdfast memory about agents.db buyer INV-2041 --since 2026-01-31",
)
def about(
    url: Url,
    namespace: Namespace,
    name: Annotated[
        str, Argument(metavar="NAME", help="A name, a code, an e-mail address or another term.")
    ],
    k: Annotated[int, Option("-k", metavar="N", min=1, help="Maximum number of results.")] = 100,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List the memories that mention a name.

    Prints one line per memory, the newest first.
    """
    start, end = parse_time(since, "since"), parse_time(until, "until", end_of_day=True)
    with open_store(url, tenant) as store:
        items = _existing_memory(store, namespace).about(
            name, k, tags=tag or (), source=source, author=author or None, since=start, until=end
        )
    for item in items:
        click.echo(_item_json(item) if as_json else _item_line(item))
    if not items and not as_json:
        click.echo(f"{printable(namespace)} has no memory that mentions this name", err=True)


@command(
    "holdfast memory entities agents.db buyer",
    "holdfast memory entities agents.db buyer -k 20 --source task/laptops-7",
)
def entities(
    url: Url,
    namespace: Namespace,
    k: Annotated[int, Option("-k", metavar="N", min=1, help="Maximum number of names.")] = 100,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List the names that memories mention.

    Names of people, companies and places, codes, quoted terms and e-mail addresses. Prints the
    number of memories, the day of the newest, and the name; the most frequent first.
    """
    start, end = parse_time(since, "since"), parse_time(until, "until", end_of_day=True)
    with open_store(url, tenant) as store:
        found = _existing_memory(store, namespace).entities(
            k, tags=tag or (), source=source, author=author or None, since=start, until=end
        )
    for one in found:
        line = f"{one.memories:>6}  {one.last_at:%Y-%m-%d}  {printable(one.name)}"
        click.echo(to_json(msgspec.structs.asdict(one)) if as_json else cut(line))


def _print_namespaces(store: Store, as_json: bool) -> None:
    for info in store.memory_namespaces():
        facts: dict[str, object] = {"namespace": info.namespace}
        try:
            facts |= msgspec.structs.asdict(store.memory(info.namespace).stats())
        except Erased:  # an erased namespace must not end the listing
            facts |= {"memories": None, "erased": True}
        count = "erased" if "erased" in facts else facts["memories"]
        click.echo(to_json(facts) if as_json else f"{count:>9}  {printable(info.namespace)}")


@command(
    "holdfast remember agents.db buyer 'Ann signs the orders' --tag people",
    "pbpaste | holdfast remember agents.db buyer - --source mail-3",
)
def remember(
    url: Url,
    namespace: Namespace,
    text: Annotated[str, Argument(metavar="TEXT", help="The text; - reads it from stdin.")],
    tag: Annotated[
        list[str] | None, Option("--tag", metavar="TAG", help="A tag. Repeatable.")
    ] = None,
    importance: Annotated[float, Option(min=0, max=1, help="Its importance, from 0 to 1.")] = 0.5,
    source: Annotated[str | None, Option(metavar="NAME", help="Its source.")] = None,
    author: Annotated[str, Option(metavar="WHO", help="Its author.")] = "person",
    subject: Subject = None,
    at: Annotated[
        str | None, Option(metavar="TIME", help=f"When it was said. {_TIMES} [default: now]")
    ] = None,
    ttl: Annotated[float | None, duration_option("How long to remember it.")] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Add a memory.

    Prints the memory's id. If the author has said the same before, that memory is reinforced and
    keeps its id.
    """
    text, moment = _read_text(text), parse_time(at, "at")
    with open_store(url, tenant, create=True, quiet=as_json) as store:
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
    if as_json and item is not None:
        click.echo(_item_json(item))
        return
    mentions = 1 if item is None else item.mentions
    click.echo(f"remembered {name}{'' if mentions == 1 else f' again, mentioned {mentions} times'}")


@command(
    "holdfast forget agents.db buyer ID",
    "holdfast forget agents.db buyer --source task/laptops-7 --dry-run",
)
def forget(
    url: Url,
    namespace: Namespace,
    id: Annotated[
        str | None, Argument(metavar="ID", help="A memory's id; or use options that select some.")
    ] = None,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    older_than: Annotated[float | None, duration_option("Only memories older than this.")] = None,
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be forgotten; forget nothing.")
    ] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Remove memories from recall.

    Removes one memory, or after confirmation all memories that match the options. The texts stay in
    the event log.
    """
    filters: dict[str, Any] = {"tags": tag or (), "source": source, "author": author or None}
    if older_than is None and not any(filters.values()):
        if id is None:
            raise click.UsageError(
                "missing ID, or options that select memories, as in: holdfast forget agents.db"
                " buyer --tag people"
            )
        with open_store(url, tenant) as store:
            _forget_one(_existing_memory(store, namespace), id, dry_run, as_json)
        return
    if id is not None:
        raise click.UsageError("use an id or options that select memories, not both")
    with open_store(url, tenant) as store:
        memory = _existing_memory(store, namespace)
        _forget_matching(memory, filters, older_than, yes=yes, dry_run=dry_run, as_json=as_json)


@command(
    "holdfast consolidate agents.db buyer",
    "holdfast consolidate agents.db buyer --apply",
    "holdfast consolidate agents.db buyer --undo consolidate/buyer/ID",
)
def consolidate(
    url: Url,
    namespace: Namespace,
    apply: Annotated[bool, Option("--apply", help="Apply the safe proposals.")] = False,
    undo: Annotated[
        str | None, Option("--undo", metavar="RUN", help="Undo what a run applied, by its id.")
    ] = None,
    unused_after: Annotated[
        float, duration_option("Archive memories that were not used for this long.", default="180d")
    ] = 180 * 86_400.0,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Find duplicates and unused memories, and tidy them up.

    Prints the proposals, and changes nothing. With --apply, it applies the safe ones, in one task
    for each subject: it merges duplicates, archives old memories that were never used, and removes
    expired ones. The other proposals need a model or a person.
    """
    if apply and undo is not None:
        raise click.UsageError("use --apply or --undo, not both")
    with open_store(url, tenant) as store:
        memory = _existing_memory(store, namespace)
        if undo is not None:
            _undo_run(store, namespace, undo, as_json)
            return
        subjects: dict[str | None, None] = {None: None}
        subjects.update(dict.fromkeys(item.subject for item in memory.all()))
        runs: list[str] = []
        counts = {"proposed": 0, "applied": 0}
        for subject in subjects:
            shown = _consolidate_subject(store, memory, subject, unused_after, apply, runs)
            for proposal, status, line in shown:
                counts["proposed"] += 1
                counts["applied"] += status == "applied"
                facts = {**msgspec.structs.asdict(proposal), "subject": subject, "status": status}
                click.echo(to_json(facts) if as_json else cut(f"{status:<9} {line}"))
    if as_json:
        click.echo(to_json({"namespace": namespace, **counts, "runs": runs}))
        return
    done = f"applied {counts['applied']:,} of them" if apply else "nothing was changed"
    click.echo(f"{counts['proposed']:,} proposals for {printable(namespace)}; {done}")
    for run in runs:
        click.echo(f"to undo: --undo {printable(run)}")


@command("holdfast reindex agents.db buyer")
def reindex(
    url: Url, namespace: Namespace, tenant: Tenant = "default", as_json: Json = False
) -> None:
    """Rebuild a memory index.

    Indexes are kept up to date automatically. Use this only if one is damaged.
    """
    with open_store(url, tenant) as store:
        memory = _existing_memory(store, namespace)
        vectors = memory.stats().vectors
        memory.rebuild()
        if as_json:
            facts = {"namespace": namespace, **msgspec.structs.asdict(memory.stats())}
            click.echo(to_json(facts))
            return
        count = _format_memories(memory.stats().memories)
        click.echo(f"rebuilt the index of {printable(namespace)}: {count}")
    if vectors:
        click.echo(f"removed {vectors:,} vectors; recalls with an embedder compute them again")


def _consolidate_subject(
    store: Store,
    memory: Memory,
    subject: str | None,
    unused_after: float,
    apply: bool,
    runs: list[str],
) -> list[tuple[Proposal, str, str]]:
    """Return the proposals about a subject, each with its status and a human-readable line.

    With `apply`, the safe ones are applied, and the id of the run is added to `runs`.
    """
    from ..memory import consolidate, propose

    found = propose(store, memory.namespace, subject=subject, unused_after=unused_after)
    lines = {one.id: _proposal_line(memory, one) for one in found}
    if not apply or not any(one.safe for one in found):
        return [(one, "proposed", lines[one.id]) for one in found]
    result = consolidate(store, memory.namespace, subject=subject, unused_after=unused_after)
    if result.applied:
        runs.append(result.run_id)
    named = (("applied", result.applied), ("left", result.left), ("stale", result.stale))
    return [(one, status, lines.get(one.id, one.kind)) for status, group in named for one in group]


def _proposal_line(memory: Memory, proposal: Proposal) -> str:
    """Format a proposal as one line: its kind, how many memories, why, and the first text."""
    item = memory.get(proposal.keep or proposal.evidence[0])
    text = "" if item is None else f"  {printable(item.text)}"
    count = _format_memories(len(proposal.evidence))
    safe = "" if proposal.safe else " (needs approval)"
    return f"{proposal.kind:<9}  {count}: {printable(proposal.reason)}{safe}{text}"


def _undo_run(store: Store, namespace: str, run: str, as_json: bool) -> None:
    from ..memory import undo_consolidation

    done = undo_consolidation(store, namespace, run)
    if as_json:
        facts = {"namespace": namespace, "run": run, **msgspec.structs.asdict(done)}
        click.echo(to_json(facts))
        return
    if not done.undone and not done.left:
        fail(f"{namespace!r} has nothing applied by {run!r}; check the names")
    kept = "" if not done.left else f"; left {done.left:,} whose memories have changed since"
    click.echo(f"undid {done.undone:,} changes of {printable(namespace)}{kept}")


def _forget_one(memory: Memory, id: str, dry_run: bool, as_json: bool) -> None:
    item = memory.get(id)
    if item is None or not (dry_run or memory.forget(id)):
        fail(f"{memory.namespace!r} has no memory {id!r}; it may have been superseded or forgotten")
    line = cut(f"{'would forget' if dry_run else 'forgot'}  {_item_line(item)}")
    click.echo(_item_json(item) if as_json else line)


def _forget_matching(
    memory: Memory,
    filters: dict[str, Any],
    older_than: float | None,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Forget all matching memories at once, including those added while the user confirms.

    With `as_json`, print those that were there before.
    """
    age = None if older_than is None else timedelta(seconds=older_than)
    end = None if age is None else datetime.now(timezone.utc) - age
    found: list[MemoryItem] = []
    for item in _between(memory.all(**filters), None, end):
        found.append(item)
        if dry_run:
            click.echo(_item_json(item) if as_json else cut(f"would forget  {_item_line(item)}"))
    count = len(found)
    what = f"{_format_memories(count)} of {printable(memory.namespace)}"
    if dry_run:
        if not as_json:
            click.echo(f"would forget {what}")
        return
    if count and not yes and not confirm(f"forget {what}?"):
        fail("nothing was forgotten; use --yes to skip the confirmation")
    forgotten = memory.forget_where(**filters, older_than=age) if count else 0
    if as_json:
        for item in found:
            click.echo(_item_json(item))
        return
    click.echo(f"forgot {_format_memories(forgotten)} of {printable(memory.namespace)}")


def _existing_memory(store: Store, namespace: str) -> Memory:
    """Return the memory of a namespace. Exit if it is empty: the name may be mistyped."""
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


def _read_text(given: str) -> str:
    try:
        if given == "-":
            return sys.stdin.buffer.read().decode().strip("\n")
        given.encode()
    except UnicodeError:
        fail("the text is not valid UTF-8; nothing was remembered")
    return given


def _item_line(item: MemoryItem) -> str:
    """Format a memory as one human-readable line. The author is shown unless it is the model."""
    # A source that looks like an author must not be mistaken for one, so the author is named too.
    is_model = item.author == "model" and not (item.source or "").startswith("by ")
    author = "" if is_model else f"by {printable(item.author)}  "
    tags = f"[{printable(', '.join(item.tags))}]  " if item.tags else ""
    facts = f"{item.id}  {item.at:%Y-%m-%d %H:%M:%S}  {author}{printable(item.source or '-')}"
    return cut(f"{facts}  {tags}{printable(item.full_text)}")


def _item_json(item: MemoryItem) -> str:
    return to_json(item)


def _format_memories(number: int) -> str:
    return f"{number:,} {'memory' if number == 1 else 'memories'}"
