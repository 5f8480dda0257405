"""The DynamoDB table: defines it, creates it, and checks an existing one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from ...errors import AccessDenied, NotSetUp, Unavailable, UnsupportedServer, UnsupportedVersion
from .. import deadline
from ..objects.aws import AWSClient

READY_SECONDS: Final = 60
"""How long a new table may take until it is usable."""

KEYS: Final = (("p", "S", "HASH"), ("n", "B", "RANGE"))


def define_table(table: str) -> dict[str, Any]:
    """Return the arguments of CreateTable: no index, no TTL, on-demand capacity."""
    return {
        "TableName": table,
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind, _ in KEYS
        ],
        "KeySchema": [{"AttributeName": name, "KeyType": role} for name, _, role in KEYS],
        "BillingMode": "PAY_PER_REQUEST",
    }


def create_table_json(table: str) -> str:
    """Return the definition for `aws dynamodb create-table --cli-input-json file://…`."""
    return json.dumps(define_table(table), indent=2)


@deadline.until(None)  # AWS creates a table in its own time
def prepare_table(service: AWSClient, table: str) -> None:
    """Create the table if it does not exist, wait until it is usable, and check its keys.

    Any number of processes may do this at once: one creates the table, and all wait for it.
    """
    until = time.monotonic() + READY_SECONDS
    attempt = 0
    while True:
        attempt += 1
        found = describe_table(service, table)
        if found is None:
            _create(service, table)
        elif found["TableStatus"] in ("ACTIVE", "UPDATING"):
            return _check(found, service.where)
        elif found["TableStatus"] == "INACCESSIBLE_ENCRYPTION_CREDENTIALS":
            raise AccessDenied(
                f"{service.where} is encrypted with a KMS key that is no longer accessible"
            )
        if time.monotonic() > until or service.pause(attempt):
            raise Unavailable(
                f"{service.where} is not ready after {READY_SECONDS} s; try again later"
            )


def require_table(service: AWSClient, table: str) -> None:
    """Raise `NotSetUp` if there is no table."""
    if describe_table(service, table) is None:
        raise NotSetUp(
            f"there is no store at {service.where}: no such table in {service.region}; "
            "check the URL"
        )


def describe_table(service: AWSClient, table: str) -> Mapping[str, Any] | None:
    """Return DynamoDB's description of the table, None if there is none."""
    answer = service.call(
        "describe_table", writes=False, expected=("ResourceNotFoundException",), TableName=table
    )
    return None if answer.code else answer.response["Table"]


def _create(service: AWSClient, table: str) -> None:
    try:
        service.call(
            "create_table",
            writes=False,
            expected=("ResourceInUseException",),
            **define_table(table),
        )
    except AccessDenied:
        raise NotSetUp(
            f"{service.where} does not exist, and the credentials lack dynamodb:CreateTable; "
            "create the table from the output of `holdfast schema` for this URL"
        ) from None


def _check(found: Mapping[str, Any], where: str) -> None:
    types = {one["AttributeName"]: one["AttributeType"] for one in found["AttributeDefinitions"]}
    keys = {
        (one["AttributeName"], types[one["AttributeName"]], one["KeyType"])
        for one in found["KeySchema"]
    }
    if keys != set(KEYS):
        raise UnsupportedVersion(
            f"{where} is not a table of Holdfast: it has other keys; use another table"
        )
    if found.get("Replicas") or found.get("GlobalTableVersion"):
        raise UnsupportedServer(
            f"{where} is a global table: writers in two regions would overwrite each other; "
            "use a table without replicas"
        )
