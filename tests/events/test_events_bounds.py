"""Events whose lines or documents are hostile: what is held is bounded, and nothing is lost that is a document."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import chronotile as ct
from chronotile import events
from chronotile.bounds import Bounds
from chronotile.events import parsing, searching
from chronotile.events.parsing import Field, ReadOptions

MIB = 1 << 20
# One that lives as long as what is taken from it; it counts for these tests alone.
POOL = pa.proxy_memory_pool(pa.default_memory_pool())
READING = ReadOptions("ndjson", stream_field="host", time_field="t", time_format="epoch_s")
FIELDS = [Field("level", "level", pa.utf8())]
GOOD = b'{"t":1767225600,"host":"a","level":"x"}'

lines = st.sampled_from([GOOD, b"", b"x", b"{}", b'{"t":1,"host":"b","extra":[[1]]}', b"\xff", b'{"t":"x"}', b"  "])


@given(st.lists(lines, max_size=40), st.booleans(), st.integers(1, 7), st.integers(1, 60))
@settings(deadline=None, max_examples=60)
def test_how_lines_are_cut_into_blocks_changes_nothing(
    found: list[bytes], ends: bool, block_lines: int, block_bytes: int
) -> None:
    text = b"\n".join(found) + (b"\n" if ends else b"")
    whole = parsing.parse(text, 5, READING, FIELDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_BLOCK_LINES", block_lines)
        patch.setattr(parsing, "_BLOCK_BYTES", block_bytes)
        assert b"".join(parsing._blocks(text)) == text
        cut = parsing.parse(text, 5, READING, FIELDS)
    assert cut.table.to_pylist() == whole.table.to_pylist()
    assert (cut.rejects.kept, cut.rejects.count, cut.rejects.reasons, cut.blank) == (
        whole.rejects.kept, whole.rejects.count, whole.rejects.reasons, whole.blank
    )  # fmt: skip


def _peak_mib(work: Callable[[], object]) -> float:
    """Memory that Python and Arrow take at most while something is done."""
    usual = pa.default_memory_pool()
    pa.set_memory_pool(POOL)
    tracemalloc.start()
    try:
        work()
        return float(tracemalloc.get_traced_memory()[1] + POOL.max_memory()) / MIB
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


@pytest.mark.parametrize("line", [b"x\n", b"{}\n", b"{x}\n", b'{"t":1e99}\n', b"\xff\n", b"\n"])
def test_memory_does_not_grow_with_lines_that_are_no_documents(line: bytes) -> None:
    text = line * (MIB // len(line))
    taken: list[parsing.Documents] = []
    peak = _peak_mib(lambda: taken.append(parsing.parse(text, 1, READING, FIELDS)))
    assert peak < 32, f"{peak:.0f} MiB"
    documents = taken[0]
    assert documents.table.num_rows == 0
    assert documents.rejects.count + documents.blank == len(text) // len(line)
    assert len(documents.rejects.kept) <= parsing.REJECTS_MAX


def test_rejects_are_counted_and_the_first_are_kept() -> None:
    bad = [f'{{"t":"{number}","host":"a"}}'.encode() for number in range(parsing.REJECTS_MAX + 500)]
    documents = parsing.parse(
        b"\n".join([GOOD, *bad, GOOD]), 1, ReadOptions("ndjson", time_field="t", stream="s"), FIELDS
    )
    assert documents.table["line"].to_pylist() == []
    rejects = documents.rejects
    assert (rejects.count, len(rejects.kept)) == (len(bad) + 2, parsing.REJECTS_MAX)
    assert [reject.line for reject in rejects.kept] == list(range(1, parsing.REJECTS_MAX + 1))
    assert len(rejects.reasons) == 101
    assert sum(rejects.reasons.values()) == rejects.count


def test_records_that_are_kept_have_a_bound_together() -> None:
    rejects = parsing.Rejects()
    records = pa.array([b"x" * (parsing.LINE_BYTES_MAX // 2 + 1)] * 4, pa.binary())
    rejects.add(dict.fromkeys((3, 1), "too long"), [1, 2, 3, 4], records)
    rejects.add(dict.fromkeys((0, 2), "too long"), [5, 6, 7, 8], records)
    assert [(reject.line, len(reject.record)) for reject in rejects.kept] == [(2, 8 * MIB + 1), (4, 8 * MIB - 1)]
    assert (rejects.count, rejects.reasons) == (4, {"too long": 4})


KINDS = {"n": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "a.c": pa.int32(), "s": pa.utf8()}
values = st.sampled_from(["1", "1.5", "1e3", "-0", "true", "null", '"x"', "[1]", '{"c":1}', '{"c":"x"}', '{"c":2.5}',
    "99999999999", "1e400", "18446744073709551616", "NaN", "", "{"])  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["n", "f", "b", "a", "a.c", "s", "other"]), values), min_size=1, max_size=30))
@settings(deadline=None, max_examples=200)
def test_what_is_certainly_wrong_is_refused_by_the_parser_of_json_too(found: list[tuple[str, str]]) -> None:
    fields = [Field(name, name, kind) for name, kind in KINDS.items()]
    text = "\n".join(f'{{"t":1767225600,"host":"a","{name}":{value}}}' for name, value in found).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_DIAGNOSED_MAX", 10**9)
        told = parsing.parse(text, 1, READING, fields)
        patch.setattr(parsing, "_DIAGNOSED_MAX", 0)
        looked_at = parsing.parse(text, 1, READING, fields)
    assert looked_at.table.drop_columns(["f"]).to_pylist() == told.table.drop_columns(["f"]).to_pylist()
    assert [reject.line for reject in looked_at.rejects.kept] == [reject.line for reject in told.rejects.kept]


def test_deep_nesting_is_a_document_or_none_and_never_a_fault() -> None:
    deep = b'{"t":1767225600,"host":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    objects = b'{"t":1767225600,"host":"a","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"
    documents = parsing.parse(b"\n".join([deep, GOOD, objects, b'{"x":' * 50_000]), 1, READING, FIELDS)
    assert documents.table.num_rows + documents.rejects.count == 4
    assert 2 in documents.table["line"].to_pylist()


@pytest.fixture
def log() -> Iterator[events.Events]:
    with ct.open("memory:") as archive:
        yield events.create(archive, fields={"level": "utf8"}, stream_field="host")


def test_a_document_may_be_bounded_by_the_caller(log: events.Events) -> None:
    text = '{"time":"2026-01-01","host":"a","level":"%s"}'
    report = log.ingest_lines("\n".join([text % "x", text % ("y" * 2_000)]), line_bytes_max=1_000)
    assert (report.documents, report.rejected) == (1, 1)
    assert "more than 1,000" in report.rejects[0].reason


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=30), st.integers(1, 40),
       st.booleans())  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_large_documents_are_found_as_small_ones_are(
    documents: list[tuple[int, int]], limit: int, newest_first: bool
) -> None:
    with ct.open("memory:") as archive:
        log = events.create(archive, fields={"level": "utf8"}, stream_field="host")
        text = "\n".join(
            f'{{"time":"2026-01-01T00:0{minute}:00Z","host":"h{minute % 2}","level":"{"x" * size}"}}'
            for minute, size in documents
        )
        log.ingest_lines(text, batch="one")
        log.ingest_lines(text, batch="two")
        whole = log.search(limit=limit, newest_first=newest_first)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(searching, "_GROUP_BYTES", 700)
            bounds = Bounds(sorted_bytes_max=1_500)
            parts = list(log.search_parts(limit=limit, newest_first=newest_first, bounds=bounds))
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()
    assert all(part.num_rows == 1 or sum(map(len, part["body"].to_pylist())) <= 700 for part in parts[1:])


def test_a_search_of_large_documents_holds_some_of_them_at_a_time(log: events.Events) -> None:
    text = '{"time":"2026-01-01T00:00:%02dZ","host":"h","level":"%s"}'
    for second in range(24):
        log.ingest_lines(text % (second, "x" * (3 * MIB)), batch=f"b{second}")
    sizes = [part.nbytes for part in log.search_parts(columns=["body"], limit=24)]
    assert sum(sizes) > 70 * MIB
    assert max(sizes) < 9 * MIB
