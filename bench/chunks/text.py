"""Text searches in a day of log lines, with and without text filters.

`./dev bench text` generates log lines of a web service, stores them by hour, and searches for words, addresses,
identifiers and regular expressions in Chronotile on SQLite with and without filters, in DuckDB on a Parquet file for
each hour, and in a scan of the same files with pyarrow. The answers are compared before anything is timed. Needs
duckdb, numpy, pyarrow.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import common
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import chronotile as ct

FIRST_US = 1_767_225_600_000_000
HOUR_US = 3_600_000_000
SYSTEMS = ["Chronotile, filters", "Chronotile, none", "DuckDB, Parquet", "pyarrow, Parquet"]


def generate(rows: int) -> pa.Table:
    """Log lines of requests, cache look-ups, logins and slow queries; one in two thousand is a failure."""
    rng = np.random.default_rng(20260101)
    pick = lambda words: pa.array(np.array(words)[rng.integers(0, len(words), rows)])  # noqa: E731
    number = lambda low, high: pa.array(rng.integers(low, high, rows)).cast(pa.string())  # noqa: E731
    join = lambda *parts: pc.binary_join_element_wise(*parts, "")  # noqa: E731
    names = [f"{first}.{last}" for first in NAMES for last in NAMES]
    user = pa.array(np.array(names)[np.minimum(rng.geometric(0.004, rows), len(names)) - 1])
    address = join("10.", number(0, 8), ".", number(0, 256), ".", number(1, 255))
    request = pa.array(np.char.mod("%016x", rng.integers(0, 2**63, rows)))
    path = join(
        "/api/v", number(1, 4), "/", pick(["orders", "users", "items", "carts"]), "/", pick(["list", "get", "put"])
    )
    kinds = [
        join("INFO request id=", request, " GET ", path, " status=", pick(["200"] * 40 + ["404", "500"]),
             " user=", user, " client=", address, " took=", number(1, 3_000), "ms"),
        join("DEBUG cache ", pick(["hit", "miss"]), " key=session node=cache-", number(0, 12)),
        join("INFO sshd: Accepted publickey for ", user, " from ", address, " port ", number(1_024, 65_536)),
        join("WARN slow query took=", number(1_000, 9_000), "ms table=", pick(["orders", "users", "items"])),
        join("ERROR worker ", number(0, 64), " crashed: ", pick(FAILURES)),
    ]  # fmt: skip
    # Failures are clustered in one hour, as in real logs.
    hour = np.arange(rows) * 24 // rows
    chance = np.where(hour == 17, 0.012, 0.0)
    kind = rng.choice(4, rows, p=[0.6, 0.2, 0.17, 0.03])
    kind[rng.random(rows) < chance] = 4
    line = pc.choose(pa.array(kind), *kinds)
    time = FIRST_US + np.arange(rows) * (24 * HOUR_US) // rows
    return pa.table({"time": pa.array(time, pa.timestamp("us")), "number": np.arange(rows), "line": line})


NAMES = [
    "adam",
    "bert",
    "carla",
    "doris",
    "emil",
    "frida",
    "gert",
    "hanna",
    "ivo",
    "jana",
    "karl",
    "lena",
    "sven",
    "tina",
]
FAILURES = ["segmentation fault", "out of memory", "disk quota exceeded", "certificate has expired", "deadlock"]


@dataclass(frozen=True)
class Question:
    """A search."""

    name: str
    comparison: str
    text: str

    def sql(self) -> str:
        """The condition in DuckDB's SQL."""
        text = self.text.replace("'", "''")
        return f"contains(line, '{text}')" if self.comparison == "contains" else f"regexp_matches(line, '{text}')"

    def expression(self) -> pc.Expression:
        """The condition as a pyarrow expression."""
        match = pc.match_substring if self.comparison == "contains" else pc.match_substring_regex
        return match(pc.field("line"), self.text)


def questions(lines: pa.Table) -> list[Question]:
    """Searches that find no lines to many lines; the identifier and the address come from a line in the middle."""
    middle = next(text for text in lines["line"].slice(lines.num_rows // 2).to_pylist() if "request" in text)
    identifier = middle.split("id=")[1][:16]
    address = middle.split("client=")[1].split()[0]
    return [
        Question("a word that is nowhere", "contains", "kernel panic"),
        Question("a failure of one hour", "contains", "disk quota exceeded"),
        Question("an identifier", "contains", identifier),
        Question("an address", "contains", f"client={address} "),
        Question("a rare user", "contains", "sven.tina"),
        Question("either of two failures, any case", "matches", "(?i)SEGMENTATION fault|deadlock"),
        Question("a pattern around a word", "matches", r"worker \d+ crashed: cert"),
        Question("one status in forty", "contains", "status=500"),
    ]


def store(folder: Path, lines: pa.Table) -> dict[str, Any]:
    """Store the same lines in all systems, in a batch and a file for each hour."""
    archive = ct.open(f"sqlite:{folder / 'logs.db'}")
    datasets: dict[str, Any] = {}
    step = lines.num_rows // 24
    for name, text in (("filtered", ["line"]), ("plain", [])):
        dataset = archive.create(
            name, schema=lines.schema, cell=ct.single(), time="time", window="1h", slice=24, text=text
        )
        began = common.timed_ms(
            lambda dataset=dataset: [  # type: ignore[misc]
                dataset.write(lines.slice(start, step), batch=str(start)) for start in range(0, lines.num_rows, step)
            ]
        )
        datasets[name], datasets[f"{name} write, s"] = dataset, began / 1_000
    (folder / "parquet").mkdir()
    for start in range(0, lines.num_rows, step):
        pq.write_table(lines.slice(start, step), folder / "parquet" / f"{start:09}.parquet", compression="zstd")
    return datasets


def systems(folder: Path, datasets: dict[str, Any]) -> dict[str, Callable[[Question], list[int]]]:
    """Search functions by system; they read whole lines and return the numbers of the lines found."""
    duck = duckdb.connect()
    files = pads.dataset(folder / "parquet")

    def ours(name: str) -> Callable[[Question], list[int]]:
        return lambda q: numbers(datasets[name].read(where=("line", q.comparison, q.text)).to_arrow())

    def duckdb_(q: Question) -> list[int]:
        return numbers(duck.sql(f"SELECT * FROM '{folder}/parquet/*.parquet' WHERE {q.sql()}").arrow().read_all())

    return dict(
        zip(
            SYSTEMS,
            [ours("filtered"), ours("plain"), duckdb_, lambda q: numbers(files.to_table(filter=q.expression()))],
            strict=True,
        )
    )


def numbers(found: pa.Table) -> list[int]:
    """The numbers of the lines found, sorted."""
    return sorted(found["number"].to_pylist())


def run(rows: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Store the lines, compare the answers and measure."""
    lines = generate(rows)
    datasets = store(folder, lines)
    searches = systems(folder, datasets)
    asked = questions(lines)
    result: dict[str, Any] = {"rows": rows, "raw_bytes": lines["line"].nbytes, "questions": []}
    for name in ("filtered", "plain"):
        info = datasets[name].info()
        result[name] = {"bytes": info.bytes, "chunks": info.chunks, "write_s": datasets[f"{name} write, s"]}
    result["parquet_bytes"] = sum(file.stat().st_size for file in (folder / "parquet").iterdir())
    for question in asked:
        answers = {name: search(question) for name, search in searches.items()}
        if any(answer != answers[SYSTEMS[0]] for answer in answers.values()):
            raise SystemExit(f"the answers to {question} differ: { {k: len(v) for k, v in answers.items()} }")
        samples: dict[str, list[float]] = {name: [] for name in searches}
        for _ in range(rounds):
            for name, search in searches.items():
                samples[name].append(common.timed_ms(partial(search, question)))
        used = datasets["filtered"].explain(where=("line", question.comparison, question.text))
        needed = chunks_needed(datasets["filtered"], answers[SYSTEMS[0]], rows)
        result["questions"].append(
            {"name": question.name, "lines": len(answers[SYSTEMS[0]]), "chunks": used.chunks or None,
             "chunks_read": used.chunks_read, "chunks_needed": needed, "samples_ms": samples}
        )  # fmt: skip
    return result


def chunks_needed(dataset: ct.Dataset, found: list[int], rows: int) -> int:
    """Number of chunks that contain a line found, if the lines of an hour are distributed evenly over its chunks."""
    each = dataset.info().chunks / 24
    step = rows / 24
    return len({(n // step, int((n % step) / step * each)) for n in found})


WORDS = {
    "words": r"[A-Za-z]{5,}",
    "numbers of 4 to 6 digits": r"(?<!\d)\d{4,6}(?!\d)",
    "addresses": r"\d+\.\d+\.\d+\.\d+",
    "identifiers": r"\d{12,}",
    "three words in a row": r"\S+ \S+ \S+",
}


def false_positives(log: Path, chunk_lines: int = 500) -> list[str]:
    """How often filters let a chunk of a real log pass although a text occurs only elsewhere in the log."""
    lines = log.read_text(errors="replace").splitlines()
    rng = random.Random(1)
    chunks = [lines[start : start + chunk_lines] for start in range(0, len(lines), chunk_lines)]
    sizes, row = {}, [log.stem]
    with ct.open("memory:") as archive:
        for name, text in (("plain", []), ("filtered", ["line"])):
            dataset = archive.create(
                name, schema={"time": "timestamp[s]", "line": "utf8"}, cell=ct.single(), time="time", text=text
            )
            for number, chunk in enumerate(chunks):
                dataset.write({"time": [number] * len(chunk), "line": chunk})
            sizes[name] = dataset.info().bytes
        row += [f"{sizes['plain'] // len(chunks):,}", f"{sizes['filtered'] / sizes['plain'] - 1:.1%}"]
        for pattern in WORDS.values():
            found = sorted({text for line in lines for text in re.findall(pattern, line)})
            asked = rng.sample(found, min(len(found), 200))
            passed = absent = 0
            for text in asked:
                holding = sum(any(text in line for line in chunk) for chunk in chunks)
                absent += len(chunks) - holding
                passed += dataset.explain(where=("line", "contains", text)).chunks_read - holding
            row.append(f"{passed / absent:.0%}" if absent >= 20 else "-")
    return row


def report(result: dict[str, Any]) -> str:
    """The report as Markdown."""
    plain, filtered = result["plain"], result["filtered"]
    cost = (filtered["bytes"] - plain["bytes"]) / plain["bytes"]
    parquet_mb = result["parquet_bytes"] / 1e6
    lines = [
        f"{result['rows']:,} lines of a day, {result['raw_bytes'] / 1e6:.0f} MB; {filtered['chunks']} chunks."
        f" Without filters {plain['bytes'] / 1e6:.2f} MB, written in {plain['write_s']:.1f} s; filters add {cost:.1%}"
        f" and {filtered['write_s'] - plain['write_s']:.1f} s. Parquet with zstd {parquet_mb:.2f} MB.",
        f"{common.versions('duckdb', 'pyarrow')}; {common.hardware()}; load {common.load_average():.1f};"
        f" commit {common.commit()}",
        "",
        common.table(
            ["looked for", "lines", "chunks with it / read / all", *(f"{name}, ms" for name in SYSTEMS)],
            [
                [
                    q["name"], f"{q['lines']:,}",
                    f"{q['chunks_needed']} / {q['chunks_read']} / {q['chunks']}",
                    *(common.spread(q["samples_ms"][name]) for name in SYSTEMS),
                ]
                for q in result["questions"]
            ],
        ),
    ]  # fmt: skip
    if result["logs"]:
        lines += ["", "Chunks of 500 lines of real logs, and the share of chunks without a text that filters pass:", ""]
        lines.append(common.table(["log", "bytes a chunk", "filters add", *WORDS], result["logs"]))
    return "\n".join(lines)


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--logs", type=Path, help="folder of real logs, one line a record, for false positives")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chronotile-text-"))
    try:
        result = run(arguments.rows // 24 * 24, arguments.rounds, folder)
    finally:
        shutil.rmtree(folder)
    result["logs"] = [false_positives(log) for log in sorted(arguments.logs.glob("*.log"))] if arguments.logs else []
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "text.json").write_text(json.dumps(result, indent=1))
    (common.RESULTS / "text.md").write_text(report(result) + "\n")
    sys.stdout.write(report(result) + "\n")


if __name__ == "__main__":
    main()
