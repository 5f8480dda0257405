"""The commands on encrypted stores: keys, erasure, and what lists say of what was erased."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from click.testing import Result

import holdfast
from helpers.run_cli import plain_terminal, run
from holdfast import keys

KEY, NEW = keys.generate(), keys.generate()
OLD_KEY, NEW_KEY = (f"base64:{base64.b64encode(secret).decode()}" for secret in (KEY, NEW))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_terminal(monkeypatch)
    monkeypatch.delenv("HOLDFAST_KEY", raising=False)


@pytest.fixture
def sealed(tmp_path: Path) -> str:
    """An encrypted store with two of each, of which one is about somebody."""
    path = str(tmp_path / "sealed.db")
    with holdfast.open(path, key=KEY) as store:
        store.conversation("a-chat", subject="person-7").append(
            {"role": "user", "content": "I moved to Berlin"}
        )
        store.conversation("b-chat").append({"role": "user", "content": "hello"})
        for name in ("a-space", "b-space"):
            store.memory(name).remember("Ann likes tea")
    return path


@pytest.fixture
def clear(tmp_path: Path) -> str:
    path = str(tmp_path / "clear.db")
    with holdfast.open(path) as store:
        store.stream("s").append(("n", 1))
    return path


def with_key(*arguments: object) -> Result:
    return run("--key", OLD_KEY, *arguments)


def opens(path: str, key: bytes) -> bool:
    try:
        holdfast.open(path, key=key, create=False).close()
    except holdfast.HoldfastError:
        return False
    return True


# -- what was erased -------------------------------------------------------------------------------


def test_a_conversation_that_was_erased_is_one_line_of_the_list(sealed: str) -> None:
    assert with_key("erase", sealed, "--conversation", "a-chat", "--yes").exit_code == 0
    listed = with_key("conversations", sealed)
    assert (listed.exit_code, listed.stdout) == (0, "   erased  a-chat\n        1  b-chat\n")
    facts = [
        json.loads(line) for line in with_key("conversations", sealed, "--json").stdout.splitlines()
    ]
    assert facts == [
        {"id": "a-chat", "messages": None, "erased": True},
        {"id": "b-chat", "messages": 1},
    ]


def test_a_namespace_that_was_erased_is_one_line_of_the_list(sealed: str) -> None:
    assert with_key("erase", sealed, "--memory", "a-space", "--yes").exit_code == 0
    listed = with_key("memories", sealed)
    assert (listed.exit_code, listed.stdout) == (0, "   erased  a-space\n        1  b-space\n")
    gone, there = (
        json.loads(line) for line in with_key("memories", sealed, "--json").stdout.splitlines()
    )
    assert gone == {"namespace": "a-space", "memories": None, "erased": True}
    assert (there["namespace"], there["memories"], "erased" in there) == ("b-space", 1, False)


def test_who_erases_is_in_the_audit(sealed: str) -> None:
    with_key(
        "erase", sealed, "--subject", "person-7", "--by", "ann", "--reason", "request 17", "--yes"
    )
    lines = with_key(
        "audit", sealed, "a-chat", "--kind", "conversation", "--format", "jsonl"
    ).stdout.splitlines()
    assert [json.loads(line)["by"] for line in lines] == ["ann"]


def test_the_login_user_erases_unless_another_is_named(
    sealed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "eve")
    with_key("erase", sealed, "--conversation", "a-chat", "--yes")
    lines = with_key(
        "audit", sealed, "a-chat", "--kind", "conversation", "--format", "jsonl"
    ).stdout.splitlines()
    assert [json.loads(line).get("by") for line in lines] == ["eve"]


def test_a_subject_that_nobody_has_heard_of_is_named_with_its_tenant(sealed: str) -> None:
    result = with_key("erase", sealed, "--subject", "persn-7", "--tenant", "acme", "--yes")
    assert result.exit_code == 0
    assert "nothing to erase: tenant 'acme' has no data about subject 'persn-7'" in result.stdout


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_who_does_not_agree_erases_nothing_and_is_told_what_to_do(sealed: str, answer: str) -> None:
    arguments = ["--key", OLD_KEY, "erase", sealed, "--conversation", "a-chat"]
    result = run(*arguments, input=answer)
    assert result.exit_code == 1
    assert "nothing was erased; use --yes" in result.stderr
    with holdfast.open(sealed, key=KEY) as store:
        assert store.conversation("a-chat").count() == 1


def test_a_subject_can_be_said_at_the_shell(sealed: str) -> None:
    assert with_key("submit", sealed, "claims", "claim-9", "--subject", "person-9").exit_code == 0
    assert (
        with_key(
            "remember", sealed, "a-space", "Bob likes coffee", "--subject", "person-9"
        ).exit_code
        == 0
    )
    done = with_key("erase", sealed, "--subject", "person-9", "--yes")
    assert done.stdout == "erased task claim-9\nerased the memories about it in a-space\n"
    with holdfast.open(sealed, key=KEY) as store:
        assert [known.text for known in store.memory("a-space").all()] == ["Ann likes tea"]


def test_the_help_does_not_promise_that_backups_are_erased() -> None:
    told = " ".join(run("erase", "--help").output.split())
    assert "not from a copy either" not in told and "Earlier backups still contain the keys" in told


# -- keys ------------------------------------------------------------------------------------------


def test_rekey_without_the_old_key_says_that_it_is_missing(sealed: str, clear: str) -> None:
    result = run("rekey", sealed, "--to", NEW_KEY)
    assert result.exit_code == 1
    assert result.stderr.startswith("holdfast: the old key is missing: holdfast --key")
    assert opens(sealed, KEY) and not opens(sealed, NEW)
    assert "unencrypted" in run("rekey", clear, "--to", NEW_KEY).stderr
    assert "there is no store" in run("rekey", clear + "x", "--to", NEW_KEY).stderr


def test_rekey_says_which_keys_open_the_store(sealed: str) -> None:
    same = with_key("rekey", sealed, "--to", OLD_KEY)
    assert "the key is the same as before, and still opens the store" in same.stdout
    assert opens(sealed, KEY)
    new = with_key("rekey", sealed, "--to", NEW_KEY)
    assert "the old key no longer opens the store" in new.stdout
    assert (opens(sealed, KEY), opens(sealed, NEW)) == (False, True)
    both = run("--key", NEW_KEY, "--key", OLD_KEY, "rekey", sealed, "--to", OLD_KEY)
    assert "only the new one opens the store" in both.stdout
    assert (opens(sealed, KEY), opens(sealed, NEW)) == (True, False)


@pytest.mark.parametrize(
    "text",
    [OLD_KEY, OLD_KEY.removeprefix("base64:"), KEY.hex(), "env:OTHER_KEY"],
    ids=["with its form", "base64", "hexadecimal", "another variable"],
)
def test_the_key_may_be_in_the_environment_as_platforms_supply_it(
    sealed: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY.hex())
    monkeypatch.setenv("HOLDFAST_KEY", text)
    assert run("conversations", sealed).exit_code == 0
    monkeypatch.setenv("HOLDFAST_KEY", KEY.hex()[:-2])
    refused = run("conversations", sealed)
    assert refused.exit_code == 1
    assert (
        "the environment variable HOLDFAST_KEY does not contain a key" in refused.stderr
        and KEY.hex()[:-2] not in refused.stderr
    )


def test_the_options_of_the_store_go_before_the_command_or_after_it(
    sealed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("conversations", sealed).exit_code == 1
    before = run("--key", OLD_KEY, "--redact", "--store", sealed, "conversations")
    after = run("conversations", "--key", OLD_KEY, "--redact", "-s", sealed)
    assert before.exit_code == after.exit_code == 0
    assert before.stdout == after.stdout != ""


def test_other_options_that_do_not_exist_are_explained_as_before(sealed: str) -> None:
    result = run("tasks", sealed, "--statis", "pending")
    assert result.exit_code == 2
    assert "--status" in result.stderr


# -- from clear to encrypted -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "again", ["clear.db", "sqlite:///clear.db", "sqlite:///%63lear.db", "./clear.db", "link.db"]
)
def test_a_store_is_not_encrypted_onto_itself(
    clear: str, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(clear).parent)
    Path("link.db").symlink_to(clear)
    before = Path(clear).read_bytes()
    result = run("encrypt", clear, again, "--to", NEW_KEY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "SRC and DST must be different stores" in result.stderr
    assert Path(clear).read_bytes() == before


def test_a_store_is_not_decrypted_onto_itself(sealed: str) -> None:
    assert "SRC and DST must be different stores" in with_key("decrypt", sealed, sealed).stderr
    assert (
        "SRC and DST must be different stores"
        in with_key("decrypt", sealed, f"sqlite:///{sealed}?durability=process").stderr
    )


def test_one_stream_is_one_stream(tmp_path: Path, clear: str) -> None:
    first = run("encrypt", clear, tmp_path / "new.db", "--to", NEW_KEY)
    assert "wrote 1 stream, 1 record to" in first.stdout
    again = run("encrypt", clear, tmp_path / "new.db", "--to", NEW_KEY)
    assert again.stdout.splitlines()[0].endswith("; 1 stream already there")


def test_health_says_whether_the_store_is_encrypted(sealed: str, clear: str) -> None:
    assert json.loads(with_key("health", sealed, "--json").stdout)["encrypted"] is True
    assert json.loads(run("health", clear, "--json").stdout)["encrypted"] is False
    shown = [
        " ".join(result.stdout.split())
        for result in (with_key("health", sealed), run("health", clear))
    ]
    assert "encrypted yes" in shown[0] and "encrypted no" in shown[1]
