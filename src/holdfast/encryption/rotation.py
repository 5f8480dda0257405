"""Rotate the key of a store: re-wrap the data keys without touching a record.

1. Add a new master key to the keyring, wrapped by the new key, and wrap the former master key with
   it. The old key still unwraps the former one.
2. Wrap each data key with the new master key, beside the old wrapping.
3. Delete the wrappings by former master keys, and erased keys that a killed process re-wrapped.
4. Remove the old key from the keyring, and overwrite its remains in the backend.

If the process is killed in between, both keys open the store; call `rekey` again to finish. Two
processes may rotate to the same key at the same time. If their keys differ, the later one is
rejected until the first has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..backends import Backend, Head, HeadSummary
from ..backends.retrying import RetryingBackend
from ..errors import Conflict, NotEncrypted, TamperDetected, UnknownKey, WrongKey
from ..keys import Key, KeyLike, parse_keys
from ..log.ids import SYSTEM_TENANT
from ..log.tenants import list_tenants
from .data_keys import ERASED_SUFFIX, DataKeys
from .detect import KEYRING_STREAM, scrub
from .keyring import (
    Keyring,
    KeyringState,
    MasterKey,
    generate_master,
    iter_heads,
    master_data,
    store_append,
)

if TYPE_CHECKING:
    from ..log.log import Log

MAX_ATTEMPTS = 100
MAX_FORMER_MASTERS = 100
"""How many former master keys stay in the keyring: other processes may still use them."""


class RekeyResult(msgspec.Struct, frozen=True):
    """The result of a rotation: `keys` data keys were re-wrapped, `now` of them by this call."""

    keys: int
    now: int


Progress = Callable[[int], object]


def rekey(log: Log, key: KeyLike, progress: Progress | None = None) -> RekeyResult:
    """Rotate the key of a store."""
    if log.cipher is None:
        raise NotEncrypted(
            "the store is unencrypted; copy it into an encrypted store: "
            "holdfast encrypt SRC DST --to KEY"
        )
    new, open_ring = parse_keys(key), log.cipher.keys.ring
    old = open_ring.keys
    ring = Keyring(log.backend, [*new, *old])
    ring.reload()
    open_ring.keys = ring.keys  # first: other threads need both keys during the rotation
    try:
        _start_rotation(ring, new[0])
    except BaseException:
        open_ring.keys = old
        raise
    rotation = _Rotation(DataKeys(log.backend, ring), ring.current, dict(ring.masters))
    done, now = 0, 0
    for head in _key_streams(log.backend):
        if head.stream.id.endswith("." + rotation.current.id):
            continue
        now += _rewrap(log.backend, rotation, head)
        done += 1
        if progress is not None:
            progress(done)
    for head in _key_streams(log.backend):
        _delete_former(log.backend, rotation, head)
    for head in _key_streams(log.backend, erased=True):
        _delete_erased(rotation, head)
    _finish_rotation(ring, rotation.current, log.backend)
    open_ring.reload()
    scrub(log.backend)
    return RekeyResult(done, now)


class _Rotation(NamedTuple):
    """A rotation: the new master key, and all master keys at its start.

    Later master keys are ignored: another process may have finished this rotation and started the
    next, whose keys must not be deleted.
    """

    keys: DataKeys
    current: MasterKey
    masters: dict[str, MasterKey]


def _start_rotation(ring: Keyring, new: Key) -> None:
    """Add a new master key to the keyring, which wraps new data keys from now on."""
    for _ in range(MAX_ATTEMPTS):
        state = ring.state
        current = next(master for master in state.masters if master.id == state.current)
        if state.retiring:
            if new.unwrap(current.by, master_data(current.id)) is not None:
                return  # a rotation to this key was interrupted; continue it
            raise WrongKey(
                "a rotation to another new key is unfinished; run it again with that key first"
            )
        master = generate_master()
        former = list(ring.masters.values())
        wrapped = [
            master.wrap_with(new),
            *(each.wrap_with_master(master) for each in former),
            *state.masters,
        ]
        if ring.set(KeyringState(master.id, wrapped, [each.id for each in former])):
            ring.reload()
            return
        ring.reload()
    raise Conflict("the store's keyring", expected=ring.version, actual=ring.version)


def _finish_rotation(ring: Keyring, current: MasterKey, backend: Backend) -> None:
    """Remove the old key from the keyring. Former master keys stay, wrapped by the new one."""
    for _ in range(MAX_ATTEMPTS):
        state = ring.state
        if not state.retiring or state.current != current.id:
            return  # another process has finished it
        former = [each for each in ring.masters.values() if each.id != current.id]
        if len(former) > MAX_FORMER_MASTERS:
            used = {head.stream.id.rpartition(".")[2] for head in _key_streams(backend)}
            former = former[:MAX_FORMER_MASTERS] + [
                each for each in former[MAX_FORMER_MASTERS:] if each.id in used
            ]
        first = next(each for each in state.masters if each.id == current.id)
        if ring.set(
            KeyringState(current.id, [first, *(each.wrap_with_master(current) for each in former)])
        ):
            ring.reload()
            return
        ring.reload()


def _key_streams(backend: Backend, *, erased: bool = False) -> Iterator[HeadSummary]:
    """Yield the wrapped data keys of all tenants or, with `erased`, the markers of erased keys."""
    # A tenant that is left out would lose its data with the former master key.
    for tenant in [SYSTEM_TENANT, *list_tenants(RetryingBackend(backend))]:
        for head in iter_heads(backend, tenant, "key"):
            is_marker = head.stream.id.endswith(ERASED_SUFFIX)
            if head.stream != KEYRING_STREAM and is_marker == erased:
                yield head


def _rewrap(backend: Backend, rotation: _Rotation, head: HeadSummary) -> bool:
    """Wrap a data key with the new master key. Return False if it already was."""
    keys, tenant = rotation.keys, head.stream.tenant
    name, _, by = head.stream.id.rpartition(".")
    if (
        by == rotation.current.id
        or by not in rotation.masters
        or keys.read(tenant, name, rotation.current) is not None
    ):
        return False
    key = keys.read(tenant, name, rotation.masters[by])
    if key is None:
        return False  # erased or deleted just now
    done = store_append(backend, keys.build_wrap_append(tenant, name, key, rotation.current))
    if keys.is_erased(tenant, name):
        keys.destroy(tenant, name)  # erased just now: it must not come back
    return done


def _delete_former(backend: Backend, rotation: _Rotation, head: HeadSummary) -> None:
    """Delete a wrapping by a former master key, if the new one has wrapped the key too."""
    name, _, by = head.stream.id.rpartition(".")
    if by == rotation.current.id or by not in rotation.masters:
        return
    if rotation.keys.read(head.stream.tenant, name, rotation.current) is None:
        _rewrap(backend, rotation, head)  # created after the first pass
        if rotation.keys.read(head.stream.tenant, name, rotation.current) is None:
            return
    current = head if isinstance(head, Head) else backend.head(head.stream)
    if current is not None:
        backend.delete(current.stream, expected=current)


def _delete_erased(rotation: _Rotation, marker: HeadSummary) -> None:
    """Delete an erased key that a killed rotation has re-wrapped, or a killed erasure has left."""
    tenant, name = marker.stream.tenant, marker.stream.id.removesuffix(ERASED_SUFFIX)
    try:
        erased = rotation.keys.is_erased(tenant, name)
    except (TamperDetected, UnknownKey):
        erased = False  # a forged marker must not stop the rotation
    if erased:
        rotation.keys.destroy(tenant, name)
