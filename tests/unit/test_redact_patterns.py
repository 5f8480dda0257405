"""What a redactor takes out, and what it leaves: laws that hold for every text and every value, and
cases with names."""

from __future__ import annotations

import json
import string
import uuid
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from holdfast.errors import NotSerializable
from holdfast.redact import FIELDS, PATTERNS, Redactor
from holdfast.redaction.patterns import _LENGTHS, _ONLY_DIGITS, _luhn

REDACTOR = Redactor()
JWT = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0."
    "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
)
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7+/x=\nabc\n-----END RSA PRIVATE KEY-----"
WIDE = "".join(chr(0xFF10 + int(digit)) for digit in "4111111111111111")
"""A card number in digits that are as wide as Chinese letters."""

SECRETS = {
    "sk-proj-abcDEF1234567890abcdef": "key",
    "sk-ant-api03-abcDEF_1234567890-abcdef": "key",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc": "key",
    "ghp_" + "a1" * 18: "key",
    "github_pat_11ABCDEFG0123456789abcdefghij": "key",
    "glpat-abcdefghij0123456789": "key",
    "AKIAIOSFODNN7EXAMPLE": "key",
    "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw"[:35]: "key",
    "xoxb-123456789012-abcdefGHIJKL": "key",
    "hf_" + "aB3" * 12: "key",
    PEM: "key",
    JWT: "token",
    "4111111111111111": "card",
    "4111 1111 1111 1111": "card",
    "4111-1111-1111-1111": "card",
    "5500\u00a00000\u00a00000\u00a00004": "card",
    "3782 822463 10005": "card",
    "378282246310005": "card",
    "6011111111111117": "card",
    "30569309025904": "card",
    "DE89 3704 0044 0532 0130 00": "iban",
    "DE89370400440532013000": "iban",
    "gb82 west 1234 5698 7654 32": "iban",
    "NO9386011117947": "iban",
    "alice.b+c@mail.example.co.uk": "email",
    "jürgen@müller.de": "email",
    "sk-" + "aBcDeFgHiJ" * 2: "key",
    "whsec_" + "aB3d" * 8: "key",
    "GOCSPX-" + "aB3-" * 6: "key",
    "dop_v1_" + "a1" * 32: "key",
    "shpat_" + "a1" * 16: "key",
    "dapi" + "a1" * 16: "key",
    "nvapi-" + "aB3-" * 12: "key",
    "123456789:AA" + "aB3" * 11: "key",
    PEM.replace("\n", "\n> "): "key",  # quoted in a mail
    PEM.replace("abc", "ab_c é"): "key",
    "4111.1111.1111.1111": "card",
    "4111  1111  1111  1111": "card",
    WIDE: "card",
    "".join(chr(0x660 + int(digit)) for digit in "4111111111111111"): "card",  # as Arabic has them
    "4111\u200b1111\u200b1111\u200b1111": "card",  # with nothing in between that can be seen
    "41\u00ad11111111111111": "card",
    "4111\u20111111\u20111111\u20111111": "card",
    "4111\u20091111\u20091111\u20091111": "card",
    "DE89\u200b3704\u00a00044 0532 0130 00": "iban",
    "DE89-3704-0044-0532-0130-00": "iban",
    "sk-\u2060proj-abcDEF1234567890abcdef": "key",
    "ann\u200b@exam\u00adple.com": "email",
    "ann\uff20example.com": "email",
    "x" * 100 + "@example.com": "email",
}


@pytest.mark.parametrize(
    "around", ["{}", "say {} to nobody", "({})", "x: {}.", '"{}"', "{},{}", "\n{}\n"]
)
@pytest.mark.parametrize("secret", SECRETS)
def test_what_has_the_shape_of_a_secret_is_taken_out(secret: str, around: str) -> None:
    assert REDACTOR.text(around.replace("{}", secret)) == around.replace(
        "{}", f"[redacted: {SECRETS[secret]}]"
    )


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Authorization: Bearer abc123.def-456~ghi", "Authorization: Bearer [redacted: token]"),
        ("authorization: basic dXNlcjpwYXNzd29yZA==", "authorization: basic [redacted: token]"),
        (
            "postgresql://me:geheim@db.internal/x",
            "postgresql://me:[redacted: password]@db.internal/x",
        ),
        ("GET /?api_key=abc&page=2", "GET /?api_key=[redacted: api_key]&page=2"),
        (
            "login(password='hunter 2', user='me')",
            "login(password='[redacted: password]', user='me')",
        ),
        ("{'Password': 'hunter2', 'n': 1", "{'Password': '[redacted: password]', 'n': 1"),
        (
            '{"arguments": "{\\"token\\": \\"abc',
            '{"arguments": "{\\"token\\": \\"[redacted: token]',
        ),
        ("2024 5500 0000 0000 0004 77", "2024 [redacted: card] 77"),
        ("4111 1111 1111 1111 5500 0000 0000 0004", "[redacted: card] [redacted: card]"),
        (PEM[:50], "[redacted: key]"),
        (
            "postgresql://me:ge@he/im@db.internal/x",
            "postgresql://me:[redacted: password]@db.internal/x",
        ),
        ("redis://:" + "x" * 400 + "@host", "redis://:[redacted: password]@host"),
        (
            "https://hooks.slack.com/services/T0000/B0000/aBcDeF",
            "https://hooks.slack.com/[redacted: key]",
        ),
        ("卡号4111111111111111です", "卡号[redacted: card]です"),
        ("メールはann@example.comです", "メールは[redacted: email]です"),
        ("ann@example.com" + "です" * 20, "[redacted: email]" + "です" * 20),
        ("DE89370400440532013000です", "[redacted: iban]です"),
        (f"Straße 4 \u2013 {WIDE}", "Straße 4 \u2013 [redacted: card]"),
        # The whole of a value, whatever quotes are in it.
        ("login(password='it\\'s hunter2')", "login(password='[redacted: password]')"),
        ('password="it\'s hunter2"', 'password="[redacted: password]"'),
        ('{"password": "a\\"hunter2", "n": 1', '{"password": "[redacted: password]", "n": 1'),
        (
            '"{\\"password\\": \\"a\\\\\\"hunter2\\", \\"n',
            '"{\\"password\\": \\"[redacted: password]\\", \\"n',
        ),
        ("{'password': b'hunter2'}", "{'password': b'[redacted: password]'}"),
        ("at {'password': 12345678, 'n': 1}", "at {'password': '[redacted: password]', 'n': 1}"),
        # As in settings, headers, commands and pages.
        ("password: hunter2", "password: [redacted: password]"),
        ("api_key = abc123abc", "api_key = [redacted: api_key]"),
        ("const apiKey = 'abc'", "const apiKey = '[redacted: api_key]'"),
        ("MYSQL_ROOT_PASSWORD=hunter2", "MYSQL_ROOT_PASSWORD=[redacted: password]"),
        ("x-api-key: abcdef123", "x-api-key: [redacted: x_api_key]"),
        ("Authorization: Token abcdef123", "Authorization: Token [redacted: authorization]"),
        ("Cookie: sid=abc; theme=dark\nHost: x", "Cookie: [redacted: cookie]\nHost: x"),
        ("mysql --db-password hunter2 -u me", "mysql --db-password [redacted: password] -u me"),
        ("user[password]=hunter2&n=1", "user[password]=[redacted: password]&n=1"),
        ("<password>hunter2</password>", "<password>[redacted: password]</password>"),
        ('tokens: "password=hunter2"', 'tokens: "password=[redacted: password]"'),
    ],
)
def test_only_the_secret_part_of_a_text_is_taken_out(text: str, stored: str) -> None:
    assert REDACTOR.text(text) == stored
    assert REDACTOR.text(stored) == stored


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # the check digit is wrong
        "4111-111111111111",  # not the groups of a card
        "0.4111111111111111",
        "x4111111111111111",
        "4111111111111111abc",
        "order 1731703159123456",
        "DE88 3704 0044 0532 0130 00",
        "XX89 3704 0044 0532 0130 00",
        "12345678-1234-1234-1234-123456789012",
        "task-0123456789abcdef0123456789",
        "sk-learn-and-other-libraries-of-python",
        "the bearer of bad news, basic authentication-methods",
        "me@host, @decorator, a@1.2.3, lodash@4.17.21",
        "password: please choose one",
        "-----BEGIN PUBLIC KEY-----",
        "https://example.com:8080/path?x=1",
        "tokens=12 max_tokens=5",
        "next_page_token=abc123abc",
        "def login(user: str, password: str = ask()) -> None:",
        "token = tokens[0]",
        "use --token or --password, please",
        "Authorization: required for all of them",
        "git@github.com:me/holdfast.git",
        "[redacted: card]",
        "[redacted: password]=1",
    ],
)
def test_what_merely_looks_like_a_secret_stays(text: str) -> None:
    assert REDACTOR.text(text) is text


@given(st.uuids())
def test_uuids_stay(found: uuid.UUID) -> None:
    for text in (str(found), found.hex):
        assume(not text.isdigit())
        assert REDACTOR.text(text) is text


@given(st.text("0123456789abcdef", min_size=12, max_size=12), st.sampled_from(["be", "ad", "ee"]))
def test_uuids_that_add_up_to_an_iban_stay(part: str, country: str) -> None:
    assume(not part.isdigit())
    size = {"be": 12, "ad": 20, "ee": 16}[country]
    signs = (part + "1234567890")[:size]
    check = 98 - int("".join(str(int(sign, 36)) for sign in f"{signs}{country}00")) % 97
    whole = f"{country}{check:02}{signs}"
    groups = {"be": (8, 4, 4), "ad": (4, 4, 4, 12), "ee": (8, 4, 4, 4)}[country]
    starts = [sum(groups[:at]) for at in range(len(groups))]
    text = "-".join(
        whole[start : start + length] for start, length in zip(starts, groups, strict=True)
    )
    text = {
        "be": f"{text}-9abc-0123456789ab",
        "ad": f"12345678-{text}",
        "ee": f"{text}-0123456789ab",
    }[country]
    assert str(uuid.UUID(text)) == text
    assert REDACTOR.text(text) is text


@given(st.text("0123456789abcdef", min_size=32, max_size=128))
def test_hashes_stay(digest: str) -> None:
    assume(any(sign in "abcdef" for sign in digest))
    assert REDACTOR.text(digest) is digest


@given(st.integers(0, 10**20), st.sampled_from(["", " ", "-"]))
def test_digits_with_a_wrong_check_digit_stay(number: int, separator: str) -> None:
    digits = str(number)
    assume(
        not any(
            _luhn(digits[at : at + length])
            for at in range(0, 8, 4)
            for length in (*range(14, 20), 99)
        )
    )
    text = separator.join(digits[at : at + 4] for at in range(0, len(digits), 4))
    assert REDACTOR.text(text) is text


@given(st.integers(0, 10**14 - 1), st.sampled_from(["", " ", "-"]), st.text(" .,()\n", max_size=3))
def test_every_number_with_the_right_check_digit_is_a_card(
    number: int, separator: str, around: str
) -> None:
    digits = next(text for text in (f"4{number:014}{last}" for last in range(10)) if _luhn(text))
    text = separator.join(digits[at : at + 4] for at in range(0, 16, 4))
    assume(not (around.startswith(".") and around[1:2].isdigit()))
    assert REDACTOR.text(f"{around}{text}{around}") == f"{around}[redacted: card]{around}"


@given(st.sampled_from(sorted(_LENGTHS)), st.data())
def test_every_account_with_the_right_check_digits_is_an_iban_and_no_other(
    country: str, data: st.DataObject
) -> None:
    length = _LENGTHS[country] - 4
    signs = string.digits if country in _ONLY_DIGITS else string.digits + string.ascii_uppercase
    account = data.draw(st.text(signs, min_size=length, max_size=length))
    check = 98 - int("".join(str(int(sign, 36)) for sign in f"{account}{country}00")) % 97
    only = Redactor(patterns=("iban",), fields=())
    assert only.text(f"to {country}{check:02}{account}, now") == "to [redacted: iban], now"
    wrong = f"to {country}{(check + 1) % 100:02}{account}, now"
    assert only.text(wrong) is wrong


PIECES = st.sampled_from(
    [
        *SECRETS,
        "password=",
        "api_key",
        "=",
        ":",
        '"',
        "'",
        "\\",
        "{",
        "}",
        "[",
        "]",
        " ",
        "-",
        "@",
        ".",
        "4",
        "a",
        "\n",
        ",",
        "Bearer ",
        "://u:",
        "-----BEGIN ",
        "PRIVATE KEY-----",
        "[redacted: card]",
        "sk-",
        "4111",
        "1111",
        "DE89",
        "eyJ",
        "Cookie: a=",
        "Authorization: Token ",
        "--token ",
        "<secret>",
        "</",
        "\u200b",
        WIDE[0],
        "git@",
        "next_page_token",
        "卡",
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=12).map("".join))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(TEXTS, st.sampled_from(FIELDS)), inner, max_size=4),
        inner.map(json.dumps),
    ),
    max_leaves=12,
)


@given(TEXTS)
@example("password=\"x'")
@example("a@b.comsk-proj-abcDEF1234567890abcdef")
@example("4111111111111111DE89370400440532013000")
def test_what_was_redacted_is_not_redacted_again(text: str) -> None:
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) == once


@given(VALUES)
def test_json_stays_json_of_the_same_form_and_is_redacted_once(value: Any) -> None:
    raw = json.dumps(value).encode()
    once = REDACTOR.json(raw)
    assert form(json.loads(once)) == form(value)
    assert REDACTOR.json(once) == once
    if REDACTOR.value(value) is value:
        assert once is raw


def form(value: Any) -> Any:
    """A value without what redaction may change: only the number and the kinds of its parts."""
    if isinstance(value, dict):
        return [form(item) for item in value.values()]
    if isinstance(value, list):
        return ("list", [form(item) for item in value])
    return value if value is None or isinstance(value, bool) else "leaf"


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "-eyJaaaaaaaa",
        "sk-aaaaaaaaaaaaaaaa-",
        "4111 ",
        "1",
        "a@",
        "a.b@c.",
        "-----BEGIN PRIVATE KEY-----",
        "-",
        "://a:",
        "_",
        "password='",
        'password":"',
        "DE89 ",
        "bearer aaaaaaaaaaaa",
        "xoxb-a",
        "SG.aaaaaaaaaaaaaaaa",
        "[",
        '{"a":',
        "\\",
        "Cookie: a=",
        "Authorization: Token ",
        "--password ",
        "--a-",
        "password: 1",
        "<secret>",
        'password="\\',
        'password\\":\\"\\\\',
        "a@b.co.",
        "ああ@",
        "\u200b4",
        "4111.",
        "://a:b/",
        "-----BEGIN PRIVATE KEY-----\n-----END ",
        "token",
    ],
)
def test_no_text_takes_longer_than_in_proportion_to_its_length(piece: str) -> None:
    # Nothing is measured: with an expression that looks at parts of it again and again, this would
    # not come to an end.
    text = piece * (300_000 // len(piece))
    assert REDACTOR.text(text) is not None


def test_numbers_are_kept_to_the_digit() -> None:
    raw = (
        b'{"huge":123456789012345678901234567890,'
        b'"exact":0.1000000000000000055,"to":"a@example.com"}'
    )
    assert REDACTOR.json(raw) == raw.replace(b"a@example.com", b"[redacted: email]")
    nested = json.dumps({"arguments": raw.decode()}).encode()
    assert b"123456789012345678901234567890" in REDACTOR.json(nested)


def test_fields_are_found_by_name_whatever_their_case_and_their_value() -> None:
    given = {
        "API-Key": "a",
        "apikey": 7,
        "Secret": {"deep": ["b", 1.5, None, True, ""]},
        "max_tokens": 5,
        "token": "",
    }
    assert REDACTOR.value(given) == {
        "API-Key": "[redacted: api_key]",
        "apikey": "[redacted: api_key]",
        "Secret": {"deep": ["[redacted: secret]", "[redacted: secret]", None, True, ""]},
        "max_tokens": 5,
        "token": "",
    }


@pytest.mark.parametrize(
    "name",
    [
        "DB_PASSWORD",
        "openaiApiKey",
        "spring.datasource.password",
        "user[password]",
        "GITHUB_TOKEN",
        "cookies",
        "#secret",
    ],
)
def test_a_longer_name_that_ends_with_that_of_a_field_is_one(name: str) -> None:
    [[_, stored]] = REDACTOR.value({name: "x"}).items()
    assert stored.startswith("[redacted: ")


@pytest.mark.parametrize(
    "name", ["next_page_token", "max_token", "tokens", "password_policy", "secretary", "tokenizer"]
)
def test_a_name_that_only_resembles_one_is_none(name: str) -> None:
    given = {name: "x"}
    assert REDACTOR.value(given) is given


def test_fields_are_found_where_their_name_is_a_value() -> None:
    given = [
        {"name": "DB_PASSWORD", "value": "x"},
        {"Key": "token", "Value": 7},
        {"name": "Ann", "value": "x"},
    ]
    stored = ["[redacted: password]", "[redacted: token]", "x"]
    assert [list(pair.values())[1] for pair in REDACTOR.value(given)] == stored
    assert REDACTOR.value([["Authorization", "Token x"], ["Accept", "text"]]) == [
        ["Authorization", "[redacted: authorization]"],
        ["Accept", "text"],
    ]
    assert REDACTOR.value(["mysql", "--password", "x", "y"]) == [
        "mysql",
        "--password",
        "[redacted: password]",
        "y",
    ]
    names = {"required": ["password", "user"], "more": ["mysql", "--password"]}
    assert REDACTOR.value(names) is names


def test_what_a_schema_says_of_a_field_stays() -> None:
    given = {
        "properties": {
            "password": {"type": "string", "description": "At least 12 signs", "minLength": 12}
        }
    }
    assert REDACTOR.value(given) is given
    assert REDACTOR.value({"password": {"type": "string", "default": "x"}}) != {
        "password": {"type": "string", "default": "x"}
    }
    assert REDACTOR.value({"password": {"type": "hunter2"}}) == {
        "password": {"type": "[redacted: password]"}
    }


def test_the_tokens_of_a_model_stay() -> None:
    given = {
        "logprobs": [{"token": "Hel", "logprob": -0.1, "bytes": [72, 101, 108], "top_logprobs": []}]
    }
    assert REDACTOR.value(given) is given


def test_a_number_is_a_card_where_a_card_is_meant() -> None:
    assert REDACTOR.value({"card": 4111111111111111, "id": 4111111111111111}) == {
        "card": "[redacted: card]",
        "id": 4111111111111111,
    }
    assert REDACTOR.json(b'{"cards":[4111111111111111,4111111111111112]}') == (
        b'{"cards":["[redacted: card]",4111111111111112]}'
    )


def test_what_is_overlooked_in_json_because_its_name_comes_again_is_not_stored() -> None:
    assert REDACTOR.text('{"password":"hunter2","password":null}') == '{"password":null}'
    assert REDACTOR.text('[{"n":1,"n":2}]') == '[{"n":2}]'


@pytest.mark.parametrize("levels", range(1, 7))
def test_json_inside_of_json_is_looked_into(levels: int) -> None:
    value: Any = {"password": "hunter2"}
    for _ in range(levels):
        value = {"arguments": json.dumps(value)}
    assert "hunter2" not in json.dumps(REDACTOR.value(value))


@pytest.mark.parametrize("before", [" ", "\t\r\n", "\ufeff"])
def test_json_in_text_may_begin_with_space(before: str) -> None:
    assert (
        REDACTOR.text(before + '{"pin": 1, "password": [12345678]}').strip()
        == '{"pin":1,"password":["[redacted: password]"]}'
    )


def test_fields_are_found_in_json_inside_of_text() -> None:
    call = {"name": "login", "arguments": json.dumps({"user": "me", "password": "hunter2"})}
    assert json.loads(REDACTOR.value(call)["arguments"]) == {
        "user": "me",
        "password": "[redacted: password]",
    }


def test_keys_are_redacted_too_and_stay_different_keys() -> None:
    given = {"a@example.com": 1, "b@example.com": 2, "[redacted: email] 2": 3}
    assert REDACTOR.value(given) == {
        "[redacted: email]": 1,
        "[redacted: email] 3": 2,
        "[redacted: email] 2": 3,
    }


def test_one_can_choose_what_is_taken_out() -> None:
    only = Redactor(patterns=("cards",), fields=("diagnosis",))
    given = {"diagnosis": "flu", "password": "x", "text": "a@example.com 4111111111111111"}
    stored = {
        "diagnosis": "[redacted: diagnosis]",
        "password": "x",
        "text": "a@example.com [redacted: card]",
    }
    assert only.value(given) == stored
    assert Redactor(patterns=(), fields=()).value(given) is given


def test_a_hook_sees_every_text_and_the_field_that_it_is_in() -> None:
    seen: list[tuple[str, str]] = []

    def hook(field: str, text: str) -> str:
        seen.append((field, text))
        return text.replace("Rosebud", "[a name]")

    redactor = Redactor(hook=hook)
    assert redactor.value({"who": "Rosebud", "list": ["4111111111111111"]}) == {
        "who": "[a name]",
        "list": ["[redacted: card]"],
    }
    assert seen == [("who", "Rosebud"), ("list", "[redacted: card]")]


@pytest.mark.parametrize("result", [None, ValueError("4111111111111111")])
def test_a_hook_that_fails_lets_nothing_through_and_says_nothing_of_the_text(
    result: Exception | None,
) -> None:
    def hook(field: str, text: str) -> Any:
        if result is not None:
            raise result
        return None

    with pytest.raises(NotSerializable, match="the redactor's hook") as caught:
        Redactor(hook=hook).value({"who": "Rosebud"})
    assert "Rosebud" not in str(caught.value) and "4111" not in str(caught.value)
    assert caught.value.__context__ is None


def test_wrong_use_is_noticed() -> None:
    with pytest.raises(ValueError, match="got 'card'"):
        Redactor(patterns=("card",))
    with pytest.raises(TypeError, match="tuples of names"):
        Redactor(fields="password")
    for name in ("a(b", "-", "_ -"):
        with pytest.raises(ValueError, match="fields must be names"):
            Redactor(fields=(name,))
    with pytest.raises(TypeError, match="hook must be a function"):
        Redactor(hook="mask")  # type: ignore[arg-type]
    assert "password" not in repr(Redactor())
    assert PATTERNS == ("keys", "tokens", "iban", "cards", "email")
