"""The arithmetic of the token ring, for any ring."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_ring import RINGS, TOKENS, holds, ring_of

from chronotile.errors import InvalidInputError
from chronotile_tools.ring import SIZE, TOKEN_MAX, TOKEN_MIN, TokenRange, after, covered_since, unwrapped, width

RANGES = st.builds(TokenRange, TOKENS | st.just(TOKEN_MIN), TOKENS | st.just(TOKEN_MIN))
WHOLE = TokenRange(TOKEN_MIN, TOKEN_MAX)


def test_tokens_are_those_of_the_murmur3_partitioner() -> None:
    assert after(2**63 - 1, 1) == -(2**63) == TOKEN_MIN
    assert after(-(2**63), -1) == 2**63 - 1 == TOKEN_MAX
    assert width(5, 5) == 2**64 == SIZE
    assert (width(5, 4), width(-5, 5)) == (2**64 - 1, 10)


@given(TOKENS, st.integers(1, SIZE))
def test_going_on_by_the_width_arrives(start: int, tokens: int) -> None:
    assert width(start, after(start, tokens)) == tokens
    assert TOKEN_MIN <= after(start, tokens) <= TOKEN_MAX


@given(RANGES, TOKENS)
def test_a_range_is_cut_at_the_end_of_the_ring_and_nowhere_else(one: TokenRange, token: int) -> None:
    pieces = unwrapped([one])
    assert len(pieces) == (1 if one.start == TOKEN_MIN or one.end == TOKEN_MIN or one.start < one.end else 2)
    assert all(piece.end == TOKEN_MIN or piece.start < piece.end for piece in pieces)
    assert sum(piece.width for piece in pieces) == one.width
    assert sum(holds(piece, token) for piece in pieces) == holds(one, token)


@given(RINGS)
def test_a_ring_is_cut_with_its_replicas(tokens: list[int]) -> None:
    pieces = unwrapped(ring_of(tokens))
    assert {piece.replicas for piece in pieces} == {("a",)}
    assert [pieces[0].start, pieces[-1].end] == [TOKEN_MIN, TOKEN_MIN]
    assert all(one.end == following.start for one, following in itertools.pairwise(pieces))


@given(RANGES, RANGES, RINGS)
def test_what_two_ranges_have_in_common(one: TokenRange, other: TokenRange, tokens: list[int]) -> None:
    assert one.common(other) == other.common(one) <= min(one.width, other.width)
    # A ring divides both of them.
    assert sum(one.common(part) for part in ring_of(tokens)) == one.width
    assert any(holds(one, token) and holds(other, token) for token in (one.end, other.end)) == (one.common(other) > 0)


def test_a_range_has_no_more_parts_than_tokens() -> None:
    assert TokenRange(0, 3).split(10) == [TokenRange(0, 1), TokenRange(1, 2), TokenRange(2, 3)]
    assert TokenRange(0, 4).split(3) == [TokenRange(0, 1), TokenRange(1, 2), TokenRange(2, 4)]


@given(RANGES, st.integers(1, 300), TOKENS)
def test_parts_are_even_and_cover_the_range_once(one: TokenRange, count: int, token: int) -> None:
    parts = one.split(count)
    assert len(parts) == min(count, one.width)
    assert max(part.width for part in parts) - min(part.width for part in parts) <= 1
    assert [parts[0].start, parts[-1].end] == [one.start, one.end]
    assert sum(holds(part, token) for part in parts) == holds(one, token)


@given(st.lists(st.tuples(RANGES, st.integers(1, 5)), max_size=8), st.booleans())
def test_the_ring_is_covered_since_its_oldest_token(marked: list[tuple[TokenRange, float]], whole: bool) -> None:
    marked += [(WHOLE, 2)] if whole else []
    # The marks of tokens change only where a range begins or ends.
    bounds = {TOKEN_MIN, *(token for one, _ in marked for token in (one.start, one.end))}
    tokens = (bounds | {after(token, 1) for token in bounds}) - {TOKEN_MIN}
    latest = [max((mark for one, mark in marked if holds(one, token)), default=None) for token in tokens]
    expected = None if None in latest else min(mark for mark in latest if mark is not None)
    assert covered_since(marked) == expected


def test_a_ring_that_is_not_covered_was_never_repaired_whole() -> None:
    assert covered_since([]) is None
    assert covered_since([(TokenRange(TOKEN_MIN, 5), 10.0), (TokenRange(6, TOKEN_MAX), 10.0)]) is None
    # Of the first and the last token that rows have, one is missing.
    assert covered_since([(TokenRange(TOKEN_MIN + 1, TOKEN_MAX), 10.0)]) is None
    assert covered_since([(TokenRange(TOKEN_MIN, TOKEN_MAX - 1), 10.0)]) is None
    assert covered_since([(TokenRange(TOKEN_MIN, TOKEN_MAX), 10.0)]) == 10.0


def test_the_oldest_range_decides_and_a_newer_repair_of_it_counts() -> None:
    halves = [(TokenRange(TOKEN_MIN, 0), 100.0), (TokenRange(0, TOKEN_MAX), 50.0)]
    assert covered_since(halves) == 50.0
    assert covered_since([*halves, (TokenRange(-5, TOKEN_MAX), 70.0)]) == 70.0
    assert covered_since([*halves, (TokenRange(5, TOKEN_MAX), 70.0)]) == 50.0


def test_a_range_over_the_end_of_the_ring_covers_both_sides() -> None:
    assert covered_since([(TokenRange(10, -10), 3.0), (TokenRange(-10, 10), 4.0)]) == 3.0
    assert covered_since([(TokenRange(7, 7), 3.0)]) == 3.0


def test_what_is_no_range_is_refused() -> None:
    assert TokenRange.parse("(-5, 7]") == TokenRange(-5, 7)
    with pytest.raises(InvalidInputError, match="not a token range"):
        TokenRange.parse("[1,2)")
