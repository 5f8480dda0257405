"""A new key for a store: data keys are wrapped anew, and no record is touched.

    1  the ring gets a new master key, wrapped by the new key, and the former one wrapped by that; the old key still opens the former
    2  each data key is wrapped by the new master key, beside what there is
    3  what the former master keys have wrapped is deleted; and what was erased, if one who was killed has wrapped it again
    4  the old key is taken out of the ring, and what is left of it in the engine is overwritten

Whoever is killed in between leaves a store that both keys open between them, and can simply do it again. Two who do it at once with
the same key do the same; with two different ones, the later is refused until the first is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..backends import Backend, Head, HeadSummary
from ..errors import Conflict, NotEncrypted, TamperDetected, UnknownKey, WrongKey
from ..keys import Key, KeyLike, given
from ..log.ids import SYSTEM_TENANT
from .data_keys import GRAVE, DataKeys
from .detect import RING, scrub
from .keyring import Keyring, KeyringState, MasterKey, about, new_master, stored_keyring

if TYPE_CHECKING:
    from ..log.log import Log

TRIES = 100
KEPT = 100
"""So many former master keys stay in the ring: a process that has not yet heard of the new one may have used the last."""


class RekeyResult(msgspec.Struct, frozen=True):
    """What a change of the key did: how many data keys were wrapped anew, how many of them by this call."""

    keys: int
    now: int


Progress = Callable[[int], object]


def rekey(log: Log, key: KeyLike, progress: Progress | None = None) -> RekeyResult:
    """Give a store a new key."""
    if log.cipher is None:
        raise NotEncrypted(
            "the store is in clear; copy it into an encrypted one: holdfast encrypt SRC DST --to KEY"
        )
    new, open_ring = given(key), log.cipher.keys.ring
    old = open_ring.keys
    ring = Keyring(log.backend, [*new, *old])
    ring.reload()
    open_ring.keys = (
        ring.keys
    )  # before it begins: whoever reads in this process meanwhile needs both
    try:
        _begin(ring, new[0])
    except BaseException:
        open_ring.keys = old
        raise
    turn = _Rotation(DataKeys(log.backend, ring), ring.current, dict(ring.masters))
    done, now = 0, 0
    for head in _key_streams(log.backend):
        if head.stream.id.endswith("." + turn.current.id):
            continue
        now += _wrap_anew(log.backend, turn, head)
        done += 1
        if progress is not None:
            progress(done)
    for head in _key_streams(log.backend):
        _delete_former(log.backend, turn, head)
    for head in _key_streams(log.backend, graves=True):
        _bury(turn, head)
    _end(ring, turn.current, log.backend)
    open_ring.reload()
    scrub(log.backend)
    return RekeyResult(done, now)


class _Rotation(NamedTuple):
    """One change of keys: the master key to come, and all that were there when it began.

    Of what came later we know nothing: if another process has finished this change, and begun the next, its keys are not ours to delete.
    """

    keys: DataKeys
    current: MasterKey
    masters: dict[str, MasterKey]


def _begin(ring: Keyring, new: Key) -> None:
    """From now on new data keys are wrapped by a new master key."""
    for _ in range(TRIES):
        standing = ring.standing
        current = next(master for master in standing.masters if master.id == standing.current)
        if standing.retiring:
            if new.unwrap(current.by, about(current.id)) is not None:
                return  # begun before, with this very key
            raise WrongKey(
                "the store is on its way to another new key; finish that first, with the same call and that key"
            )
        master = new_master()
        former = list(ring.masters.values())
        wrapped = [
            master.wrapped_by(new),
            *(each.wrapped_beside(master) for each in former),
            *standing.masters,
        ]
        if ring.set(KeyringState(master.id, wrapped, [each.id for each in former])):
            ring.reload()
            return
        ring.reload()
    raise Conflict("the store's key ring", expected=ring.version, actual=ring.version)


def _end(ring: Keyring, current: MasterKey, backend: Backend) -> None:
    """The old key opens nothing any more. Former master keys stay, beside the new one."""
    for _ in range(TRIES):
        standing = ring.standing
        if not standing.retiring or standing.current != current.id:
            return  # somebody else has ended it
        former = [each for each in ring.masters.values() if each.id != current.id]
        if len(former) > KEPT:
            used = {head.stream.id.rpartition(".")[2] for head in _key_streams(backend)}
            former = former[:KEPT] + [each for each in former[KEPT:] if each.id in used]
        first = next(each for each in standing.masters if each.id == current.id)
        if ring.set(
            KeyringState(current.id, [first, *(each.wrapped_beside(current) for each in former)])
        ):
            ring.reload()
            return
        ring.reload()


def _key_streams(backend: Backend, *, graves: bool = False) -> Iterator[HeadSummary]:
    """The data keys of all tenants, or what is in the place of those that were erased."""
    for tenant in [SYSTEM_TENANT, *_tenants(backend)]:
        after = ""
        while page := backend.heads(tenant=tenant, kind="key", after=after):
            yield from (
                head
                for head in page
                if head.stream != RING and head.stream.id.endswith(GRAVE) == graves
            )
            after = page[-1].stream.id


def _tenants(backend: Backend) -> Iterator[str]:
    after = ""
    while page := backend.heads(tenant=SYSTEM_TENANT, kind="tenant", after=after):
        yield from (head.stream.id for head in page)
        after = page[-1].stream.id


def _wrap_anew(backend: Backend, turn: _Rotation, head: HeadSummary) -> bool:
    """Wrap a data key by the new master key. False if that was done before."""
    keys, tenant = turn.keys, head.stream.tenant
    name, _, by = head.stream.id.rpartition(".")
    if (
        by == turn.current.id
        or by not in turn.masters
        or keys.read(tenant, name, turn.current) is not None
    ):
        return False
    key = keys.read(tenant, name, turn.masters[by])
    if key is None:
        return False  # erased, or deleted with its stream, in this moment
    done = stored_keyring(backend, keys.wrapping(tenant, name, key, turn.current))
    if keys.is_buried(tenant, name):
        keys.destroy(tenant, name)  # erased in this moment: it must not come back by us
    return done


def _delete_former(backend: Backend, turn: _Rotation, head: HeadSummary) -> None:
    """Delete what a former master key has wrapped, if the new one has wrapped it too."""
    name, _, by = head.stream.id.rpartition(".")
    if by == turn.current.id or by not in turn.masters:
        return
    if turn.keys.read(head.stream.tenant, name, turn.current) is None:
        _wrap_anew(backend, turn, head)  # made since the first round
        if turn.keys.read(head.stream.tenant, name, turn.current) is None:
            return
    there = head if isinstance(head, Head) else backend.head(head.stream)
    if there is not None:
        backend.delete(there.stream, expected=there)


def _bury(turn: _Rotation, grave: HeadSummary) -> None:
    """Delete a key that was erased. It is there if a change of keys was killed when it had wrapped it, or the erasure itself was."""
    tenant, name = grave.stream.tenant, grave.stream.id.removesuffix(GRAVE)
    try:
        buried = turn.keys.is_buried(tenant, name)
    except (TamperDetected, UnknownKey):
        buried = False  # somebody without the key has put it there, which must not be in the way of a new one
    if buried:
        turn.keys.destroy(tenant, name)
