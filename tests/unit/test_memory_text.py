"""Which terms a text is found by."""

from __future__ import annotations

import time
import unicodedata
from datetime import datetime, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.memory.text.names import read_names
from holdfast.memory.text.stemming import IRREGULAR, stem
from holdfast.memory.text.tokens import JOINERS, MAX_TERM_CHARS, date_terms, query_terms, terms
from holdfast.memory.text.words import guess_language

# -- words -----------------------------------------------------------------------------------------

ONE_WORD = [
    "buy buys buying bought",
    "go goes going went gone",
    "child children child's children's",
    "tell told telling tells",
    "mouse mice",
    "run ran running runs",
    "die died dies dying",
    "city cities city's",
    "plan plans planned planning",
    "hope hoped hoping",
    "favorite favourite favorites",
    "organize organise organised organizing organization organisations",
    "analysis analyses analyze analysed",
    "naïve naive",
    "email e-mail emails E-MAIL",
    "three 3",
    "1,000 1000",
    "7th 7",
    "USA U.S.A. u.s.a",
    "İstanbul Istanbul",
    "\uff21\uff22\uff23 abc",
    "straße STRASSE",
    "Łódź Lodz",
    "café cafe\u0301 CAFE",
    "mother\u2019s mother's",
    "co\u00adoperate cooperate",
]


@pytest.mark.parametrize("forms", ONE_WORD)
def test_all_forms_of_a_word_are_one_term(forms: str) -> None:
    found = [terms(form)[:1] for form in forms.split()]
    assert len(found[0]) == 1
    assert found == [found[0]] * len(found)


TWO_WORDS = [
    "import important",
    "experience experiment",
    "general generate",
    "organ organization",
    "new news",
    "morn morning",
    "sever several",
    "12 12B",
    "3.5 35",
    "foo.py foo.js",
    "не нет",
]


@pytest.mark.parametrize("pair", TWO_WORDS)
def test_different_words_are_different_terms(pair: str) -> None:
    one, other = pair.split()
    assert terms(one)[0] != terms(other)[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What did the man who was there do with it?", "man"),
        ("form-12B", "form-12b form 12b"),
        ("user_id", "user_id userid user id"),
        ("Write to ann@example.com!", "write ann@example.com ann exampl com"),
        ("see foo.py.", "see foo.py foopi foo py"),
        ("INC-4711 is open", "inc-4711 inc 4711 open"),
        ("CamelCase HTTPServer LLMs", "camelcas camel case httpserver http server llm"),
        ("3.5 of $500, 10:30", "3.5 500 10:30"),
        ("$1,234,567.50", "1234567.50"),
        ("at 5pm for 3.5km", "5pm 5 pm 3.5km 3.5 km"),
        ("C++ and C#", "c++ c c# c"),
        ("v1.2.3", "v1.2.3 1.2.3"),
        ("I can't, I won't, I cannot, never", "not not not never"),
        ("O'Brien's", "obrien brien"),
        ("the US army", "us armi"),
        ("tell us", "tell"),
        ("🎉 ❤️ 1️⃣", "1"),
        ("東京都", "東京 京都 東 京"),
        ("猫", "猫"),
        ("猫が好き", "猫が が好 好き 猫 好"),
        ("แมว", "แม มว"),
        ("학교에 갔다", "학교에 학교 교에 갔다"),
        ("Привет, Ёлка и мой", "привет елк и мо"),
        ("العَرَبِيَّة שָׁלוֹם", "عرب שלום"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("東京でPython3を使う", "東京 京で 東 京 python3 python 3 を使 使う 使"),
        ("tag:x OR \"a\" NEAR(b) 'c' -d *", "tag x b c d"),
        ("a\x00b\x1fdog\u2028cat\ud800", "b dog cat"),
        ("", ""),
        ("what is it?", ""),
    ],
)
def test_terms_of_a_text(text: str, found: str) -> None:
    assert terms(text) == found.split()


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Where did she buy the bikes?", "I bought a bike in Leeds"),
        ("What did Anna's kids make?", "Anna said the child was making pottery"),
        ("how many mice were found", "we find one mouse"),
        ("which form is needed?", "Use FORM-12b"),
        ("東京に住む人", "彼は東京に住んでいる"),
        ("학교", "학교에서 만났다"),
        ("What happened on 7 May 2023?", "met Bob 2023-05-07"),
        ("what happened in May 2023?", "met Bob on 05/07/2023"),
        ("any plans for May 7th?", "met Bob on the 7th of May, 2023"),
    ],
)
def test_a_question_shares_a_term_with_its_answer(question: str, text: str) -> None:
    assert set(query_terms(question)) & set(terms(text))


def test_words_of_questions_weigh_less_than_what_is_asked_for() -> None:
    weights = query_terms("What kind of things did Anna mention about pottery?")
    assert weights["anna"] == weights["potteri"] == 1.0
    assert max(weights["kind"], weights["thing"], weights["mention"]) < 1.0
    assert query_terms("what was it about?") == {}


# -- laws ------------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(), max_size=200) | st.text(
    "aB1 .,'-_@:#+&/7may2023é東カแ각й\u0301\ud800\x00", max_size=60
)


@given(ANY_TEXT)
def test_any_text_gives_terms_that_an_index_can_take(text: str) -> None:
    for term in terms(text):
        assert 1 <= len(term) <= MAX_TERM_CHARS
        assert not any(character.isspace() or character in "\"'`*()^" for character in term)
        assert all(
            character in JOINERS or unicodedata.category(character)[0] in "LNM"
            for character in term
        ), [unicodedata.category(character) for character in term]
        term.encode()  # raises on half of a surrogate pair


@pytest.mark.slow
@given(ANY_TEXT, ANY_TEXT)
def test_texts_apart_from_each_other_are_read_apart(one: str, other: str) -> None:
    both = f"{one} ; {other}"
    assume(guess_language(one) == guess_language(other) == guess_language(both))
    assert terms(both) == terms(one) + terms(other)


@given(st.text("abcdefgh ijklmnopqrstuvwxyz123", max_size=80))
def test_the_case_of_a_text_does_not_count(text: str) -> None:
    spelled_like_names = {"us", "it", "who", "will", "can", "per", "else"}
    text = " ".join(word for word in text.split() if word not in spelled_like_names)
    assert terms(text.upper()) == terms(text) == terms(text.title())


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "a\u0301\u0316",
        "\u0301\u0316",
        "1 ",
        " ",
        "a-",
        "a'",
        "aB",
        "x",
        "東",
        "ฉัน",
        "7 may 2023, ",
        "1.",
        "1,000",
        "東a",
        "may ",
    ],
)
def test_a_megabyte_of_anything_is_read(piece: str) -> None:
    for term in terms(piece * (1_000_000 // len(piece))):
        assert len(term) <= MAX_TERM_CHARS


# -- stems -----------------------------------------------------------------------------------------


def test_irregular_forms_have_the_stem_of_their_base() -> None:
    assert len(IRREGULAR) >= 200
    for form, base in IRREGULAR.items():
        assert stem(form) == stem(base)
        assert base not in IRREGULAR, "a base that is a form itself would be followed only once"


OTHER_LANGUAGES = [
    ("Welche Verträge wurden gekündigt?", "Der Vertrag mit dem Stromanbieter", "vertrag"),
    ("Wo stehen die Häuser?", "Das Haus steht in der Lindenstraße", "haus"),
    ("Quels médicaments prend-elle ?", "Elle prend un médicament contre la toux", "medic"),
    ("¿Qué contratos fueron cancelados?", "El contrato con la empresa", "contrat"),
    ("Chi paga le fatture della casa?", "La fattura è della casa", "fattur"),
    ("Waar zijn de boeken?", "Het boek is van Piet", "boek"),
    ("Где живут инженеры?", "Инженер живёт в Казани", "инженер"),
    ("أين يسكن المهندسون؟", "يسكن المهندس في القاهرة", "مهندس"),
]


@pytest.mark.parametrize(("question", "text", "stem"), OTHER_LANGUAGES)
def test_other_languages_have_stems_too(question: str, text: str, stem: str) -> None:
    assert stem in terms(text)
    assert query_terms(question)[stem] > 0


def test_a_name_in_another_language_is_found_by_an_english_question() -> None:
    text = "Herr Müller ist nicht mit der Rechnung einverstanden"
    assert {"muller", "mull"} <= set(terms(text))
    assert "muller" in query_terms("What did Müller say about it?")


def test_the_small_words_of_another_language_are_not_searched() -> None:
    assert set(query_terms("Wann hat Anna Geburtstag?")) == {"anna", "geburtstag"}
    assert {"red", "hat"} <= set(query_terms("the red hat"))


def test_the_stems_of_two_languages_share_the_weight_of_a_word() -> None:
    weights = query_terms("Wer hat die Rechnungen?")
    assert len(weights) == 2 and sum(weights.values()) == pytest.approx(1.0)


# -- dates -----------------------------------------------------------------------------------------


@given(st.dates(min_value=datetime(1500, 1, 1).date(), max_value=datetime(2199, 12, 31).date()))
def test_a_day_is_found_by_all_its_written_forms(day: object) -> None:
    moment = datetime.fromisoformat(f"{day}T12:34:56+00:00")
    month = moment.strftime("%B")
    known = set(date_terms(moment.timestamp()))
    for written in (
        f"{moment.day} {month} {moment.year}",
        f"{moment.day} {month[:3]}. {moment.year}",
        f"{month} {moment.day}, {moment.year}",
        f"on {month[:3].upper()} {moment.day:02} {moment.year}",
        f"the {moment.day}th of {month}, {moment.year}",
        f"{month} {moment.day}th, {moment.year}.",
        moment.strftime("(%Y-%m-%d)") if moment.year > 999 else "",
        f"{moment.year}/{moment.month}/{moment.day}",
        f"{moment.month:02}/{moment.day:02}/{moment.year}",
        f"{moment.day}.{moment.month}.{moment.year}",
        f"{moment.year}年{moment.month}月{moment.day}日",
        f"{moment.day}-{month[:3]}-{moment.year}",
    ):
        found = terms(written)
        assert f"{moment:%Y-%m-%d}" in found and f"{moment:%Y-%m}" in found, written
        assert set(found) <= known, written
    for part in (
        f"{month} {moment.year}",
        f"{month} of {moment.year}",
        f"{moment:%Y-%m},",
        f"{moment:%A}",
        f"{month} {moment.day}",
    ):
        assert set(terms(part)) <= known, part


def test_what_is_no_date_stays_as_it_is() -> None:
    assert terms("2023-13-07") == ["2023-13-07", "2023", "13", "07"]
    assert terms("32 May") == ["32", "may"]
    assert terms("1.2.34") == ["1.2.34"]
    assert terms("10.0.0.1") == ["10.0.0.1"]
    assert "2031-05-13" not in terms("call 555-2031-05-13")


def test_with_slashes_the_month_comes_first_unless_it_cannot() -> None:
    assert "2023-05-07" in terms("05/07/2023")
    assert "2023-05-17" in terms("17/05/2023")
    assert "2023-05-07" in terms("5/7/23")


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -float("inf"), 1e20, -1e20])
def test_a_time_of_no_calendar_has_no_terms(at: float) -> None:
    assert date_terms(at) == []


def test_a_day_is_one_of_utc() -> None:
    last_second = datetime(2023, 5, 7, 23, 59, 59, tzinfo=timezone.utc).timestamp()
    assert date_terms(last_second) == terms("7 May 2023") + terms("Sunday")
    assert "2023-05-08" in date_terms(last_second + 1)


@pytest.mark.parametrize("piece", ["#", "/", "a/", "ア", "ア・"])
def test_no_text_takes_quadratic_time_to_read_for_names(piece: str) -> None:
    """Next to an ordinary text of the same length, quadratic time is 80 times as long or more."""

    def measure(text: str) -> float:
        def once() -> float:
            start = time.thread_time()
            read_names(text)
            return time.thread_time() - start

        return min(once() for _ in range(3))

    ordinary = "Ann of Acme paid INV-2041 on Monday, and called Bo. " * 400
    assert measure((piece * 20_000)[:20_000]) < 20 * measure(ordinary[:20_000])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Invoice KX_42/B-7 and #482 are open", {"KX_42/B-7", "#482"}),
        ("昨日はジョン・スミス氏が来た", {"ジョン・スミス"}),
        ("ジョンさんに電話", {"ジョン"}),
    ],
)
def test_codes_and_names_in_katakana_are_read(text: str, names: set[str]) -> None:
    assert names <= {mention.name for mention in read_names(text).mentions}
