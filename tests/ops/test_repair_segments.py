"""Segments of a repair, for any ring: what each contains, what remains, and how large the next one is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_ring import RINGS, TOKENS, holds, ring_of

from chronotile_tools.ops.repair import Estimate, RingRange, SegmentSizer, segments
from chronotile_tools.ring import SIZE, TOKEN_MIN, after, unwrapped, width


def estimates_of(ring: list[RingRange], partitions: list[int]) -> list[Estimate]:
    return [
        Estimate(one.start, one.end, count, count * 100.0)
        for one, count in zip(ring, partitions * len(ring), strict=False)
    ]


SEGMENTS_MAX = 2_000
"""More segments than the rings, estimates and widths of these tests can ask for."""


def all_segments(ring: list[RingRange], known: list[Estimate], width_max: int) -> list[RingRange]:
    left, found = unwrapped(ring), []
    while left:
        one = left.pop(0)
        segment = segments.next_segment(one, known, width_max)
        found.append(segment)
        assert len(found) < SEGMENTS_MAX
        left += segments.remaining([one], [(segment.start, segment.end)])
    return found


@given(RINGS, st.lists(st.integers(0, 2**27), min_size=1, max_size=12), st.integers(2**58, SIZE), st.data())
def test_segments_cover_the_ring_exactly_once_and_never_cross_a_ring_range(
    tokens: list[int], partitions: list[int], width_max: int, data: st.DataObject
) -> None:
    ring = ring_of(tokens)
    found = all_segments(ring, estimates_of(ring, partitions), width_max)
    assert sum(one.width for one in found) == SIZE
    for token in [*tokens, *(one.end for one in found if one.end != TOKEN_MIN), data.draw(TOKENS)]:
        assert sum(holds(one, token) for one in found) == 1
    for segment in found:
        (owner,) = [one for one in ring if holds(one, after(segment.start, 1))]
        assert width(owner.start, segment.start) % SIZE + segment.width <= owner.width
        assert segment.width <= width_max
        # Nothing that the nodes would take for a range over the end of the ring.
        assert segment.end == TOKEN_MIN or segment.start < segment.end


@given(RINGS)
def test_small_tables_have_a_segment_for_each_ring_range(tokens: list[int]) -> None:
    assert all_segments(ring_of(tokens), [], SIZE) == unwrapped(ring_of(tokens))


@given(RINGS, st.lists(st.integers(0, 2**26), min_size=1, max_size=12))
def test_no_segment_is_estimated_above_the_limits(tokens: list[int], partitions: list[int]) -> None:
    ring = ring_of(tokens)
    known = estimates_of(ring, partitions)
    assert sum(segments.share(one, known)[0] for one in ring) == pytest.approx(sum(one.partitions for one in known))
    for segment in all_segments(ring, known, SIZE):
        count, size = segments.share(segment, known)
        if segment.width > 1:
            # The part that a token more or less makes is within the estimate's own error.
            assert count <= segments.PARTITIONS_MAX * 1.001 + max(one.partitions for one in known) / segment.width
            assert size <= segments.BYTES_MAX * 1.001


@given(RINGS, st.integers(2**60, SIZE), st.integers(0, 40))
def test_what_remains_after_some_segments_is_the_rest(tokens: list[int], width_max: int, count: int) -> None:
    ring = unwrapped(ring_of(tokens))
    done = all_segments(ring, [], width_max)[:count]
    left = segments.remaining(ring, [(one.start, one.end) for one in done])
    assert sum(one.width for one in [*done, *left]) == SIZE
    assert not [one for one in left if any(holds(other, after(one.start, 1)) for other in done)]


@pytest.mark.parametrize(
    ("partitions", "size", "tokens"),
    [
        (2**20, 50 * 2**30, 1_000), (2**20 + 1, 0, 500), (0, 50 * 2**30 + 1, 500), (3 * 2**20, 0, 334),
        (0, 150 * 2**30, 334), (2**21, 150 * 2**30, 334), (3 * 2**20, 100 * 2**30, 334), (2**40, 0, 1),
    ],
)  # fmt: skip
def test_a_range_is_divided_evenly_by_what_it_contains(partitions: int, size: int, tokens: int) -> None:
    """A segment has at most 2^20 partitions and 50 GiB, and at least one token."""
    one = RingRange(5, 1_005, ("a", "b"))
    first = segments.next_segment(one, [Estimate(5, 1_005, partitions, size)], SIZE)
    assert first == RingRange(5, 5 + tokens, ("a", "b"))


@pytest.mark.parametrize(("width_max", "tokens"), [(SIZE, 10), (10, 10), (9, 5), (5, 5), (4, 4), (3, 3), (1, 1)])
def test_a_range_is_divided_evenly_by_tokens(width_max: int, tokens: int) -> None:
    assert segments.next_segment(RingRange(-4, 6), [], width_max) == RingRange(-4, -4 + tokens)


def test_a_range_has_its_part_of_each_estimate() -> None:
    known = [Estimate(0, 100, 40, 1_000), Estimate(100, 200, 8, 100), Estimate(200, 0, 2**40, 2**40)]
    assert segments.share(RingRange(50, 125), known) == (20 + 2, 500 + 25)
    assert segments.share(RingRange(50, 125), []) == (0, 0)


@pytest.mark.parametrize(
    ("done", "left"),
    [
        ([], [(0, 10), (10, 20)]),
        ([(0, 9)], [(9, 10), (10, 20)]),
        ([(9, 10)], [(0, 10), (10, 20)]),
        ([(9, 10), (0, 9)], [(10, 20)]),
        ([(0, 10), (10, 19)], [(19, 20)]),
        ([(0, 20)], [(10, 20)]),
        ([(0, 4), (4, 20), (20, 30), (10, 20)], []),
    ],
)
def test_what_remains_begins_where_finished_segments_end(
    done: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    """A segment that was finished before the ring changed may end beyond its range."""
    ranges = [RingRange(0, 10, ("a",)), RingRange(10, 20, ("a",))]
    assert segments.remaining(ranges, done) == [RingRange(*each, ("a",)) for each in left]


def test_a_ring_of_one_token_is_finished_when_its_segments_come_around() -> None:
    whole = RingRange(7, 7, ("a",))
    assert segments.remaining([whole], []) == [whole]
    assert segments.remaining([whole], [(7, 7)]) == []
    assert segments.remaining([whole], [(7, -3), (-3, 6)]) == [RingRange(6, 7, ("a",))]
    assert segments.remaining([whole], [(7, -3), (-3, 6), (6, 7)]) == []


@pytest.mark.parametrize(
    ("tokens", "seconds", "width_max"),
    [
        (1_000, 60, 1_000), (1_000, 59.9, 2_000), (500, 59.9, 2_000), (499, 59.9, 1_000), (1_000, 900, 1_000),
        (1_000, 900.5, 499), (1_000, 1_000, 450), (500, 1_000, 225), (2_000, 1_800, 500), (1, 1_800, 1),
    ],
)  # fmt: skip
def test_the_next_segments_are_to_take_half_of_the_longest_time(tokens: int, seconds: float, width_max: int) -> None:
    """Segments under a minute double; a segment much narrower than allowed tells nothing about a wider one."""
    pace = SegmentSizer(1_000)
    pace.finished(tokens, seconds)
    assert pace.width_max == width_max


def test_segments_that_time_out_halve_down_to_one_token_and_short_ones_double_up_to_the_ring() -> None:
    pace = SegmentSizer()
    pace.finished(SIZE, 1)
    assert pace.width_max == SIZE
    for tokens, width_max in ((2**60, 2**59), (7, 3), (3, 1), (1, 1)):
        pace.timed_out(tokens)
        assert pace.width_max == width_max
    pace.finished(1, 1)
    assert pace.width_max == 2


@given(
    st.lists(st.sets(st.sampled_from("abcdef"), min_size=1, max_size=3), max_size=8), st.sets(st.sampled_from("abc"))
)
def test_the_first_range_without_a_busy_replica_is_next(replicas: list[set[str]], busy: set[str]) -> None:
    waiting = [RingRange(k, k + 1, tuple(sorted(some))) for k, some in enumerate(replicas)]
    idle = [one for one in waiting if not set(one.replicas) & busy]
    assert segments.disjoint(waiting, iter(busy)) == (idle[0] if idle else None)


@pytest.mark.parametrize(
    ("capacity_mbit", "replicas", "limit"),
    [
        (100, ["abc"], 50),
        (100, ["abc", "abcde"], 25),
        (1, ["abc"], 1),
        (100, ["a"], 100),
        (100, [], 100),
        (99, ["abc"], 49),
    ],
)
def test_senders_share_what_one_node_may_receive(capacity_mbit: float, replicas: list[str], limit: int) -> None:
    assert segments.megabits_a_sender(capacity_mbit, [RingRange(0, 1, tuple(each)) for each in replicas]) == limit


def test_whole_files_are_limited_in_mebibytes() -> None:
    assert [segments.mebibytes(mbit) for mbit in (50, 20, 8.388608, 1)] == [5, 2, 1, 1]
    # 2^20 bytes are 8.388608 Mbit.
    assert [segments.mebibytes(8.388608 * count) for count in (999.9, 1_000)] == [999, 1_000]
