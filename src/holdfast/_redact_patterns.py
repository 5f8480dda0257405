"""The shapes of secrets in text: keys, tokens, card numbers, IBANs, e-mail addresses.

Every expression here takes time in proportion to the text: what repeats is bounded, or cannot be divided in two ways. What has
check digits (cards, IBANs) is only taken for one if they are right, so that order numbers, ids and hashes stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

Replace = Callable[[str], str]


def mark(what: str) -> str:
    """What stands for something that was taken out."""
    return f"[redacted: {what}]"


MARKED: Final = r"\[redacted: [\w -]{1,64}\]"
_KEY, _TOKEN, _PASSWORD = mark("key"), mark("token"), mark("password")
_CARD, _IBAN, _EMAIL = mark("card"), mark("iban"), mark("email")

# -- keys ----------------------------------------------------------------------------------------------------------------

_FREE: Final = r"(?<![A-Za-z0-9])"  # not in the middle of a word: "task-…" is no "sk-…"
_DIGIT: Final = r"(?=[A-Za-z0-9_-]{0,200}[0-9])"  # "sk-learn-and-other-libraries" is no key
_VENDORS: Final = (
    # OpenAI, Anthropic and others; Stripe; GitHub; GitLab; AWS; Google; Slack; Hugging Face; Groq; xAI; npm; PyPI; SendGrid
    (("sk-",), rf"{_FREE}sk-{_DIGIT}[A-Za-z0-9_-]{{16,}}"),
    (("sk_", "rk_"), rf"{_FREE}[sr]k_(?:live|test|prod)_[A-Za-z0-9]{{10,}}"),
    (("gh",), rf"{_FREE}(?:gh[pousr]_[A-Za-z0-9]{{30,}}|github_pat_[A-Za-z0-9_]{{22,}})"),
    (("glpat-",), rf"{_FREE}glpat-[A-Za-z0-9_-]{{20,}}"),
    (("AKIA", "ASIA"), rf"{_FREE}A(?:KI|SI)A[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    (("AIza",), rf"{_FREE}AIza[A-Za-z0-9_-]{{35,}}"),
    (("ya29.",), rf"{_FREE}ya29\.[A-Za-z0-9_-]{{20,}}"),
    (("xox", "xapp-"), rf"{_FREE}(?:xox[a-z]|xapp)-{_DIGIT}[A-Za-z0-9-]{{10,}}"),
    (("hf_", "gsk_", "npm_"), rf"{_FREE}(?:hf|gsk|npm)_[A-Za-z0-9]{{30,}}"),
    (("xai-",), rf"{_FREE}xai-[A-Za-z0-9]{{30,}}"),
    (("pypi-",), rf"{_FREE}pypi-[A-Za-z0-9_-]{{50,}}"),
    (("SG.",), rf"{_FREE}SG\.[A-Za-z0-9_-]{{16,}}\.[A-Za-z0-9_-]{{16,}}"),
)
_VENDOR_KEYS: Final = [(hints, re.compile(pattern)) for hints, pattern in _VENDORS]
# To its end; if that is cut off, as far as it looks like one.
_PEM: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[A-Za-z0-9+/=,:.()\s\\]+|-(?!-))*"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
)
_URL_PASSWORD: Final = re.compile(r"(://[^\s/:@\"']{0,256}:)[^\s/@\"']{1,256}(?=@)")


def without_keys(text: str) -> str:
    """Without API keys of the known vendors, private keys and the passwords in URLs."""
    if "-----BEGIN " in text:
        text = _PEM.sub(_KEY, text)
    if "://" in text:
        text = _URL_PASSWORD.sub(lambda found: found[1] + _PASSWORD, text)
    for hints, pattern in _VENDOR_KEYS:
        if any(hint in text for hint in hints):
            text = pattern.sub(_KEY, text)
    return text


# -- tokens --------------------------------------------------------------------------------------------------------------

_JWT: Final = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+){0,3}")
_SCHEME: Final = re.compile(
    rf"{_FREE}(bearer|basic)(\s{{1,8}})(?=[A-Za-z0-9._~+/=-]{{0,400}}[0-9=])[A-Za-z0-9._~+/=-]{{12,}}", re.IGNORECASE
)


def without_tokens(text: str) -> str:
    """Without JSON web tokens, and what follows `Bearer` or `Basic` in a header."""
    if "eyJ" in text:
        text = _JWT.sub(_TOKEN, text)
    lower = text.lower()
    if "bearer" in lower or "basic" in lower:
        text = _SCHEME.sub(lambda found: found[1] + found[2] + _TOKEN, text)
    return text


# -- cards ---------------------------------------------------------------------------------------------------------------

_DIGITS: Final = re.compile(r"[0-9]+(?:[ \u00a0-][0-9]+)*")
_GROUPED: Final = {(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 4, 4, 4, 2), (4, 6, 5), (4, 6, 4)}
_BRANDS: Final = re.compile(
    r"4(?:[0-9]{15}|[0-9]{18})"  # Visa
    r"|(?:5[1-5][0-9]{2}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-5]|[68][0-9])[0-9]{11}"  # Diners Club
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12}"  # Discover
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12}"  # JCB
    r"|62[0-9]{14,17}"  # UnionPay
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])[0-9]{12}"  # Maestro
)


def without_cards(text: str) -> str:
    """Without payment card numbers: of a known issuer, grouped as on a card or not at all, and with the right check digit."""
    return _DIGITS.sub(_carded, text)


def _carded(found: re.Match[str]) -> str:
    run = found[0]
    if len(run) < 14:
        return run
    groups = [(part.start(), part.end()) for part in re.finditer("[0-9]+", run)]
    if _is_joined(found.string, found.start() - 1, before=True):
        groups = groups[1:]
    if groups and _is_joined(found.string, found.end(), before=False):
        groups = groups[:-1]
    kept, place, at = [], 0, 0
    while at < len(groups):
        size = next((size for size in (5, 4, 3, 1) if _is_card(run, groups[at : at + size], size)), 0)
        if size:
            kept += [run[place : groups[at][0]], _CARD]
            place = groups[at + size - 1][1]
        at += size or 1
    return "".join(kept) + run[place:]


def _is_joined(text: str, at: int, *, before: bool) -> bool:
    """Whether digits go on in a word or a fraction at this place."""
    if not 0 <= at < len(text):
        return False
    if text[at] == ".":  # 0.4111…, not the end of a sentence
        beyond = at - 1 if before else at + 1
        return 0 <= beyond < len(text) and text[beyond].isdigit()
    return text[at].isalnum() or text[at] == "_"


def _is_card(run: str, groups: list[tuple[int, int]], size: int) -> bool:
    if len(groups) < size or (size > 1 and tuple(end - start for start, end in groups) not in _GROUPED):
        return False
    digits = "".join(run[start:end] for start, end in groups)
    return 14 <= len(digits) <= 19 and bool(_BRANDS.fullmatch(digits)) and _luhn(digits)


def _luhn(digits: str) -> bool:
    total = sum(map(int, digits[-1::-2])) + sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return total % 10 == 0 and len(set(digits)) > 1


# -- IBAN ----------------------------------------------------------------------------------------------------------------

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
_LENGTHS: Final = {country: length for length, countries in _BY_LENGTH.items() for country in countries.split()}
"""How long an IBAN of a country is (ISO 13616)."""
_IBAN_START: Final = re.compile(rf"{_FREE}([A-Za-z]{{2}})[0-9]{{2}}(?=[ -]?[A-Za-z0-9])")


def without_ibans(text: str) -> str:
    """Without IBANs: as long as those of their country, and with the right check digits."""
    kept, place = [], 0
    for found in _IBAN_START.finditer(text):
        if found.start() >= place and (end := _iban_end(text, found.start(), found[1].upper())):
            kept += [text[place : found.start()], _IBAN]
            place = end
    return "".join(kept) + text[place:] if kept else text


def _iban_end(text: str, start: int, country: str) -> int:
    """Where an IBAN that begins here ends; 0 if none does."""
    length = _LENGTHS.get(country, 0)
    found: list[str] = []
    at = start
    while at < len(text) and len(found) < length:
        sign = text[at]
        if sign.isascii() and sign.isalnum():
            found.append(sign)
        elif sign not in " -\u00a0" or text[at - 1] in " -\u00a0":
            break
        at += 1
    if not length or len(found) < length or (at < len(text) and (text[at].isalnum() or text[at] == "_")):
        return 0
    number = "".join(str(int(sign, 36)) for sign in (*found[4:], *found[:4]))
    return at if int(number) % 97 == 1 else 0


# -- e-mail --------------------------------------------------------------------------------------------------------------

_ADDRESS: Final = re.compile(
    r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[^\W_](?:[^\W_]|-){0,62}\.){1,8}[^\W\d_]{2,24}(?![^\W\d_])"
)


def without_emails(text: str) -> str:
    """Without e-mail addresses."""
    return _ADDRESS.sub(_EMAIL, text) if "@" in text else text


# -- fields in text ------------------------------------------------------------------------------------------------------


def without_fields(names: Iterable[str]) -> Replace:
    """What takes the values of fields out of text: `password=…`, and `"password": "…"` where it is no JSON that can be read."""
    words = "|".join("[_-]?".join(map(re.escape, re.split("[_-]", name))) for name in names)
    if not words:
        return lambda text: text
    pattern = re.compile(
        rf"{_FREE}({words})"
        rf"(=[\"']?|\\{{0,3}}[\"']\s{{0,8}}[:=]\s{{0,8}}\\{{0,3}}[\"'])(?!{MARKED})"
        rf"(?:(?<=[\"'])[^\"'\\]+|(?<==)[^\s\"'&,;)\]}}]+)",
        re.IGNORECASE,
    )

    def replaced(found: re.Match[str]) -> str:
        return found[1] + found[2] + mark(found[1].lower().replace("-", "_"))

    return lambda text: pattern.sub(replaced, text) if "=" in text or ":" in text else text


PATTERNS: Final[dict[str, Replace]] = {
    "keys": without_keys,
    "tokens": without_tokens,
    "iban": without_ibans,
    "cards": without_cards,
    "email": without_emails,
}
