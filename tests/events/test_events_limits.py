"""Rate limits of streams are those of a plain list of what was admitted, and take bounded memory."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronotile.errors import BusyError
from chronotile.events import limits
from chronotile.events.settings import Limits

MIB = 1 << 20
PER_SECOND = Limits(documents_per_s=1.0, period_s=10.0)


class Seconds:
    """The clock of limits, in seconds, which a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@contextmanager
def clock_set() -> Iterator[Seconds]:
    with pytest.MonkeyPatch.context() as patch:
        clock = Seconds()
        patch.setattr(limits, "time", clock)
        yield clock


@pytest.fixture
def clock() -> Iterator[Seconds]:
    with clock_set() as made:
        yield made


def is_admitted(guard: limits.StreamRateLimiter, sent: dict[str, tuple[int, int]], limit: Limits) -> bool:
    try:
        guard.admit(sent, limit, "it")
    except BusyError:
        return False
    return True


def wait_of(guard: limits.StreamRateLimiter, sent: dict[str, tuple[int, int]], limit: Limits) -> float | None:
    """After how many seconds to send again what is refused now."""
    with pytest.raises(BusyError) as refused:
        guard.admit(sent, limit, "it")
    assert refused.value.kind == "quota-exceeded"
    wait = refused.value.details["retry_after_s"]
    assert wait is None or isinstance(wait, float)
    return wait


# Quarters of seconds are exact in floats.
pauses = st.integers(0, 14).map(lambda quarters: quarters / 4)
calls = st.lists(
    st.tuples(
        pauses,
        st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 6), st.integers(0, 60)), min_size=1),
    ),
    max_size=25,
)


@given(calls, st.none() | st.integers(1, 8), st.none() | st.integers(10, 90), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_call_is_admitted_if_no_stream_exceeds_its_allowance_of_the_last_period(
    sent: list[tuple[float, dict[str, tuple[int, int]]]], documents: int | None, size: int | None, period_s: float
) -> None:
    limit = Limits(*(None if allowed is None else allowed / period_s for allowed in (documents, size)), period_s)
    admitted: list[tuple[float, str, tuple[int, int]]] = []
    with clock_set() as clock:
        guard = limits.StreamRateLimiter()

        def fits(at: float, call: dict[str, tuple[int, int]]) -> bool:
            recent = [(stream, amounts) for time, stream, amounts in admitted if time > at - period_s]
            return all(
                allowed is None
                or sum(each[unit] for other, each in [*recent, *call.items()] if other == stream) <= allowed
                for stream in call
                for unit, allowed in enumerate((documents, size))
            )

        for pause, call in sent:
            clock.now += pause
            if fits(clock.now, call):
                guard.admit(call, limit, "it")
                admitted += [(clock.now, stream, amounts) for stream, amounts in call.items()]
                continue
            wait = wait_of(guard, call, limit)
            # Another stream or the other limit may refuse the call after this wait, too.
            if len(call) == 1 and None in (documents, size):
                assert (wait is None) == (not fits(clock.now + period_s, call))
                if wait is not None:
                    assert fits(clock.now + wait, call)
                    assert not fits(clock.now + wait - 0.25, call)


def test_a_period_ends_as_its_length_has_passed(clock: Seconds) -> None:
    guard = limits.StreamRateLimiter()
    guard.admit({"a": (9, 1)}, PER_SECOND, "it")
    clock.now += 4
    guard.admit({"a": (1, 1)}, PER_SECOND, "it")
    assert wait_of(guard, {"a": (1, 1)}, PER_SECOND) == 6.0
    assert wait_of(guard, {"a": (9, 1)}, PER_SECOND) == 6.0
    assert wait_of(guard, {"a": (10, 1)}, PER_SECOND) == 10.0
    assert wait_of(guard, {"a": (11, 1)}, PER_SECOND) is None
    clock.now += 5.75
    assert wait_of(guard, {"a": (9, 1)}, PER_SECOND) == 0.25
    clock.now += 0.25
    assert is_admitted(guard, {"a": (9, 1)}, PER_SECOND)


def test_a_stream_is_counted_while_any_of_its_documents_is_recent(clock: Seconds) -> None:
    guard = limits.StreamRateLimiter()
    for pause in (0, 6, 3):
        clock.now += pause
        guard.admit({"a": (4 if pause == 0 else 3, 1)}, PER_SECOND, "it")
    # What came first has left the period.
    clock.now += 2
    assert wait_of(guard, {"a": (5, 1)}, PER_SECOND) == 5.0
    assert len(guard) == 1
    clock.now += 8
    guard.admit({"b": (1, 1)}, PER_SECOND, "it")
    assert len(guard) == 1


def test_a_refused_stream_that_has_nothing_left_in_the_period_is_forgotten(clock: Seconds) -> None:
    guard = limits.StreamRateLimiter()
    guard.admit({"old": (1, 1), "a": (1, 1)}, PER_SECOND, "it")
    clock.now += 5
    guard.admit({"b": (1, 1)}, PER_SECOND, "it")
    clock.now += 3
    assert wait_of(guard, {"a": (11, 1)}, Limits(documents_per_s=5.0, period_s=2.0)) is None
    guard.admit({"b": (1, 1)}, PER_SECOND, "it")
    assert len(guard) == 1


def test_a_refusal_says_what_was_sent_and_when_to_send_again(clock: Seconds) -> None:
    guard = limits.StreamRateLimiter()
    limit = Limits(documents_per_s=250.0, bytes_per_s=1_000.0, period_s=10.0)
    guard.admit({"web": (1_500, 10)}, limit, "it")
    clock.now += 8.75
    with pytest.raises(BusyError) as refused:
        guard.admit({"web": (1_001, 20)}, limit, "12 lines")
    assert str(refused.value) == (
        "stream 'web' exceeds its limit of 2,500 documents in 10 s: 1,500 were sent, 1,001 more came; "
        # A wait is not rounded down: a call that follows it is admitted.
        "12 lines rejected and not stored: send it again in 2 s"
    )
    assert refused.value.details == {
        "stream": "web", "documents": 1_001, "bytes": 20, "limit": 2_500.0, "retry_after_s": 1.25,
    }  # fmt: skip
    with pytest.raises(BusyError, match=re.escape("its limit of 10,000 bytes in 10 s: 10 were sent, 10,001 more came")):
        guard.admit({"web": (1, 10_001)}, limit, "it")


def test_a_stream_without_limits_is_not_counted() -> None:
    guard = limits.StreamRateLimiter()
    guard.admit({"a": (10**9, 10**12)}, Limits(), "it")
    assert len(guard) == 0


@pytest.mark.parametrize("limit", [Limits(documents_per_s=1.0), Limits(bytes_per_s=1.0)])
def test_of_a_call_that_is_refused_nothing_is_counted(limit: Limits) -> None:
    guard = limits.StreamRateLimiter()
    assert not is_admitted(guard, {"a": (5, 5), "b": (11, 11)}, limit)
    assert len(guard) == 0
    assert is_admitted(guard, {"a": (10, 10)}, limit)
    assert len(guard) == 1


def test_streams_that_are_silent_are_forgotten(clock: Seconds) -> None:
    guard = limits.StreamRateLimiter()
    for step in range(1_000):
        clock.now += 0.1
        streams = [f"stream-{step}", "steady"] if step % 20 == 0 else [f"stream-{step}"]
        guard.admit(dict.fromkeys(streams, (1, 10)), PER_SECOND, "it")
    assert len(guard) <= 102
    assert wait_of(guard, {"steady": (6, 10)}, PER_SECOND) is not None
    clock.now += 20
    guard.admit({"steady": (6, 10)}, PER_SECOND, "it")
    assert len(guard) == 1


def test_long_names_of_streams_take_no_more_memory_than_short_ones() -> None:
    guard = limits.StreamRateLimiter()
    tracemalloc.start()
    for number in range(200):
        guard.admit({f"{number:>06}" * 20_000: (6, 1)}, PER_SECOND, "it")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(guard) == 200
    assert held < MIB
    assert not is_admitted(guard, {f"{7:>06}" * 20_000: (6, 1)}, PER_SECOND)
    assert is_admitted(guard, {f"{7:>06}" * 20_000 + "x": (6, 1)}, PER_SECOND)


def test_more_streams_than_can_be_counted_are_put_off(clock: Seconds, monkeypatch: pytest.MonkeyPatch) -> None:
    # The documentation names the number.
    assert f"more than {limits.STREAMS_MAX:,} streams" in " ".join(str(limits.StreamRateLimiter.admit.__doc__).split())
    monkeypatch.setattr(limits, "STREAMS_MAX", 100)
    guard = limits.StreamRateLimiter()
    many = {str(number): (1, 1) for number in range(100)}
    with pytest.raises(BusyError, match="send fewer streams at a time") as refused:
        guard.admit({**many, "more": (1, 1)}, PER_SECOND, "it")
    assert refused.value.details == {"streams": 101, "limit": 100, "retry_after_s": None}
    guard.admit(many, PER_SECOND, "it")
    assert len(guard) == 100
    with pytest.raises(BusyError, match=re.escape("rate limits cover at most 100 streams within 10 s; it")) as refused:
        guard.admit({"7": (1, 1), "more": (1, 1)}, PER_SECOND, "it")
    assert refused.value.details == {"streams": 2, "limit": 100, "retry_after_s": 10.0}
    assert "send it again in 10 s" in str(refused.value)
    with pytest.raises(BusyError, match="send it again in 10 s"):
        guard.admit({**{str(number): (1, 1) for number in range(1, 100)}, "more": (1, 1)}, PER_SECOND, "it")
    assert len(guard) == 100
    # Streams that are counted already may go on.
    clock.now += 5
    guard.admit({"7": (1, 1)}, PER_SECOND, "it")
    clock.now += 5
    guard.admit({"more": (1, 1)}, PER_SECOND, "it")
    assert len(guard) == 2
