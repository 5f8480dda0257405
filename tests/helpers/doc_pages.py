"""The pages of the documentation, and how their Python is run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PRINTED = re.compile(r"# -> (.*)$", re.MULTILINE)

# Runs the blocks one after the other in one namespace, with the line numbers of the page in
# tracebacks.
RUNNER = """
import json, sys
namespace = {"__name__": "__main__"}
for page, line, source in json.load(sys.stdin):
    exec(compile("\\n" * line + source, page, "exec"), namespace)
"""


def run_page(
    name: str, place: Path, *, warnings: str = "error", **environment: str
) -> tuple[list[str], list[str]]:
    """Run the Python on a page; the lines that it printed, and those that the page promises."""
    text = (ROOT / name).read_text()
    blocks = [
        (name, text.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(text)
    ]
    done = subprocess.run(
        [sys.executable, "-W", warnings, "-c", RUNNER],
        input=json.dumps(blocks),
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    promised = [line.rstrip() for _, _, source in blocks for line in PRINTED.findall(source)]
    return done.stdout.splitlines(), promised
