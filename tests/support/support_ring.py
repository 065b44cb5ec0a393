"""Token rings for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from chronotile_tools.ops.repair import RingRange
from chronotile_tools.ring import TOKEN_MAX, TOKEN_MIN, TokenRange, width

TOKENS = st.integers(TOKEN_MIN + 1, TOKEN_MAX)
RINGS = st.lists(TOKENS, min_size=1, max_size=12, unique=True)


def ring_of(tokens: list[int]) -> list[RingRange]:
    ordered = sorted(tokens)
    return [RingRange(start, end, ("a",)) for start, end in zip([ordered[-1], *ordered[:-1]], ordered, strict=True)]


def holds(one: TokenRange, token: int) -> bool:
    return 0 < width(one.start, token) <= one.width
