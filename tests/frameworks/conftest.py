"""Which tests an environment is for: those of classic AutoGen have environments of their own, which `make test` makes."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "HOLDFAST_FRAMEWORK" in os.environ else ["test_autogen_classic*.py"]
