"""Which tests an environment is for: those of classic AutoGen have environments of their own, which
`make test` makes."""

from __future__ import annotations

import logging
import os

import pytest

collect_ignore_glob = [] if "HOLDFAST_FRAMEWORK" in os.environ else ["test_autogen_classic*.py"]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoGen reports each run that is cut off as an error."""
    monkeypatch.setattr(logging.getLogger("autogen_core"), "level", logging.CRITICAL)
