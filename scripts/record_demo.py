"""Run `holdfast demo` in a terminal, and draw its summary as docs/pictures/demo.svg.

python scripts/record_demo.py [--seed N]    about 15 seconds; the kills differ with the seed
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "demo.svg"
WIDTH = 78

# What the picture shows: from a heading up to the next.
PARTS = (
    ("Which run did what", "What the model read"),
    ("What the outside world counted", "The code that does this"),
)


def run_demo(seed: str) -> str:
    """Return what the demo prints to a terminal."""
    reader, writer = pty.openpty()
    process = subprocess.Popen(  # noqa: S603  the interpreter that runs this
        [sys.executable, "-m", "holdfast.cli", "demo", "--seed", seed],
        stdout=writer,
        stderr=writer,
        env={**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"},
    )
    os.close(writer)
    printed = b""
    while True:
        try:
            part = os.read(reader, 65536)
        except OSError:  # the terminal is closed when the process ends
            break
        if not part:
            break
        printed += part
    os.close(reader)
    if process.wait(60) != 0:
        raise SystemExit(f"the demo ended with exit code {process.returncode}")
    return printed.decode().replace("\r", "")


def draw(printed: str) -> str:
    """Return the SVG of the chosen parts, without fonts from the network."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text("$ holdfast demo", style="bold"))
    console.print()
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", printed).splitlines()
    styled = printed.splitlines()
    for start, end in PARTS:
        first = next(number for number, line in enumerate(plain) if line.startswith(start))
        last = next(number for number, line in enumerate(plain) if line.startswith(end))
        for line in styled[first:last]:
            console.print(Text.from_ansi(line))
    code_format = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    code_format = code_format.replace("Fira Code, monospace", "ui-monospace, monospace")
    return console.export_svg(
        title="holdfast demo", theme=MONOKAI, code_format=code_format, unique_id="demo"
    )


def main() -> int:
    seed = sys.argv[2] if sys.argv[1:2] == ["--seed"] else "7"
    PICTURE.write_text(draw(run_demo(seed)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
