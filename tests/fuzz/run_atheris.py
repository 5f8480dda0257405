"""Fuzz with atheris, which looks for new paths through the code, for so many seconds a target:
`make soak`, or

    python tests/fuzz/run_atheris.py SECONDS [TARGET]…

What is found is written to a file `crash-…` here, and the exit code is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

MISSING = """
*** LEFT OUT: fuzzing with atheris, which is not installed.
    On CPython 3.11 to 3.13: python -m pip install atheris ***
"""
ONE = "--one"


def fuzz(target: str, seconds: str, corpus: str) -> None:
    """Fuzz one target. Atheris ends the process with it."""
    import atheris

    with atheris.instrument_imports(include=["holdfast"]):
        from targets import TARGETS
    options = [
        f"-max_total_time={seconds}",
        "-rss_limit_mb=1024",
        "-timeout=10",
        "-verbosity=0",
        corpus,
    ]
    atheris.Setup([sys.argv[0], *options], TARGETS[target])
    atheris.Fuzz()


def is_sound(target: str, seconds: str) -> bool:
    from targets import SEEDS

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS):
            Path(corpus, str(number)).write_bytes(seed)
        command = [sys.executable, __file__, ONE, target, seconds, corpus]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    print(f"{target}: {'FAILED' if done.returncode else f'{seconds} s, nothing found'}", flush=True)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == [ONE]:
        fuzz(*arguments[1:])
        return 0
    if find_spec("atheris") is None:
        print(MISSING, file=sys.stderr)
        return int(os.environ.get("CI") == "true")
    from targets import TARGETS

    seconds, *names = arguments or ["60"]
    return int(not all(is_sound(name, seconds) for name in names or TARGETS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
