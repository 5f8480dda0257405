"""Documents for the tests of state."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import holdfast
from holdfast.backends import StreamKey
from holdfast.log import operations as ops

KEY = StreamKey("default", "state", "doc")


def message(number: int, size: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number} ".ljust(size - 30, "x")}


def stored_types(store: holdfast.Store) -> list[str]:
    return [stored.envelope.type for stored in ops.run(store._log, ops.read(KEY))]


WRITER = """
import json, os, sys, holdfast
url, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with holdfast.open(url, key=os.environ.get("HOLDFAST_KEY")) as store:
    doc = store.state("doc")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        value = doc.load({"log": []})
        value["log"].append([who, number, "x" * 100])
        value["last"] = [who, number]
        print(json.dumps([doc.save(value), value]), flush=True)
"""


def start(url: str, who: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, who, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
