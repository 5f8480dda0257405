"""Find duplicates: does a new text say what a known memory already says?

Losing a fact is far worse than keeping a duplicate. So two texts are the same only if they have the
same words in the same order, after what cannot change a meaning was dropped: white space, the form
of quotes and dashes, punctuation at the end, fillers at both ends, and the case of ordinary words.
The case of other words counts ("5 mW" is not "5 MW", "hepatitis A" not "hepatitis a"), and so does
every sign: "A+" is not "A-", ".env" not "env", "No, deploys on Friday" not "No deploys on Friday".
Search uses other rules: see `text/tokens.py`.

Texts that are *alike* (two letters are swapped, or they differ by a "the" or the capitals of a
name) mostly say the same thing, but only a dictionary could tell, so the memory keeps both
wordings. The fold of a stream depends on the result, so everything here is pure and deterministic:
no model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec

from .text.characters import UNSPACED, combining_marks, normalize_for_reading
from .text.words import STOP

# -- fillers ---------------------------------------------------------------------------------------

# Phrases around a fact that say nothing. A list, not a rule: everything else is part of the fact.
# "It was said that", "probably", "confirmed" and "again" change a fact, so they are not here.
_MAX_FILLERS: Final = 16
"""More fillers than this are not natural speech."""
_MAX_PIECES: Final = 10
"""No filler is longer than this, with the marks around it."""

_ASIDE: Final = (
    "fyi|btw|please|by the way|for the record|(?:just )?so you know|for your information|"
    "for your reference|as (?:previously )?(?:mentioned|discussed)(?: before| earlier)?|as noted|"
    "as i mentioned|as i said|as we discussed|as you know|(?:as )?per our discussion|note to self|"
    "(?:just a )?heads up|please note|thanks|thank you"
)
_TO_ALL: Final = "(?:hi|hey|hello|good morning)(?: all| team| folks| everyone)?"
_FORGET: Final = "(?:don't|do not) forget"
# Followed by a comma, a colon or another pause.
_BEFORE_A_PAUSE: Final = (
    f"{_ASIDE}|{_TO_ALL}|{_FORGET}|(?:just )?(?:an? )?(?:quick |friendly )?reminder|as a reminder|"
    "(?:a )?(?:quick |side |important )?notes?|one more thing(?: to note)?|remember this|"
    "(?:please )?remember|(?:please )?keep in mind|memo|info|(?:very )?important|"
    "(?:important |quick |small )?update|also|ok|okay|(?:to )?recap|in short|(?:it )?turns out|"
    "quick one|noted|so|well|actually|请记住|請記住|记住|記住|注意|请注意|請注意|提醒|提醒一下|"
    "备注|備註|メモ|参考まで|覚えておいて|ちなみに|念のため"
)
_BEFORE_A_SENTENCE: Final = (
    "fyi|btw|please|just so you know|for your information|(?:please |also |just )?note that|"
    "it should be noted that|(?:just )?(?:a )?(?:quick |friendly )?reminder that|"
    "(?:please |just |always )?remember that|(?:please )?(?:keep|bear) in mind that|"
    f"(?:please )?{_FORGET} that|never forget that|(?:please )?be aware that|"
    "i want you to know that|you should know that|(?:it )?turns out that|"
    "(?:i|we|i have) learned that|(?:i|we) found out that|"
    "(?:the )?user (?:said|says|mentioned|told me) that"
)
_AFTER_A_SENTENCE: Final = (
    f"{_ASIDE}|{_FORGET}(?: it| this)?|noted|(?:please )?remember(?: this| that)?|"
    "(?:this is )?important|(?:please )?keep (?:it |this )?in mind|cheers|many thanks|"
    "thanks (?:a lot|all|everyone)"
)
_OPENING: Final = re.compile(
    rf"(?:(?:{_BEFORE_A_PAUSE}) [:,.;-]|(?:{_BEFORE_A_SENTENCE})(?! [:,.;-](?: |$)))(?= \S)"
)
# Not after a colon, as in "Answer: thanks".
_CLOSING: Final = re.compile(
    rf"(?<=\S) (?:[,;-] (?:{_ASIDE})|\. (?:{_AFTER_A_SENTENCE})|\( (?:{_ASIDE}) \))$"
)


def trim_fillers(pieces: Sequence[str]) -> tuple[int, int]:
    """Return where the fact starts and ends in a list of lower-case pieces. It is never empty."""
    start, end = 0, len(pieces)
    for _ in range(_MAX_FILLERS):
        if opening := _OPENING.match(" ".join(pieces[start : min(start + _MAX_PIECES, end)])):
            start += opening[0].count(" ") + 1
        elif closing := _CLOSING.search(" ".join(pieces[max(end - _MAX_PIECES, start) : end])):
            end -= closing[0].count(" ")
        else:
            break
    return start, end


# -- words -----------------------------------------------------------------------------------------

Mark = Literal["name", "first", "lower", "loud", "quiet", "fixed"]
"""How a word is written.

"name": with a capital. "first": with a capital at the start of a sentence, where any word has one.
"lower": without. "loud", "quiet": all words of the text have capitals, or none, so case means
nothing. "fixed": any other spelling would mean something else.
"""
Letters = Literal["lower", "capital", "capitals", "mixed", "none"]
"""The case of the letters of one word."""


class Token(NamedTuple):
    key: str
    """Must be equal for two words to be the same."""
    loose: str
    """Must be equal for two words to be alike: lower case, and empty for "the"."""
    mark: Mark


class _Piece(NamedTuple):
    """A word with its signs, or a punctuation mark."""

    text: str
    lower: str
    letters: Letters
    word: bool
    number: bool
    usual: tuple[Token, ...]
    """Its tokens inside a sentence with ordinary capitals, which is where it nearly always is.

    Computed in advance, because pieces are cached.
    """


_QUOTES: Final = str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"') | {"`": "'", "\u00b4": "'"}
)
_NO_END: Final = frozenset(".,;:")
_ENDS: Final = str.maketrans("!\u2026", "..")
_SENTENCE: Final = frozenset('.?:"(')
_BETWEEN: Final = "\u2014"
_CHUNK: Final = re.compile("([(\\[{\"'\u00bf\u00a1]*)(.*?)([.,;:!?\u2026)\\]}\"']*)", re.DOTALL)
_FEET: Final = re.compile("[0-9]['\"]+$")
"""Feet and inches, like 6'2"."""
_WIDE: Final = re.compile(f"(?<=[{UNSPACED}])[,.:;!?()]|[,.:;!?()](?=[{UNSPACED}])|{_BETWEEN}")
_PLAIN: Final = re.compile("[A-Za-z]+(?:['-][A-Za-z]+)*")
_NUMBER: Final = re.compile(r"[^\w]?[0-9][0-9.,:/]*")
_UNIT: Final = re.compile(
    "[yzafpnumcdhkMGTPEZY]?i?"
    "(?:wh?|hz|b|bit|bps|v|va|a|ah|j|pa|m|g|l|s|k|c|f|n|mol|ev|cal|bar|t|h|lm|lx|x|d)",
    re.IGNORECASE,
)
_HOURS: Final = frozenset(("am", "pm"))
_NOT: Final = {"ca": "can", "wo": "will", "sha": "shall"}
_NO_APOSTROPHE: Final = re.compile(
    "(do|does|did|is|are|was|were|would|should|could|has|have|had)nt"
)
_SHORT: Final = {"'m": "am", "'re": "are", "'ve": "have", "'ll": "will"}
_OPERATORS: Final = frozenset("=+-*/^\u00d7")
_THE: Final = frozenset(("the", "teh", "hte"))
_MIN_LOUD_WORDS: Final = 3
"""If a text has at least this many words, all in capitals, capitals don't mark names."""
_CACHE_CHUNKS: Final = 1 << 15
_MAX_CACHED_CHUNK: Final = 32


def tokenize(text: str) -> list[Token]:
    """Return the words and marks of a text without the fillers at both ends, in linear time."""
    readable = _strip_quotes(normalize_for_reading(text).translate(_QUOTES))
    if not readable.isascii():
        readable = _WIDE.sub(lambda mark: f" {mark[0]} ", readable)
    pieces: list[_Piece] = []
    for chunk in readable.split():
        pieces.extend(
            _split_chunk_cached(chunk) if len(chunk) <= _MAX_CACHED_CHUNK else _split_chunk(chunk)
        )
    pieces = _trim_end(pieces)
    if not pieces:
        return []
    start, end = trim_fillers([piece.lower for piece in pieces])
    return _tokenize_pieces(_trim_end(pieces[start:end]))


def _split_chunk(chunk: str) -> tuple[_Piece, ...]:
    """Split text without spaces into a word with its signs and the punctuation around it."""
    match = _CHUNK.fullmatch(chunk)
    before, body, after = match.groups() if match else ("", chunk, "")
    if feet := _FEET.search(body + after.rstrip(".,;:!?")):
        body, after = body + after[: feet.end() - len(body)], after[feet.end() - len(body) :]
    inner: list[_Piece] = []
    if body in ("-", "--", _BETWEEN):
        inner = [_mark_piece("-")]
    elif body:
        inner = [_piece(body, _classify_letters(body), word=True)]
    if after == "!" and body[-1:].isnumeric():
        ending = [_piece("!", "none", word=False)]  # a factorial or an exclamation
    else:
        ending = [_mark_piece(mark.translate(_ENDS)) for mark in after]
    return (*map(_mark_piece, before), *inner, *ending)


_split_chunk_cached: Final = lru_cache(_CACHE_CHUNKS)(_split_chunk)


def _mark_piece(sign: str) -> _Piece:
    return _piece('"' if sign == "'" else sign, "none", word=False)


def _piece(text: str, letters: Letters, *, word: bool) -> _Piece:
    number = word and letters == "none" and _NUMBER.fullmatch(text) is not None
    usual = _word_tokens(text, letters, None, loud=False, starts=False, number=False)
    return _Piece(text, text.lower(), letters, word, number, usual)


def _classify_letters(body: str) -> Letters:
    """Classify the letters of a word; "none" for numbers, flags, file names and the like."""
    if not (_PLAIN if body.isascii() else _any_script()).fullmatch(body):
        return "none"
    if body.lower() == body or body == "I" or (body.startswith("I'") and body[2:].islower()):
        return "lower"
    if len(body) > 1 and body.upper() == body:
        return "capitals"
    parts = re.split("['-]", body)
    titled = body[0].isupper() and all(part[1:] == part[1:].lower() for part in parts)
    return "capital" if titled else "mixed"


@lru_cache(1)
def _any_script() -> re.Pattern[str]:
    letter = rf"[^\W\d_][{combining_marks()}]*"
    return re.compile(rf"(?:{letter})+(?:['-](?:{letter})+)*")


# -- both ends -----------------------------------------------------------------------------------


def _trim_end(pieces: list[_Piece]) -> list[_Piece]:
    """Drop the punctuation at the end, but not a question mark; reduce "!!!" and "???" to one."""
    kept: list[_Piece] = []
    for piece in pieces:
        if piece.word or piece.text not in ".?" or not kept or kept[-1] != piece:
            kept.append(piece)
    while (
        kept
        and not kept[-1].word
        and (kept[-1].text in _NO_END or (kept[-1].text == "!" and not _is_factorial(kept)))
    ):
        kept.pop()
    return kept


def _is_factorial(pieces: list[_Piece]) -> bool:
    """Whether a final "!" is a factorial: "= 5!" is 120; "I owe you 5!" is not."""
    return len(pieces) > 2 and pieces[-3].text in _OPERATORS


def _strip_quotes(text: str) -> str:
    """Strip the quotes of a text that is one quotation."""
    bare = text.strip().rstrip(".!")
    is_quotation = len(bare) > 2 and bare[0] == bare[-1] == '"' and bare.count('"') == 2
    return bare[1:-1] if is_quotation else text


# -- tokens --------------------------------------------------------------------------------------


def _tokenize_pieces(pieces: list[_Piece]) -> list[Token]:
    plain = [piece for piece in pieces if piece.letters != "none"]
    long = [piece.letters for piece in plain if len(piece.text) > 1]
    loud = len(long) >= _MIN_LOUD_WORDS and all(letters == "capitals" for letters in long)
    titled = bool(long) and "lower" not in long
    case: Mark | None = (
        "loud"
        if loud or titled
        else "quiet"
        if all(p.text == "I" or p.text == p.lower for p in pieces)
        else None
    )
    found: list[Token] = []
    starts, number = True, False
    for piece in pieces:
        if case or starts or number:
            found += _word_tokens(
                piece.text, piece.letters, case, loud=loud, starts=starts, number=number
            )
        else:
            found += piece.usual
        starts, number = not piece.word and piece.text in _SENTENCE, piece.number
    return found


def _word_tokens(
    text: str, letters: Letters, case: Mark | None, *, loud: bool, starts: bool, number: bool
) -> tuple[Token, ...]:
    """Return the token of a word, or two tokens for a contraction like "don't".

    `case` is set if capitals don't mark names in this text, `number` if the word follows a number.
    """
    lower = text.lower()
    if number and lower in _HOURS:
        return (Token(lower, lower, "fixed"),)
    letter = len(text) == 1 and (lower not in "ai" or (text == "A" and case is None and not starts))
    if letters == "none" or letter or (number and lower not in STOP and _UNIT.fullmatch(text)):
        return (Token(text, lower, "fixed"),)
    if letters == "mixed" or (letters == "capitals" and len(text) > 1 and not loud):
        return (Token(text, lower, "fixed" if lower in STOP else "name"),)
    mark: Mark = case or ("lower" if letters == "lower" else "first" if starts else "name")
    return tuple(
        Token(part, "" if part in _THE else part, mark) for part in _split_contraction(lower)
    )


def _split_contraction(lower: str) -> list[str]:
    """Split a contraction, but not "it's", which may be "it is" or "it has"."""
    if "'" not in lower:
        if lower == "cannot":
            return ["can", "not"]
        without = _NO_APOSTROPHE.fullmatch(lower)
        return [without[1], "not"] if without else [lower]
    base, _, ending = lower.rpartition("'")
    if ending == "t" and base.endswith("n"):
        return [_NOT.get(base[:-1], base[:-1]), "not"]
    return [base, _SHORT["'" + ending]] if "'" + ending in _SHORT else [lower]


# -- comparing -------------------------------------------------------------------------------------

Verdict = Literal["same", "alike"]

_MIN_ALIKE_WORDS: Final = 4
"""In a shorter text, one different word may make a different fact."""
_MAX_ALIKE_CHARS: Final = 400
"""Longer texts are never merely alike: a memory with several wordings should be short."""
_MIN_SWAP_CHARS: Final = 4
"""Shorter words have too many neighbours, unless one of the two is a stop word: "fro" is "for"."""
_MIN_NAME_LETTERS: Final = 3
_DROP_THE: Final = str.maketrans("", "", "the")
_CACHE_TEXTS: Final = 4096
"""Enough for more than a page of events."""
_CACHE_MAX_CHARS: Final = 1_000
_MAX_WORDS_CHARS: Final = 20_000
"""A longer text is a document: only an identical one is a duplicate."""


class Signature(msgspec.Struct, frozen=True):
    """A text prepared for `compare_texts`."""

    exact: str
    """Digest of the text with single spaces, compared if there are no words or too many."""
    key: str
    """Any two texts that `compare_texts` matches have the same key."""
    words: tuple[str, ...]
    """Must be equal for two texts to be the same."""
    marks: tuple[Mark, ...]
    """How each word is written."""
    loose: tuple[Token, ...]
    """Compared to see whether texts are alike. Empty if nothing can be like this text."""


def compute_signature(text: str) -> Signature:
    """Compute the signature of a text, in linear time. Never raises. Short texts are cached."""
    build = _build_signature_cached if len(text) <= _CACHE_MAX_CHARS else _build_signature
    return build(text)


def _build_signature(text: str) -> Signature:
    exact = _digest(normalize_for_reading(text).split())
    tokens = tokenize(text) if len(text) <= _MAX_WORDS_CHARS else []
    if not tokens:
        return Signature(exact, exact, (), (), ())
    words, _, marks = zip(*tokens, strict=True)
    loose = tuple(token for token in tokens if token.loose)
    real = (token for token in loose if any(map(str.isalnum, token.loose)))
    if (
        len(list(islice(real, _MIN_ALIKE_WORDS))) < _MIN_ALIKE_WORDS
        or sum(map(len, words)) > _MAX_ALIKE_CHARS
    ):
        return Signature(exact, _digest(words), words, marks, ())
    # All letters, sorted, without those of "the": swaps don't change it.
    key = _digest(sorted("".join(words).lower().translate(_DROP_THE)))
    return Signature(exact, key, words, marks, loose)


_build_signature_cached: Final = lru_cache(_CACHE_TEXTS)(_build_signature)


def compare_texts(new: Signature, old: Signature) -> Verdict | None:
    """Return "same" if both state one fact, "alike" if they look like it, None if they don't."""
    if not new.words or not old.words:
        return "same" if new.exact == old.exact else None
    if new.words == old.words and all(map(_is_same_word, new.marks, old.marks)):
        return "same"
    if not new.loose or not old.loose:
        return None
    alike = _are_alike(new.loose, old.loose) or _is_misplaced_space(new.words, old.words)
    return "alike" if alike else None


def _is_same_word(one: Mark, other: Mark) -> bool:
    """Whether a word is the same in both texts. "china" is not "China" if both use capitals."""
    return one == other or {one, other} != {"name", "lower"}


def _are_alike(new: Sequence[Token], old: Sequence[Token]) -> bool:
    if len(new) != len(old):
        return False
    pairs = [pair for pair in zip(new, old, strict=True) if pair[0].key != pair[1].key]
    cases = {token.mark for tokens in (new, old) for token in tokens}
    typos = [pair for pair in pairs if pair[0].loose != pair[1].loose]
    if any(one.loose == two.loose and not _is_recased(one, two, cases) for one, two in pairs):
        return False
    return not typos or (len(typos) == 1 and _is_typo(*typos[0]))


def _is_misplaced_space(new: Sequence[str], old: Sequence[str]) -> bool:
    """Whether a space is misplaced between two words: "sen tby" is "sent by".

    No letter is changed, so names count too.
    """
    at = next(
        (at for at, (one, other) in enumerate(zip(new, old, strict=False)) if one != other), 0
    )
    one, other = " ".join(new[at : at + 2]), " ".join(old[at : at + 2])
    place = _find_swap(one, other)
    return (
        new[at + 2 :] == old[at + 2 :]
        and place is not None
        and " " in one[place : place + 2]
        and one.replace(" ", "").isalpha()
        and one.isascii()
    )


def _is_recased(one: Token, other: Token, cases: Collection[Mark]) -> bool:
    """Whether two words differ only in case, and not on purpose.

    In anything but an ordinary word, case counts ("-o" and "-O"), unless one of the texts is all in
    capitals, or has no capitals and the word is a longer name ("node.js").
    """
    if "fixed" not in (one.mark, other.mark) or "loud" in cases:
        return True
    return "quiet" in cases and sum(map(str.isalpha, one.loose)) >= _MIN_NAME_LETTERS


def _is_typo(one: Token, other: Token) -> bool:
    """Whether one word is the other with two letters swapped, and neither is marked as a name."""
    marks = {one.mark, other.mark}
    if not marks.isdisjoint(("name", "fixed")) or marks == {"first"}:
        return False
    words = (one.loose, other.loose)
    if min(map(len, words)) < _MIN_SWAP_CHARS and (
        len(one.loose) < 3 or (one.loose in STOP) == (other.loose in STOP)
    ):
        return False
    letters = "".join(words)
    return letters.isascii() and letters.isalpha() and _find_swap(*words) is not None


def _find_swap(one: str, other: str) -> int | None:
    """Return where two characters are swapped; None if the texts differ in another way."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    swapped = one[:at] + one[at + 1 : at + 2] + one[at : at + 1] + one[at + 2 :]
    return at if at < len(one) - 1 and swapped == other else None


def _digest(words: Iterable[str]) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=6).hexdigest()
