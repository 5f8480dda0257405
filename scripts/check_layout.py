"""Check the tree: few root files, small folders, unique class names, short test files."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"

MAX_ROOT_FILES = 7  # and __init__.py
MAX_FOLDER_ENTRIES = 20
MAX_TEST_LINES = 800

# Class names that may be there more than once, with the reason.
SHARED_CLASS_NAMES: dict[str, str] = {}


def list_entries(folder: Path) -> list[Path]:
    """Return the files and folders of a folder, without `__init__.py` and `__main__.py`."""
    skipped = ("__pycache__", "__init__.py", "__main__.py")
    return sorted(entry for entry in folder.iterdir() if entry.name not in skipped)


def check_folders() -> Iterator[str]:
    files = [entry for entry in list_entries(PACKAGE) if entry.is_file()]
    if len(files) > MAX_ROOT_FILES:
        yield f"src/holdfast must have at most {MAX_ROOT_FILES} files, has {len(files)}"
    for folder in sorted(path for path in PACKAGE.rglob("*") if path.is_dir()):
        count = len(list_entries(folder))
        if count > MAX_FOLDER_ENTRIES and folder.name != "__pycache__":
            name = folder.relative_to(ROOT)
            yield f"{name} must have at most {MAX_FOLDER_ENTRIES} entries, has {count}"


def check_class_names() -> Iterator[str]:
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in SHARED_CLASS_NAMES:
            yield f"class {name} must be unique in the package, is in {', '.join(found)}"


def check_test_files() -> Iterator[str]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MAX_TEST_LINES:
            yield f"{path.relative_to(ROOT)} must have at most {MAX_TEST_LINES} lines, has {count}"


def main() -> int:
    problems = [*check_folders(), *check_class_names(), *check_test_files()]
    print("\n".join([*problems, f"{len(problems)} problems with the layout"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
