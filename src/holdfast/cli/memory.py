"""The commands about long-term memory: see what an agent knows, ask it, add to it, forget, and make its index anew."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..errors import Erased
from .durations import duration
from .questions import Subject, _given
from .stores import Json, Tenant, Url, agreed, failed, opened
from .text import LINE_LENGTH, printable, to_json

if TYPE_CHECKING:
    from .. import Memory, MemoryHit, MemoryItem, Store

Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Only those with this tag; given twice, with both.",
        show_default=False,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Only those from there, like task/claim-42.", show_default=False
    ),
]
Authors = Annotated[
    list[str] | None,
    typer.Option(
        "--author",
        metavar="WHO",
        help="Only those by this author; given twice, by either.",
        show_default=False,
    ),
]
_TIMES = "A date, or a time like 2026-01-31T14:30; UTC unless it says otherwise."
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Only those said then or later. {_TIMES}", show_default=False
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only those said by then; of a date, the whole day.",
        show_default=False,
    ),
]


# -- looking -----------------------------------------------------------------------------------------


def memories(
    url: Url = None,
    namespace: Annotated[
        str | None,
        typer.Argument(metavar="NAMESPACE", help="Whose memories to list.", show_default=False),
    ] = None,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only the newest N.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List the namespaces of memory with how many each has; or the memories of one: id, time, source, tags and text."""
    if namespace is None and os.environ.get("HOLDFAST_URL"):
        url, namespace = None, url
    if namespace is None:
        if any((tag, source, author, since, until, last)):
            raise typer.BadParameter(
                "name the namespace too: holdfast memories agents.db buyer --tag people"
            )
        with opened(url, tenant) as store:
            _print_namespaces(store, as_json)
        return
    begin, end = _moment(since, "since"), _moment(until, "until", whole_day=True)
    with opened(url, tenant) as store:
        found = _between(
            _there(store, namespace).all(tags=tag or (), source=source, author=author or None),
            begin,
            end,
        )
        for known in found if last is None else deque(found, maxlen=last):
            typer.echo(_json(known) if as_json else _line(known))


def recall(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] NAMESPACE QUERY", help="Whose memory to ask, and the question."
        ),
    ],
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="At most so many.")] = 5,
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    since: Since = None,
    until: Until = None,
    why: Annotated[bool, typer.Option("--why", help="Also which signals brought each up.")] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Ask a memory, as a task would: the best answers first, each with its score. By words; a program may have an embedder."""
    url, namespace, query = _named(
        names, "NAMESPACE", "QUERY", usage="holdfast recall agents.db buyer 'who signs the orders?'"
    )
    begin, end = _moment(since, "since"), _moment(until, "until", whole_day=True)
    with opened(url, tenant) as store:
        memory = _there(store, namespace)
        hits = memory.recall(
            query, k, tags=tag or (), source=source, author=author or None, since=begin, until=end
        )
    for hit in hits:
        typer.echo(_json(hit) if as_json else _cut(f"{hit.score:.3f}  {_line(hit)}"))
        if why and not as_json:
            typer.echo(f"       {_signals(hit)}")
    if not hits and not as_json:
        typer.echo(f"{printable(namespace)} has nothing that fits", err=True)


def _print_namespaces(store: Store, as_json: bool) -> None:
    for info in store.memory_namespaces():
        facts: dict[str, object] = {"namespace": info.namespace}
        try:
            facts |= msgspec.to_builtins(store.memory(info.namespace).stats())
        except Erased:  # one that is gone must not hide the others
            facts |= {"memories": None, "erased": True}
        count = "erased" if "erased" in facts else facts["memories"]
        typer.echo(to_json(facts) if as_json else f"{count:>9}  {printable(info.namespace)}")


# -- changing ----------------------------------------------------------------------------------------


def remember(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] NAMESPACE TEXT",
            help="Whose memory, and what to remember; - reads it from stdin.",
        ),
    ],
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="A tag; once for each.", show_default=False),
    ] = None,
    importance: Annotated[float, typer.Option(min=0, max=1, help="From 0 to 1.")] = 0.5,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where it comes from.", show_default=False)
    ] = None,
    author: Annotated[str, typer.Option(metavar="WHO", help="Who says it.")] = "person",
    subject: Subject = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"When it was said, if not now. {_TIMES}", show_default=False
        ),
    ] = None,
    ttl: Annotated[float | None, duration("How long to remember it.")] = None,
    tenant: Tenant = "default",
) -> None:
    """Remember a text; its id. What the same author has said before is reinforced, and keeps its id."""
    url, namespace, given = _named(
        names,
        "NAMESPACE",
        "TEXT",
        usage="holdfast remember agents.db buyer 'Ann signs the orders' --tag people",
    )
    text, moment = _text(given), _moment(at, "at")
    with opened(url, tenant, create=True) as store:
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
        known = memory.get(name)
    mentions = 1 if known is None else known.mentions
    typer.echo(f"remembered {name}{'' if mentions == 1 else f' again, mentioned {mentions} times'}")


def forget(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] NAMESPACE [ID]",
            help="Whose memory, and which; or options that say which.",
        ),
    ],
    tag: Tags = None,
    source: Source = None,
    author: Authors = None,
    older_than: Annotated[float | None, duration("Only those said longer ago than this.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be forgotten, and forget nothing.")
    ] = False,
    tenant: Tenant = "default",
) -> None:
    """Recall a memory no more, or all that fit the options, after asking. The texts stay in the log."""
    which: dict[str, Any] = {"tags": tag or (), "source": source, "author": author or None}
    if older_than is None and not any(which.values()):
        url, namespace, name = _named(
            names,
            "NAMESPACE",
            "ID",
            usage="holdfast forget agents.db buyer ID, or --source offer-17 in place of an id",
        )
        with opened(url, tenant) as store:
            _forget_one(_there(store, namespace), name, dry_run)
        return
    url, namespace = _named(
        names,
        "NAMESPACE",
        usage="an id, or options that say which: holdfast forget agents.db buyer --tag people",
    )
    with opened(url, tenant) as store:
        _forget_those(_there(store, namespace), which, older_than, yes=yes, dry_run=dry_run)


def reindex(
    names: Annotated[
        list[str], typer.Argument(metavar="[URL] NAMESPACE", help="Whose index to make anew.")
    ],
    tenant: Tenant = "default",
) -> None:
    """Make the index of a namespace anew from its log. It keeps up by itself; this is for after it was damaged."""
    url, namespace = _named(names, "NAMESPACE", usage="holdfast reindex agents.db buyer")
    with opened(url, tenant) as store:
        memory = _there(store, namespace)
        vectors = memory.stats().vectors
        memory.rebuild()
        typer.echo(
            f"made the index of {printable(namespace)} anew: {_count(memory.stats().memories)}"
        )
    if vectors:
        typer.echo(f"{vectors:,} vectors are gone; recalls with an embedder have them made again")


def _forget_one(memory: Memory, id: str, dry_run: bool) -> None:
    known = memory.get(id)
    if known is None or not (dry_run or memory.forget(id)):
        raise failed(
            f"{memory.namespace!r} has no memory {id!r}; it may have been superseded or forgotten"
        )
    typer.echo(_cut(f"{'would forget' if dry_run else 'forgot'}  {_line(known)}"))


def _forget_those(
    memory: Memory, which: dict[str, Any], older_than: float | None, *, yes: bool, dry_run: bool
) -> None:
    """Those that fit, at once. Who says yes does so to the options: what comes to fit them meanwhile is forgotten too."""
    age = None if older_than is None else timedelta(seconds=older_than)
    found = _between(
        memory.all(**which), None, None if age is None else datetime.now(timezone.utc) - age
    )
    count = 0
    for count, known in enumerate(found, 1):  # noqa: B007  the last count is how many there are
        if dry_run:
            typer.echo(_cut(f"would forget  {_line(known)}"))
    what = f"{_count(count)} of {printable(memory.namespace)}"
    if dry_run:
        typer.echo(f"would forget {what}")
        return
    if count and not yes and not agreed(f"forget {what}?"):
        raise failed("nothing was forgotten; say --yes to forget without being asked")
    forgotten = memory.forget_where(**which, older_than=age) if count else 0
    typer.echo(f"forgot {_count(forgotten)} of {printable(memory.namespace)}")


# -- what is asked for -------------------------------------------------------------------------------


def _named(names: list[str], *wanted: str, usage: str) -> tuple[Any, ...]:
    """The store, if it is named, and what is to be named in it."""
    if len(names) == len(wanted) and not os.environ.get("HOLDFAST_URL"):
        is_store = "://" in names[0] or names[0].endswith(".db") or os.path.exists(names[0])
        missing = " or ".join(wanted) if is_store else "the store"
        raise typer.BadParameter(
            f"{missing} is missing: {usage}" + ("" if is_store else "; or set HOLDFAST_URL")
        )
    return _given(names, len(wanted), usage)


def _there(store: Store, namespace: str) -> Memory:
    """The memory of a namespace that something was remembered in: a mistyped name would look like an empty one."""
    memory = store.memory(namespace)
    if not memory.stats().version:
        raise failed(
            f"tenant {store.tenant!r} has no memory {namespace!r} in this store; check the names"
        )
    return memory


def _between(
    known: Iterable[MemoryItem], since: datetime | None, until: datetime | None
) -> Iterator[MemoryItem]:
    return (
        one
        for one in known
        if (since is None or one.at >= since) and (until is None or one.at <= until)
    )


def _moment(text: str | None, option: str, *, whole_day: bool = False) -> datetime | None:
    """A time of an option. `whole_day`: a date stands for its end."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
    except ValueError:
        raise typer.BadParameter(
            f"--{option} is a date or a time: 2026-01-31, or 2026-01-31T14:30"
        ) from None
    if whole_day and len(text) <= len("2026-01-31"):
        found = datetime.combine(found, time.max)
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)


def _text(given: str) -> str:
    try:
        if given == "-":
            return typer.get_binary_stream("stdin").read().decode().strip("\n")
        given.encode()
    except UnicodeError:
        raise failed("the text is not in UTF-8; nothing was remembered") from None
    return given


# -- what is printed ---------------------------------------------------------------------------------


def _line(known: MemoryItem) -> str:
    """A memory for a person: one line, cut where it gets long. Who said it is in it, unless that was the model."""
    # A source that looks like an author is told from one: then the author is said in any case.
    is_plain = known.author == "model" and not (known.source or "").startswith("by ")
    author = "" if is_plain else f"by {printable(known.author)}  "
    tags = f"[{printable(', '.join(known.tags))}]  " if known.tags else ""
    source = printable(known.source or "-")
    return _cut(
        f"{known.id}  {known.at:%Y-%m-%d %H:%M:%S}  {author}{source}  {tags}{printable(known.full_text)}"
    )


def _json(known: MemoryItem) -> str:
    return to_json(msgspec.to_builtins(known))


def _signals(hit: MemoryHit) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in hit.why.items())


def _cut(line: str) -> str:
    return line if len(line) <= LINE_LENGTH else line[: LINE_LENGTH - 1] + "…"


def _count(number: int) -> str:
    return f"{number:,} {'memory' if number == 1 else 'memories'}"
