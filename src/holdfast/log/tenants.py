"""Find the tenants of a store: those that were registered, and those that have streams."""

from __future__ import annotations

from ..backends.retrying import RetryingBackend
from .ids import KINDS, SYSTEM_TENANT


def list_tenants(store: RetryingBackend) -> list[str]:
    """Return all tenants in order, without the store's own.

    A tenant whose registration is damaged is found by its streams, if the backend can tell.
    """
    return sorted({*list_registered_tenants(store), *_list_stored_tenants(store)})


def list_registered_tenants(store: RetryingBackend) -> set[str]:
    """Return the tenants that have a registration, perhaps a damaged one."""
    listed = (head.stream for head in store.list_heads(SYSTEM_TENANT, "tenant"))
    damaged = store.list_damaged(SYSTEM_TENANT, "tenant")
    return {stream.id for stream in (*listed, *damaged)}


def list_scopes(store: RetryingBackend, tenant: str | None) -> list[tuple[str, str]]:
    """Return tenants and kinds in order, the store's own tenant first.

    With `tenant`, only its own; the stream that registers it is not among them.
    """
    stored = store.list_scopes()
    if stored is None:
        stored = [
            (name, kind)
            for name in ([SYSTEM_TENANT, *list_tenants(store)] if tenant is None else [tenant])
            for kind in KINDS
        ]
    return sorted(
        (scope for scope in stored if tenant in (None, scope[0])),
        key=lambda scope: (scope[0] != SYSTEM_TENANT, scope),
    )


def list_unregistered_tenants(store: RetryingBackend) -> list[str]:
    """Return the tenants that have streams and no registration: one of the two was altered."""
    # An encrypted store may create the key of a tenant before it registers the tenant.
    stored = {tenant for tenant, kind in store.list_scopes() or () if kind != "key"}
    return sorted(stored - list_registered_tenants(store) - {SYSTEM_TENANT})


def _list_stored_tenants(store: RetryingBackend) -> set[str]:
    return {tenant for tenant, _ in store.list_scopes() or ()} - {SYSTEM_TENANT}
