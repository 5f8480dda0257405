"""How far an append moves a sliding expiry."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from holdfast.log import head_fields
from holdfast.log.head_fields import slide_expiry


def test_the_examples_are_right() -> None:
    assert doctest.testmod(head_fields).failed == 0 < doctest.testmod(head_fields).attempted


@given(
    ttl=st.floats(0, 1e9),
    pauses=st.lists(st.floats(0, 1e8), min_size=1, max_size=20),
    start=st.none() | st.floats(0, 1e9),
)
def test_it_is_never_early_and_at_most_one_hundredth_late(
    ttl: float, pauses: list[float], start: float | None
) -> None:
    now, expires_at = 1.7e9, start
    for pause in pauses:
        now += pause
        before, expires_at = expires_at, slide_expiry(expires_at, now, ttl)
        assert now + ttl <= expires_at <= now + ttl + ttl / 100
        again = slide_expiry(expires_at, now, ttl)
        assert again == expires_at, "the same append moves it once"
        if before is not None and now + ttl <= before <= now + ttl + ttl / 100:
            assert expires_at == before, "late enough: it stays"
