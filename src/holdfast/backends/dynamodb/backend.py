"""Streams in a DynamoDB table: `dynamodb://table?region=eu-central-1`. One conditional put per append is the commit.

What is stored, and why it is safe, is in `_objects`; how DynamoDB keeps named bytes is in `_dynamodb_space`.
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import InvalidURL, NotSetUp
from .. import urls
from ..interface import Durability
from ..objects.aws import AWSClient
from ..objects.backend import ObjectsBackend
from .space import SCHEMA_KEY, DynamoDBSpace
from .table import create_table_json, require_table

__all__ = ["DynamoDBBackend", "create_table_json", "open_space", "parse_table_name"]

_EXAMPLE: Final = "dynamodb://table?region=eu-central-1"


class DynamoDBBackend(ObjectsBackend):
    """Streams in one table. Every append is on disk in three data centres before it is acknowledged, whatever is asked for."""

    def __init__(self, url: str, *, durability: Durability = "disk", create: bool = True) -> None:
        super().__init__(open_space(url, create=create))


class _ExistingDynamoDBSpace(DynamoDBSpace):
    """A table in which there must be a store already."""

    def __init__(self, service: AWSClient, table: str) -> None:
        require_table(service, table)
        super().__init__(service, table)

    def _check_schema(self) -> None:
        if self.get(*SCHEMA_KEY) is None:
            raise NotSetUp(
                f"there is no store at {self._service.where} yet, only an empty table; check the URL"
            )
        super()._check_schema()


def open_space(url: str, *, create: bool = True) -> DynamoDBSpace:
    """The table that a URL names, made if it is not there."""
    table, options = _read(url)
    region, endpoint = options.get("region") or None, options.get("endpoint") or None
    service = AWSClient("dynamodb", region=region, endpoint=endpoint, where=f"dynamodb://{table}")
    try:
        return (DynamoDBSpace if create else _ExistingDynamoDBSpace)(service, table)
    except BaseException:
        service.close()
        raise


def parse_table_name(url: str) -> str:
    """The name of the table in a URL."""
    return _read(url)[0]


def _read(url: str) -> tuple[str, dict[str, str]]:
    parts, options = urls.parse_url(url, example=_EXAMPLE, options=("region", "endpoint"))
    if "@" in parts.netloc:
        raise InvalidURL(
            "credentials do not belong into a dynamodb:// URL: AWS_ACCESS_KEY_ID, a profile or a role has them"
        )
    if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", parts.netloc) or parts.path not in ("", "/"):
        raise InvalidURL(
            f"a dynamodb:// URL names a table by 3 to 255 letters, digits and _.-, like {_EXAMPLE}"
        )
    return parts.netloc, options
