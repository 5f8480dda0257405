"""Fuzzing what makes sense of stored bytes, briefly. `make soak` does it for long, with atheris:
see `run_atheris.py`."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from targets import SEEDS, TARGETS

EXAMPLES = int(os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "300"))
_PIECES = [
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b",",
    b":",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"\xff",
    b"\0",
    b"\n",
]

edits = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 12),
        st.sampled_from(_PIECES) | st.binary(max_size=8),
        st.integers(1, 300),
    ),
    max_size=5,
)


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A form that is right, with a few bytes of it replaced."""
    data = draw(st.sampled_from(SEEDS))
    for place, gone, new, times in draw(edits):
        at = int(place * len(data))
        data = data[:at] + new * (times if len(new) < 3 else 1) + data[at + gone :]
    return data


@pytest.mark.parametrize("target", TARGETS)
def test_a_form_that_is_right_is_taken(target: str) -> None:
    for seed in SEEDS:
        TARGETS[target](seed)


@pytest.mark.parametrize("target", TARGETS)
@given(data=changed() | st.binary(max_size=300))
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_bytes_lead_to_an_error_that_is_not_ours(target: str, data: bytes) -> None:
    TARGETS[target](data)
