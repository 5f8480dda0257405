"""Everything Holdfast raises, and what to do about it.

    HoldfastError
    ├── Retryable          the same call may work later
    │   ├── Conflict           another writer appended first; nothing was written
    │   ├── Unavailable        the database is unreachable or busy; nothing was written
    │   ├── StorageFull        no space left; nothing was written, stored data stays readable
    │   ├── LeaseHeld          another process has the turn or the lease; wait, or retry later
    │   ├── LeaseLost          another process took over the lease; nothing was written
    │   ├── SourceChanged      a file changed while it was read; nothing was attached
    │   ├── WaitTimeout        the task has not ended in time; it continues
    │   └── OutcomeUnknown     the response was lost; retry with the same id to resolve it
    ├── NeedsHuman         a person has to decide or change something
    │   ├── AccessDenied       authentication failed, or a privilege is missing
    │   ├── AlreadyAnswered    the question has an answer already
    │   ├── AlreadyResolved    the step was resolved already
    │   ├── Expired            its time to live is over
    │   ├── HasForks           forks read from it; delete them first
    │   ├── InvalidKey         the given key is not valid
    │   ├── MissingKey         the store is encrypted, and no key was given
    │   ├── WrongKey           the store is encrypted with another key
    │   ├── UnknownKey         the store refers to a key that is missing
    │   ├── NotEncrypted       a key was given, but the store is unencrypted
    │   ├── MissingExtra       a package that this backend needs is not installed
    │   ├── NotSetUp           there is no store, and it may not, or cannot, be created here
    │   ├── ReadOnly           the store cannot be written to
    │   ├── ReplayMismatch     the call differs from what the task or step has recorded
    │   ├── StepInDoubt        a step was started, and its outcome is unknown
    │   ├── TaskEnded          the task has ended; it takes no new steps
    │   ├── TaskTimeout        the time limit of the task is over; it has failed
    │   ├── UnsupportedFilesystem  a network file system, where locks are not reliable
    │   ├── UnsupportedServer  the server cannot guarantee the requested durability
    │   └── UnsupportedVersion stored by a newer Holdfast, or not a Holdfast store
    ├── DataProblem        this piece of data cannot be stored or cannot be trusted
    │   ├── AnchorRefused      an anchor was altered, or signed with another key
    │   ├── CorruptFile        a file to import is damaged
    │   ├── CorruptRecord      stored bytes do not match their digest
    │   ├── TamperDetected     stored bytes were altered, or written without the key
    │   ├── Erased             its key was destroyed by store.erase
    │   ├── HeadRegressed      the database lost acknowledged writes
    │   ├── IdReused           the append id was used before, with different content
    │   ├── InvalidId          an id that not every backend can store
    │   ├── InvalidURL         a URL that does not name a store
    │   ├── SchemaMismatch     stored data does not fit the declared type
    │   ├── TooLarge           over a limit on size or depth
    │   └── NotSerializable    a value that would come back changed
    ├── NoTask             this works only inside a task
    ├── StepFailed         a step of a task raised an exception
    │   └── ChildFailed        the step was a child task
    ├── NotDone            for you to raise: the step certainly had no effect
    ├── BudgetExceeded     the messages exceed max_tokens, or a task exceeded its budget
    ├── AlreadyExists      the id is taken
    ├── NotFound           there is no stream, task, memory or version with this name
    └── StoreClosed        the store was closed

    Suspended              not an error: the task waits, and this run of it ends

An append that raises any error other than OutcomeUnknown stored nothing. Wrong use of the
library (a bad argument) raises a plain TypeError or ValueError. No message contains content,
a key or a password.
"""

from __future__ import annotations

from .backends.clock import to_datetime


def format_owner(owner: str) -> str:
    """Return the process and host that a lease owner's id names (see `log.leases.new_owner`)."""
    parts = owner.split("/")
    return f"process {parts[2]} on {parts[0]}" if len(parts) == 5 else owner


class HoldfastError(Exception):
    """Base of all errors raised by Holdfast. Tracebacks name the section of the docs about it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        # Python 3.11 and newer print it below the message. `str(error)` is the message alone.
        self.__notes__ = [f"See {self.help_page()}"]

    @classmethod
    def help_page(cls) -> str:
        """Return the page and section of the documentation that explain this error."""
        known = next(base for base in cls.__mro__ if base.__module__ == __name__)
        return f"docs/reference/errors.md#{known.__name__.lower()}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own cannot copy or pickle errors whose __init__ takes keywords.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[HoldfastError], args: tuple[object, ...], facts: dict[str, object]
) -> HoldfastError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class Retryable(HoldfastError):
    """The same call may succeed later."""


class NeedsHuman(HoldfastError):
    """Retrying will not help: a person has to decide or change something."""


class DataProblem(HoldfastError):
    """This piece of data cannot be stored, or cannot be trusted."""


class Conflict(Retryable):
    """Another writer appended first. Nothing was written: re-read the stream and decide again."""

    def __init__(self, stream: str, *, expected: int, actual: int) -> None:
        super().__init__(
            f"{stream}: expected version {expected} but found {actual}; re-read it and retry"
        )
        self.stream, self.expected, self.actual = stream, expected, actual


class Unavailable(Retryable):
    """The database is unreachable or busy, or the call failed. Nothing was written."""


class StorageFull(Retryable):
    """There is no space for the write. Nothing was written; retry once there is space."""


class OutcomeUnknown(Retryable):
    """The append may or may not have been stored. Repeat it with `id=error.id` to find out.

    A repeat never stores twice: if the first attempt was stored, the repeat returns it as a
    duplicate. Any process may repeat an id that you chose, at any time. Only the process that got
    this error may repeat an id that the library generated.
    """

    def __init__(self, message: str, *, stream: str | None = None, id: str | None = None) -> None:
        super().__init__(message)
        self.stream, self.id = stream, id


class LeaseHeld(Retryable):
    """Another process has the turn or the lease: `owner`, until `until` unless it renews."""

    def __init__(self, stream: str, *, owner: str, until: float) -> None:
        super().__init__(
            f"{stream} is leased by {format_owner(owner)}; pass a larger wait=, or retry later"
        )
        self.stream, self.owner, self.until = stream, owner, to_datetime(until)


class LeaseLost(Retryable):
    """Another process took over the lease. Nothing was written: re-read, then start over."""

    def __init__(self, stream: str, *, owner: str | None) -> None:
        now = f"now owned by {format_owner(owner)}" if owner else "now without an owner"
        super().__init__(f"lost the lease on {stream} ({now}); leave the block and open it again")
        self.stream, self.owner = stream, owner


class SourceChanged(Retryable):
    """A file changed while it was being attached. Nothing was attached: retry once it is stable."""

    def __init__(self, task: str, *, name: str) -> None:
        super().__init__(
            f"the file for {name!r} of {task} changed while it was read;"
            " attach it when no process writes to it"
        )
        self.task, self.name = task, name


class WaitTimeout(Retryable, TimeoutError):
    """The task has not ended within the `timeout` of `store.wait`. It continues.

    `status` is its status at that time.
    """

    def __init__(self, task: str, *, status: str) -> None:
        super().__init__(f"{task} has not ended in time (status: {status}); wait again, or longer")
        self.task, self.status = task, status


class AccessDenied(NeedsHuman):
    """Authentication failed, or the user lacks a privilege that Holdfast needs."""


class AlreadyAnswered(NeedsHuman):
    """The question has an answer already, and the first answer counts. Nothing was written."""

    def __init__(self, task: str, *, question: str, by: str | None) -> None:
        author = f" by {by!r}" if by else ""
        super().__init__(
            f"{question!r} of {task} was already answered{author}; the first answer counts"
        )
        self.task, self.question, self.by = task, question, by


class AlreadyResolved(NeedsHuman):
    """The step was resolved before, and the first resolution counts. Nothing was written.

    `how` is "result" (it was done) or "retry" (it had to run again), `by` is who resolved it, and
    `at` is when. With `used`, the task has continued since, and it is too late to override.
    """

    def __init__(
        self, task: str, *, step: str, how: str, by: str | None, at: float, used: bool
    ) -> None:
        author = f" by {by!r}" if by else ""
        when = to_datetime(at)
        said = "run it again" if how == "retry" else "it was done"
        remedy = (
            "it is too late to override that: the task has continued since"
            if used
            else "override=True (or --override) replaces that, until the task continues"
        )
        super().__init__(
            f"step {step!r} of {task} was already resolved{author} at"
            f" {when:%Y-%m-%d %H:%M:%S} UTC ({said}); {remedy}"
        )
        self.task, self.step, self.how, self.by, self.at = task, step, how, by, when
        self.used = used


class Expired(NeedsHuman):
    """Its time to live is over, and its id is retired until `delete()` frees it.

    `swept` is True if the content has been purged.
    """

    def __init__(self, stream: str, *, at: float, swept: bool = False) -> None:
        remedy = "delete() frees its id"
        if stream.startswith("task "):
            remedy += "; restart=True starts it again"
        elif not swept:
            remedy += "; until it is purged, expire(None) restores it"
        super().__init__(f"{stream} has expired{' and was purged' if swept else ''}; {remedy}")
        self.stream, self.at, self.swept = stream, to_datetime(at), swept


class HasForks(NeedsHuman):
    """Forks read their first messages from it. Nothing was deleted: delete the forks first."""

    def __init__(self, stream: str, *, forks: list[str]) -> None:
        some = ", ".join(repr(fork) for fork in forks[:5]) + (", …" if len(forks) > 5 else "")
        super().__init__(
            f"{stream} has forks ({some}) that start with its messages; delete those first"
        )
        self.stream, self.forks = stream, forks


class MissingExtra(NeedsHuman, ImportError):
    """A package that this backend needs is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the extra {extra!r}: pip install 'holdfast[{extra}]',"
            f" or in a clone of the repository pip install '.[{extra}]'"
        )
        self.extra = extra


class MissingKey(NeedsHuman):
    """The store is encrypted, and no key was given (`holdfast.open(url, key=…)`)."""


class WrongKey(NeedsHuman):
    """The store is encrypted with a different key. Nothing was written."""


class UnknownKey(NeedsHuman, DataProblem):
    """The store refers to a key that was not given, or is not in the store. `key` is its id.

    If the store's key was rotated since it was opened, open it again with the new one.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class NotEncrypted(NeedsHuman, DataProblem):
    """A key was given but the data is unencrypted, or the call needs an encrypted store.

    An unencrypted record among encrypted ones was written without the key. It is never returned as
    data.
    """


class InvalidKey(NeedsHuman, ValueError):
    """The given key is not valid."""


class NotSetUp(NeedsHuman):
    """The database, its tables or the bucket do not exist, and cannot be created from here."""


class ReadOnly(NeedsHuman):
    """The store cannot be written to: check permissions and the file system's mount options."""


class ReplayMismatch(NeedsHuman):
    """The call differs from the record. Nothing was run or written.

    `step` is None if the mismatch concerns the task itself. `recorded` is the step that this one
    may be under another name.
    """

    def __init__(
        self, task: str, *, step: str | None, what: str, hint: str, recorded: str | None = None
    ) -> None:
        subject = f"step {step!r} of {task}" if step else task
        text = f"{subject} is recorded with {what}"
        if recorded is not None:
            text = (
                f"{subject} has no record, and the recorded step {recorded!r} was not requested:"
                " they may be the same step, which must not run twice"
            )
        super().__init__(f"{text}; {hint}")
        self.task, self.step, self.what, self.recorded = task, step, what, recorded


class StepInDoubt(NeedsHuman):
    """The step was started and its outcome is not recorded.

    Check the external system, then call `store.resolve(task, step, result=…)` or `retry=True`.
    """

    def __init__(self, task: str, *, step: str, why: str) -> None:
        super().__init__(
            f"step {step!r} of {task} {why}; check whether it was done, then call "
            f"store.resolve(task_id, {step!r}, result=…), or retry=True if it was not"
        )
        self.task, self.step = task, step


class TaskEnded(NeedsHuman):
    """The task has ended as `status`. Its record can be read; it takes no new steps."""

    def __init__(self, task: str, *, status: str) -> None:
        super().__init__(
            f"{task} is {status} and takes no new steps;"
            " start another task, fork this one, or delete it to reuse its id"
        )
        self.task, self.status = task, status


class TaskTimeout(NeedsHuman, TimeoutError):
    """The time limit of the task, `timeout` seconds since its first start, is over.

    The task has failed. To let it continue, retry it: that restarts the time.
    """

    def __init__(self, task: str, *, timeout: float) -> None:
        super().__init__(
            f"{task} has not ended within its timeout of {timeout:g} s; to continue it, retry it"
            " with a larger timeout="
        )
        self.task, self.timeout = task, timeout


class UnsupportedFilesystem(NeedsHuman):
    """The path is on a network file system, where locks and shared memory are not reliable."""

    def __init__(self, path: str, filesystem: str) -> None:
        super().__init__(
            f"{path} is on a network file system ({filesystem}), where locks are not reliable; "
            "put it on a local disk, or use a database server"
        )
        self.path, self.filesystem = path, filesystem


class UnsupportedServer(NeedsHuman):
    """The server, as configured, cannot guarantee the requested durability or behaviour."""


class UnsupportedVersion(NeedsHuman):
    """The data was written by a newer Holdfast, or is not a Holdfast store at all."""


class AnchorRefused(DataProblem):
    """An anchor was altered, is signed with another key, or is not an anchor.

    Nothing was verified against it.
    """

    def __init__(self, path: str, *, what: str) -> None:
        super().__init__(f"the anchor {path} is refused: {what}; nothing was verified against it")
        self.path, self.what = path, what


class CorruptFile(DataProblem):
    """A file to import is damaged `offset` bytes from its start; `what` says how.

    Nothing was stored, and the file is unchanged.
    """

    def __init__(self, path: str, *, offset: int, what: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: {what}; nothing was imported;"
            " salvage=True imports the readable part before it"
        )
        self.path, self.offset, self.what = path, offset, what


def _at_version(stream: str, version: int | None) -> str:
    return stream if version is None else f"{stream} (version {version})"


class CorruptRecord(DataProblem):
    """Stored bytes do not match their digest. They are reported, never returned as data."""

    def __init__(
        self,
        stream: str,
        *,
        version: int | None = None,
        what: str,
        place: str | None = None,
        rescue: str = "",
    ) -> None:
        at = f", {place}" if place else ""
        super().__init__(
            f"{_at_version(stream, version)} is damaged: {what}{at};"
            f" restore it from a backup or a copy{rescue}"
        )
        self.stream, self.version, self.what, self.place = stream, version, what, place


class TamperDetected(DataProblem):
    """Stored bytes were altered, moved, replayed or written without the key.

    They are never returned as data.
    """

    def __init__(self, stream: str, *, version: int | None = None, what: str) -> None:
        super().__init__(
            f"{_at_version(stream, version)} cannot be trusted: {what};"
            " find out who wrote it, and restore it from a backup or a copy"
        )
        self.stream, self.version, self.what = stream, version, what


class Erased(DataProblem):
    """The data was erased permanently by `store.erase`: its key was destroyed."""

    def __init__(self, stream: str, *, version: int | None = None) -> None:
        super().__init__(
            f"{_at_version(stream, version)} was erased;"
            " its key was destroyed, so it can no longer be read"
        )
        self.stream, self.version = stream, version


class HeadRegressed(DataProblem):
    """The database went back in time: it no longer has a version that it had acknowledged."""

    def __init__(self, stream: str, *, acknowledged: int, actual: int) -> None:
        super().__init__(
            f"{stream} had acknowledged version {acknowledged} and is now at {actual} with another"
            " history: the database lost writes (a failover or a restored backup);"
            " reopen the store to accept its state"
        )
        self.stream, self.acknowledged, self.actual = stream, acknowledged, actual


class IdReused(DataProblem):
    """The append id was used before, with different content. Nothing was written."""

    def __init__(self, stream: str, *, id: str) -> None:
        super().__init__(
            f"{stream} already has an append with id {id!r} and different content; use another id"
        )
        self.stream, self.id = stream, id


class InvalidId(DataProblem, ValueError):
    """The id cannot be stored on every backend: it is empty, too long, or not valid text."""


class InvalidURL(DataProblem, ValueError):
    """The URL does not name a store: an unknown scheme, a missing part, or an unknown option."""


class SchemaMismatch(DataProblem):
    """Stored data is intact, but does not fit the type that the application declares for it."""

    def __init__(self, stream: str, *, version: int, type: str, what: str) -> None:
        super().__init__(
            f"{stream} (version {version}): the data of {type!r} {what}; "
            "declare the type it was stored with, or raise the type's version and add an upcaster"
        )
        self.stream, self.version, self.type, self.what = stream, version, type, what


class TooLarge(DataProblem, ValueError):
    """A value is over a limit on size or depth. Nothing was written."""


class NotSerializable(DataProblem, TypeError):
    """A value would come back changed. `path` locates it, like `$.items[3].price`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class BudgetExceeded(HoldfastError):
    """A budget is too small: `needed` is required, `budget` was given, both counted in `unit`.

    `task` names the task that exceeded its budget. It is None if a model's input does not fit.
    """

    def __init__(
        self,
        *,
        needed: float,
        budget: float,
        what: str = "the newest exchange with system prompt and pinned messages",
        advice: str = "raise max_tokens, store shorter tool results, pin less, or call summarize()",
        unit: str = "tokens",
        task: str | None = None,
    ) -> None:
        if task is None:
            text = f"{what} takes {needed} {unit}, the budget is {budget}; {advice}"
        else:
            text = (
                f"{task} exceeded its budget: {unit} {needed:.12g} of {budget:.12g}; raise it (on"
                f" the parent task, if any) with budget=holdfast.Budget({unit}=…), or with:"
                f" holdfast retry … --budget {unit}=…"
            )
        super().__init__(text)
        self.needed, self.budget, self.unit, self.task = needed, budget, unit, task


class NoTask(HoldfastError):
    """The call works only inside a task: `with store.task(id) as task: …`."""


class StepFailed(HoldfastError):
    """A step raised an exception of `type` with `message`.

    It is the same on the first run (which also has `__cause__`) and on replay. `final` means that
    the function ran and its result cannot be stored: nothing runs the step again by itself.
    """

    def __init__(
        self,
        task: str,
        *,
        step: str,
        type: str,
        message: str,
        causes: tuple[str, ...] = (),
        final: bool = False,
    ) -> None:
        text = f"step {step!r} of {task} failed with {type}" + (f": {message}" if message else "")
        if final:
            text += (
                "; it does not run again by itself: record its result with"
                f" store.resolve(task_id, {step!r}, result=…), or change what the function returns"
                " and use retry=True"
            )
        super().__init__(text)
        self.task, self.step, self.type, self.message = task, step, type, message
        self.causes, self.final = causes, final
        """`causes` are the inner steps whose failure caused this one."""


class ChildFailed(StepFailed):
    """A child task failed or was cancelled. Its id is `child`; it can be inspected and resumed."""

    child = ""


class NotDone(HoldfastError):
    """Raise it in a `once` or `check` step that failed and certainly had no effect.

    The step is then not in doubt.
    """


class AlreadyExists(HoldfastError):
    """The id is taken. Nothing was written: choose another id."""


class NotFound(HoldfastError):
    """There is no stream, task, memory or version with this name."""


class StoreClosed(HoldfastError):
    """The store was closed; open it again."""


class Suspended(BaseException):
    """The task waits for an answer, a signal, a time or a child, and this run of it ends.

    Don't catch it. It is not an `Exception`, so `except Exception` does not swallow it. Every later
    call on the task raises it again. A waiting task has no lease owner: a worker, or the next
    caller that opens it, resumes it from here.
    """

    def __init__(self, task: str, *, waits: tuple[str, ...] = (), why: str = "") -> None:
        super().__init__(
            f"{task} waits for {', '.join(waits)}" if waits else f"{task} stops here: {why}"
        )
        self.task, self.waits = task, waits
