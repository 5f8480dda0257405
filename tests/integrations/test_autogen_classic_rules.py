"""The finer rules of persisted chats of classic AutoGen; collected where `test_autogen_classic.py`
is."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.model_server import ModelServer
from holdfast.integrations.autogen_classic import persisted

from .classic_plays import Cut, actor, calls, cut, group, group_in_async_code, text, tools
from .classic_program import autogen, memory_of, model_at

NEW_CLASSIC = os.environ["HOLDFAST_FRAMEWORK"] != "classic-agentchat"


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def couple(server: ModelServer | None = None) -> tuple[Any, Any]:
    """An assistant, with a model if there is one, and a user."""
    brain: dict[str, Any] = {"llm_config": model_at(server.base_url)} if server else {}
    return (
        autogen.AssistantAgent("assistant", system_message="Be kind.", **brain)
        if server
        else actor("assistant")
    ), actor("user")


def texts(messages: list[Any]) -> list[Any]:
    return [message["content"] for message in messages]


# -- what the model sees ---------------------------------------------------------------------------


def test_after_a_restart_the_model_is_shown_the_past(
    store: holdfast.Store, server: ModelServer
) -> None:
    for question in ("My name is Ada.", "What is my name?"):
        assistant, user = couple(server)
        with persisted(store, "chat", assistant, user):
            result = user.initiate_chat(assistant, message=question, max_turns=1, silent=True)
    assert texts(server.shown()[1]) == [
        "Be kind.",
        "My name is Ada.",
        "seen 2 messages; last: My name is Ada.",
        "What is my name?",
    ]
    assert texts(result.chat_history) == [
        *texts(server.shown()[1])[1:],
        "seen 4 messages; last: What is my name?",
    ]


def test_what_is_stored_is_the_view_of_the_agent_that_is_named_first(store: holdfast.Store) -> None:
    play = tools()
    with persisted(store, "chat", *play.persisted) as chat:
        play.begin()
    assistant, user = play.agents
    assert (
        chat.conversation.messages()
        == assistant.chat_messages[user]
        != user.chat_messages[assistant]
    )
    assert chat.conversation.validate() == []
    senders = [(entry.meta["from"], entry.meta["to"]) for entry in chat.conversation.entries()]
    assert senders == [("user", "assistant"), ("assistant", "user")] * 4


def test_a_model_error_leaves_the_exchange_pending_and_the_same_call_goes_on_with_it(
    store: holdfast.Store, server: ModelServer
) -> None:
    assistant, user = couple(server)
    server.say("one", 400)
    with persisted(store, "chat", assistant, user) as chat:
        with pytest.raises(Exception, match="400"):
            user.initiate_chat(assistant, message="Go", max_turns=3, silent=True)
        assert chat.pending is not None
        assert chat.pending["content"] == "Go"
        assert chat.conversation.count() == 3
        user.initiate_chat(assistant, message="Go", max_turns=3, silent=True)
        assert chat.pending is None
        assert chat.conversation.count() == 6
    assert [len(shown) for shown in server.shown()] == [2, 4, 4, 6]


def test_another_message_after_a_cut_leaves_what_was_said_where_it_is(
    store: holdfast.Store,
) -> None:
    first = text()
    cut(first, 3)
    with pytest.raises(Cut), persisted(store, "chat", *first.persisted):
        first.begin()
    assistant, user = couple()
    with persisted(store, "chat", assistant, user) as chat:
        assert chat.pending == {"content": "Hello", "role": "user", "name": "user"}
        said = texts(chat.conversation.messages())
        user.initiate_chat(assistant, message="Something else", max_turns=1, silent=True)
        assert chat.pending is None
    assert texts(assistant.chat_messages[user]) == [
        *said,
        "Something else",
        f"assistant: {len(said) + 1} messages; Something else",
    ]


def test_an_exchange_whose_end_was_not_noted_any_more_is_not_asked_for_again(
    store: holdfast.Store, server: ModelServer
) -> None:
    for _ in range(2):
        assistant, user = couple(server)
        with persisted(store, "chat", assistant, user):
            result = user.initiate_chat(assistant, message="Go", max_turns=2, silent=True)
        [note] = store.states()
        store.state(note.id).clear()
    assert len(server.requests) == 2
    assert len(result.chat_history) == store.conversation("chat").count() == 4


def test_fewer_turns_than_were_stored_lose_nothing(store: holdfast.Store) -> None:
    first = text()
    cut(first, 5)
    with pytest.raises(Cut), persisted(store, "chat", *first.persisted):
        first.begin()
    assistant, user = couple()
    with persisted(store, "chat", assistant, user) as chat:
        user.initiate_chat(assistant, message="Hello", max_turns=1, silent=True)
        assert chat.conversation.count() == 5
        assert assistant.chat_messages[user] == chat.conversation.messages()
        user.send("more", assistant, silent=True)
    assert texts(assistant.chat_messages[user])[-1] == "more"


def test_hooks_of_the_program_are_applied_once(store: holdfast.Store) -> None:
    def number(sender: Any, message: Any, recipient: Any, silent: bool) -> Any:
        content = message if isinstance(message, str) else message["content"]
        return f"{content}!"

    for at in (3, 0):
        play = text()
        for agent in play.agents:
            agent.register_hook("process_message_before_send", number)
        cut(play, at)
        try:
            with persisted(store, "chat", *play.persisted) as chat:
                play.begin()
        except Cut:
            pass
    said = texts(chat.conversation.messages())
    assert said[0] == "Hello!"
    assert [content.count("!") for content in said] == list(
        range(1, 7)
    )  # each quotes the one before
    assert play.agents[0].chat_messages[play.agents[1]] == chat.conversation.messages()


def test_a_template_is_sent_as_in_a_chat_that_was_not_cut(
    store: holdfast.Store, server: ModelServer
) -> None:
    def chat(id: str, at: int) -> Any:
        assistant, user = couple(server)
        assistant.llm_config["allow_format_str_template"] = True
        assistant.client._config_list[0]["allow_format_str_template"] = True
        count = 0

        def listen(*_: Any, **__: Any) -> tuple[bool, None]:
            nonlocal count
            count += 1
            if count == at:
                raise Cut
            return False, None

        for agent in (assistant, user):
            agent.register_reply([autogen.Agent, None], listen, position=0)
        message = {"content": "Hello {who}", "context": {"who": "Ada"}}
        with persisted(store, id, assistant, user):
            user.initiate_chat(assistant, message=message, max_turns=3, silent=True)
        return memory_of(assistant, user)

    whole = chat("whole", 0)
    asked = server.shown()
    assert "Hello Ada" in texts(asked[0])
    for at in range(1, 6):
        with pytest.raises(Cut):
            chat(f"cut {at}", at)
        assert chat(f"cut {at}", 0) == whole
        assert server.shown()[-3:] == asked


# -- clearing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("awaited", [False, True])
def test_clear_history_clears_the_stored_chat_only_if_it_is_asked_for(
    store: holdfast.Store, awaited: bool
) -> None:
    def begin(user: Any, *args: Any, **options: Any) -> None:
        if awaited:
            asyncio.run(user.a_initiate_chat(*args, **options, max_turns=1, silent=True))
        else:
            user.initiate_chat(*args, **options, max_turns=1, silent=True)

    assistant, user = couple()
    with persisted(store, "chat", assistant, user) as chat:
        begin(user, assistant, message="one")
        begin(user, assistant, message="two")
        assert chat.conversation.count() == 4
        begin(user, assistant, message="three", clear_history=True)
        assert texts(chat.conversation.messages()) == ["three", "assistant: 1 messages; three"]
        begin(user, assistant, True, message="four")
        begin(user, recipient=assistant, clear_history=False, message="five")
        assert texts(chat.conversation.messages())[::2] == ["four", "five"]
        assert assistant.chat_messages[user] == chat.conversation.messages()
    assert [entry.message["content"] for entry in chat.conversation.follow(timeout=0)][::2] == [
        "one", "two", "three", "four", "five"
    ]  # fmt: skip


def test_a_chat_that_is_deleted_leaves_nothing_to_the_next_of_its_name(
    store: holdfast.Store,
) -> None:
    assistant, user = couple()
    with persisted(store, "chat", assistant, user):
        user.initiate_chat(assistant, message="Hello", silent=True, max_turns=2)
    store.conversation("chat").delete()
    second = text()
    cut(second, 2)
    with pytest.raises(Cut), persisted(store, "chat", *second.persisted):
        second.begin()
    third = text()
    with persisted(store, "chat", *third.persisted) as chat:
        assert chat.pending
        third.begin()
    assert chat.conversation.count() == 6


def test_clearing_ends_what_was_pending(store: holdfast.Store) -> None:
    first = text()
    cut(first, 2)
    with pytest.raises(Cut), persisted(store, "chat", *first.persisted):
        first.begin()
    assistant, user = couple()
    with persisted(store, "chat", assistant, user) as chat:
        user.initiate_chat(assistant, message="Hello", clear_history=True, max_turns=1, silent=True)
        assert chat.conversation.count() == 2
    with persisted(store, "chat", assistant, user) as chat:
        assert chat.pending is None


def test_run_keeps_the_history_too(store: holdfast.Store) -> None:
    assistant, user = couple()
    if not NEW_CLASSIC:
        assert not hasattr(user, "run")
        return
    with persisted(store, "chat", assistant, user) as chat:
        for question in ("one", "two"):
            user.run(assistant, message=question, max_turns=1).process()
        for _ in user.run_iter(assistant, message="three", max_turns=1):
            pass
        assert texts(chat.conversation.messages())[::2] == ["one", "two", "three"]
        user.run(assistant, message="four", max_turns=1, clear_history=True).process()
        assert texts(chat.conversation.messages())[::2] == ["four"]


# -- the block -------------------------------------------------------------------------------------


def test_leaving_the_block_gives_the_agents_their_methods_back(store: holdfast.Store) -> None:
    play = group()
    agents = [*play.agents, play.agents[0].groupchat]
    before = [dict(vars(agent)) for agent in agents]
    for error in (None, Cut):
        try:
            with persisted(store, "chat", *play.persisted):
                assert all("generate_reply" in vars(agent) for agent in play.agents[1:])
                if error:
                    raise error
        except Cut:
            pass
        assert [vars(agent).keys() for agent in agents] == [known.keys() for known in before]


def test_a_method_that_the_program_had_replaced_is_as_it_was(store: holdfast.Store) -> None:
    assistant, user = couple()
    heard: list[Any] = []
    original = assistant.receive

    def receive(*args: Any, **options: Any) -> None:
        heard.append(args[0])
        original(*args, **options)

    assistant.receive = receive
    with persisted(store, "chat", assistant, user):
        user.initiate_chat(assistant, message="Hello", max_turns=1, silent=True)
    assert heard == ["Hello"]
    assert assistant.receive is receive


def test_one_user_talks_to_two_assistants_in_two_blocks_that_end_in_any_order(
    store: holdfast.Store,
) -> None:
    user, one, other = actor("user"), actor("one"), actor("other")
    with ExitStack() as blocks:
        first, second = (
            persisted(store, "first", one, user),
            persisted(store, "second", user, other),
        )
        blocks.enter_context(first)
        with second:
            user.initiate_chat(one, message="to one", max_turns=1, silent=True)
            user.initiate_chat(other, message="to the other", max_turns=1, silent=True)
        user.initiate_chat(other, message="not stored", max_turns=1, silent=True)
        user.initiate_chat(one, message="again", max_turns=1, silent=True)
    assert texts(first.conversation.messages())[::2] == ["to one", "again"]
    assert texts(second.conversation.messages())[::2] == ["to the other"]
    assert (
        texts(user.chat_messages[other])[0] == "not stored"
    )  # outside its block the framework clears
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    user.initiate_chat(one, message="not stored", max_turns=1, silent=True)
    user.initiate_chat(other, message="stored", max_turns=1, silent=True)
    second.__exit__(None, None, None)
    user.initiate_chat(other, message="not stored", max_turns=1, silent=True)
    assert first.conversation.count() == 4
    assert texts(second.conversation.messages())[::2] == ["to the other", "stored"]


def test_a_block_can_be_entered_again_but_not_twice_at_once(store: holdfast.Store) -> None:
    assistant, user = couple()
    chat = persisted(store, "chat", assistant, user)
    for question in ("one", "two"):
        with chat:
            user.initiate_chat(assistant, message=question, max_turns=1, silent=True)
            with (
                pytest.raises(RuntimeError, match="leave it first"),
                persisted(store, "other", user, assistant),
            ):
                pass
    assert texts(chat.conversation.messages())[::2] == ["one", "two"]
    assert store.conversation("other").messages() == []


def test_the_same_agents_serve_many_chats_one_after_the_other(store: holdfast.Store) -> None:
    assistant, user = couple()
    for name in ("a", "b", "a"):
        with persisted(store, name, assistant, user) as chat:
            user.initiate_chat(assistant, message=f"in {name}", max_turns=1, silent=True)
            assert assistant.chat_messages[user] == chat.conversation.messages()
    assert texts(chat.conversation.messages()) == [
        "in a", "assistant: 1 messages; in a", "in a", "assistant: 3 messages; in a"
    ]  # fmt: skip


def test_the_order_of_the_agents_may_change(store: holdfast.Store) -> None:
    play = tools()
    with persisted(store, "chat", *play.persisted):
        play.begin()
    again = tools()
    with persisted(store, "chat", *reversed(again.persisted)):
        assert again.memory() == play.memory()


def test_after_a_cut_a_chat_goes_on_by_send_as_it_would_have_without_a_restart(
    store: holdfast.Store,
) -> None:
    plays = []
    for name in ("whole", "chat"):
        first = text()
        cut(first, 4)
        with persisted(store, name, *first.persisted):
            with pytest.raises(Cut):
                first.begin()
            if name == "whole":
                first.agents[1].send("more", first.agents[0], request_reply=True, silent=True)
        plays.append(first)
    again = text()
    with persisted(store, "chat", *again.persisted):
        again.agents[1].send("more", again.agents[0], request_reply=True, silent=True)
    assert again.memory() == plays[0].memory()


def test_a_chat_goes_on_by_send_as_it_would_have_without_a_restart(store: holdfast.Store) -> None:
    def play() -> tuple[Any, Any]:
        return actor("assistant"), actor("user", max_consecutive_auto_reply=2)

    whole = play()
    with persisted(store, "whole", *whole):
        whole[1].initiate_chat(whole[0], message="Hello", silent=True)
        whole[1].send("more", whole[0], silent=True)
    first, second = play(), play()
    with persisted(store, "chat", *first):
        first[1].initiate_chat(first[0], message="Hello", silent=True)
    with persisted(store, "chat", *second):
        second[1].send("more", second[0], silent=True)  # nobody says that a reply is wanted
    assert memory_of(*second) == memory_of(*whole)


def test_a_queue_of_chats_is_stored_where_it_is_persisted(store: holdfast.Store) -> None:
    user, one, other = actor("user"), actor("one"), actor("other")
    queue = [
        {"recipient": agent, "message": f"to {agent.name}", "max_turns": 1, "silent": True}
        for agent in (other, one)
    ]
    with persisted(store, "chat", one, user) as chat:
        user.initiate_chats(queue)
    said = texts(chat.conversation.messages())
    assert said[0].startswith("to one")
    assert "other: 1 messages" in said[0]  # what was carried over from the chat that is not stored


def test_context_variables_come_back_as_far_as_they_are_json(store: holdfast.Store) -> None:
    if not NEW_CLASSIC:
        assert not hasattr(actor("user"), "context_variables")
        return

    def play() -> tuple[Any, Any]:
        assistant, user = actor("assistant", calls(1), calls(2), "fine"), actor("user")
        assistant.context_variables.update({"counts": [], "handle": object(), "once": True})

        def tally(n: int) -> str:
            assistant.context_variables.get("counts").append(n)
            if n == 2:
                assistant.context_variables.remove("once")
            return "tallied"

        user.register_function({"tally": tally})
        return assistant, user

    for at in (2, 2, 2, 2, 0):  # before the first tool, after it, before the second, after it
        assistant, user = play()
        count = 0

        def listen(*_: Any, at: int = at, **__: Any) -> tuple[bool, None]:
            nonlocal count
            count += 1
            if count == at:
                raise Cut
            return False, None

        for agent in (assistant, user):
            agent.register_reply([autogen.Agent, None], listen, position=0)
        try:
            with persisted(store, "chat", assistant, user):
                user.initiate_chat(assistant, message="Count", max_turns=3, silent=True)
        except Cut:
            pass
    for _ in range(2):
        assert assistant.context_variables.get("counts") == [1, 2]
        assert assistant.context_variables.contains("handle")
        assert not assistant.context_variables.contains("once")
        assistant, user = play()
        with persisted(store, "chat", assistant, user):
            pass


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("awaited", [False, True])
def test_what_is_not_json_is_refused_before_anybody_has_heard_it(
    store: holdfast.Store, awaited: bool
) -> None:
    assistant, user = couple()
    with persisted(store, "chat", assistant, user) as chat:
        user.initiate_chat(assistant, message="Hello", max_turns=1, silent=True)
        before = [list(assistant.chat_messages[user]), list(user.chat_messages[assistant])]
        message = {"content": lambda context: "secret", "context": {}}
        with pytest.raises(holdfast.errors.NotSerializable) as refused:
            if awaited:
                asyncio.run(
                    user.a_initiate_chat(assistant, message=message, max_turns=1, silent=True)
                )
            else:
                user.send(message, assistant, silent=True)
        assert "secret" not in str(refused.value)
        assert [assistant.chat_messages[user], user.chat_messages[assistant]] == before
        user.initiate_chat(assistant, message="Go on", max_turns=1, silent=True)
    assert chat.conversation.count() == 4


def test_if_somebody_else_has_added_to_the_chat_the_next_message_is_not_sent(
    store: holdfast.Store,
) -> None:
    assistant, user = couple()
    with persisted(store, "chat", assistant, user) as chat:
        user.initiate_chat(assistant, message="Hello", max_turns=1, silent=True)
        store.conversation("chat").append({"role": "user", "content": "I am another"})
        before = [list(assistant.chat_messages[user]), list(user.chat_messages[assistant])]
        with pytest.raises(holdfast.Conflict):
            user.initiate_chat(assistant, message="Lost", max_turns=1, silent=True)
        assert [assistant.chat_messages[user], user.chat_messages[assistant]] == before
        assert chat.conversation.count() == 3
    with persisted(store, "chat", assistant, user) as chat:
        user.initiate_chat(assistant, message="Not lost", max_turns=1, silent=True)
    assert texts(chat.conversation.messages())[2:4] == ["I am another", "Not lost"]


def test_a_turn_and_a_time_to_live_do_not_count_as_somebody_else(store: holdfast.Store) -> None:
    assistant, user = couple()
    conversation = store.conversation("chat")
    with conversation.turn(), persisted(store, "chat", assistant, user) as chat:
        user.initiate_chat(assistant, message="one", max_turns=1, silent=True)
        conversation.expire(3600)
        user.initiate_chat(assistant, message="two", max_turns=1, silent=True)
    assert chat.conversation.count() == 4


def test_what_is_not_sent_is_refused(store: holdfast.Store) -> None:
    assistant, user = couple()
    with persisted(store, "chat", assistant, user) as chat, pytest.raises(ValueError, match="send"):
        assistant.receive("Hello", user, request_reply=True)
    assert chat.conversation.count() == 0


def test_agents_that_do_not_fit_are_refused(store: holdfast.Store) -> None:
    assistant, user = couple()
    with pytest.raises(TypeError, match=r"holdfast\.integrations\.autogen"):
        persisted(store, "chat", assistant, object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a store .*, got str"):
        persisted("chat", store, assistant, user)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two agents"):
        persisted(store, "chat", assistant)
    with pytest.raises(ValueError, match="called 'user'"):
        persisted(store, "chat", user, actor("user"))
    with persisted(store, "chat", assistant, user):
        user.initiate_chat(assistant, message="Hello", max_turns=1, silent=True)
    with (
        pytest.raises(ValueError, match="'user', who is not one of"),
        persisted(store, "chat", assistant, actor("Ada")),
    ):
        pass
    assert "receive" not in vars(assistant)


def test_a_conversation_of_another_kind_is_refused(store: holdfast.Store) -> None:
    store.conversation("chat").append(
        {"type": "function_call_output", "call_id": "1", "output": "x"}
    )
    with pytest.raises(ValueError, match="version 1"), persisted(store, "chat", *couple()):
        pass


@pytest.mark.parametrize("side", ["assistant", "user"])
def test_a_chat_from_a_file_goes_on_whichever_side_it_was_saved_from(
    store: holdfast.Store, tmp_path: Path, side: str
) -> None:
    whole = tools()
    whole.begin()
    assistant, user = whole.agents
    saved = assistant.chat_messages[user] if side == "assistant" else user.chat_messages[assistant]
    (tmp_path / "chat.json").write_text(json.dumps({side: saved}))
    store.conversation("chat").import_json(tmp_path / "chat.json")
    again = tools()
    with persisted(store, "chat", *again.persisted) as chat:
        assert chat.pending is None
        assert again.agents[0].chat_messages[again.agents[1]] == assistant.chat_messages[user]
        assert again.agents[1].chat_messages[again.agents[0]] == user.chat_messages[assistant]


def test_a_chat_that_a_plain_loop_has_stored_goes_on(store: holdfast.Store) -> None:
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None, "tool_calls": calls(1)["tool_calls"]},
        {"role": "tool", "tool_call_id": "call_1", "content": "tallied 1"},
        {"role": "assistant", "content": "One."},
    ]
    store.conversation("chat").append(*said)
    assistant, user = couple()
    with persisted(store, "chat", assistant, user):
        assert assistant.chat_messages[user] == said
        assert [message["role"] for message in user.chat_messages[assistant]] == [
            "system", "assistant", "assistant", "tool", "user"
        ]  # fmt: skip


# -- groups ----------------------------------------------------------------------------------------


def test_who_speaks_next_is_not_asked_again(store: holdfast.Store, server: ModelServer) -> None:
    """The model chooses the speakers. It is asked once for each choice, and the next one is asked
    as without a cut."""
    for at in (4, 0):
        user, writer, critic = actor("user"), actor("writer"), actor("critic")
        chat = autogen.GroupChat(
            [user, writer, critic], messages=[], max_round=5, speaker_selection_method="auto"
        )
        manager = autogen.GroupChatManager(chat, llm_config=model_at(server.base_url), silent=True)
        count = 0

        def listen(*_: Any, at: int = at, **__: Any) -> tuple[bool, None]:
            nonlocal count
            count += 1
            if count == at:
                raise Cut
            return False, None

        for agent in (user, writer, critic):
            agent.register_reply([autogen.Agent, None], listen, position=0)
        server.say(*(["writer", "critic", "writer", "critic"] if at else ["critic"]))
        try:
            with persisted(store, "chat", manager) as stored:
                user.initiate_chat(manager, message="Write", silent=True)
        except Cut:
            pass
    assert [entry.meta["from"] for entry in stored.conversation.entries()] == [
        "user",
        "writer",
        "critic",
        "writer",
        "critic",
    ]
    assert (
        len(server.requests) == 5
    )  # four choices, and the last of them once more: who was chosen had not spoken


@pytest.mark.parametrize("awaited", [False, True])
def test_a_group_chat_that_has_ended_goes_on_through_resume(
    store: holdfast.Store, awaited: bool
) -> None:
    first = group()
    with persisted(store, "chat", *first.persisted):
        first.begin()
    again = group()
    manager = again.agents[0]
    with persisted(store, "chat", *again.persisted) as chat:
        with pytest.raises(ValueError, match=r"groupchat\.messages"):
            manager.resume(messages=[{"role": "user", "name": "user", "content": "never said"}])
        messages = manager.groupchat.messages
        if awaited:

            async def go_on() -> None:
                speaker, message = await manager.a_resume(messages=messages, silent=True)
                await speaker.a_initiate_chat(
                    manager, message=message, clear_history=False, silent=True
                )

            asyncio.run(go_on())
        else:
            speaker, message = manager.resume(messages=messages, silent=True)
            speaker.initiate_chat(manager, message=message, clear_history=False, silent=True)
    said = [entry.meta["from"] for entry in chat.conversation.entries()]
    assert said == ["user", "writer", "critic"] * 4 + ["user"]
    assert texts(chat.conversation.messages()) == texts(manager.groupchat.messages)
    third = group()
    with persisted(store, "chat", *third.persisted):
        assert third.memory() == again.memory()


def test_what_is_sent_after_resume_takes_the_place_of_the_last_word(store: holdfast.Store) -> None:
    first = group_in_async_code()
    with persisted(store, "chat", *first.persisted):
        first.begin()
    again = group_in_async_code()
    manager = again.agents[0]
    with persisted(store, "chat", *again.persisted) as chat:
        before = texts(chat.conversation.messages())
        speaker, message = manager.resume(
            messages=manager.groupchat.messages,
            remove_termination_string=lambda _: "no end yet",
            silent=True,
        )
        speaker.initiate_chat(manager, message=message, clear_history=False, silent=True)
    after = texts(chat.conversation.messages())
    assert before[-1] == "TERMINATE"
    assert after[: len(before)] == [*before[:-1], "no end yet"]
    assert len(after) > len(before)
    assert texts(manager.groupchat.messages) == after
    third = group_in_async_code()
    with persisted(store, "chat", *third.persisted):
        assert third.memory() == again.memory()


def test_who_is_not_in_the_group_must_be_named(store: holdfast.Store) -> None:
    play = group()
    guest = actor("guest")
    with (
        persisted(store, "chat", *play.persisted) as chat,
        pytest.raises(ValueError, match="'guest'"),
    ):
        guest.initiate_chat(play.agents[0], message="Hello", silent=True)
    assert chat.conversation.count() == 0


def test_clear_history_clears_a_stored_group_chat(store: holdfast.Store) -> None:
    play = group()
    manager, user = play.agents[:2]
    with persisted(store, "chat", *play.persisted) as chat:
        play.begin()
        user.initiate_chat(manager, message="Again", silent=True)
        assert chat.conversation.count() == len(manager.groupchat.messages) == 14
        user.initiate_chat(manager, message="Anew", clear_history=True, silent=True)
        assert chat.conversation.count() == len(manager.groupchat.messages) == 7
