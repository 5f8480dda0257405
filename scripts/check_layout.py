"""Check the tree: few root files, small folders, unique class names, short test files.

And the core, `tasks/` and `log/`: simple functions, classes with one job.
"""

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

MAX_COMPLEXITY = 15
MAX_CLASS_LINES = 300
MAX_ATTRIBUTES = 15
CORE = ("tasks", "log")
RUN = PACKAGE / "tasks" / "run"

# Functions and classes of the core that may be larger, with the reason.
LARGE: dict[str, str] = {
    "Task": "a facade: one-line methods with their docstrings",
    "AsyncTask": "the same",
    "Appender": "one append from its position to its answer, with all that may go wrong between",
    "Log": "an open store: its options, requests, appends, threads and attached objects",
    "TaskState": "every event of a task, one method each",
    "_handle_answer": "one case for each answer of a backend",
    "_records": "the one loop that reads, checks and rereads a page",
    "_admit": "one case for each state of a task",
    "build_view": "one field of the view after the other",
    "_is_native": "one pass over a value on the way of every append",
    "_compare": "one case for each type of value",
    "_find_mismatch": "one case for each keyword of a schema",
    "encode_unknown": "one case for each type of value",
    "_check_options": "one case for each option",
    "_collect_facts": "one case for each type of event",
    "select": "one argument for each part of a resume context",
}

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


def check_core() -> Iterator[str]:
    for path in sorted(file for name in CORE for file in (PACKAGE / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if getattr(node, "name", "") in LARGE:
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if (found := count_branches(node) + 1) > MAX_COMPLEXITY:
                    yield f"{place} complexity must be <= {MAX_COMPLEXITY}, is {found}"
            elif isinstance(node, ast.ClassDef):
                if (found := (node.end_lineno or 0) - node.lineno + 1) > MAX_CLASS_LINES:
                    yield f"{place} must have <= {MAX_CLASS_LINES} lines, has {found}"
                if RUN in path.parents and (found := len(find_attributes(node))) > MAX_ATTRIBUTES:
                    yield f"{place} must have <= {MAX_ATTRIBUTES} attributes, has {found}"


def count_branches(node: ast.AST) -> int:
    """Count the branches of a function, without those of functions and classes inside it."""
    total = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.BoolOp):
            total += len(child.values) - 1
        elif isinstance(child, ast.comprehension):
            total += 1 + len(child.ifs)
        elif isinstance(
            child, ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler
        ):
            total += 1
        total += count_branches(child)
    return total


def find_attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the methods of a class set on `self`."""
    return {
        child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute)
        and isinstance(child.ctx, ast.Store)
        and isinstance(child.value, ast.Name)
        and child.value.id == "self"
    }


def main() -> int:
    problems = [*check_folders(), *check_class_names(), *check_test_files(), *check_core()]
    print("\n".join([*problems, f"{len(problems)} problems with the layout"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
