"""What is used for the first time in several threads at once. In a process of its own: what goes
wrong here kills it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, msgspec
from holdfast.log.codec import decode_as
from holdfast.backends import StreamKey
from holdfast.tasks.state import events as ev

sys.setswitchinterval(1e-6)
DATA = b'{"f0":1,"f5":{"a":1},"f11":3}'

def fresh(number):
    "A type that nobody has decoded yet, with one inside it."
    pair = [("a", "int", 0), ("b", "str | None", None)]
    inner = msgspec.defstruct(f"Inner{number}", pair, module="__main__")
    globals()[inner.__name__] = inner
    kinds = {5: f"Inner{number} | None"}
    fields = [(f"f{n}", kinds.get(n, "int | None"), None) for n in range(12)]
    return msgspec.defstruct(f"Outer{number}", fields, module="__main__")

def event(kind):
    ev._TYPES["fresh"] = kind
    ev._decoders.pop("fresh", None)
    return lambda: ev.decode_event(StreamKey("default", "task", "t"), 1, "fresh", DATA)

def value(kind):
    return lambda: decode_as(DATA, kind)

for number in range(400):
    decode = {"event": event, "value": value}[sys.argv[1]](fresh(number))
    barrier, found = threading.Barrier(6), []
    def go():
        barrier.wait()
        found.append(decode().f11)
    threads = [threading.Thread(target=go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3] * 6, found
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["event", "value"])
def test_a_type_may_be_decoded_for_the_first_time_by_several_threads_at_once(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, what],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
