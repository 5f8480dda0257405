"""Everything Holdfast raises, and what to do about it.

    HoldfastError
    ├── Retryable          the same call may work later
    │   ├── Conflict           another writer appended first; nothing was written
    │   ├── Unavailable        the engine cannot be reached or is busy; nothing was written
    │   ├── StorageFull        no room; nothing was written, what was stored stays readable
    │   ├── LeaseHeld          somebody else has the turn or the lease; wait, or come back later
    │   ├── LeaseLost          another holder took over; nothing was written
    │   ├── SourceChanged      a file changed while it was read; nothing was attached
    │   └── OutcomeUnknown     the answer was lost; retry with the same id to settle it
    ├── NeedsHuman         a person has to decide or change something
    │   ├── AccessDenied       a wrong password, or a right that is missing
    │   ├── AlreadyAnswered    somebody has answered before
    │   ├── Expired            its time to live is over
    │   ├── HasForks           forks read from it; delete them first
    │   ├── InvalidKey         what was given as a key is none
    │   ├── MissingKey         the store is encrypted, and no key was given
    │   ├── WrongKey           the store is encrypted with another key
    │   ├── UnknownKey         a key that the store names is not there
    │   ├── NotEncrypted       a key was given, and the store is in clear
    │   ├── MissingExtra       a package that this engine needs is not installed
    │   ├── NotSetUp           there is no store, and it may not, or cannot, be made here
    │   ├── ReadOnly           the store cannot be written to
    │   ├── ReplayMismatch     a recorded task or step is asked for with something else
    │   ├── StepInDoubt        nobody knows whether a step was done
    │   ├── TaskEnded          the task has ended; it takes no new steps
    │   ├── UnsupportedFilesystem  a network file system, where locks cannot be trusted
    │   ├── UnsupportedServer  a server that cannot promise what was asked for
    │   └── UnsupportedVersion stored by a newer Holdfast, or not a Holdfast store
    ├── DataProblem        this piece of data cannot be stored or cannot be trusted
    │   ├── AnchorRefused      an anchor was altered, or signed with another key
    │   ├── CorruptFile        a file to import is damaged
    │   ├── CorruptRecord      stored bytes do not match their digest
    │   ├── TamperDetected     stored bytes were altered, or put there without the key
    │   ├── Erased             its key was destroyed by store.erase
    │   ├── HeadRegressed      the engine lost acknowledged writes
    │   ├── IdReused           the same append id with other content
    │   ├── InvalidId          an id that no backend could keep apart from others
    │   ├── InvalidURL         a URL that names no store
    │   ├── SchemaMismatch     stored data does not fit the type that the program declares
    │   ├── TooLarge           beyond a limit on size or depth
    │   └── NotSerializable    a value that would not come back as it went in
    ├── NoTask             this works inside a task only
    ├── StepFailed         a step of a task raised an exception
    │   └── ChildFailed        it was a child task
    ├── NotDone            for you to raise: the step surely did nothing
    ├── BudgetExceeded     it does not fit into the tokens it was given, or a task has used its budget up
    ├── AlreadyExists      there is something under that id
    ├── NotFound           there is no such thing, or no such version of it
    └── StoreClosed        the store was closed

    Suspended              no error: the task waits, and its run ends here

Any error from an append other than OutcomeUnknown means: not stored. Wrong use of the
library (a bad argument) is a plain TypeError or ValueError. No message ever holds
content, a key or a password.
"""

from __future__ import annotations

from .backends.clock import moment


def who(owner: str) -> str:
    """A holder's name for people: which process on which host. See `_leases.new_holder`."""
    parts = owner.split("/")
    return f"process {parts[2]} on {parts[0]}" if len(parts) == 5 else owner


class HoldfastError(Exception):
    """Base of all errors raised by Holdfast."""

    def __reduce__(self) -> tuple[object, ...]:
        # So that errors made with keywords can be copied, and sent to another process, too.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(
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
    """Another writer appended first. Nothing was written: read the stream again and decide again."""

    def __init__(self, stream: str, *, expected: int, actual: int) -> None:
        super().__init__(
            f"{stream} is at version {actual}, not {expected}; read it again and retry"
        )
        self.stream, self.expected, self.actual = stream, expected, actual


class Unavailable(Retryable):
    """The storage engine cannot be reached, is busy or failed. Nothing was written."""


class StorageFull(Retryable):
    """There is no room for the write. Nothing was written; it works again once there is space."""


class OutcomeUnknown(Retryable):
    """The engine did not say whether the append was stored. Repeat it with `id=error.id` to settle it.

    A repeat never stores twice: if the first attempt did arrive, it is answered as a duplicate. An id that you chose can be
    repeated by any process at any time; one that the library made, only by the process that got this error.
    """

    def __init__(self, message: str, *, stream: str | None = None, id: str | None = None) -> None:
        super().__init__(message)
        self.stream, self.id = stream, id


class LeaseHeld(Retryable):
    """Somebody else has the turn or the lease. `owner` says who, `until` when it ends unless it is renewed."""

    def __init__(self, stream: str, *, owner: str, until: float) -> None:
        super().__init__(
            f"{stream} is held by {who(owner)}; wait for it longer (wait=), or come back later"
        )
        self.stream, self.owner, self.until = stream, owner, moment(until)


class LeaseLost(Retryable):
    """Another holder took over while this one was away. Nothing was written: read again what happened, then begin again."""

    def __init__(self, stream: str, *, owner: str | None) -> None:
        now = f"{who(owner)} holds it now" if owner else "nobody holds it now"
        super().__init__(f"the hold on {stream} was lost ({now}); read it again and begin again")
        self.stream, self.owner = stream, owner


class SourceChanged(Retryable):
    """A file changed while it was being attached. Nothing was attached: attach it again when nobody writes to it."""

    def __init__(self, task: str, *, name: str) -> None:
        super().__init__(
            f"the file for {name!r} of {task} changed while it was read; attach it when nobody writes to it"
        )
        self.task, self.name = task, name


class AccessDenied(NeedsHuman):
    """The server does not let us in, or not do what we have to: a wrong password, or a right that is missing."""


class AlreadyAnswered(NeedsHuman):
    """The question was answered before, and the first answer counts. Nothing was written."""

    def __init__(self, task: str, *, question: str, by: str | None) -> None:
        answered = f"answered by {by!r}" if by else "answered"
        super().__init__(f"{question!r} of {task} was {answered} before; the first answer counts")
        self.task, self.question, self.by = task, question, by


class Expired(NeedsHuman):
    """Its time to live is over, and its id stays closed. `delete()` frees it; `swept` says whether the content is gone."""

    def __init__(self, stream: str, *, at: float, swept: bool = False) -> None:
        task = stream.startswith("task ")
        back = (
            "; restart=True begins it anew"
            if task
            else ""
            if swept
            else "; until it is swept, expire(None) brings it back"
        )
        super().__init__(
            f"{stream} has expired{' and was swept' if swept else ''}; delete() frees its id{back}"
        )
        self.stream, self.at, self.swept = stream, moment(at), swept


class HasForks(NeedsHuman):
    """Forks read their beginning from it. Nothing was deleted: delete the forks first."""

    def __init__(self, stream: str, *, forks: list[str]) -> None:
        some = ", ".join(repr(fork) for fork in forks[:5]) + (", …" if len(forks) > 5 else "")
        super().__init__(
            f"{stream} has living forks ({some}), which begin with its messages; delete those first"
        )
        self.stream, self.forks = stream, forks


class MissingExtra(NeedsHuman, ImportError):
    """A package that this engine needs is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs packages that are not installed: install Holdfast again with the extra {extra!r},"
            f" which in a clone of it is pip install '.[{extra}]'"
        )
        self.extra = extra


class MissingKey(NeedsHuman):
    """The store is encrypted, and no key was given: `holdfast.open(url, key=…)`. Nothing was written."""


class WrongKey(NeedsHuman):
    """The store is encrypted with another key than the one that was given. Nothing was written."""


class UnknownKey(NeedsHuman, DataProblem):
    """The store names a key that is not among those that were given, or not in the store. `key` is its id.

    If the store has got a new key since it was opened, open it again with the new one.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class NotEncrypted(NeedsHuman, DataProblem):
    """A key was given, and what is stored is in clear; or something is asked for that only an encrypted store can do.

    A single record in clear among sealed ones was put there by somebody without the key. It is never returned as data.
    """


class InvalidKey(NeedsHuman, ValueError):
    """What was given as a key is none."""


class NotSetUp(NeedsHuman):
    """The database, its tables or the bucket are not there, and they cannot be made from here."""


class ReadOnly(NeedsHuman):
    """The store cannot be written to: check permissions and the file system's mount options."""


class ReplayMismatch(NeedsHuman):
    """What is recorded is asked for with something else. Nothing was run or written. `step` is None for the task itself."""

    def __init__(self, task: str, *, step: str | None, what: str, hint: str) -> None:
        whose = f"step {step!r} of {task}" if step else task
        super().__init__(f"{whose} is recorded with {what}; {hint}")
        self.task, self.step, self.what = task, step, what


class StepInDoubt(NeedsHuman):
    """The step was started and its outcome is not recorded. Find out, then `store.resolve(task, step, result=…)` or `retry=True`."""

    def __init__(self, task: str, *, step: str, why: str) -> None:
        super().__init__(
            f"step {step!r} of {task} {why}; find out whether it was done, then "
            f"store.resolve(task_id, {step!r}, result=…), or retry=True if it was not"
        )
        self.task, self.step = task, step


class TaskEnded(NeedsHuman):
    """The task has ended as `status`: what is recorded can be read, nothing new is done."""

    def __init__(self, task: str, *, status: str) -> None:
        super().__init__(
            f"{task} is {status} and does nothing new; begin another, fork it, or delete it to use its id again"
        )
        self.task, self.status = task, status


class UnsupportedFilesystem(NeedsHuman):
    """The path is on a network file system, where locks and shared memory cannot be trusted."""

    def __init__(self, path: str, filesystem: str) -> None:
        super().__init__(
            f"{path} is on a network file system ({filesystem}), where locks cannot be trusted; "
            "put it on a local disk, or use a database server"
        )
        self.path, self.filesystem = path, filesystem


class UnsupportedServer(NeedsHuman):
    """The server, as it is configured, cannot promise what was asked of it."""


class UnsupportedVersion(NeedsHuman):
    """The data was written by a newer Holdfast, or is not a Holdfast store at all."""


class AnchorRefused(DataProblem):
    """An anchor cannot be trusted: it was altered, signed with another key, or is none. Nothing was verified against it."""

    def __init__(self, path: str, *, what: str) -> None:
        super().__init__(f"the anchor {path} is refused: {what}; nothing was verified against it")
        self.path, self.what = path, what


class CorruptFile(DataProblem):
    """A file cannot be imported as it is: `what` is wrong, `offset` bytes from its start. The file is left untouched, nothing was stored."""

    def __init__(self, path: str, *, offset: int, what: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {offset}: {what}; nothing was imported; salvage=True takes what is readable before it"
        )
        self.path, self.offset, self.what = path, offset, what


class CorruptRecord(DataProblem):
    """Stored bytes do not match their digest. They are reported, never returned as data."""

    def __init__(
        self, stream: str, *, version: int | None = None, what: str, place: str | None = None
    ) -> None:
        where = f" (version {version})" if version is not None else ""
        at = f", {place}" if place else ""
        super().__init__(
            f"{stream}{where} is damaged: {what}{at}; restore it from a backup or a copy"
        )
        self.stream, self.version, self.what, self.place = stream, version, what, place


class TamperDetected(DataProblem):
    """Stored bytes were altered, moved, replayed or put there by somebody without the key. They are never returned as data."""

    def __init__(self, stream: str, *, version: int | None = None, what: str) -> None:
        where = f" (version {version})" if version is not None else ""
        super().__init__(
            f"{stream}{where} cannot be trusted: {what}; find out who wrote it, and restore it from a backup or a copy"
        )
        self.stream, self.version, self.what = stream, version, what


class Erased(DataProblem):
    """What was stored here was erased for good, by `store.erase`: its key was destroyed."""

    def __init__(self, stream: str, *, version: int | None = None) -> None:
        where = f" (version {version})" if version is not None else ""
        super().__init__(
            f"{stream}{where} was erased; its key was destroyed, nobody can read it any more"
        )
        self.stream, self.version = stream, version


class HeadRegressed(DataProblem):
    """The engine went back in time: it no longer has a version it had acknowledged."""

    def __init__(self, stream: str, *, acknowledged: int, actual: int) -> None:
        super().__init__(
            f"{stream} had acknowledged version {acknowledged} and is now at {actual} with another history: "
            "the engine lost writes (a failover or a restored backup); reopen the store to accept its state"
        )
        self.stream, self.acknowledged, self.actual = stream, acknowledged, actual


class IdReused(DataProblem):
    """This append id was already used for other content. Nothing was written: choose an id per thing you append."""

    def __init__(self, stream: str, *, id: str) -> None:
        super().__init__(
            f"{stream} already has an append with id {id!r} and other content; use another id"
        )
        self.stream, self.id = stream, id


class InvalidId(DataProblem, ValueError):
    """The id cannot be stored on every backend: it is empty, too long, or not valid text."""


class InvalidURL(DataProblem, ValueError):
    """The URL names no store: an unknown scheme, a missing part, or an option that does not exist."""


class SchemaMismatch(DataProblem):
    """Stored data is sound, but does not fit the type that the program declares for it."""

    def __init__(self, stream: str, *, version: int, type: str, what: str) -> None:
        super().__init__(
            f"{stream} (version {version}): the data of {type!r} {what}; "
            "declare the type it was stored with, or raise the type's version and add an upcaster"
        )
        self.stream, self.version, self.type, self.what = stream, version, type, what


class TooLarge(DataProblem, ValueError):
    """A value is over a limit on size or depth. Nothing was written."""


class NotSerializable(DataProblem, TypeError):
    """A value would not come back as it went in. `path` is the place inside it, like `$.items[3].price`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class BudgetExceeded(HoldfastError):
    """A budget is too small: `needed` is what it takes, `budget` what was given, `unit` what is counted.

    `task` names the task that has used its budget up; it is None if what must be sent to a model does not fit.
    """

    def __init__(
        self,
        *,
        needed: float,
        budget: float,
        what: str = "the newest exchange with system prompt and pinned messages",
        advice: str = "raise max_tokens, store shorter tool results, pin less, or call summarize() first",
        unit: str = "tokens",
        task: str | None = None,
    ) -> None:
        if task is None:
            text = f"{what} takes {needed} {unit}, the budget is {budget}; {advice}"
        else:
            counted = f"a cost of {needed:g}" if unit == "cost" else f"{needed} {unit}"
            text = (
                f"{task} has used {counted}, its budget is {budget:g}; "
                f"to go on, give it (or the task whose child it is) a larger one: budget=holdfast.Budget({unit}=…) "
                f"for store.task, store.run or store.submit, or holdfast retry … --budget {unit}=…"
            )
        super().__init__(text)
        self.needed, self.budget, self.unit, self.task = needed, budget, unit, task


class NoTask(HoldfastError):
    """This is for code that runs inside a task: `with store.task(id) as task: …`."""


class StepFailed(HoldfastError):
    """A step raised an exception: its `type` and `message`, the same on the first run (with `__cause__`) and on replay."""

    def __init__(
        self, task: str, *, step: str, type: str, message: str, causes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(
            f"step {step!r} of {task} failed with {type}" + (f": {message}" if message else "")
        )
        self.task, self.step, self.type, self.message = task, step, type, message
        self.causes = causes
        """The steps inside it whose failure it was."""


class ChildFailed(StepFailed):
    """A child task failed or was cancelled. `child` is its id; it is a task of its own, to be looked at and resumed."""

    child = ""


class NotDone(HoldfastError):
    """Raise it in a `once` or `check` step to say: it failed, and it surely had no effect. The step is not in doubt then."""


class AlreadyExists(HoldfastError):
    """There is something under that id already. Nothing was written: choose another id."""


class NotFound(HoldfastError):
    """There is no such thing, or no such version of it."""


class StoreClosed(HoldfastError):
    """The store was closed; open it again."""


class Suspended(BaseException):
    """The task waits for an answer, a signal, a time or a child, and this run of it ends: let it pass.

    Not an `Exception`, so that `except Exception` does not swallow it; whatever is asked of the task after it raises it again.
    The task holds nothing while it waits. Whoever opens it again, or a worker, goes on from here.
    """

    def __init__(self, task: str, *, waits: tuple[str, ...] = (), why: str = "") -> None:
        super().__init__(
            f"{task} waits for {', '.join(waits)}" if waits else f"{task} stops here: {why}"
        )
        self.task, self.waits = task, waits
