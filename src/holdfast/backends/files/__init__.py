"""JSON Lines files: streams one can read with cat and jq."""

from .backend import FilesBackend
from .disk import Disk

__all__ = ["Disk", "FilesBackend"]
