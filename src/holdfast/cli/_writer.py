"""A writer of the demo: a process that appends until it is killed, and says what it does on standard output.

`? job` before an append, `! job` after it returned: what stands between the two is in flight.
"""

from __future__ import annotations

import itertools
import os
import sys

import holdfast


def work(stream: holdfast.Stream, job: str) -> holdfast.Appended:
    """One job: two events in one append, under the job's name."""
    return stream.append(("job.started", {"job": job}), ("job.finished", {"job": job}), id=job)


def main(url: str, stream_id: str, name: str) -> None:
    with holdfast.open(url) as store:
        stream = store.stream(stream_id)
        for number in itertools.count(1):
            job = f"{name}-{number}"
            _say(f"? {job}\n")
            work(stream, job)
            _say(f"! {job}\n")


def _say(line: str) -> None:
    # Unbuffered, and short enough that the pipe takes all of it or nothing.
    os.write(1, line.encode())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # nobody listens any more
