"""JSON Lines files: streams one can read with cat and jq."""

from ._backend import FilesBackend
from ._disk import Disk

__all__ = ["Disk", "FilesBackend"]
