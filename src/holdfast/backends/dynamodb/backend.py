"""The DynamoDB backend: `dynamodb://table?region=eu-central-1`.

One conditional put is the commit of an append. `backends/objects` has the streams, and `space.py`
stores named bytes in a table.
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import InvalidURL, NotSetUp
from .. import urls
from ..deadline import DEFAULT_TIMEOUT
from ..interface import Durability
from ..objects.aws import AWSClient
from ..objects.backend import ObjectsBackend
from .space import SCHEMA_KEY, DynamoDBSpace
from .table import create_table_json, require_table

__all__ = ["DynamoDBBackend", "create_table_json", "open_space", "parse_table_name"]

_EXAMPLE: Final = "dynamodb://table?region=eu-central-1"


class DynamoDBBackend(ObjectsBackend):
    """Streams in one table.

    Whatever the `durability`, an append is acknowledged when it is on disk in three data centers.
    """

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "disk",
        create: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        super().__init__(open_space(url, create=create, timeout=timeout))


class _ExistingDynamoDBSpace(DynamoDBSpace):
    """A table that must contain a store already."""

    def __init__(self, service: AWSClient, table: str) -> None:
        require_table(service, table)
        super().__init__(service, table)

    def _check_schema(self) -> None:
        if self.get(*SCHEMA_KEY) is None:
            raise NotSetUp(
                f"there is no store at {self._service.where}, only an empty table; check the URL"
            )
        super()._check_schema()


def open_space(url: str, *, create: bool = True, timeout: float = DEFAULT_TIMEOUT) -> DynamoDBSpace:
    """Open the table that a URL names; with `create`, create it if it does not exist."""
    table, options = _parse_url(url)
    region, endpoint = options.get("region") or None, options.get("endpoint") or None
    service = AWSClient(
        "dynamodb", region=region, endpoint=endpoint, where=f"dynamodb://{table}", timeout=timeout
    )
    try:
        return (DynamoDBSpace if create else _ExistingDynamoDBSpace)(service, table)
    except BaseException:
        service.close()
        raise


def parse_table_name(url: str) -> str:
    """Return the name of the table in a URL."""
    return _parse_url(url)[0]


def _parse_url(url: str) -> tuple[str, dict[str, str]]:
    parts, options = urls.parse_url(url, example=_EXAMPLE, options=("region", "endpoint"))
    if "@" in parts.netloc:
        raise InvalidURL(
            "a dynamodb:// URL must not contain credentials; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
        )
    if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", parts.netloc) or parts.path not in ("", "/"):
        raise InvalidURL(
            f"a dynamodb:// URL must name a table (3-255 letters, digits and _.-), like {_EXAMPLE}"
        )
    return parts.netloc, options
