"""The versions of LangGraph that this integration works with. Importing it checks them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

INSTALL = "pip install 'langgraph>=1.2,<2' 'langgraph-checkpoint>=4.3,<5'"


def check_version(installed: str) -> None:
    """Raise ImportError unless this version of `langgraph-checkpoint` is supported."""
    major, minor = map(int, installed.split(".")[:2])
    if not (4, 3) <= (major, minor) < (5, 0):
        raise ImportError(
            "holdfast.integrations.langgraph needs langgraph-checkpoint 4.3 or newer, below 5, "
            f"got {installed}: {INSTALL}"
        )


try:
    check_version(version("langgraph-checkpoint"))
except PackageNotFoundError as error:
    raise ImportError(f"holdfast.integrations.langgraph needs LangGraph: {INSTALL}") from error
