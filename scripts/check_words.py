"""Find retired words and names in code and docs. The words to use are in `docs/glossary.md`.

python scripts/check_words.py [PATH ...]    checks everything, or the given files and folders
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PATTERNS = ("src/**/*.py", "examples/**/*.py", "bench/**/*.py", "docs/**/*.md", "*.md", "Makefile")

# A word ends at an underscore too, so that names in code are checked like prose.
START, END = r"(?<![a-z])", r"(?![a-z])"

# What is retired -> what to write instead. Patterns are matched without regard to case.
WORDS = {
    "whoever": "name the actor: the caller, a worker, another process, an operator",
    "somebody|nobody": "name the actor: the caller, a worker, another process, an operator",
    "anew": "again, or a verb with re-",
    "begun": "started, created",
    "unless told": "default, by default",
    "so many": "N, up to N; that many",
    "so often": "how often, every N seconds",
    "in clear": "unencrypted, in plaintext",
    "whole or not at all|all or none": "atomically",
    "belongs? into": "belongs in",
    "for good(?! reason)": "permanently",
    "seams?": "backend interface",
    "(?:is|are|was|were|be|been) away": "unreachable",
    "(?:go|goes|going|went|gone) on": "resume, continue, keep running",
    "life|lives": "incarnation (of a stream), run (of a process); for a place: is stored in",
    "holders?": "lease owner",
    "(?:is|are|was|were|be|been) told": "is sent, is notified, learns",
    "sealed|unsealed": "encrypted, decrypted",
    "unasked": "orphaned",
    "heard": "mentions, mentioned",
    "briefings?": "resume context",
    "(?:the|an|open|of|no|its|these|such|list|unanswered) asks": "questions",
    "parked": "stuck (a status); stop retrying",
    "promises?|promised": "guarantee, guaranteed",
    "rights": "permissions, privileges",
    "looks? whether": "check whether",
    "signs? of life": "heartbeat",
    "slips? of the finger": "typo",
    "the other side": "the external service",
    "departs?|departures?": "diverges, divergence",
    "closed ids?|ids? (?:is|are|stays?) closed": "retired id",
}

# Names that the API had before it was settled -> those that it has.
NAMES = {
    r"\brecover\(": "run_due(",
    r"store\.prompt\b": "store.model_input",
    r"\bin_clear\b": "plaintext",
    r"\btask\.child\(": "task.run_child(",
    r"store\.memories\(": "store.memory_namespaces(",
    r"holdfast asks\b|\.asks\b": "questions",
    r"\bLife(?:Lost)?\b|\blife_of\b": "incarnation",
    r"(?:holdfast|errors)\.(?:Held|Closed)\b|`(?:Held|Closed)`": "LeaseHeld, StoreClosed",
    r"(?:holdfast|types)\.(?:Ran|Swept|Copied|Imported|Rekeyed|Transcribed|Verified|Erasure)\b": (
        "RunResult, SweepResult, CopyResult, ... in holdfast.types"
    ),
    r"(?:holdfast|types)\.(?:Appended|Remembered|Hit|Ask|Saw)\b": (
        "AppendResult, MemoryItem, MemoryHit, Question, ModelInput"
    ),
    r"@(?:holdfast\.)?(?:agent|step)\([^)]*\battempts=": "max_attempts=",
    r"status=\"open\"|--status open\b": "pending",
}

# Where a retired word is right: (files, part of the line, reason).
ALLOWED = [
    ("*", r"half[- ]life", "the term of the field for decay"),
    ("src/holdfast/backends/postgres/*.py", r"\bformer_lives\b", "a column of the schema"),
    ("src/holdfast/memory/text/*.py", r'^[a-z:; ]+$|"[a-z]+"', "English words, as data"),
    ("*", r"[\"'`]task\.parked\b", "the type of a stored event"),
    ("docs/glossary.md", r"\| [^|]+ \|$", "the last column lists the retired words"),
]

RULES = [
    *((re.compile(f"{START}(?:{word}){END}", re.IGNORECASE), use) for word, use in WORDS.items()),
    *((re.compile(name), use) for name, use in NAMES.items()),
]


def find_retired(path: Path) -> Iterator[str]:
    """Yield a line of text for each retired word in a file."""
    name = path.relative_to(ROOT).as_posix()
    allowed = [re.compile(part) for files, part, _ in ALLOWED if fnmatch(name, files)]
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        spans = [found.span() for part in allowed for found in part.finditer(line)]
        # Prose is wrapped: the words of a phrase may be on two lines.
        following = lines[number].lstrip(" #>-") if number < len(lines) else ""
        text = f"{line.rstrip()} {following}"
        for rule, use in RULES:
            for found in rule.finditer(text):
                start, end = found.span()
                if start < len(line.rstrip()) and not any(a <= start <= end <= b for a, b in spans):
                    yield f"{name}:{number}: {found[0]!r} is retired, use: {use}"


def list_files(arguments: list[str]) -> Iterator[Path]:
    """Yield the files to check, in order."""
    paths = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    chosen = [Path(argument).resolve() for argument in arguments] or [ROOT]
    yield from sorted(p for p in paths if any(p.is_relative_to(root) for root in chosen))


def main() -> int:
    findings = [found for path in list_files(sys.argv[1:]) for found in find_retired(path)]
    print("\n".join([*findings, f"{len(findings)} retired words"]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
