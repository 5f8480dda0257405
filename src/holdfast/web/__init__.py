"""The web dashboard and its JSON API: `holdfast serve`, or `create_app` in your own server."""

from .app import create_app
from .options import WebOptions

__all__ = ["WebOptions", "create_app"]
