"""Show the `Example:` of docstrings as code in the documentation site (`make docs`)."""

from __future__ import annotations

from typing import Any

import griffe


class ExampleSections(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Rename `Example:` to `Examples:`, the section that griffe shows as Python code."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
