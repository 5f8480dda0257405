"""Find the names in a text: of people, companies and places, codes, quoted terms, e-mail addresses.

No model and no dictionary: capitals, digits, quotation marks, and titles such as "Ms" or "株式会社"
in scripts without capitals. One text alone can't tell "Ann" from "Order" at the start of a
sentence, nor "Anna" from "Rechnung" in German. So `read_names` also returns the words that the text
uses as ordinary ones, and `settle_names` decides with those of many texts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from .characters import KOREAN, UNSPACED, normalize_for_reading, normalize_for_search
from .words import STOP, UNITS, small_words, split_words

NameKind = Literal["name", "code", "quoted", "email"]

MAX_NAME_WORDS: Final = 5
MAX_READ_CHARS: Final = 20_000
"""Of a longer text, only this much is read for names."""
HEADING_SHARE, GERMAN_HEADING_SHARE = 0.6, 0.8
"""If a larger share of the words have capitals, the capitals tell nothing."""

_EMAIL: Final = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,6}")
_HOST: Final = re.compile(r"(?:https?://|\bwww\.)(?:www\.)?([\w.-]{1,200}[\w])[^\s]*")
_QUOTED: Final = re.compile(
    '["\u201c\u201e\u201d]([^"\u201c\u201d\u201e\n]{2,60})["\u201c\u201d]'
    "|«\\s?([^«»\n]{2,60}?)\\s?»|\u2039([^\u2039\u203a\n]{2,60})\u203a|`([^`\n]{2,60})`"
    "|「([^「」\n]{2,60})」|『([^『』\n]{2,60})』|《([^《》\n]{2,60})》"
)
_SPEECH: Final = re.compile(r"[.!?,;:…]")
# Repeats are bounded, or start only where a word does: else hostile texts take quadratic time.
# INV-2041, KX_42/B, GPT4, A320, #482; at least one digit, and a letter or a number sign.
_CODE: Final = re.compile(
    r"(?<![\w@.+-])(?=[\w#/-]{0,80}\d)(?=\d{0,40}[A-Za-z#])"
    r"#?[A-Za-z0-9]{1,64}(?:[-_/][A-Za-z0-9]{1,64}){0,8}(?![\w@])",
    re.ASCII,
)
# A customer or contract number, but no amount.
_NUMBER: Final = re.compile(
    r"(?<![\w.,+€$£¥-])\d{6,15}(?![\w,%€$£¥-]|\.\d|\s?(?:EUR|USD|GBP|euros?)\b)"
)
_NO_CODE: Final = re.compile(
    r"#?\d+(?:st|nd|rd|th|s|x|k|m|bn|h|d|w|y|min|er|te|ten)|\d{4}-\d\d(?:-\d\d.*)?|\d+/\d+(?:/\d+)?"
    rf"|\d+[.:]?\d*(?:{'|'.join(sorted(UNITS))})|[A-Za-z]?\d|\d+[A-Za-z]?-\w+|[hq][1-4]",
    re.IGNORECASE,
)
_OTHER: Final = f"{UNSPACED}{KOREAN}"
_WORD: Final = re.compile(
    rf"[^\W\d_{_OTHER}](?:[^\W_{_OTHER}]|[\u0300-\u036f]|['.&-](?=[^\W\d_{_OTHER}]))*"
)
_UNCASED: Final = re.compile(f"[{_OTHER}]")
_SENTENCE_ENDS: Final = frozenset(".!?…:;\n•")
_BEFORE_SENTENCES: Final = " \t\"'“”„«»([*_>-"
_JOINED: Final = re.compile(r" |-| & |&")
_PARTICLES: Final = frozenset(
    split_words(
        "of de del della di da do dos du des la le van von vom der den zu y e bin ibn al el"
    )
)
_TITLES: Final = frozenset(
    split_words(
        "mr mrs ms dr prof sir herr frau herrn firma mme mlle m. monsieur madame sr sra señor"
        " señora don doña signor signora mevrouw meneer pan pani господин госпожа"
    )
)
_LEGAL: Final = frozenset(
    split_words(
        "inc ltd corp corporation co company llc llp plc gmbh ag kg se sa s.a sarl srl bv b.v nv"
        " ab oy as aps spa s.p.a pty limited incorporated"
    )
)
# Months, weekdays, languages, currencies and quarters have capitals, but are no names.
_NO_NAMES: Final = frozenset(
    split_words(
        "january february march april may june july august september october november december"
        " jan feb mar apr jun jul aug sep sept oct nov dec monday tuesday wednesday thursday friday"
        " saturday sunday mon tue tues wed thu thur thurs fri sat sun januar februar märz mai juni"
        " juli oktober dezember montag dienstag mittwoch donnerstag freitag samstag sonnabend"
        " sonntag easter christmas ostern weihnachten english german french spanish utc am pm ok"
        " twenty thirty forty fifty sixty seventy eighty ninety hundred pdf csv gb mb kb"
        " eur usd gbp chf jpy q1 q2 q3 q4 h1 h2"
    )
)
# Words that start sentences, beside the small words of the languages that most texts are in.
_OPENERS: Final = small_words("german", "french", "spanish", "italian", "dutch").union(
    split_words(
        "yesterday today tomorrow tonight last next first second finally later soon recently now"
        " meanwhile however according also please thanks thank sorry yes no not never always often"
        " decision note agreed action actions present cause lesson topic outcome result incident"
        " ticket update summary goal status reminder question answer warning error todo re fwd"
        " maybe perhaps let lets one two three many most several few new old our if when once"
        " wenn weil war kann unser unsere in an am im seit heute gestern morgen bitte danke ja nein"
        " schon hier dort dann was mais des je on votre notre pour aujourd'hui demain merci oui"
        " unos unas y o e pero si no tú él ayer hoy mañana gracias qué quién ma nel per ieri oggi"
        " domani then вчера сегодня завтра"
    )
)
_DETERMINERS: Final = frozenset(
    split_words(
        "der die das den dem des ein eine einen einem einer eines im am zum zur vom beim ins ans"
        " kein keine keinen keiner mein meine meinen meiner dein deine sein seine seinen seiner ihr"
        " ihre ihren ihrer unser unsere unseren unserer euer eure dieser diese dieses diesen jeder"
        " jede jedes jeden alle allen aller viele vielen mehrere zwei drei vier fünf sechs zehn"
        " welche welcher welches pro je"
    )
)
_GERMAN: Final = small_words("german").union(split_words("für über des war es im am"))
_UMLAUT: Final = re.compile("[äöüÄÖÜß]")
_ADJECTIVE: Final = re.compile(r"[a-zäöüß]{2,}(?:e|en|er|es|em)")
_NOUN: Final = re.compile(
    r".{2,}(?:ung|ungen|heit|heiten|keit|keiten|schaft|schaften|tion|tionen|tät|täten|nis|nisse|tum"
    r"|chen|lein|ling|linge|ismus|ment|mente)"
)
_SURNAMES: Final = (
    "王李张刘陈杨黄赵吴周徐孙马朱胡郭何高林罗郑梁谢宋唐许韩冯邓曹彭曾肖田董袁潘于蒋蔡余杜叶程苏魏吕丁任沈"
    "姚卢姜崔钟谭陆汪范金石廖贾夏韦付方白邹孟熊秦邱江尹薛闫段雷侯龙史陶黎贺顾毛郝龚邵万钱严覃武戴莫孔向汤"
    "張劉陳楊黃趙吳孫馬鄭謝許韓馮鄧葉蘇魏呂盧鍾譚陸賈鄒龍顧龔萬錢嚴湯"
)
_KANJI, _KATAKANA, _HANGUL = "[\u4e00-\u9fff]", "[\u30a1-\u30fa\u30fc]", "[\uac00-\ud7a3]"
_SPACED: Final = r"[^\W\d_]{2,20}"
_UNCASED_NAMES: Final = (
    # 王小明说 …, 由李娜签署; 华夏银行
    re.compile(
        rf"(?:^|(?<=[\s.,!?:;“「由和与跟给向让请问对找是叫的]))"
        rf"([{_SURNAMES}]{_KANJI}{{1,2}}?)(?=先生|女士|小姐|经理|总监|老师|博士|医生|律师|说|表示|认为|签|负责"
        "|批准|住|在|是|和|与|告诉|要求|的|会|已|将|去|来|喜欢|提|希望|想|预|[,.]|$)"
    ),
    re.compile(
        rf"(?:^|(?<=[\s.,!?:;“「由和与跟给向让请问对找是叫的在]))"
        rf"({_KANJI}{{2,8}}?(?:公司|银行|集团|大学|医院|学院|酒店))"
    ),
    # 田中さん, ジョン・スミス氏; 株式会社アクメ
    re.compile(
        rf"((?<!{_KATAKANA}){_KATAKANA}+(?:・{_KATAKANA}+){{0,4}}|{_KANJI}{{1,4}})"
        "(?=さん|様|さま|氏|くん|ちゃん|先生|部長|課長|社長|係長|専務)"
    ),
    re.compile(rf"(?<!{_KATAKANA})({_KATAKANA}+(?:・{_KATAKANA}+){{1,4}})"),
    re.compile(rf"(?:株式会社|合同会社|有限会社)({_KATAKANA}{{2,12}}|{_KANJI}{{2,6}})"),
    re.compile(rf"({_KATAKANA}{{2,12}}|{_KANJI}{{2,6}})(?=株式会社|合同会社|社[がはのとにを])"),
    # 김민수 씨, 박 부장님
    re.compile(
        rf"({_HANGUL}{{2,4}}?)(?=\s?(?:씨|님|부장|과장|대리|사장|이사|팀장|대표|교수|박사)"
        rf"(?:{_HANGUL}|\b))"
    ),
    # Titles before a name: Arabic, Persian, Hebrew, Hindi, Thai.
    re.compile(
        r"(?<!\w)(?:السيد|السيدة|الدكتور|الدكتورة|المهندس|المهندسة|الأستاذ|الأستاذة|شركة|بنك|آقای|خانم"
        rf"|מר|גברת|חברת|עו\"ד|श्री|श्रीमती|डॉ)\.?\s+({_SPACED})"
    ),
    re.compile("([\u0900-\u097f]{2,20})(?=\\s+जी(?!\\w))"),
    re.compile("(?:คุณ|นางสาว|นาย|นาง|บริษัท)\\s?([\u0e01-\u0e3a\u0e40-\u0e4e]{2,20})"),
)


class Mention(NamedTuple):
    """A name as a text has it.

    `opens` means that it starts a sentence, so that its first word may be an ordinary one, and
    `is_sure` that the text alone tells that it is a name.
    """

    name: str
    kind: NameKind
    is_sure: bool = True
    opens: bool = False


class TextNames(NamedTuple):
    """The names of a text, and the words that it uses as ordinary ones, in lower case."""

    mentions: tuple[Mention, ...]
    ordinary: frozenset[str]


def read_names(text: str) -> TextNames:
    """Read a text for names. Never raises."""
    return _read_cached(text) if len(text) <= 400 else _read(text[:MAX_READ_CHARS])


@lru_cache(4096)
def _read_cached(text: str) -> TextNames:
    return _read(text)


def settle_names(mentions: Iterable[Mention], ordinary: Collection[str]) -> list[Mention]:
    """Return the mentions that are names, given the ordinary words of many texts."""
    found: dict[str, Mention] = {}
    for mention in mentions:
        words = mention.name.split(" ")
        if mention.kind == "name":
            if mention.opens and words[0].casefold() in ordinary:
                words = words[1:]
            while words and words[0].casefold() in _PARTICLES:
                words = words[1:]
            if not words or (len(words) > 1 and not mention.is_sure):
                continue  # a heading
            if len(words) == 1 and _is_ordinary(words[0], ordinary, exactly=mention.is_sure):
                continue
        name = " ".join(words)
        found.setdefault(fold_name(name), mention._replace(name=name))
    return list(found.values())


def _is_ordinary(word: str, ordinary: Collection[str], *, exactly: bool) -> bool:
    """Whether a word is an ordinary one; unless `exactly`, also without its ending."""
    plain = word.casefold()
    if word.isupper() and len(word) > 1:
        return False
    if exactly:
        return plain in ordinary
    if plain in ordinary or plain in _OPENERS or plain in STOP:
        return True
    return len(plain) > 4 and any(
        plain.endswith(ending) and plain[: -len(ending)] in ordinary
        for ending in ("s", "n", "e", "en", "er", "es")
    )


@lru_cache(8192)
def fold_name(name: str) -> str:
    """Return the form under which spellings of one name are the same: no case, "Inc" or accent."""
    words = normalize_for_search(name).casefold().strip(" .#'").split()
    while len(words) > 1 and words[-1].strip(".,") in _LEGAL:
        words.pop()
    return " ".join(words).rstrip(".,")


def _read(text: str) -> TextNames:
    text = normalize_for_reading(text)
    found: list[Mention] = []
    for pattern, kind in ((_EMAIL, "email"), (_HOST, "code"), (_QUOTED, "quoted")):
        if pattern is _EMAIL and "@" not in text:
            continue
        for match in pattern.finditer(text):
            name = (next(filter(None, match.groups()), None) or match[0]).strip(" .")
            is_name = kind != "quoted" or not _SPEECH.search(name)
            if is_name and name and len(name.split()) <= MAX_NAME_WORDS:
                found.append(Mention(name, kind))  # type: ignore[arg-type]
        if pattern is not _QUOTED:
            text = pattern.sub(lambda match: " " * (len(match[0]) - 1) + ",", text)
    taken: list[tuple[int, int]] = []
    for pattern in (_CODE, _NUMBER):
        for match in pattern.finditer(text):
            if not _NO_CODE.fullmatch(match[0]):
                found.append(Mention(match[0], "code"))
                taken.append(match.span())
    if _UNCASED.search(text) or not text.isascii():
        for pattern in _UNCASED_NAMES:
            found += [Mention(match[1].strip(), "name") for match in pattern.finditer(text)]
    for start, end in taken:
        text = text[:start] + "0" * (end - start) + text[end:]
    named, ordinary = _read_capitals(text)
    return TextNames(tuple(dict.fromkeys([*found, *named])), ordinary)


class _Word(NamedTuple):
    text: str
    plain: str
    start: int
    end: int
    has_capital: bool = False
    opens: bool = False


def _read_capitals(text: str) -> tuple[list[Mention], frozenset[str]]:
    """Return the names that capitals tell, and the ordinary words."""
    words = [_to_word(text, match) for match in _WORD.finditer(text)]
    cased = [word for word in words if word.has_capital or word.text.islower()]
    capitals = sum(word.has_capital for word in cased)
    german = _is_german(text, words)
    share = GERMAN_HEADING_SHARE if german else HEADING_SHARE
    tells = len(cased) < 4 or capitals <= share * len(cased)
    ordinary = {word.plain for word in cased if not word.has_capital}
    ordinary.update(word.plain for word in words if word.plain in _OPENERS)
    found: list[Mention] = []
    at = 0
    while at < len(words):
        if not words[at].has_capital or not _may_name(words[at], german):
            at += 1
            continue
        last = _find_end(text, words, at, german)
        group = words[at : last + 1]
        before = words[at - 1] if at else None
        at = last + 1
        titled = before is not None and before.plain.rstrip(".") in _TITLES
        # "Ann: yes, on Monday" in a transcript.
        titled = titled or (before is None and text[group[-1].end :].startswith(": "))
        name = " ".join(text[group[0].start : group[-1].end].split())
        plain = group[0].plain
        if len(group) > 1:
            found.append(Mention(name, "name", tells or titled, group[0].opens))
            continue
        is_sure = tells and not group[0].opens
        if german and not titled and not _looks_coined(name):
            is_sure = False
            if _NOUN.fullmatch(plain) or _has_determiner(text, words, group[0], before):
                ordinary.add(plain)
                continue
        found.append(
            Mention(name, "name", is_sure or titled or _looks_coined(name), group[0].opens)
        )
    return found, frozenset(ordinary)


def needs_repeat(mention: Mention) -> bool:
    """Whether only a second memory shows that this is a name: it may be a word we don't know."""
    if mention.is_sure or " " in mention.name:
        return False
    return not mention.opens or mention.name.endswith(("s", "ing", "ed", "ly", "ion"))


def _is_german(text: str, words: list[_Word]) -> bool:
    """Whether a text is German, where all nouns have capitals."""
    known = sum(word.plain in _GERMAN for word in words)
    if _UMLAUT.search(text):
        known += 1 + sum(word.plain in ("in", "an", "aus", "um") for word in words)
    return known >= max(2, len(words) / 8)


def _to_word(text: str, match: re.Match[str]) -> _Word:
    word, start = match[0], match.start()
    if word.islower():
        return _Word(word, word, start, match.end())
    word = word.rstrip(".&-'")
    if word.endswith(("'s", "'S")):
        word = word[:-2]
    has_capital, opens = word.lower() != word, _opens_sentence(text, start)
    return _Word(word, word.casefold(), start, start + len(word), has_capital, opens)


def _opens_sentence(text: str, at: int) -> bool:
    """Whether a sentence starts here: at the start, after a full stop, a line break or a bullet."""
    before = text[max(at - 8, 0) : at].rstrip(_BEFORE_SENTENCES)
    if not before:
        return True
    return before[-1] in _SENTENCE_ENDS


def _may_name(word: _Word, german: bool) -> bool:
    """Whether a word can be a part of a name."""
    plain = word.plain
    if not word.has_capital or len(word.text) < 2 or "'" in word.text[-3:]:
        return False
    if plain in _NO_NAMES or plain.rstrip("s") in _NO_NAMES or plain.rstrip(".") in _TITLES:
        return False
    if word.opens or german:
        return plain not in STOP and plain not in _OPENERS
    return not (plain in STOP and not word.text.isupper())


def _find_end(text: str, words: list[_Word], first: int, german: bool) -> int:
    """Return the place of the last word of the name that starts at a word."""
    last = first
    for place in range(first + 1, min(first + MAX_NAME_WORDS, len(words))):
        word, gap = words[place], text[words[place - 1].end : words[place].start]
        if not _JOINED.fullmatch(gap) and gap != ". ":
            break
        if gap == ". " and len(words[place - 1].text) > 1:
            break  # "J. Smith", but not the end of a sentence
        if (_may_name(word, german) and not word.opens) or (gap == ". " and word.text[0].isupper()):
            last = place
        elif word.text not in _PARTICLES or (german and word.text != "van"):
            break  # German: "die Rechnung von Müller"
    return last


def _looks_coined(name: str) -> bool:
    """Whether a word has capitals or signs as no ordinary word has: SEPA, PayPal, O'Brien."""
    return name.isupper() or any(map(str.isupper, name[1:]))


def _has_determiner(text: str, words: list[_Word], word: _Word, before: _Word | None) -> bool:
    """Whether a German word comes after an article, an adjective or a number: it is a noun."""
    if before is None or word.opens:
        return False
    gap = text[before.end : word.start]
    if gap.strip():
        return any(map(str.isdigit, gap))
    if before.plain in _DETERMINERS:
        return True
    if _ADJECTIVE.fullmatch(before.text):
        place = words.index(before)
        return place > 0 and words[place - 1].plain in _DETERMINERS
    return False
