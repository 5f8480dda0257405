"""Draw the pictures of the documentation, each for light and for dark pages.

python scripts/pictures.py            exit code 1 if a picture is stale
python scripts/pictures.py --write    draw them again
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"

# Colours by their part in a picture: light, dark.
PALETTE = {
    "text": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "line": ("#818b98", "#656c76"),
    "done": ("#dafbe1", "#12361f"),
    "kept": ("#eaeef2", "#2a313c"),
    "bad": ("#ffebe9", "#4b1113"),
    "wait": ("#fff8c5", "#3b2e00"),
    "part": ("#ddf4ff", "#0c2d48"),
    "red": ("#cf222e", "#ff7b72"),
    "green": ("#1a7f37", "#3fb950"),
}


class Canvas:
    """An SVG of one size, in one of the two colour schemes."""

    def __init__(self, width: int, height: int, title: str, *, dark: bool) -> None:
        self._dark = dark
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img"'
            ' font-family="system-ui, sans-serif" font-size="14">',
            f"<title>{escape(title)}</title>",
        ]

    def colour(self, name: str) -> str:
        return PALETTE[name][self._dark]

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *lines: str,
        border: str = "line",
    ) -> None:
        """Draw a box with lines of text; the first is bold if there are more."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"'
            f' fill="{self.colour(fill)}" stroke="{self.colour(border)}"/>'
        )
        top = y + height / 2 - (len(lines) - 1) * 9
        for number, line in enumerate(lines):
            first = number == 0
            bold = first and len(lines) > 1
            self.text(
                x + width / 2,
                top + number * 18 + 5,
                line,
                anchor="middle",
                bold=bold,
                colour="text" if first else "soft",
                size=14 if first else 12,
            )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        anchor: str = "start",
        bold: bool = False,
        colour: str = "text",
        size: int = 14,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}"{weight}'
            f' fill="{self.colour(colour)}">{escape(words)}</text>'
        )

    def line(
        self, *points: tuple[float, float], colour: str = "line", dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{x},{y}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{self.colour(colour)}"'
            f' stroke-width="1.5"{dash}/>'
        )

    def arrow(
        self,
        x: float,
        y: float,
        to_x: float,
        to_y: float,
        *,
        colour: str = "line",
        dashed: bool = False,
    ) -> None:
        """Draw a horizontal or vertical arrow."""
        self.line((x, y), (to_x, to_y), colour=colour, dashed=dashed)
        dx = (to_x > x) - (to_x < x)
        dy = (to_y > y) - (to_y < y)
        left = (to_x - 8 * dx + 5 * dy, to_y - 8 * dy + 5 * dx)
        right = (to_x - 8 * dx - 5 * dy, to_y - 8 * dy - 5 * dx)
        self.line(left, (to_x, to_y), right, colour=colour)

    def cross(self, x: float, y: float) -> None:
        for sign in (1, -1):
            self.line((x - 9, y - 9 * sign), (x + 9, y + 9 * sign), colour="red")

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def draw_resume(canvas: Canvas) -> None:
    canvas.text(20, 53, "first run", bold=True)
    canvas.box(120, 25, 150, 46, "done", "read the claim", "recorded")
    canvas.box(280, 25, 110, 46, "bad", "check policy", "interrupted")
    canvas.cross(408, 48)
    canvas.text(428, 53, "kill -9", colour="red", bold=True)
    canvas.box(120, 105, 570, 34, "part", "the record on disk: read the claim = done")
    canvas.arrow(195, 71, 195, 103, colour="green")
    canvas.arrow(195, 139, 195, 173, colour="green")
    canvas.text(20, 203, "second run", bold=True)
    canvas.box(120, 175, 150, 46, "kept", "read the claim", "from the record")
    canvas.box(280, 175, 150, 46, "done", "check policy", "runs again")
    canvas.box(440, 175, 150, 46, "done", "draft letter", "runs")
    canvas.box(600, 175, 90, 46, "done", "finished")
    canvas.arrow(355, 173, 355, 141, colour="green")
    canvas.arrow(515, 173, 515, 141, colour="green")
    canvas.arrow(645, 173, 645, 141, colour="green")


def draw_floors(canvas: Canvas) -> None:
    canvas.box(20, 20, 330, 46, "kept", "your code, your framework", "agents, tools, web requests")
    canvas.box(360, 20, 330, 46, "kept", "holdfast worker, CLI, dashboard", "run, operate, answer")
    for number, (name, note) in enumerate(
        [
            ("task", "steps, plan, waits"),
            ("conversation", "messages, windows"),
            ("memory", "remember, recall"),
            ("state", "documents"),
            ("stream", "your own events"),
        ]
    ):
        canvas.box(20 + number * 135, 90, 130, 50, "done", name, note)
    canvas.box(
        20,
        164,
        670,
        50,
        "part",
        "event log",
        "ids, versions, hash chains, leases, encryption, redaction",
    )
    canvas.box(20, 238, 670, 34, "wait", "backend: append if the stream is still at version n")
    for number, name in enumerate(["SQLite", "files", "PostgreSQL", "Redis", "DynamoDB", "S3"]):
        canvas.box(20 + number * 112.5, 290, 107, 34, "kept", name)
    for top in (66, 140, 214):
        canvas.arrow(355, top, 355, top + 22)


def draw_step(canvas: Canvas) -> None:
    canvas.text(20, 30, "the record", bold=True)
    canvas.text(20, 130, "the process", bold=True)
    canvas.text(20, 230, "the bank", bold=True)
    for y in (55, 155, 255):
        canvas.line((120, y), (690, y))
    canvas.box(150, 38, 100, 34, "part", "started")
    canvas.box(560, 38, 110, 34, "done", "completed")
    canvas.box(190, 138, 430, 34, "kept", "pay(120)")
    canvas.box(330, 238, 110, 34, "done", "120 paid")
    canvas.arrow(200, 138, 200, 74)
    canvas.arrow(350, 172, 350, 236)
    canvas.arrow(420, 236, 420, 174)
    canvas.arrow(610, 138, 610, 74)
    for x in (252, 558):
        canvas.line((x, 74), (x, 136), colour="red", dashed=True)
    canvas.text(
        405, 102, "a crash in here: the record says", anchor="middle", colour="red", size=12
    )
    canvas.text(405, 120, '"started", and no more', anchor="middle", colour="red", size=12)
    canvas.text(655, 120, "crash: done", anchor="middle", colour="soft", size=12)


def draw_leases(canvas: Canvas) -> None:
    canvas.text(20, 60, "worker A", bold=True)
    canvas.text(20, 140, "task", bold=True)
    canvas.text(20, 220, "worker B", bold=True)
    canvas.box(110, 38, 180, 34, "done", "runs, renews its lease")
    canvas.box(300, 38, 170, 34, "bad", "paused, no heartbeat")
    canvas.box(480, 38, 100, 34, "wait", "wakes up")
    canvas.box(110, 118, 290, 34, "part", "lease of A, version 7")
    canvas.box(410, 118, 280, 34, "part", "lease of B, version 8, 9, …")
    canvas.box(410, 198, 280, 34, "done", "takes over, continues from the record")
    canvas.arrow(200, 72, 200, 116, colour="green")
    canvas.arrow(420, 198, 420, 154, colour="green")
    canvas.arrow(530, 72, 530, 116, colour="red")
    canvas.cross(530, 95)
    canvas.text(548, 92, "LeaseLost:", colour="red", size=12)
    canvas.text(548, 108, "nothing is written", colour="red", size=12)
    canvas.text(
        405,
        262,
        "the lease ends by the clock of the database",
        anchor="middle",
        colour="soft",
        size=12,
    )
    canvas.line((405, 154), (405, 248), dashed=True)


PICTURES: dict[str, tuple[int, int, str, Callable[[Canvas], None]]] = {
    "resume": (710, 240, "A run that is killed, and the next run that resumes", draw_resume),
    "floors": (710, 344, "The parts of Holdfast, from your code down to the backend", draw_floors),
    "step": (710, 290, "The phases of a step with a side effect", draw_step),
    "leases": (710, 280, "A paused worker loses its lease and is fenced off", draw_leases),
}


def draw_all() -> dict[Path, str]:
    """Return the content of each file."""
    files = {}
    for name, (width, height, title, draw) in PICTURES.items():
        for dark in (False, True):
            canvas = Canvas(width, height, title, dark=dark)
            draw(canvas)
            files[FOLDER / f"{name}{'-dark' if dark else ''}.svg"] = canvas.svg()
    return files


def main() -> int:
    files = draw_all()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if "--write" in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for path, text in files.items():
            path.write_text(text)
        return 0
    for path in stale:
        print(f"{path.name} is stale; run: python scripts/pictures.py --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
