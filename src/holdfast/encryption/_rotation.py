"""A new key for a store: data keys are wrapped anew, and no record is touched.

    1  the ring gets a new master key, wrapped by the new key, and the former one too; the old key still opens the former
    2  each data key is wrapped by the new master key, beside what there is
    3  what the former master keys have wrapped is deleted
    4  the old key is taken out of the ring

Whoever is killed in between leaves a store that both keys open between them, and can simply do it again. Two who do it at once with
the same key do the same; with two different ones, the later is refused until the first is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from .._ids import SYSTEM_TENANT
from ..backends import Backend, Head
from ..errors import Conflict, NotEncrypted, WrongKey
from ..keys import Key, KeyLike, given
from ._data_keys import GRAVE, DataKeys
from ._place import RING
from ._ring import Ring, Standing, about, new_master, stored

if TYPE_CHECKING:
    from .._log import Log

TRIES = 100


class Rekeyed(msgspec.Struct, frozen=True):
    """What a change of the key did: how many data keys were wrapped anew, how many of them by this call."""

    keys: int
    now: int


Progress = Callable[[int], object]


def rekey(log: Log, key: KeyLike, progress: Progress | None = None) -> Rekeyed:
    """Give a store a new key."""
    if log.cipher is None:
        raise NotEncrypted("the store is in clear; copy it into an encrypted one: holdfast encrypt SRC DST --to KEY")
    new = given(key)
    ring = Ring(log.backend, [*new, *log.cipher.keys.ring.keys])
    ring.reload()
    _begin(ring, new[0])
    keys = DataKeys(log.backend, ring)
    done, now = 0, 0
    for head in _key_streams(log.backend):
        if head.stream.id.endswith("." + ring.current.id):
            continue
        now += _wrap_anew(log.backend, keys, head)
        done += 1
        if progress is not None:
            progress(done)
    for head in _key_streams(log.backend):
        _delete_former(log.backend, keys, head)
    _end(ring, new[0])
    log.cipher.keys.ring.keys = ring.keys
    log.cipher.keys.ring.reload()
    return Rekeyed(done, now)


def _begin(ring: Ring, new: Key) -> None:
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
        wrapped = [master.wrapped_by(new), *(each.wrapped_by(new) for each in former), *standing.masters]
        if ring.set(Standing(master.id, wrapped, [each.id for each in former])):
            ring.reload()
            return
        ring.reload()
    raise Conflict("the store's key ring", expected=ring.version, actual=ring.version)


def _end(ring: Ring, new: Key) -> None:
    """The old key opens nothing any more. Former master keys stay, wrapped by the new key: a process that has not yet heard of
    it may have used one."""
    for _ in range(TRIES):
        standing = ring.standing
        if not standing.retiring:
            return
        masters = [each for each in standing.masters if new.unwrap(each.by, about(each.id)) is not None]
        if ring.set(Standing(standing.current, masters)):
            ring.reload()
            return
        ring.reload()


def _key_streams(backend: Backend) -> Iterator[Head]:
    """The data keys of all tenants."""
    for tenant in [SYSTEM_TENANT, *_tenants(backend)]:
        after = ""
        while page := backend.heads(tenant=tenant, kind="key", after=after):
            yield from (head for head in page if head.stream != RING and not head.stream.id.endswith(GRAVE))
            after = page[-1].stream.id


def _tenants(backend: Backend) -> Iterator[str]:
    after = ""
    while page := backend.heads(tenant=SYSTEM_TENANT, kind="tenant", after=after):
        yield from (head.stream.id for head in page)
        after = page[-1].stream.id


def _wrap_anew(backend: Backend, keys: DataKeys, head: Head) -> bool:
    """Wrap a data key by the current master key. False if that was done before."""
    name, _, by = head.stream.id.rpartition(".")
    current = keys.ring.current
    if by == current.id or by not in keys.ring.masters or keys.read(head.stream.tenant, name, current) is not None:
        return False
    key = keys.read(head.stream.tenant, name, keys.ring.masters[by])
    if key is None:
        return False  # erased, or deleted with its stream, in this moment
    done = stored(backend, keys.wrapping(head.stream.tenant, name, key, current))
    if keys.is_buried(head.stream.tenant, name):
        keys.destroy(head.stream.tenant, name)  # erased in this moment: it must not come back by us
    return done


def _delete_former(backend: Backend, keys: DataKeys, head: Head) -> None:
    """Delete what a former master key has wrapped, if the current one has wrapped it too."""
    name, _, by = head.stream.id.rpartition(".")
    current = keys.ring.current
    if by == current.id:
        return
    if keys.read(head.stream.tenant, name, current) is None:
        _wrap_anew(backend, keys, head)  # made since the first round
        if keys.read(head.stream.tenant, name, current) is None:
            return
    backend.delete(head.stream, expected=head)
