"""When two texts say the same, and when they must be kept apart."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.memory._duplicates import Verdict, same, signature
from holdfast.memory._typos import typo


def verdict(new: str, old: str) -> Verdict | None:
    return same(signature(new), signature(old))


# -- pairs -----------------------------------------------------------------------------------------------------------------

SAME = [
    ("Alice owes Bob $500.", "alice owes bob $500"),
    ("ALICE OWES BOB $500!!!", "Alice  owes\n Bob $500"),
    ("FYI: Alice owes Bob $500", "Just a quick reminder that Alice owes Bob $500."),
    ("Please note that the staging key is in the vault.", "The staging key is in the vault, as discussed."),
    ("Remember: Bob is allergic to nuts.", "Bob is allergic to nuts (confirmed)"),
    ("I learned that Bob is allergic to nuts.", "Don't forget that Bob is allergic to nuts!"),
    ("We discussed that the office closes at 18:00", "Important update: the office closes at 18:00. Thanks!"),
    ("Bob is allergic to nuts, by the way", "Actually Bob is really allergic to nuts"),
    ("Tests run on Python 3.12", "tests ran on python 3.12"),
    ("The user prefers dark mode", "Users prefer the dark mode"),
    ("Alice doesn't like tea", "Alice does not like tea."),
    ("Alice didn't like tea", "Alice does not like tea"),
    ("You can't deploy on Friday", "You cannot deploy on Friday"),
    ("In May 2023, Alice moved to Paris.", "Alice moved to Paris in May 2023"),
    ("If the disk is full, restart the worker.", "Restart the worker if the disk is full."),
    ("Alice's favourite colour is blue", "Blue is Alice's favorite color."),
    ("The deadline for Falcon is 12 March", "12 March is the deadline for Falcon"),
    ("Alice prefers quarterly invoices", "Alice prefers quartelry invoices"),
    ("Alice prefers quarterly invoices by post", "Alice prefers quartrly invoices by post"),
    ("Alice prefers quarterly invoices by post", "Alice prefers quarerly invoices by post"),
    ("Alice prefers quarterly invoices by post", "Alice prefers quarterly invouces by post"),
    ("Call Bob and Carol before the weekly meeting", "Call Bob and Carol beofre the weekyl meeting"),
    ("The budget is 1,000 dollars for the team", "the budget is 1000 dollars for the team"),
    ("Bob has three dogs", "Bob has 3 dogs"),
    ("\u201cAlice\u2019s locker code is 4711\u201d", "Alice's locker code is 4711 🎉"),
    ("请记住\uff1a我喜欢喝咖啡", "我喜欢喝咖啡。"),
    ("Анна живёт в Москве.", "анна   живёт в москве"),
    ("🎉", " 🎉\n"),
]
WITHIN = [
    ("The deploy key of staging lives in the vault", "Quick one folks: the deploy key of staging lives in the vault"),
    ("Bob is allergic to nuts and milk", "Bob is allergic to nuts and milk, poor guy"),
    ("Alice runs the Berlin office", "Alice runs the Berlin office. Great news!"),
]
APART = [
    # numbers, units, amounts
    ("Alice owes Bob $500", "Alice owes Bob $600"),
    ("Alice owes Bob $500", "Alice owes Bob €500"),
    ("Alice owes Bob $500", "Alice owes Bob -$500"),
    ("Alice owes Bob 500", "Alice owes Bob .500"),
    ("It weighs 5 kg", "It weighs 5 lb"),
    ("The rate is 5%", "The rate is 5"),
    ("The rate is 3.5", "The rate is 35"),
    ("The pair is 1,2", "The pair is 12"),
    ("It was -5 outside", "It was 5 outside"),
    ("The area is 10² m", "The area is 102 m"),
    ("He is 6'2\" tall", "He is 62 tall"),
    ("Port 8080 is open", "Port 8081 is open"),
    ("Retry 3 times", "Retry 3 times, then wait 5 minutes"),
    ("The code is 12B", "The code is 12C"),
    ("x > 5 must hold", "x < 5 must hold"),
    ("a == b holds", "a != b holds"),
    ("Set flag !ready", "Set flag ready"),
    ("The meeting is at 10:30", "The meeting is at 10:45"),
    ("Use at least 5 workers", "Use at most 5 workers"),
    # negation, modality, time
    ("Deploy on Friday", "Do not deploy on Friday"),
    ("Alice likes tea", "Alice doesn't like tea"),
    ("Alice likes tea", "Alice never likes tea"),
    ("Alice can deploy", "Alice cannot deploy"),
    ("Alice likes tea but not coffee", "Alice likes coffee but not tea"),
    ("Alice is the CEO", "Alice was the CEO"),
    ("Alice works at Acme", "Alice no longer works at Acme"),
    ("Alice has moved to Paris", "Alice will move to Paris"),
    ("You must restart the server", "You may restart the server"),
    ("Bob has access", "Only Bob has access"),
    ("Bob has access", "Bob has access unless he leaves"),
    ("Bob is able to drive", "Bob is unable to drive"),
    ("Alice is the CEO", "Is Alice the CEO?"),
    ("Alice is the CEO", "Alice is the CEO?"),
    ("Alice has a dog", "Alice had a dog"),
    ("The team meets Bob weekly", "Now officially cancelled: the team meets Bob weekly"),
    ("The team meets Bob weekly", "The team meets Bob weekly, but rarely"),
    ("The team meets Bob weekly", "Weather permitting, the team meets Bob weekly"),
    ("Bob is the CEO", "Forget that Bob is the CEO"),
    ("The server is down", "False: the server is down"),
    ("The team meets at the office", "Cancelled: the team meets at the office"),
    ("The match is on", "Weather permitting, the match is on"),
    ("The match is on today", "If it rains, the match is on today"),
    # who and what
    ("Alice owes Bob", "Bob owes Alice"),
    ("alice owes bob money", "bob owes alice money"),
    ("The dog chased the cat", "The cat chased the dog"),
    ("The flight is from Paris to London", "The flight is from London to Paris"),
    ("The flight is from Paris to London", "The flight is to Paris from London"),
    ("The value changed from 5 to 7", "The value changed from 7 to 5"),
    ("7 changed to 5", "5 changed to 7"),
    ("Alice is Bob's boss", "Bob is Alice's boss"),
    ("Contractors are employees", "Employees are contractors"),
    ("Alice is Bob's employer", "Alice is Bob's employee"),
    ("My dog is called Rex", "Your dog is called Rex"),
    ("He likes tea", "She likes tea"),
    ("William owes rent", "Williams owes rent"),
    ("Alice met Marta in Paris", "Alice met Maria in Paris"),
    ("Alice met Daniel in the Paris office", "Alice met Danile in the Paris office"),
    ("Alice is paid by Bob", "Alice pays Bob"),
    ("Alice has a dog", "Alice is a dog"),
    ("Alice learned Spanish", "Alice discussed Spanish"),
    ("Alice and Bob pay rent", "Alice pays rent"),
    ("Caroline: I love painting pottery", "I love painting pottery"),
    ("Caroline: I love pottery", "Melanie: I love pottery"),
    ("Install the package. Restart the server.", "Restart the server. Install the package."),
    ("Turn the light on", "Turn the light off"),
    ("before lunch, call Bob", "after lunch, call Bob"),
    ("A square is a rectangle", "A rectangle is a square"),
    # wider and narrower
    ("Bob is allergic to nuts", "Bob is allergic to pine nuts"),
    ("Deploys on Friday are allowed", "Deploys on Friday are allowed in staging"),
    ("Deploys on Friday are allowed", "Staging: deploys on Friday are allowed"),
    ("The office opens on Monday", "The office opens on Monday morning"),
    ("The invoices are paid", "The invoices from Acme are paid"),
    # one letter
    ("Alice is sending money to Bob", "Alice is spending money on Bob"),
    ("Alice is sending the money for Bob", "Alice is spending the money for Bob"),
    ("The plan was adopted by the board", "The plan was adapted by the board"),
    ("They filed a complaint about the vendor", "They filed a compliant about the vendor"),
    ("They are united in the office", "They are untied in the office"),
    ("she met karina at the pottery class", "she met katrina at the pottery class"),
    ("she met christina at the pottery class", "she met christiana at the pottery class"),
    ("Alice pays quarterly instalments by post", "Alice pays quarerly instalents by post"),
    # few words
    ("Bob likes tea", "Good morning dear people, Bob likes tea"),
    ("👍", "👎"),
    ("Build: ✅", "Build: ❌"),
    ("The light is 🔴", "The light is 🟢"),
    ("noted", "reminder"),
    ("", "🎉"),
    ("Booking 12: confirmed", "Booking 12: cancelled"),
    # other languages
    ("我喜欢喝咖啡", "我不喜欢喝咖啡"),
    ("张伟欠李娜五百块钱", "李娜欠张伟五百块钱"),
    ("猫が好きです", "犬が好きです"),
    ("Анна живёт в Москве", "Анна не живёт в Москве"),
    ("Der Server ist an", "Der Server ist nicht an"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_texts_that_say_the_same(one: str, other: str) -> None:
    assert verdict(one, other) == verdict(other, one) == "same"
    assert set(signature(one).keys) & set(signature(other).keys)


@pytest.mark.parametrize(("short", "long"), WITHIN)
def test_a_text_within_another(short: str, long: str) -> None:
    assert verdict(short, long) == "within"
    assert verdict(long, short) == "beyond"
    assert set(signature(short).keys) & set(signature(long).keys)


@pytest.mark.parametrize(("one", "other"), APART)
def test_texts_that_say_two_things(one: str, other: str) -> None:
    assert verdict(one, other) is verdict(other, one) is None


@pytest.mark.parametrize("text", [pair[0] for pair in SAME + WITHIN + APART])
def test_there_are_few_keys_and_they_are_short(text: str) -> None:
    keys = signature(text).keys
    assert 1 <= len(keys) <= 6
    assert all(re.fullmatch("[0-9a-f]{12}", key) for key in keys)


def test_a_slip_is_two_letters_swapped_or_one_key_beside_another() -> None:
    for slip in ("quartelry", "quraterly", "quarerly", "quarterlly", "quarterky"):
        assert typo("quarterly", slip) == typo(slip, "quarterly")
    assert [typo("quarterly", slip) for slip in ("quartelry", "quarerly", "quarteerly", "quatterly")] == [True] * 4
    assert not any(
        typo("quarterly", slip) for slip in ("uqarterly", "quarterlt", "quaxterly", "quartely5", "quarterly"[:-2])
    )


# -- laws ------------------------------------------------------------------------------------------------------------------

# Made of pieces that meet each other often, so that many pairs are close to being the same.
PIECES = """Alice|Bob|alice|BOB|owes|owed|owe|the|a|not|never|is|was|from|to|in May,|500|600|$|quarterly|quartelry|quartrly|paymentts|invoices|
invoice|payments|.|,|:|!|?| - |(confirmed)|FYI|note that|remember|folks|quick|does not|doesn't|only|if|my|your|Monday|
colour|color|猫|が|好|不|🎉|👎|\n|as discussed|and|manager"""
LOOSE = st.lists(st.sampled_from(PIECES.replace("\n", "", 1).split("|")), max_size=9).map(" ".join) | st.text(
    max_size=30
)


@st.composite
def alike(draw: st.DrawFn) -> tuple[str, str]:
    """Two texts, the second with some pieces of the first left out, doubled, replaced or moved."""
    pieces = draw(st.lists(st.sampled_from(PIECES.split("|")), min_size=2, max_size=9))
    other = list(pieces)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, max(0, len(other) - 1)))
        new = draw(st.lists(st.sampled_from(PIECES.split("|")), max_size=2))
        other[at : at + draw(st.integers(0, 1))] = new
    return " ".join(pieces), " ".join(other)


PAIR = alike() | st.tuples(LOOSE, LOOSE)


@given(PAIR)
@example(("Alice enjoys seeing quarterly reports", "Alice enjoys seieng quarterly reports"))
def test_whatever_is_accepted_can_be_looked_up(pair: tuple[str, str]) -> None:
    new, old = map(signature, pair)
    if same(new, old):
        assert set(new.keys) & set(old.keys)


@given(PAIR)
def test_the_verdict_is_the_same_from_both_sides(pair: tuple[str, str]) -> None:
    turned = {"same": "same", "within": "beyond", "beyond": "within", None: None}
    assert verdict(*pair) == turned[verdict(*reversed(pair))]


@given(LOOSE)
def test_a_text_is_itself_however_it_is_spaced_and_cased(text: str) -> None:
    assert verdict(text, text) == "same"
    assert verdict("  " + text.replace(" ", " \t ") + "\n", text) == "same"
    if text.isascii():
        assert verdict(text.upper(), text) == "same"


@given(PAIR)
def test_no_number_and_no_negation_is_lost(pair: tuple[str, str]) -> None:
    """What a text that is dropped said in digits and negations, the one that stays says too."""
    if verdict(*pair):
        for said in (r"[0-9]+", r"\bnever\b|\bnot\b|n't", r"\bonly\b", r"\$", "不|👎"):
            assert len(re.findall(said, pair[0])) == len(re.findall(said, pair[1]))


@given(st.permutations(["Alice", "Bob", "Carol"]), st.permutations(["Alice", "Bob", "Carol"]))
def test_swapped_names_are_another_fact(one: list[str], other: list[str]) -> None:
    form = "{} introduced {} to {} at the fair"
    assert verdict(form.format(*one), form.format(*other)) == ("same" if one == other else None)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_has_a_signature(one: str, other: str) -> None:
    assert signature(one) == signature(one)
    assert verdict(one, other) in ("same", "within", "beyond", None)


@pytest.mark.parametrize(
    "piece", ["a\u0301\u0316", "a, ", "not ", "a'", "fyi ", "fyi, ", "東", "- ", "((", "1,000", "x", "if a, "]
)
@pytest.mark.parametrize("length", [20_000, 1_000_000])
def test_any_amount_of_anything_has_a_signature(piece: str, length: int) -> None:
    known = signature(piece * (length // len(piece)))
    assert same(known, known) == "same"
    assert len(known.keys) <= 6


def test_a_document_is_known_by_its_letters_only() -> None:
    text = "The quarterly report says that invoices are paid. " * 1000
    assert verdict(text.upper() + "\n", text) == "same"
    assert verdict(text + "Really.", text) is None


# -- a hundred facts, ten thousand times -----------------------------------------------------------------------------------

NAMES = ["Alice", "Bob", "Carol", "Daniel", "Williams", "Marta", "Maria", "Chris", "Priya", "Ingrid"]
# Each form in the words it may come in: in two orders, plural and singular, present and past.
FORMS = [
    [
        "{0} pays {1} {2} euros for the quarterly invoices",
        "{0} paid {1} {2} euros for quarterly invoices",
    ],
    ["{0} owes {1} ${2} for the concert tickets", "{0} owed {1} ${2} for concert tickets"],
    ["The locker code of {0} is {2}", "{2} is the locker code of {0}"],
    ["In {3}, {0} moved to apartment {2} with {1}", "{0} moved to apartment {2} with {1} in {3}"],
    ["{0} does not deploy the gateway on port {2}", "{0} doesn't deploy gateways on port {2}"],
    ["{0} never deploys the gateway on port {2}"],
    ["If the build fails, {0} restarts worker {2}", "{0} restarts worker {2} if the build fails"],
    ["{0} prefers meetings before {2} o'clock", "{0} preferred a meeting before {2} o'clock"],
    ["{0} prefers meetings after {2} o'clock"],
    ["The customers of {0} need {2} licenses", "Customers of {0} needed {2} licenses"],
]
FRONT = (
    "FYI: |FYI |Note: |Please note that |Reminder: |Just a quick reminder that |Remember, |Remember that |BTW, |By the way, |"
    "Important: |Update: |Confirmed: |I learned that |We discussed that |As mentioned, |As discussed earlier, |Also, |"
    "Keep in mind that |Don't forget that |For the record, |Heads up: |To recap: |Again: |Noted: |OK, |It turns out that |"
    "Just so you know, |Note to self: |One more thing to note: |Good morning folks: "
)
BEHIND = (
    " (confirmed)|, as discussed| as mentioned|, FYI|, btw.|. Please remember this!|. Noted.|, by the way| - |!!!|...|;|"
    ". Thanks!|, just so you know|, as you know| 🎉|. Important!"
)


def hundred_facts() -> list[tuple[list[str], list[str]]]:
    """Ways to say each fact, and the names and numbers that must not get lost."""
    facts = []
    for number, form in enumerate(FORMS):
        for at, name in enumerate(NAMES):
            other, amount = NAMES[(at + 3) % 10], str(100 + at * 7 + number % 2)
            month = ("May 2023", "June 2023")[at % 2]
            said = [value for place, value in enumerate((name, other, amount, month)) if f"{{{place}}}" in form[0]]
            facts.append(([each.format(name, other, amount, month) for each in form], said))
    return facts


def swap_letters(text: str, chance: random.Random) -> str:
    """The text with two letters of a longer word swapped, as quick fingers do."""
    words = re.findall(r"\b[a-z]{6,}\b", text)
    if not words:
        return text
    word = chance.choice(words)
    at = chance.randrange(1, len(word) - 1)
    return text.replace(word, word[:at] + word[at + 1] + word[at] + word[at + 2 :], 1)


def changes(chance: random.Random) -> list[Callable[[str], str]]:
    return [
        lambda text: text,
        str.upper,
        str.lower,
        lambda text: text + chance.choice([".", "!", " ", "\n", " ..."]),
        lambda text: re.sub(" ", lambda _: chance.choice([" ", "  ", "\t", "\n"]), text),
        lambda text: chance.choice(FRONT.split("|")) + text,
        lambda text: text.rstrip(". !\n") + chance.choice(BEHIND.split("|")),
    ]


def remembered(texts: Iterable[str]) -> list[str]:
    """What is left of a stream of texts if each is merged with the first known one that says it."""
    kept: list[str] = []
    places: dict[str, list[int]] = {}
    for text in texts:
        new = signature(text)
        known = sorted({place for key in new.keys for place in places.get(key, ())})
        for place in known:
            said = same(new, signature(kept[place]))
            if said:
                if said == "beyond":
                    kept[place] = text
                break
        else:
            place = len(kept)
            kept.append(text)
            said = "beyond"
        if said == "beyond":
            for key in new.keys:
                places.setdefault(key, []).append(place)
    return kept


@pytest.mark.parametrize("seed", [1, 2])
def test_ten_thousand_copies_of_a_hundred_facts_leave_each_once(seed: int) -> None:
    chance = random.Random(seed)
    facts = hundred_facts()
    assert len({form for forms, _ in facts for form in forms}) >= 100
    stream = []
    for number in range(10_000):
        text = chance.choice(facts[number % 100][0])
        if chance.random() < 0.05:
            text = swap_letters(text, chance)
        if chance.random() < 0.2:
            text = re.sub(r"\b[Tt]he ", "", text)
        for change in chance.sample(changes(chance), chance.randint(1, 3)):
            text = change(text)
        stream.append(text)
    assert len(set(stream)) > 5_000
    chance.shuffle(stream)
    kept = remembered(stream)
    assert len(kept) <= 150
    for forms, said in facts:
        plain = [re.findall(r"\w+", text.lower()) for text in kept]
        wanted = [word for each in said for word in each.lower().split()]
        assert any(all(word in text for word in wanted) for text in plain), forms
    assert all(any(same(signature(form), signature(text)) for text in kept) for forms, _ in facts for form in forms)
