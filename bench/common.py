"""Shared by the benchmarks: description of the machine, samples and their spread, tables and bar charts."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

COLOURS = ["#1b6ca8", "#e08e0b", "#7a9e3f", "#a63d40", "#6b5b95", "#5f7470", "#2a9d8f", "#b5838d"]
Item = TypeVar("Item")

RESULTS = Path(__file__).resolve().parent / "results"


def hardware() -> str:
    """Processor, memory and system in one line."""
    model, memory = platform.machine(), ""
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    if meminfo.exists():
        kib = next(int(line.split()[1]) for line in meminfo.read_text().splitlines() if line.startswith("MemTotal"))
        memory = f", {kib / (1 << 20):.0f} GiB"
    return f"{model}, {os.cpu_count()} CPUs{memory}, {platform.platform()}"


def load_average() -> float:
    """Load average of the last minute. Above the number of CPUs, other work distorts the figures."""
    return os.getloadavg()[0]


def versions(*packages: str) -> str:
    """Python and the packages with their versions."""
    parts = [f"Python {platform.python_version()}"]
    parts += [f"{package} {importlib.metadata.version(package)}" for package in packages]
    return ", ".join(parts)


def commit() -> str:
    """The measured commit, with "-dirty" if files differ from it."""
    root = Path(__file__).resolve().parent.parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def timed_ms(work: Callable[[], Any]) -> float:
    """Milliseconds of wall time that `work` takes."""
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / 1e6


def bytes_below(folder: Path) -> int:
    """Bytes of all files in a folder; ignores files that are removed meanwhile, as nodes do."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def spread(samples: list[float]) -> str:
    """Median and, in parentheses, the smallest and the largest sample."""
    if not samples:
        return "-"
    return f"{digits(statistics.median(samples))} ({digits(min(samples))}-{digits(max(samples))})"


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which `share` percent of the samples fall, interpolated."""
    return float(np.percentile(samples, share))


def say(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr)


def rotated(items: list[Item], by: int) -> list[Item]:
    """The items, beginning with another one in each round: no system always runs first."""
    by %= len(items)
    return items[by:] + items[:by]


def measure_alternating(
    systems: Sequence[Any],
    asked: Mapping[str, Sequence[Callable[[Any], Any]]],
    comparable: Callable[[Any], Any] = lambda answer: answer,
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by kind of query and system. Systems take turns. If there are several rounds, the first one warms
    caches and is discarded. All systems must return the same answers after `comparable`."""
    samples: dict[str, dict[str, list[float]]] = {}
    for kind, questions in asked.items():
        samples[kind] = {system.name: [] for system in systems}
        for number, question in enumerate(questions):
            answers = {}
            for system in systems:
                began = time.perf_counter_ns()
                found = question(system)
                if number or len(questions) == 1:
                    samples[kind][system.name].append((time.perf_counter_ns() - began) / 1e6)
                answers[system.name] = comparable(found)
            if any(answer != answers[systems[0].name] for answer in answers.values()):
                raise SystemExit(f"{kind}: the systems disagree: {str(answers)[:1_000]}")
        print(kind, {name: spread(found) for name, found in samples[kind].items()}, flush=True)
    return samples


def parser_of_comparison(doc: str, rows: int) -> argparse.ArgumentParser:
    """A parser with the options of every comparison with DuckDB and PostgreSQL."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cluster", metavar="URL", help="store the archive on a cluster instead of SQLite")
    parser.add_argument("--no-postgresql", action="store_true")
    return parser


def save_comparison(
    name: str, systems: Sequence[Any], lines: list[list[str]], *, notes: Any, samples: Any, **head: Any
) -> None:
    """Print the machine, the workload and a table with a column for each system; write it all as JSON."""
    head = {
        "commit": commit(), "hardware": hardware(), "load": load_average(),
        "versions": versions("duckdb", "pyarrow", "chronotile"), **head,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**head, "notes": notes, "samples_ms": samples}, indent=1))
    print("\n".join(f"{what}: {value}" for what, value in head.items()))
    print(table(["", *(system.name for system in systems)], lines))


def save_report(name: str, title: str, text: str, samples: Mapping[str, Mapping[str, Any]], **record: Any) -> None:
    """Print and write a report, a bar chart of its medians, and its raw samples (objects with times as ``ms``)."""
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    medians = {
        what: {system: statistics.median(part.ms) for system, part in found.items()} for what, found in samples.items()
    }
    (RESULTS / f"{name}.svg").write_text(bars(title, medians, "ms"))
    raw = {what: {system: vars(part) for system, part in found.items()} for what, found in samples.items()}
    record = {"hardware": hardware(), "samples": raw, **record}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {RESULTS}/{name}.md, {name}.svg and {name}.json", file=sys.stderr)


def digits(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bars(title: str, groups: dict[str, dict[str, float]], unit: str) -> str:
    """Horizontal bars on a logarithmic scale as SVG: one group for each operation, one bar for each system."""
    values = [value for group in groups.values() for value in group.values() if value > 0]
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    colours = dict(zip(names, COLOURS, strict=False))
    left, width, height = 330, 460, 18
    low = min(values) / 2
    parts, y = [f'<text x="10" y="24" font-size="16">{escape(title)}</text>'], 44
    for group, bars_ in groups.items():
        y += 16
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(group)}</text>')
        for name in names:
            if name not in bars_:
                continue
            value = bars_[name]
            y += height
            length = max(2.0, width * _log_share(value, low, max(values)))
            parts.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{escape(name)}</text>')
            parts.append(
                f'<rect x="{left}" y="{y - 11}" width="{length:.1f}" height="13" fill="{colours.get(name, "#555")}"/>'
            )
            parts.append(f'<text x="{left + length + 6:.1f}" y="{y}">{digits(value)} {escape(unit)}</text>')
        y += 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 120}" height="{y + 20}" '
    style = 'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    return head + style + "".join(parts) + "</svg>\n"


def _log_share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low) if high > low else 1.0
