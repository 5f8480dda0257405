"""Write the map of the source tree in CONTRIBUTING.md from the first docstring line of each module.

python scripts/tree_map.py            exit code 1 if the map is stale
python scripts/tree_map.py --write    bring it up to date
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- tree map: written by scripts/tree_map.py --write -->"
END = "<!-- end of tree map -->"


def read_summary(module: Path) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{module.relative_to(ROOT)} must have a docstring")
    return docstring.splitlines()[0].rstrip(".").replace("|", "\\|")


def list_rows() -> Iterator[str]:
    """Yield a table row for each root module and each package, a package before its folders."""
    for module in sorted(PACKAGE.glob("*.py")):
        if module.name != "__init__.py":
            yield f"| `{module.name}` | {read_summary(module)} |"
    for init in sorted(PACKAGE.rglob("__init__.py"), key=lambda path: path.parent.parts):
        if init.parent != PACKAGE:
            yield f"| `{init.parent.relative_to(PACKAGE).as_posix()}/` | {read_summary(init)} |"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(["| In `src/holdfast/` | What it is |", "| --- | --- |", *list_rows()])
    wanted = f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
    if page == wanted:
        return 0
    if "--write" not in sys.argv[1:]:
        print("The map in CONTRIBUTING.md is stale; run: python scripts/tree_map.py --write")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
