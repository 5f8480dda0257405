"""Any sequence of changes to a conversation equals the same changes to a list."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import holdfast
from helpers.example_counts import examples
from holdfast.conversations.read import FIRST_PAGE_EVENTS
from holdfast.conversations.repair import apply_fixes, find_fixes

TEXT = st.sampled_from("abcde")
ROLE = st.sampled_from(["user", "assistant", "system"])


class Conversations(RuleBasedStateMachine):
    """One conversation at a time, with what it held at each of its versions."""

    @initialize()
    def begin(self) -> None:
        self.store = holdfast.open("memory://")
        self.chat, self.other = self.store.conversation("c0"), self.store.conversation("c0")
        self.live: list[Any] = []
        self.then: dict[int, list[Any]] = {0: []}
        self.forks = 0

    def noted(self) -> None:
        self.then[self.chat.version()] = list(self.live)

    @rule(items=st.lists(st.tuples(ROLE, TEXT), min_size=1, max_size=5), pin=st.booleans())
    def append(self, items: list[tuple[str, str]], pin: bool) -> None:
        messages = [{"role": role, "content": text} for role, text in items]
        answer = self.chat.append(*messages, pin=pin)
        for index, message in enumerate(messages):
            self.live.append(message)
            self.then[answer.first + index] = list(self.live)

    @rule(count=st.integers(FIRST_PAGE_EVENTS - 2, FIRST_PAGE_EVENTS + 2))
    def append_a_page(self, count: int) -> None:
        self.append([("user", str(index)) for index in range(count)], False)

    @rule()
    def pop(self) -> None:
        assert self.chat.pop() == (self.live.pop() if self.live else None)
        self.noted()

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(sorted(self.then)))
        before = len(self.live)
        removed = self.chat.rewind(version=to)
        self.live = list(self.then[to])
        assert removed == max(before - len(self.live), 0)
        self.noted()

    @rule()
    def clear(self) -> None:
        self.chat.clear()
        self.live = []
        self.noted()

    @rule(data=st.data(), items=st.lists(st.tuples(ROLE, TEXT), max_size=4))
    def sync_after_editing_the_end(self, data: st.DataObject, items: list[tuple[str, str]]) -> None:
        keep = data.draw(st.integers(0, len(self.live)))
        wanted = self.live[:keep] + [{"role": role, "content": text + "!"} for role, text in items]
        if not wanted:
            return
        try:
            self.chat.sync(wanted)
        except holdfast.Conflict:  # the other process was there since this one's last sync
            assert self.chat.messages() == self.live
            return
        # A list that ends as the stored one does counts as trimmed, not as edited: then nothing is
        # taken away.
        stored = self.chat.messages()
        assert (
            stored == wanted
            or stored[-len(wanted) :] == wanted[-len(wanted) :]
            or stored[: len(self.live)] == self.live
        )
        if wanted[: len(self.live)] == self.live or not items:
            assert stored == wanted
        self.live = stored
        self.noted()

    @rule(data=st.data())
    def go_on_in_a_fork(self, data: st.DataObject) -> None:
        versions = [version for version in sorted(self.then) if version > 0]
        if not versions:
            return
        at = data.draw(st.sampled_from(versions))
        self.forks += 1
        self.chat = self.chat.fork(f"c{self.forks}", version=at)
        self.other = self.store.conversation(self.chat.id)
        self.live = list(self.then[at])
        self.then = {version: live for version, live in self.then.items() if version <= at}
        self.noted()

    @rule(name=TEXT, answered=st.booleans())
    def call_a_tool(self, name: str, answered: bool) -> None:
        call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages: list[Any] = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        if answered:
            messages.append({"role": "tool", "tool_call_id": name, "content": "found"})
        answer = self.chat.append(*messages)
        for index, message in enumerate(messages):
            self.live.append(message)
            self.then[answer.first + index] = list(self.live)

    @rule()
    def repair(self) -> None:
        wanted = apply_fixes(self.live, find_fixes(self.live))
        self.chat.repair()
        self.live = wanted
        assert self.chat.validate() == []
        self.noted()

    @rule()
    def a_new_process(self) -> None:
        self.chat = self.store.conversation(self.chat.id)

    @rule()
    def the_other_process_goes_on(self) -> None:
        self.chat, self.other = self.other, self.chat

    @rule()
    def summarize(self) -> None:
        before = self.chat.version()
        if self.chat.summarize(lambda messages: f"{len(messages)} messages", keep_last=2):
            assert self.chat.version() == before + 1
        self.noted()

    @invariant()
    def reads_agree(self) -> None:
        assert self.chat.messages() == self.live
        assert self.other.count() == len(self.live)
        assert self.chat.messages(last=3) == self.live[-3:]
        assert self.chat.count() == len(self.live)
        entries = self.chat.entries()
        assert [entry.message for entry in entries] == self.live
        assert len({entry.version for entry in entries}) == len(entries)

    @invariant()
    def system_prompt_and_pins_are_in_every_window(self) -> None:
        pinned = [entry.message for entry in self.chat.entries() if entry.pinned]
        leading = 0
        while leading < len(self.live) and self.live[leading]["role"] == "system":
            leading += 1
        mended = apply_fixes(self.live, find_fixes(self.live))
        newest = max((i for i, m in enumerate(self.live) if m["role"] == "user"), default=0)
        budget = len(pinned) + len(mended) - newest + 1
        window = self.chat.window(budget, counter=lambda message: 1)
        assert len(window) <= budget
        for message in [*self.live[:leading], *pinned]:
            assert message in window

    def teardown(self) -> None:
        self.store.close()


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    max_examples=examples(25),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
