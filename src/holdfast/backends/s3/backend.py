"""The S3 backend: `s3://bucket/prefix?region=eu-central-1`.

One conditional put is the commit of an append. `backends/objects` has the streams, and `space.py`
stores named bytes in a bucket.
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
from .space import S3Space

_EXAMPLE: Final = "s3://bucket/prefix?region=eu-central-1"
_MAX_PREFIX_BYTES: Final = 200


class S3Backend(ObjectsBackend):
    """Streams under one prefix of a bucket.

    Whatever the `durability`, an append is acknowledged when S3 has stored it durably.
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


class _ExistingS3Space(S3Space):
    """A prefix that must contain a store already."""

    def _probe(self) -> None:
        # Called before anything is written under a prefix without a marker.
        raise NotSetUp(f"there is no store at {self._service.where}; check the URL")


def open_space(url: str, *, create: bool = True, timeout: float = DEFAULT_TIMEOUT) -> S3Space:
    """Open the prefix of a bucket that a URL names. The bucket must exist."""
    parts, options = urls.parse_url(url, example=_EXAMPLE, options=("region", "endpoint"))
    if "@" in parts.netloc:
        raise InvalidURL(
            "an s3:// URL must not contain credentials; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]", parts.netloc):
        raise InvalidURL(f"an s3:// URL must name a bucket, like {_EXAMPLE}")
    prefix = parts.path.strip("/")
    if (
        not re.fullmatch(r"([A-Za-z0-9._!-]+(/[A-Za-z0-9._!-]+)*)?", prefix)
        or len(prefix) > _MAX_PREFIX_BYTES
    ):
        raise InvalidURL(
            f"the prefix in an s3:// URL must have at most {_MAX_PREFIX_BYTES} letters, digits and "
            "._!- between slashes"
        )
    if any(set(part) == {"."} for part in prefix.split("/")):
        raise InvalidURL("the prefix in an s3:// URL must not contain '.' or '..' as a part")
    endpoint = options.get("endpoint") or None
    service = AWSClient(
        "s3",
        region=options.get("region") or ("us-east-1" if endpoint else None),
        endpoint=endpoint,
        where=urls.format_location(parts),
        timeout=timeout,
        signature_version="s3v4",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    try:
        return (S3Space if create else _ExistingS3Space)(
            service, parts.netloc, prefix + "/" if prefix else ""
        )
    except BaseException:
        service.close()
        raise
