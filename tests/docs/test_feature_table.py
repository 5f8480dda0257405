"""The table in docs/reference/backends.md tells what is tested, and the options of each URL are
those that there are."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from helpers import feature_table
from helpers.feature_table import (
    DOCUMENT,
    Pair,
    collected,
    counted,
    documented,
    files_of_features,
    lacking,
    table,
    with_table,
)
from helpers.paths import ROOT
from helpers.stores import CHOSEN

LOCAL_ONLY = {
    ("tasks, killed with -9", "redis"),
    ("tasks, killed with -9", "dynamodb"),
    ("tasks, killed with -9", "s3"),
    ("writers, killed with -9", "redis"),
    ("writers, killed with -9", "dynamodb"),
    ("writers, killed with -9", "s3"),
}
"""The same, with servers that are killed too, is what the fault tests of these engines are for."""


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> tuple[Counter[Pair], list[str]]:
    items, option = request.session.items, request.config.option
    chosen = CHOSEN or option.keyword or option.markexpr
    files = set(files_of_features())
    if not chosen and {item.path for item in items}.issuperset(files):
        # The whole suite is being run: it need not be collected once more.
        return counted(item for item in items if item.path in files)
    return collected()


def test_the_table_tells_what_is_tested(found: tuple[Counter[Pair], list[str]]) -> None:
    pairs, unknown = found
    assert not unknown, "say in FEATURES what they are about"
    told = set(documented(DOCUMENT.read_text(encoding="utf-8")))
    assert told == set(pairs), "run: PYTHONPATH=tests python -m helpers.feature_table"


def test_every_feature_is_tested_on_every_engine_that_keeps_things(
    found: tuple[Counter[Pair], list[str]],
) -> None:
    assert lacking(found[0]) == LOCAL_ONLY


def test_a_table_is_read_as_it_was_written() -> None:
    feature = next(iter(feature_table.FEATURES.values()))
    pairs = Counter({Pair(feature, "sqlite", "plain"): 3, Pair(feature, "sqlite", "async"): 2})
    pairs[Pair(feature, "s3", "async")] = 1
    text = with_table(f"before {feature_table.BEGIN} old {feature_table.END} after", pairs)
    assert text.startswith("before ") and text.endswith(" after") and table(pairs) in text
    assert set(documented(text)) == set(pairs)


def test_the_options_of_urls_are_those_that_there_are() -> None:
    from holdfast.backends.postgres import url
    from holdfast.backends.redis import url as redis_url

    text = (ROOT / "docs/reference/url-options.md").read_text(encoding="utf-8")
    for title, options in (
        ("Every URL", ("durability", "timeout", "tracebacks")),
        ("PostgreSQL", url.OPTIONS),
        ("Redis", redis_url.OPTIONS),
        ("DynamoDB", ("region", "endpoint")),
        ("S3", ("region", "endpoint")),
    ):
        section = re.search(rf"^## {title}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, title
        assert set(re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE)) == set(options), title
