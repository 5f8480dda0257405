"""JSON files of messages: every form that people have, every way in which a file breaks, and
writing whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.example_counts import examples
from holdfast.conversations.json_files import encode_json_list, read_messages, write_atomically
from holdfast.errors import CorruptFile

HELLO: dict[str, Any] = {"role": "user", "content": "Grüße, \U0001f980"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'},
        }
    ],
}
RESULT: dict[str, Any] = {
    "content": "3",
    "tool_responses": [{"tool_call_id": "call_1", "role": "tool", "content": "3"}],
    "role": "tool",
    "name": "proxy",
}
PARTS: dict[str, Any] = {
    "content": [{"type": "text", "text": 'a "]}\\" b'}, {"type": "text", "text": ""}],
    "role": "user",
}
CHAT = [HELLO, CALL, RESULT, PARTS]


def dumped(value: object, **options: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, **options).encode()


def lines(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(dumped(message) + b"\n" for message in messages)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.json"


# -- the forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        dumped(CHAT),
        dumped(CHAT, indent=2),
        json.dumps(CHAT).encode(),  # with \u escapes
        lines(CHAT),
        lines(CHAT).replace(b"\n", b"\r\n\r\n"),
        lines(CHAT).rstrip(),
        lines(CHAT).replace(b"\n", b""),  # json.dump to a file in append mode
        dumped({"messages": CHAT}),
        dumped(
            {"model": "m", "messages": CHAT, "tools": [{"type": "function"}], "temperature": 0.5}
        ),
        dumped({"type": "conversation", "version": 3, "messages": CHAT}),
        dumped(
            {
                "chat_id": 7,
                "chat_history": CHAT,
                "summary": "",
                "cost": {"usage": {"total_cost": 0}},
            }
        ),
        dumped({"history": CHAT}),
        dumped({"conversation": CHAT}),
        dumped({"user_proxy": CHAT}),
        dumped({"assistant": {"user_proxy": CHAT}}),
        dumped({"user_proxy": CHAT, "critic": []}),
        b"\xef\xbb\xbf" + dumped(CHAT),
        json.dumps(CHAT, ensure_ascii=False).encode("utf-16"),
        "\ufeff".encode("utf-16-be") + json.dumps(CHAT, ensure_ascii=False).encode("utf-16-be"),
        b" \r\n\t" + dumped(CHAT) + b"\n\n",
    ],
)
def test_each_common_form_gives_the_messages(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    for salvage in (False, True):
        read = read_messages(path, salvage=salvage)
        assert read.messages == CHAT
        assert read.complete
        assert read.digest == hashlib.sha256(raw).hexdigest()
    assert path.read_bytes() == raw


PAIRS = {
    "assistant": {"user_proxy": CHAT[:2], "critic": CHAT[:1]},
    "user_proxy": {"assistant": CHAT},
}


def test_of_several_lists_one_must_be_chosen_by_name(path: Path) -> None:
    path.write_bytes(dumped(PAIRS))
    for salvage in (False, True):
        with pytest.raises(
            ValueError, match=r"'assistant/user_proxy', 'assistant/critic', 'user_proxy/assistant'$"
        ):
            read_messages(path, salvage=salvage)
    assert read_messages(path, pair="assistant/user_proxy").messages == CHAT[:2]
    assert read_messages(path, pair="user_proxy/assistant").messages == CHAT
    with pytest.raises(ValueError, match=r"pair must be one of .*'assistant/critic'.*got 'nobody'"):
        read_messages(path, pair="nobody")

    path.write_bytes(dumped({"user_proxy": CHAT, "critic": CHAT[:1], "idle": []}))
    assert read_messages(path, pair="critic").messages == CHAT[:1]
    assert read_messages(path, pair="idle").messages == []


def test_a_name_for_the_only_unnamed_list_is_a_mistake(path: Path) -> None:
    for raw in (dumped(CHAT), lines(CHAT)):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match="pair must be omitted"):
            read_messages(path, pair="critic")


def test_a_message_that_holds_lists_is_a_message(path: Path) -> None:
    for message in (
        RESULT,
        PARTS,
        {"content": [{"role": "x", "content": "y"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "content": "x"}]},
        {"role": "user", "history": [{"role": "user"}]},
        {"parts": [{"content": "hi", "part_kind": "user-prompt"}], "kind": "request"},
    ):
        path.write_bytes(lines([message]))
        assert read_messages(path).messages == [message]


def test_an_object_that_is_no_message_is_refused(path: Path) -> None:
    what = "an object without role, type or content is not a message"
    for other in (
        {"model": "x", "api_key": "secret"},
        {"text": "hi", "attachments": []},
        {"tags": ["a", "b"]},
        {"session": {"id": 1, "tools": [{"type": "function"}]}},
    ):
        check_damaged(path, dumped(other), [], what, at=0)
        check_damaged(path, lines([HELLO, other]), [HELLO], what, at=len(lines([HELLO])))
        check_damaged(path, dumped([HELLO, other]), [HELLO], what, at=len(dumped([HELLO])) + 1)
    check_damaged(path, lines([{"session": "a", "turns": CHAT}] * 2), [], what, at=0)


def test_a_list_under_an_unknown_name_beside_other_things_must_be_chosen(path: Path) -> None:
    for other, name in (
        ({"session": "a", "turns": CHAT}, "turns"),
        ({"turns": CHAT, "tags": ["a"]}, "turns"),
        ({"session": {"id": 1, "turns": CHAT}}, "session/turns"),
        ({"messages": [], "turns": CHAT}, "turns"),
    ):
        path.write_bytes(dumped(other))
        with pytest.raises(
            ValueError, match=rf"among other data; choose them with pair=, from .*'{name}'$"
        ):
            read_messages(path)
        assert read_messages(path, pair=name).messages == CHAT
    path.write_bytes(dumped({"session": "a", "turns": CHAT})[:-2])
    assert read_messages(path, pair="turns", salvage=True).messages == CHAT


def test_lists_of_messages_beside_the_usual_one_are_not_ignored(path: Path) -> None:
    path.write_bytes(
        dumped({"model": "m", "messages": CHAT, "tools": [{"type": "function"}], "turns": CHAT[:1]})
    )
    with pytest.raises(
        ValueError,
        match=r"several lists of messages; choose one with pair=, from 'messages', 'turns'$",
    ):
        read_messages(path)
    assert read_messages(path, pair="messages").messages == CHAT
    assert read_messages(path, pair="turns").messages == CHAT[:1]


def test_no_messages_is_not_an_error(path: Path) -> None:
    for raw in (b"[]", b" [ ] ", b'{"messages": []}', b'{"user_proxy": [], "critic": []}'):
        path.write_bytes(raw)
        assert read_messages(path).messages == []


# -- damage ----------------------------------------------------------------------------------------


def check_damaged(
    path: Path, raw: bytes, readable: list[dict[str, Any]], what: str, at: int | None = None
) -> None:
    path.write_bytes(raw)
    with pytest.raises(CorruptFile) as caught:
        read_messages(path)
    assert what in caught.value.what
    assert at is None or caught.value.offset == at
    assert caught.value.path == str(path)
    assert "salvage=True" in str(caught.value)
    salvaged = read_messages(path, salvage=True)
    assert salvaged.messages == readable
    assert not salvaged.complete
    assert salvaged.digest == hashlib.sha256(raw).hexdigest()
    assert path.read_bytes() == raw


def test_damage_is_reported_with_its_place(path: Path) -> None:
    raw = dumped(CHAT, indent=1)
    at = raw.index(b"call_1")
    check_damaged(path, raw[:at] + b'"' + raw[at:], CHAT[:1], "not valid JSON", at=at + 1)
    line = raw[: at + 1].count(b"\n") + 1
    column = at + 1 - raw.rindex(b"\n", 0, at)
    with pytest.raises(
        CorruptFile, match=rf"byte {at + 1}: not valid JSON \(line {line}, column {column}\)"
    ):
        read_messages(path)


@pytest.mark.parametrize(
    "form", [dumped(CHAT), lines(CHAT), dumped({"messages": CHAT}), dumped({"proxy": CHAT})]
)
def test_a_tail_of_nul_bytes_is_damage(path: Path, form: bytes) -> None:
    for keep in (form.index(b"tool_calls"), form.rindex(b'"role"'), len(form)):
        readable = [
            message for message, end in zip(CHAT, ends(form, CHAT), strict=True) if end <= keep
        ]
        check_damaged(
            path, form[:keep] + bytes(4096), readable, "NUL" if keep == len(form) else "", at=None
        )


def test_what_follows_after_the_end_is_damage(path: Path) -> None:
    for form in (dumped(CHAT), dumped({"messages": CHAT}), dumped({"proxy": CHAT})):
        for rest in (b"]", b'"tail of an older, longer file"}]', b"\n" + form):
            check_damaged(
                path,
                form + rest,
                CHAT,
                "unexpected data after",
                at=len(form) + rest.startswith(b"\n"),
            )
    check_damaged(path, lines(CHAT) + b"[]", CHAT, "a JSON object on each line")


def test_an_unusable_file_gives_nothing(path: Path) -> None:
    check_damaged(path, b"", [], "empty", at=0)
    check_damaged(path, b" \n", [], "ends in the middle")
    check_damaged(path, bytes(512), [], "NUL")
    check_damaged(path, b"\xff\xfe\x00\xd8", [], "not UTF-16-LE")
    check_damaged(path, json.dumps(CHAT).encode("utf-16-le"), [], "NUL")
    for raw in (b"hello", b"3", b'"text"', b"null", b"\x80\x04\x95pickle"):
        check_damaged(path, raw, [], "", at=0)
    with pytest.raises(FileNotFoundError):
        read_messages(path.with_name("missing.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "what"),
    [
        (b'{"role": "user", "score": NaN}', "NaN"),
        (b'{"role": "user", "score": -Infinity}', "-Infinity"),
        (b'{"role": "user", "score": 1e999}', "$.score"),
        (b'{"role": "user", "n": 18446744073709551616}', "$.n"),
        (b'{"role": "user", "n": ' + b"9" * 100_000 + b"}", "beyond 64 bits"),
        (b'{"role": "user", "role": "user"}', "twice"),
        (b'{"role": "user", "meta": {"a": 1, "a": 2}}', "twice"),
        (b'{"role": "user", "content": "\\ud83e"}', "lone surrogate"),
        (b'{"role": "user", "\\ud83e": 1}', "lone surrogate"),
        (b'{"role": "user", "deep": ' + b"[" * 100 + b"]" * 100 + b"}", "deeper than 100"),
        (
            b'{"role": "user", "deep": ' + b'{"\\"[":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
            "deeper than 100",
        ),
        (b'{"role": "user", "content": "' + b"x" * (16 << 20) + b'"}', "16777216"),
        (b"{}", "message 2 is not a JSON object, or is empty"),
    ],
    ids=range(13),
)
def test_what_cannot_be_stored_is_refused_where_it_is(
    path: Path, message: bytes, what: str
) -> None:
    hello = dumped(HELLO)
    check_damaged(path, b"[%s, %s, %s]" % (hello, message, hello), [HELLO], what, at=len(hello) + 3)
    check_damaged(path, b"%s\n%s\n%s" % (hello, message, hello), [HELLO], what, at=len(hello) + 1)
    check_damaged(
        path, b'{"messages":[%s,%s]}' % (hello, message), [HELLO], what, at=len(hello) + 14
    )


@pytest.mark.parametrize("item", [b'"hi"', b"3", b"null", b"[]", b"[{}]"])
def test_an_item_that_is_no_object_is_refused(path: Path, item: bytes) -> None:
    check_damaged(
        path, b"[" + dumped(HELLO) + b"," + item + b"]", [HELLO], "message 2 is not a JSON object"
    )


def test_the_largest_integers_and_the_deepest_nesting_that_can_be_stored_are_read(
    path: Path,
) -> None:
    deep: dict[str, Any] = {"n": [2**64 - 1, -(2**63)]}
    for _ in range(98):
        deep = {"content": deep}
    path.write_bytes(dumped([deep]))
    assert read_messages(path).messages == [deep]


def test_a_name_that_comes_twice_is_damage(path: Path) -> None:
    raw = dumped({"proxy": [HELLO]})[:-1] + b', "proxy": [' + dumped(CALL) + b"]}"
    check_damaged(path, raw, [HELLO], "the same name twice")


def test_errors_hold_no_content(path: Path) -> None:
    secret = b"hunter2"
    for raw in (
        b'[{"role": "user", "content": "%s' % secret,
        b'[{"role": "user", "content": "%s" "}]' % secret,
        b'[{"role": "user", "content": "\\%s"}]' % secret,
        b'[{"role": "user", "content": %s}]' % secret,
        b'[{"role": "user", "content": "%s", "x": NaN}]' % secret,
        b'[{"role": "user", "content": "%s\\ud800"}]' % secret,
        b'["%s"]' % secret,
        secret,
    ):
        path.write_bytes(raw)
        with pytest.raises(CorruptFile) as caught:
            read_messages(path)
        error: BaseException | None = caught.value
        while error is not None:
            assert secret.decode() not in repr(error) + str(error)
            assert error.__suppress_context__ or error.__context__ is None
            error = error.__cause__


# -- cut anywhere ----------------------------------------------------------------------------------


def ends(raw: bytes, messages: list[dict[str, Any]]) -> list[int]:
    """Where each message ends in a file that holds them in order."""
    found, at = [], 0
    for message in messages:
        text = dumped(message)
        at = raw.index(text, at) + len(text)
        found.append(at)
    return found


FORMS: list[tuple[Callable[[list[dict[str, Any]]], bytes], str | None]] = [
    (dumped, None),
    (lines, None),
    (encode_json_list, None),
    (lambda messages: dumped({"model": "m", "messages": messages, "n": 1}), None),
    (lambda messages: dumped({"proxy": messages}), None),
    (
        lambda messages: dumped(
            {"assistant": {"proxy": messages, "critic": CHAT}, "proxy": {"x": CHAT}}
        ),
        "assistant/proxy",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "pair"), FORMS)
@pytest.mark.parametrize("messages", [CHAT, CHAT[::-1], [{"name": "x", **RESULT}, HELLO]])
def test_a_file_cut_at_any_byte_gives_exactly_the_messages_before_the_cut(
    path: Path,
    form: Callable[[list[dict[str, Any]]], bytes],
    pair: str | None,
    messages: list[dict[str, Any]],
) -> None:
    raw = form(messages)
    compact = messages if form is not encode_json_list else []
    limits = ends(raw, compact) or [
        raw.index(line) + len(line) for line in encode_json_list(messages).split(b"\n")[1:-2]
    ]
    limits = [limit - raw[limit - 1 : limit].count(b",") for limit in limits]
    whole = len(raw.rstrip())
    for keep in range(len(raw) + 1):
        path.write_bytes(raw[:keep])
        expected = [message for message, end in zip(messages, limits, strict=True) if end <= keep]
        try:
            read = read_messages(path, salvage=True, pair=pair)
        except ValueError as error:
            assert pair is not None and not expected, error  # the name itself was cut off
            continue
        assert read.messages == expected, raw[:keep]
        # Between two lines nothing shows that there were more of them.
        assert read.complete == (
            keep >= whole or (form is lines and keep in {*limits, *(n + 1 for n in limits)})
        )


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"', "\\", "]", "}", ",", "{"]
)
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
any_message = st.dictionaries(texts, values, min_size=1, max_size=4)
chat_message = any_message.map(
    lambda extra: {"role": "user", **{k: v for k, v in extra.items() if k != "role"}}
)


@pytest.mark.slow
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(messages=st.lists(chat_message, max_size=5))
@example(messages=[{"type": 1}, {"kind": -0.0}])
def test_what_is_exported_can_be_imported(path: Path, messages: list[dict[str, Any]]) -> None:
    write_atomically(path, encode_json_list(messages))
    read = read_messages(path)
    assert repr(read.messages) == repr(messages)  # tells 1 from 1.0 and True, and 0.0 from -0.0
    assert read.complete


@pytest.mark.slow
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    messages=st.lists(chat_message, min_size=1, max_size=4),
    form=st.sampled_from(FORMS[:5]),
    indent=st.sampled_from([None, 2]),
    data=st.data(),
)
def test_any_file_cut_or_overwritten_anywhere_gives_the_messages_before_that(
    path: Path,
    messages: list[dict[str, Any]],
    form: tuple[Callable[[list[dict[str, Any]]], bytes], str | None],
    indent: int | None,
    data: st.DataObject,
) -> None:
    raw = form[0](messages)
    if indent and form[0] is not lines:
        raw = dumped(json.loads(raw), indent=indent)
    keep = data.draw(st.integers(0, len(raw) - 1))
    garbage = data.draw(
        st.sampled_from([b"", b"\0" * 9, b"\xff", b"@", b'"', b"}", b"]", b"\xf0\x9f"])
    )
    path.write_bytes(raw[:keep] + garbage)
    read = read_messages(path, salvage=True)
    # A piece of a message is never taken for one; at most the garbage completed a message by
    # chance.
    assert read.messages[:-1] == messages[: max(0, len(read.messages) - 1)]
    if garbage not in (b'"', b"}", b"]"):
        assert read.messages == messages[: len(read.messages)]
        path.write_bytes(raw[:keep])
        assert read_messages(path, salvage=True).messages == read.messages


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    raw=st.binary(max_size=60)
    | st.text('[]{}",:\\ \n01e-ntrue\0rolemsag', max_size=60).map(str.encode)
)
def test_no_file_whatsoever_leads_to_another_kind_of_error(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    try:
        read = read_messages(path)
    except CorruptFile as error:
        assert 0 <= error.offset <= len(raw)
        assert not read_messages(path, salvage=True).complete
    except ValueError as error:
        assert "pair=" in str(error)
    else:
        assert read.complete


@pytest.mark.slow
def test_reading_takes_memory_in_proportion_to_the_file(path: Path) -> None:
    path.write_bytes(
        b"[" + b'{"role":"user","content":"' + b"x" * 200 + b'"},' + b'{"role":1},' * 500_000
    )
    limit = 40 * path.stat().st_size + (256 << 20)
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from holdfast.conversations.json_files import read_messages
print(len(read_messages({str(path)!r}, salvage=True).messages))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "500001\n", done.stderr


# -- writing ---------------------------------------------------------------------------------------


def test_a_new_file_is_private_and_a_replaced_one_keeps_its_permissions(path: Path) -> None:
    write_atomically(path, b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == [path.name]


def test_a_symbolic_link_stays_and_the_file_it_leads_to_is_replaced(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "real.json"
    path.symlink_to(target)
    for data in (b"made through the link", b"replaced through the link"):
        write_atomically(path, data)
        assert path.is_symlink()
        assert target.read_bytes() == data
    assert os.listdir(target.parent) == [target.name]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (tmp_path, pipe):
        with pytest.raises(ValueError, match="must be a regular file"):
            write_atomically(place, b"data")
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "no" / "such" / "folder.json", b"data")
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("call", ["fchmod", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), KeyboardInterrupt()])
def test_whatever_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        write_atomically(path, b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


def test_no_room_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # then a write past the limit fails with EFBIG
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(OSError, match="too large"):
            write_atomically(path, b"new" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


WRITER = """
import itertools, os, signal, sys
from holdfast.conversations.json_files import encode_json_list, write_atomically

path, call, when = sys.argv[1:]
if call:
    original = getattr(os, call)
    def killed(*args, **kwargs):
        if when == "after":
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(os, call, killed)
for turn in itertools.count(1):
    write_atomically(path, encode_json_list([{"role": "user", "content": str(turn)}] * 20_000))
    print(turn, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["fchmod", "fsync", "replace"])
def test_a_writer_killed_at_a_step_of_the_way_leaves_the_old_file_or_the_new_one(
    path: Path, call: str, when: str
) -> None:
    old = [{"role": "user", "content": "old"}]
    write_atomically(path, encode_json_list(old))
    writer = subprocess.run([sys.executable, "-c", WRITER, str(path), call, when], check=False)
    assert writer.returncode == -signal.SIGKILL
    new = [{"role": "user", "content": "1"}] * 20_000
    assert read_messages(path).messages == (new if (call, when) == ("replace", "after") else old)


@pytest.mark.slow
def test_a_writer_killed_at_any_instant_leaves_a_whole_file(path: Path) -> None:
    for kill in range(1, 6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), "", ""], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        try:
            written = [int(writer.stdout.readline()) for _ in range(kill)]
        finally:
            writer.kill()  # it is somewhere in its next turn by now
            written += map(int, writer.communicate()[0].split())
        read = read_messages(path)
        assert read.complete
        assert len(read.messages) == 20_000
        turns = {int(message["content"]) for message in read.messages}
        assert turns in (
            {written[-1]},
            {written[-1] + 1},
        )  # or killed between the replacement and saying so
