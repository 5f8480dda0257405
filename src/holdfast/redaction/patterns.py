"""Patterns for secrets in text: keys, tokens, card numbers, IBANs, e-mail addresses.

Every pattern takes linear time: repetitions are bounded or unambiguous. Cards and IBANs count only
if their check digits are right, so order numbers, ids and hashes stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .normalize import Finder, Replacement


def make_mark(what: str) -> str:
    """Return the text that replaces something redacted."""
    return f"[redacted: {what}]"


_KEY, _TOKEN, _PASSWORD = make_mark("key"), make_mark("token"), make_mark("password")
_CARD, _IBAN, _EMAIL = make_mark("card"), make_mark("iban"), make_mark("email")

# -- keys ------------------------------------------------------------------------------------------

FREE: Final = r"(?<![A-Za-z0-9])"  # not inside a word: "task-…" isn't "sk-…"
_DIGIT: Final = r"(?=[A-Za-z0-9_-]{0,200}[0-9])"  # "sk-learn-and-other-libraries" isn't a key
_VENDORS: Final = (
    # OpenAI, Anthropic and others; Stripe; GitHub; GitLab; AWS; Google; Slack; Hugging Face; Groq;
    # xAI; npm; PyPI; SendGrid; DigitalOcean; Shopify; Databricks; Linear; Replicate; Perplexity;
    # NVIDIA; Tavily; age; Telegram bots
    (("sk-",), rf"{FREE}sk-(?:{_DIGIT}[A-Za-z0-9_-]{{16,}}|[A-Za-z0-9]{{20,}})"),
    (("sk_", "rk_"), rf"{FREE}[sr]k_(?:live|test|prod)_[A-Za-z0-9]{{10,}}"),
    (("whsec_",), rf"{FREE}whsec_[A-Za-z0-9+/=]{{20,}}"),
    (("gh",), rf"{FREE}(?:gh[pousr]_[A-Za-z0-9]{{30,}}|github_pat_[A-Za-z0-9_]{{22,}})"),
    (("glpat-",), rf"{FREE}glpat-[A-Za-z0-9_-]{{20,}}"),
    (("AKIA", "ASIA"), rf"{FREE}A(?:KI|SI)A[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    (("AIza",), rf"{FREE}AIza[A-Za-z0-9_-]{{35,}}"),
    (("ya29.", "GOCSPX-"), rf"{FREE}(?:ya29\.|GOCSPX-)[A-Za-z0-9_-]{{20,}}"),
    (("xox", "xapp-"), rf"{FREE}(?:xox[a-z]|xapp)-{_DIGIT}[A-Za-z0-9-]{{10,}}"),
    (
        ("hooks.slack.com",),
        r"(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[A-Za-z0-9/_-]{16,}",
    ),
    (("hf_", "gsk_", "npm_"), rf"{FREE}(?:hf|gsk|npm)_[A-Za-z0-9]{{30,}}"),
    (("xai-", "nvapi-"), rf"{FREE}(?:xai|nvapi)-{_DIGIT}[A-Za-z0-9_-]{{30,}}"),
    (("pplx-", "tvly-"), rf"{FREE}(?:pplx|tvly)-{_DIGIT}[A-Za-z0-9-]{{16,}}"),
    (("pypi-",), rf"{FREE}pypi-[A-Za-z0-9_-]{{50,}}"),
    (("SG.",), rf"{FREE}SG\.[A-Za-z0-9_-]{{16,}}\.[A-Za-z0-9_-]{{16,}}"),
    (("_v1_",), rf"{FREE}do[opr]_v1_[a-f0-9]{{40,}}"),
    (("shp",), rf"{FREE}shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{{32}}"),
    (("dapi",), rf"{FREE}dapi[a-f0-9]{{32}}(?![A-Za-z0-9])"),
    (("lin_api_", "r8_"), rf"{FREE}(?:lin_api|r8)_[A-Za-z0-9]{{30,}}"),
    (("AGE-SECRET-KEY-",), rf"{FREE}AGE-SECRET-KEY-1[A-Z0-9]{{40,}}"),
    ((":AA",), rf"{FREE}[0-9]{{8,10}}:AA[A-Za-z0-9_-]{{33}}(?![A-Za-z0-9_-])"),
)
_VENDOR_KEYS: Final = [(hint, re.compile(pattern)) for hints, pattern in _VENDORS for hint in hints]
_PEM_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_BODY: Final = re.compile(r"(?:[A-Za-z0-9+/=,:.()\s\\>|]+|-(?!-))*")
# Up to the last "@": a password may contain one. Not past another "://".
_URL_PASSWORD: Final = re.compile(
    r"(?<=://)[^\s/:@\"']{0,256}:(?![0-9]{1,5}(?:[/?#]|$))((?:[^\s/:\"']|/(?!/)|:(?!//)){1,4096})@"
)


def _pems(text: str) -> Iterator[Replacement]:
    """Find PEM keys; a truncated one ends where the text stops looking like PEM."""
    begin = _PEM_BEGIN.search(text)
    while begin is not None:
        following = _PEM_BEGIN.search(text, begin.end())
        limit = following.start() if following else len(text)
        end = _PEM_END.search(text, begin.end(), limit)
        body = _PEM_BODY.match(text, begin.end(), limit)
        assert body is not None  # it matches the empty string
        yield Replacement(begin.start(), end.end() if end else body.end(), _KEY)
        begin = following


def _passwords(text: str) -> Iterator[Replacement]:
    return (
        Replacement(*found.span(1), _PASSWORD)
        for found in _URL_PASSWORD.finditer(text)
        if found[1] != _PASSWORD
    )


def _vendor_keys(text: str) -> list[Replacement]:
    here = {pattern for hint, pattern in _VENDOR_KEYS if hint in text}
    spans = [
        Replacement(*found.span(), _KEY) for pattern in here for found in pattern.finditer(text)
    ]
    kept: list[Replacement] = []
    for span in sorted(spans):
        if not kept or span.start >= kept[-1].end:  # skip one that starts inside another
            kept.append(span)
    return kept


_KEYS: Final[list[Finder]] = [
    lambda text: _pems(text) if "-----BEGIN " in text else (),
    lambda text: _passwords(text) if "://" in text else (),
    _vendor_keys,
]

# -- tokens ----------------------------------------------------------------------------------------

_JWT: Final = re.compile(
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+){0,3}"
)
_SCHEME: Final = re.compile(
    rf"{FREE}(?:bearer|basic)\s{{1,8}}"
    r"((?=[A-Za-z0-9._~+/=-]{0,400}[0-9=])[A-Za-z0-9._~+/=-]{12,}|[A-Za-z]{24,})",
    re.IGNORECASE,
)


def _tokens(text: str) -> Iterator[Replacement]:
    """Find JSON web tokens."""
    return (
        (Replacement(*found.span(), _TOKEN) for found in _JWT.finditer(text))
        if "eyJ" in text
        else iter(())
    )


def _schemes(text: str) -> Iterator[Replacement]:
    """Find the credentials after `Bearer` or `Basic` in a header."""
    lower = text.lower()
    if "bearer" not in lower and "basic" not in lower:
        return iter(())
    return (Replacement(*found.span(1), _TOKEN) for found in _SCHEME.finditer(text))


# -- cards -----------------------------------------------------------------------------------------

_DIGITS: Final = re.compile(r"[0-9]+(?:[ \t-]{1,3}[0-9]+)*")
_DOTTED: Final = re.compile(r"[0-9]{4}(?:\.[0-9]{4}){3}(?![0-9]|\.[0-9])")
_GROUPED: Final = {(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 4, 4, 4, 2), (4, 6, 5), (4, 6, 4)}
_BRANDS: Final = re.compile(
    r"4(?:[0-9]{15}|[0-9]{18})"  # Visa
    # Mastercard
    r"|(?:5[1-5][0-9]{2}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}"
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}"  # Diners Club
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12}"  # Discover
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12}"  # JCB
    r"|62[0-9]{14,17}"  # UnionPay
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])[0-9]{12}"  # Maestro
)


def _cards(text: str) -> Iterator[Replacement]:
    """Find card numbers: known issuer, grouped as on a card or not at all, right check digit."""
    for found in _DIGITS.finditer(text):
        if found.end() - found.start() >= 14:
            yield from _cards_in(found)


def _dotted_cards(text: str) -> Iterator[Replacement]:
    for found in _DOTTED.finditer(text) if "." in text else ():
        before = text[max(0, found.start() - 1) : found.start()]
        if not before.isalnum() and before != "." and is_card(found[0].replace(".", "")):
            yield Replacement(*found.span(), _CARD)


def _cards_in(found: re.Match[str]) -> Iterator[Replacement]:
    run, begin = found[0], found.start()
    groups = [(part.start(), part.end()) for part in re.finditer("[0-9]+", run)]
    if _is_joined(found.string, begin - 1, before=True):
        groups = groups[1:]
    if groups and _is_joined(found.string, found.end(), before=False):
        groups = groups[:-1]
    at = 0
    while at < len(groups):
        size = next(
            (size for size in (5, 4, 3, 1) if _are_card(run, groups[at : at + size], size)), 0
        )
        if size:
            yield Replacement(begin + groups[at][0], begin + groups[at + size - 1][1], _CARD)
        at += size or 1


def _is_joined(text: str, at: int, *, before: bool) -> bool:
    """Return whether the digits are part of a word or a fraction at this position.

    Only ASCII counts: Chinese and Japanese have no spaces between words.
    """
    if not 0 <= at < len(text):
        return False
    if text[at] == ".":  # 0.4111…, not the end of a sentence
        beyond = at - 1 if before else at + 1
        return 0 <= beyond < len(text) and text[beyond].isdigit()
    return text[at].isascii() and text[at].isalnum()


def _are_card(run: str, groups: list[tuple[int, int]], size: int) -> bool:
    if len(groups) < size or (
        size > 1 and tuple(end - start for start, end in groups) not in _GROUPED
    ):
        return False
    return is_card("".join(run[start:end] for start, end in groups))


def is_card(digits: str) -> bool:
    """Return whether these digits are a card number."""
    return 14 <= len(digits) <= 19 and bool(_BRANDS.fullmatch(digits)) and _luhn(digits)


def _luhn(digits: str) -> bool:
    total = sum(map(int, digits[-1::-2])) + sum(
        sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2]
    )
    return total % 10 == 0 and len(set(digits)) > 1


# -- IBAN ------------------------------------------------------------------------------------------

_BY_LENGTH: Final = {
    15: "NO",
    16: "BE",
    18: "DK FI FK FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
_LENGTHS: Final = {
    country: length for length, countries in _BY_LENGTH.items() for country in countries.split()
}
"""The length of an IBAN by country (ISO 13616)."""
_WITH_DIGITS: Final = (
    "AE AT BA BE BI CR CZ DE DJ DK EE EG ES FI FO GL HR HU IL IS LT LY ME MN MR NO PL PT RS SD SE "
    "SI SK SO ST TL TN VA XK"
)
_ONLY_DIGITS: Final = frozenset(_WITH_DIGITS.split())
"""Countries whose IBANs have only digits after the country code: with letters it is another id."""
_IBAN_START: Final = re.compile(rf"{FREE}([A-Za-z]{{2}})[0-9]{{2}}(?=[ .\t-]?[A-Za-z0-9])")
_APART: Final = " .\t-"


def _ibans(text: str) -> Iterator[Replacement]:
    """Find IBANs: the length of their country, and the right check digits."""
    place = 0
    for found in _IBAN_START.finditer(text):
        if found.start() >= place and (end := _iban_end(text, found.start(), found[1].upper())):
            yield Replacement(found.start(), end, _IBAN)
            place = end


def _iban_end(text: str, start: int, country: str) -> int:
    """Return the end of the IBAN that starts here; 0 if there is none."""
    length = _LENGTHS.get(country, 0)
    found: list[str] = []
    at = start
    while at < len(text) and len(found) < length:
        character = text[at]
        if character.isascii() and character.isalnum():
            found.append(character)
        elif (
            character not in _APART
            or text[at - 1] in _APART
            or (character == "-" and len(found) % 4)
        ):
            break
        at += 1
    if (
        not length
        or len(found) < length
        or (at < len(text) and text[at].isascii() and text[at].isalnum())
    ):
        return 0
    if country in _ONLY_DIGITS and not "".join(found[4:]).isdigit():
        return 0
    if "-" in text[start:at] and len(text[start:at].rpartition("-")[2]) > 4:
        return 0
    number = "".join(str(int(character, 36)) for character in (*found[4:], *found[:4]))
    return at if int(number) % 97 == 1 else 0


# -- e-mail ----------------------------------------------------------------------------------------

_DOMAIN: Final = re.compile(
    r"@(?:[^\W_](?:[^\W_]|-){0,62}\.){1,8}(?:[A-Za-z]{2,24}(?![A-Za-z])|[^\W\d_]{2,24}(?![^\W\d_]))"
)
_MAX_EMAIL_CHARS: Final = 320


def _emails(text: str) -> Iterator[Replacement]:
    """Find e-mail addresses; not git@github.com:…, which is a repository."""
    place = 0
    for found in _DOMAIN.finditer(text) if "@" in text else ():
        start = _local_part(text, found.start(), max(place, found.start() - _MAX_EMAIL_CHARS))
        is_repository = (
            text[start : found.start()] == "git" and text[found.end() : found.end() + 1] == ":"
        )
        if start < found.start() and not is_repository:
            yield Replacement(start, found.end(), _EMAIL)
            place = found.end()


def _local_part(text: str, end: int, limit: int) -> int:
    """Return the start of the name before an "@".

    If the name ends in a script with upper and lower case, it starts after any script without them.
    """
    start, latin = end, end > limit and _has_case(text[end - 1])
    while start > limit:
        character = text[start - 1]
        if not (character.isalnum() or character in "_.%+-") or (
            latin and not _has_case(character)
        ):
            break
        start -= 1
    return start


def _has_case(character: str) -> bool:
    return character.isascii() or character.lower() != character.upper()


PATTERNS: Final[dict[str, list[Finder]]] = {
    "keys": _KEYS,
    "tokens": [_tokens, _schemes],
    "iban": [_ibans],
    "cards": [_cards, _dotted_cards],
    "email": [_emails],
}
