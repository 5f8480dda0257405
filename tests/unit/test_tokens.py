"""Token counts: the estimate is cautious and cheap, exact counting needs no network, media are not
read as text."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.conversations import tokens as _tokens
from holdfast.conversations.tokens import (
    TOKENS_PER_CALL,
    TOKENS_PER_IMAGE,
    TOKENS_PER_MESSAGE,
    default_counter,
    estimate,
    text_counter,
)

Message = dict[str, Any]


def user(content: object) -> Message:
    return {"role": "user", "content": content}


def words(text: str) -> list[str]:
    """A tokenizer by which each word is a token."""
    return text.split()


by_words = text_counter(words)


# The estimate


def test_the_estimate_is_by_kinds_of_characters() -> None:
    assert estimate(user("")) == TOKENS_PER_MESSAGE
    assert estimate(user("abc def ghi ")) == TOKENS_PER_MESSAGE + 4
    assert estimate(user("X1;Y2:")) == TOKENS_PER_MESSAGE + 6
    assert estimate(user("дом")) == TOKENS_PER_MESSAGE + 3
    assert estimate(user("家")) == TOKENS_PER_MESSAGE + 2
    assert estimate(user("🌊")) == TOKENS_PER_MESSAGE + 3
    assert estimate(user("a")) == TOKENS_PER_MESSAGE + 1


# What o200k_base makes of these, counted once with tiktoken.
COUNTED = [
    ("Could you check where my parcel is? I ordered it two weeks ago.", 15),
    ("def fold(events):\n    return [event.data for event in events if event.live]\n", 17),
    ('{"id": 17, "name": "shoe", "price": 49.5, "tags": ["new", "sale"]}', 30),
    ("Können Sie mir bitte mitteilen, wann die Lieferung voraussichtlich eintrifft?", 19),
    ("Подскажите, пожалуйста, когда прибудет мой заказ?", 13),
    ("请问我的订单什么时候能到。我两个星期前就下单了。", 17),
    ("😀🎉🔥💯👍🥑🚀", 11),
    ("550e8400-e29b-41d4-a716-446655440000", 18),
    ("aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IQ==", 25),
]


@pytest.mark.parametrize(("text", "exact"), COUNTED)
def test_the_estimate_is_not_below_the_exact_count_and_not_far_above(text: str, exact: int) -> None:
    assert exact <= estimate(user(text)) - TOKENS_PER_MESSAGE <= 4 * exact


@given(st.text(), st.text())
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert estimate(user(text + more)) >= estimate(user(text))
    assert estimate(user(text)) <= TOKENS_PER_MESSAGE + 2 * len(
        text.encode("utf-8", "surrogatepass")
    )


def test_text_is_found_wherever_a_dialect_keeps_it() -> None:
    said = "one two three"
    arguments = '{"city": "Rome"}'
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": arguments},
    }
    for message, tokens in [
        (user(said), 3),
        (user([{"type": "text", "text": said}, {"type": "text", "text": said}]), 6),
        (
            {"role": "assistant", "content": None, "tool_calls": [call, call]},
            2 * (TOKENS_PER_CALL + 3),
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "look", "arguments": arguments},
            },
            3,
        ),
        ({"role": "tool", "tool_call_id": "call_1", "content": said}, 3),
        (
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": arguments},
            TOKENS_PER_CALL + 3,
        ),
        ({"type": "function_call_output", "call_id": "c", "output": said}, TOKENS_PER_CALL + 3),
        ({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": said}]}, 3),
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a b": 1}}],
            },
            TOKENS_PER_CALL + 3,
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": said}],
            },
            TOKENS_PER_CALL + 3,
        ),
        (
            user(
                [
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": said},
                    }
                ]
            ),
            4,
        ),
        ({"type": "mcp_list_tools", "id": "m", "tools": [{"type": ["a", "b c"]}]}, 2),
    ]:
        assert by_words(message) - TOKENS_PER_MESSAGE == tokens, message


def test_what_autogen_repeats_is_counted_once() -> None:
    responses = [{"tool_call_id": "a", "role": "tool", "content": "one two"}]
    assert (
        by_words({"role": "tool", "content": "one two", "tool_responses": responses})
        == TOKENS_PER_MESSAGE + 2
    )


PICTURE = base64.b64encode(bytes(200_000)).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ],
)
def test_an_image_costs_the_same_whatever_its_size(part: Message) -> None:
    assert estimate(user([part])) == TOKENS_PER_MESSAGE + TOKENS_PER_IMAGE


def test_sound_and_files_are_not_read_as_text() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}}
    file = {
        "type": "file",
        "file": {"file_data": f"data:application/pdf;base64,{PICTURE}", "filename": "a.pdf"},
    }
    paper = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": PICTURE},
    }
    for part in (sound, file, paper):
        assert TOKENS_PER_IMAGE <= estimate(user([part])) < len(PICTURE) / 10


def test_sealed_reasoning_counts_by_its_length() -> None:
    short, long = (
        {"type": "reasoning", "summary": [], "encrypted_content": "g" * size}
        for size in (400, 4000)
    )
    assert estimate(long) - estimate(short) == 900


# A tokenizer of text


def test_a_tokenizer_of_text_makes_a_counter_of_messages() -> None:
    assert by_words(user("one two three")) == TOKENS_PER_MESSAGE + 3


def test_a_tokenizer_gets_long_text_in_pieces() -> None:
    seen: list[int] = []

    def encode(text: str) -> str:
        seen.append(len(text))
        return text

    assert text_counter(encode)(user("x" * 10_000)) == TOKENS_PER_MESSAGE + 10_000
    assert len(seen) > 1
    assert max(seen) < 10_000


# tiktoken


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """tiktoken's cache, empty; and a place where no download can succeed unnoticed."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    _tokens._load_tiktoken.cache_clear()
    yield tmp_path
    _tokens._load_tiktoken.cache_clear()


def test_without_its_data_tiktoken_is_not_asked(cache: Path) -> None:
    assert importlib.util.find_spec("tiktoken")
    assert default_counter() is estimate
    assert list(cache.iterdir()) == []


def test_damaged_data_is_left_alone_and_nothing_is_downloaded(cache: Path) -> None:
    data = cache / hashlib.sha1(_tokens._O200K_URL.encode()).hexdigest()
    data.write_bytes(b"YQ== 0\n")
    assert default_counter() is estimate
    assert data.read_bytes() == b"YQ== 0\n"


def test_a_cache_that_is_switched_off_means_that_tiktoken_would_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    assert default_counter() is estimate


def test_data_is_looked_for_where_tiktoken_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tiktoken itself says where: it reads a file of ours from each of its caches."""
    load: Any = importlib.import_module("tiktoken.load")
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, value in (("", ""), ("DATA_GYM_CACHE_DIR", "b"), ("TIKTOKEN_CACHE_DIR", "a")):
        if name:
            monkeypatch.setenv(name, str(tmp_path / value))
        place = _tokens._tiktoken_data_path()
        assert place is not None
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(value.encode())
        assert load.read_file_cached(_tokens._O200K_URL) == value.encode()


def test_what_is_known_of_the_data_is_what_tiktoken_says() -> None:
    source: Any = importlib.import_module("tiktoken_ext.openai_public")
    constants = repr(source.o200k_base.__code__.co_consts)
    assert _tokens._O200K_URL in constants
    assert _tokens._O200K_SHA256 in constants


COUNT = """
import sys, tiktoken.registry, tiktoken
from holdfast.conversations import tokens
ranks = {bytes([n]): n for n in range(256)}
special = {"<|x|>": 256}
encoding = tiktoken.Encoding(
    "o200k_base", pat_str=r"[a-z]+| ", mergeable_ranks=ranks, special_tokens=special
)
tiktoken.registry.ENCODINGS["o200k_base"] = encoding
tokens._O200K_SHA256 = sys.argv[1]
count = tokens.default_counter()
print(count is not tokens.estimate, count({"role": "user", "content": "abc <|x|>"}))
"""


def test_with_its_data_tiktoken_counts_and_special_tokens_are_text(tmp_path: Path) -> None:
    """The real tokenizer with a small vocabulary: that of o200k_base cannot be had without a
    network."""
    data = tmp_path / hashlib.sha1(_tokens._O200K_URL.encode()).hexdigest()
    data.write_bytes(b"data")
    command = [sys.executable, "-W", "error", "-c", COUNT, hashlib.sha256(b"data").hexdigest()]
    environment = {**os.environ, "TIKTOKEN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", str(TOKENS_PER_MESSAGE + len("abc ") + len("x"))]
