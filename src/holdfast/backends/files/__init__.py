"""The files backend: streams as JSON Lines files that you can read with cat and jq."""

from .backend import FilesBackend
from .disk import Disk

__all__ = ["Disk", "FilesBackend"]
