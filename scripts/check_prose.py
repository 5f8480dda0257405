"""Find clichés, repeated words, hedges and misspellings in the docs, with proselint.

python scripts/check_prose.py [FILE ...]    checks all pages, or the given ones

Code is left out: fenced blocks, code in a line, and the addresses of links.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from proselint.checks import __register__
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("*.md", "docs/**/*.md")

# Matters of typography, and rules that the terms of this field break ("exactly-once delivery").
OFF = ("typography", "misc.phrasal_adjectives", "misc.but", "weasel_words.very", "annotations")

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`|\]\([^)\s]*\)|<[^>\n]*>", re.DOTALL | re.MULTILINE)
LAST = re.compile(r"\S(?=[^\S\n]*\n\s*\n)")


def blank(text: str) -> str:
    """Return text with the same lines, without code. A dot ends each heading and paragraph."""
    return LAST.sub(r"\g<0>.", CODE.sub(lambda found: re.sub(r"[^\n]", "~", found[0]), text))


def find_problems(path: Path) -> list[str]:
    text = blank(path.read_text(encoding="utf-8"))
    config: Config = {**DEFAULT, "checks": {**DEFAULT["checks"]}}
    return [
        f"{path.relative_to(ROOT)}:{found.pos[0]}: {found.check_result.message}"
        for found in LintFile(str(path), text).lint(config)
        if not found.check_result.check_path.startswith(OFF)
    ]


def main() -> int:
    CheckRegistry().register_many(__register__)
    pages = [Path(name).resolve() for name in sys.argv[1:]] or [
        path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))
    ]
    problems = [problem for page in pages for problem in find_problems(page)]
    print("\n".join([*problems, f"{len(problems)} problems with the prose of {len(pages)} pages"]))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
