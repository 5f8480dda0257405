"""Which tests an environment is for: those of classic AutoGen and of Google's ADK have environments
of their own, which `make test` makes."""

from __future__ import annotations

import logging
import os
import sys

import pytest

ELSEWHERE = ["test_autogen_classic*.py", "test_google_adk.py"]
collect_ignore_glob = [] if "HOLDFAST_FRAMEWORK" in os.environ else ELSEWHERE

if sys.version_info < (3, 11):  # PydanticAI needs it
    collect_ignore_glob += ["test_pydantic_ai*.py", "test_durable_tools.py"]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoGen reports each run that is cut off as an error."""
    monkeypatch.setattr(logging.getLogger("autogen_core"), "level", logging.CRITICAL)
