"""Keys as they come from the environment and from KMS: what is taken, and what is said of what is
not."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import keys
from holdfast.errors import InvalidKey

ABOUT = b"about"
VARIABLE = "HOLDFAST_TEST_KEY"


def is_key(text: str, secret: bytes) -> bool:
    """Whether what a text means opens what a key has wrapped."""
    [key] = keys.parse_keys(text)
    return key.unwrap(keys.raw(secret).wrap(b"s" * 32, ABOUT), ABOUT) == b"s" * 32


@pytest.mark.parametrize(
    "write",
    [
        lambda secret: base64.b64encode(secret).decode(),
        lambda secret: base64.urlsafe_b64encode(secret).decode() + "\n",
        lambda secret: secret.hex(),
        lambda secret: secret.hex().upper(),
        lambda secret: f"base64:{base64.b64encode(secret).decode()}",
    ],
)
def test_a_variable_may_hold_the_key_and_nothing_else(
    write: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = keys.generate()
    assert callable(write)
    monkeypatch.setenv(VARIABLE, write(secret))
    assert is_key(f"env:{VARIABLE}", secret)


@pytest.mark.parametrize(
    "value",
    [
        "correct-horse-battery-staple",
        "0123456789abcdef0123456789abcdef",  # 16 bytes in hexadecimal; as base64, 24
        base64.b64encode(b"x" * 31).decode(),
        base64.b64encode(bytes(32)).decode(),
        "base64:bm8=",
        "passphrase:short",
        "odd \udcff bytes",
        "base64:\udcff",
    ],
)
def test_a_variable_that_holds_no_key_is_named_and_its_value_is_not(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(
        InvalidKey, match=f"the environment variable {VARIABLE} does not contain a key"
    ) as raised:
        keys.parse_keys(f"env:{VARIABLE}")
    assert value.rpartition(":")[2] not in str(raised.value)


def test_a_variable_is_not_followed_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"env:{VARIABLE}")
    with pytest.raises(InvalidKey, match=f"the environment variable {VARIABLE} names another"):
        keys.parse_keys(f"env:{VARIABLE}")


@given(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=80))
def test_whatever_a_variable_holds_is_a_key_or_refused_by_its_name(value: str) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, value)
        try:
            keys.parse_keys(f"env:{VARIABLE}")
        except InvalidKey as error:
            assert VARIABLE in str(error)


def test_a_key_in_kms_without_a_region_says_where_to_name_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none/at/all")
    with pytest.raises(InvalidKey, match=r"region=.*AWS_DEFAULT_REGION"):
        keys.kms("alias/agents").wrap(b"s" * 32, ABOUT)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
@pytest.mark.parametrize("way", ["open", "encrypt"])
def test_without_the_extra_nothing_is_created(kind: str, way: str, tmp_path: Path) -> None:
    url = str(tmp_path / "new.db") if kind == "sqlite" else f"file://{tmp_path}/new"
    call = f"holdfast.open({url!r}, key=bytes(range(32)))"
    if way == "encrypt":
        with holdfast.open(tmp_path / "clear.db") as store:
            store.stream("s").append(("n", 1))
        call = f"holdfast.encrypt({str(tmp_path / 'clear.db')!r}, {url!r}, key=bytes(range(32)))"
    before = {path.name for path in tmp_path.iterdir()}
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['cryptography'] = None; import holdfast\n"
            f"try: {call}\n"
            "except holdfast.errors.MissingExtra as error: assert error.extra == 'crypto'\n"
            "else: raise AssertionError",
        ],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in tmp_path.iterdir()} == before
