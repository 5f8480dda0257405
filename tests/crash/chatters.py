"""What the processes of `test_conversations_processes.py` do. Every acknowledged thing is printed
at once."""

from __future__ import annotations

import itertools
import os
import sys

import holdfast


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def append(url: str, name: str, count: str) -> None:
    """Append messages under ids of their own; `count` 0: until killed, going on from where the
    conversation is."""
    with holdfast.open(url) as store:
        chat = store.conversation("c")
        begun = sum(message["content"].startswith(f"{name} ") for message in chat.messages())
        numbers = range(int(count)) if int(count) else itertools.count(begun)
        for number in numbers:
            text = f"{name} {number}"
            chat.append({"role": "user", "content": text}, id=text)
            say(text)


def pop(url: str, name: str, count: str) -> None:
    """Pop until nothing is left."""
    with holdfast.open(url) as store:
        chat = store.conversation("c")
        while (message := chat.pop()) is not None:
            say(message["content"])


def turns(url: str, name: str, count: str) -> None:
    """Ask and answer in turns, until killed."""
    with holdfast.open(url) as store:
        chat = store.conversation("c")
        for number in itertools.count():
            with chat.turn(lease=30):
                text = f"{name} {os.getpid()} {number}"
                chat.append({"role": "user", "content": text})
                say(text)
                chat.append({"role": "assistant", "content": text})


def suspended(url: str, name: str, count: str) -> None:
    """Take a turn, and write again when told to: by then the process will have been stopped for
    longer than its lease."""
    with holdfast.open(url) as store:
        chat = store.conversation("c")
        with chat.turn(lease=0.5):
            chat.append({"role": "user", "content": "before"})
            say("began")
            sys.stdin.readline()
            try:
                chat.append({"role": "user", "content": "after"})
                say("written")
            except holdfast.errors.LeaseLost:
                say("lost")


def main() -> None:
    {"append": append, "pop": pop, "turns": turns, "suspended": suspended}[sys.argv[1]](
        *sys.argv[2:]
    )
