"""Conditions on texts, and filters by which chunks without a text are passed over, from Python and the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_data import data_file

import chronotile as ct

LINES = {"number": "int64", "time": "timestamp[s]", "line": "utf8"}
BATCH = 100

NEEDLES = {
    "Apache_2k": [
        "workerEnv in error state 6",
        "client 218.",
        "Directory index",
        "jk2_init",
        "ERROR",
        "error",
        "é",
        "",
    ],
    "HDFS_2k": ["blk_-16", "10.251.43.", "PacketResponder 2", "FSNamesystem", "Exception", "WARN", "for", "_3886"],
    "OpenSSH_2k": [
        "Invalid user webmaster",
        "173.234.31.186",
        "203.0.113.",
        "BREAK-IN",
        "root",
        "Accepted password",
        "preauth",
        "uid=0",
    ],
}
PATTERNS = {
    "Apache_2k": [r"state \d+$", r"(?i)DIRECTORY INDEX forbidden", r"^\[Mon", r"notice|warn", r"[Ee]rror\b"],
    "HDFS_2k": [r"blk_-?\d+ terminating", r"src: /10\.250\.\d+\.\d+:\d+", r"(?i)exception|warn", r"^0811(09|10) 2"],
    "OpenSSH_2k": [r"Failed password for (invalid user )?\w+", r"port 3\d{4} ssh2", r"(?i)break-in", r"uid=\d{1,3}\b"],
}


def stored(archive: ct.Archive, lines: list[str | None], name: str = "lines", **options: Any) -> ct.Dataset:
    """Lines a second apart, in batches of a hundred."""
    dataset = archive.create(name, schema=LINES, cell=ct.single(), time="time", window="1d", **options)
    for start in range(0, len(lines), BATCH):
        part = lines[start : start + BATCH]
        numbers = list(range(start, start + len(part)))
        dataset.write({"number": numbers, "time": numbers, "line": part}, batch=str(start))
    return dataset


def found(dataset: ct.Dataset, *where: tuple[str, str, Any]) -> list[int]:
    return sorted(dataset.read(where=list(where), columns=["number"]).to_arrow()["number"].to_pylist())


@pytest.mark.parametrize("log", sorted(NEEDLES))
def test_every_query_of_a_real_log_gives_what_a_look_at_each_line_does(tmp_path: Path, log: str) -> None:
    lines = data_file(f"logs/{log}.log").read_text().splitlines()
    tests: list[tuple[str, str, Callable[[str], Any]]] = []
    for needle in [*NEEDLES[log], *(line[7:31] for line in lines[::97]), *(line[-9:] for line in lines[::131])]:
        tests.append(("contains", needle, lambda line, needle=needle: needle in line))  # type: ignore[misc]
        tests.append(("prefix", needle, lambda line, needle=needle: line.startswith(needle)))  # type: ignore[misc]
    tests += [("prefix", line[:25], lambda line, head=line[:25]: line.startswith(head)) for line in lines[::197]]  # type: ignore[misc]
    tests += [("==", line, lambda other, line=line: other == line) for line in lines[::197]]  # type: ignore[misc]
    tests += [("matches", pattern, re.compile(pattern).search) for pattern in PATTERNS[log]]
    with ct.open(f"sqlite:{tmp_path / 'logs.db'}") as archive:
        dataset = stored(archive, list(lines), text="line")
        filtered = 0
        for consolidated in (False, True):
            for comparison, value, holds in tests:
                wanted = [number for number, line in enumerate(lines) if holds(line)]
                where = ("line", comparison, value)
                assert found(dataset, where) == wanted, where
                assert dataset.count(where=where) == len(wanted), where
                filtered += 0 if consolidated else dataset.explain(where=where).chunks_filtered
            dataset.consolidate()
        assert filtered > len(tests) * len(lines) / BATCH / 10


def test_filters_are_used_and_shown(tmp_path: Path) -> None:
    lines: list[str | None] = [f"worker {n % 7} finished job {n}" for n in range(1_000)]
    lines[555], lines[556] = "worker 3 crashed: Disk quota exceeded", None
    with ct.open(f"sqlite:{tmp_path / 'a.db'}") as archive:
        with_filters, without = stored(archive, lines, text="line"), stored(archive, lines, "plain")
        assert with_filters.text == ("line",)
        assert without.text == ()
        for where in [("line", "contains", "Disk quota"), ("line", "matches", "(?i)disk QUOTA|out of memory")]:
            used = with_filters.explain(where=where)
            assert (used.chunks, used.chunks_read, used.chunks_filtered) == (10, 1, 9)
            assert "text filters skip 9 of 10 chunks" in str(used)
            assert without.explain(where=where).chunks_filtered == 0
            assert found(with_filters, where) == found(without, where) == [555]
        counted = with_filters.count_by("number", where=("line", "contains", "Disk quota"))
        assert counted.to_pydict() == {"number": [555], "count": [1]}
        assert found(with_filters, ("line", "exists", False)) == [556]
        assert with_filters.count(where=[("line", "exists", True), ("number", "<", 560)]) == 559
        archive.create("lines", schema=LINES, cell=ct.single(), time="time", window="1d", text=["line"], exist_ok=True)
        with pytest.raises(ct.DatasetExistsError, match="text columns"):
            archive.create("lines", schema=LINES, cell=ct.single(), time="time", window="1d", exist_ok=True)
    with ct.open(f"sqlite:{tmp_path / 'a.db'}", read_only=True) as archive:
        assert archive["lines"].text == ("line",)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (("number", "contains", "7"), r"'number', whose type is int64: contains requires a text column"),
        (("line", "contains", 7), r"'line': contains takes one text, not 7"),
        (("line", "prefix", ["a"]), r"takes one text"),
        (("line", "exists", "yes"), r"'line': exists takes True or False"),
        (("line", "matches", "user (ann"), r"\"line\".*unclosed group at character 6"),
        (("line", "matches", r"(\w{100}){100}"), r"\"line\".*too large"),
        (("line", "like", "a%"), r"use one of .* contains matches prefix exists"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(memory: ct.Archive, where: Any, message: str) -> None:
    dataset = stored(memory, ["a line"])
    with pytest.raises(ct.InvalidInputError, match=message):
        dataset.read(where=where)


def test_filters_are_for_text_columns_only(memory: ct.Archive) -> None:
    with pytest.raises(ct.InvalidInputError, match=r"text column \"number\" has type Int64: use a utf8 column"):
        stored(memory, [], text="number")
    with pytest.raises(ct.InvalidInputError, match=r"text column \"word\" is not in the schema"):
        stored(memory, [], text=["line", "word"])


def test_the_command_line_finds_lines(chronotile: Any, tmp_path: Path) -> None:
    log = tmp_path / "sshd.log"
    log.write_text(
        "".join(f"Dec 10 06:{n:02}:46 host sshd: Accepted {n} = 007\n" for n in range(60)) + "  for user Root\n"
    )
    chronotile(
        "ingest", "logs.db", "lines", log, "--format", "lines", "--line-time", "%b %d %H:%M:%S", "--line-year", "2025",
        "--tag-column", "stream", "--create", "--hash", "stream", "--time", "time", "--id", "stream,line_number",
        "--text", "line", cwd=tmp_path,
    ).check_returncode()  # fmt: skip

    def count(*conditions: str) -> str:
        options = [word for condition in conditions for word in ("--where", condition)]
        done = chronotile("count", "logs.db", "lines", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return str(done.stdout.strip())

    assert count("line contains 007") == count('line contains "= 007"') == count("line matches = 0+7$") == "60"
    assert count("line prefix Dec 10 06:1") == "10"
    assert count("line matches (?i)user root", "line_number exists") == "1"
    assert count("line exists false") == "0"
    explained = chronotile(
        "index", "explain", "logs.db", "lines", "--where", "line contains segfault", "--json", cwd=tmp_path
    )
    assert json.loads(explained.stdout)["chunks_filtered"] == 1
    wrong = chronotile("count", "logs.db", "lines", "--where", "line matches (", cwd=tmp_path)
    assert wrong.returncode != 0
    assert "unclosed group at character 1" in wrong.stderr
