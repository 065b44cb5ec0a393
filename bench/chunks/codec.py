"""The codec benchmark: chunks compared with Arrow IPC + zstd and Parquet + zstd.

    ./dev bench codec [--repeat N] [--out bench/results/codec.json]

Builds and runs `crates/core/chunk/examples/codec_bench.rs` N times (every codec in each run, on the same rows) and
prints medians as a Markdown table, with the spread of the decoding time. The JSON contains every raw sample and
describes the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["cargo", "run", "--quiet", "--release", "-p", "chronotile-chunk", "--example", "codec_bench", "--", "json"]


def hardware() -> dict[str, str]:
    """Processor, system and compiler."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = f"{names[0]} x {len(names)}" if names else model
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {"cpu": model, "system": platform.platform(), "compiler": rustc}


def measure(repeat: int) -> list[dict[str, object]]:
    """One sample per codec, row count and run."""
    samples = []
    for run in range(repeat):
        print(f"run {run + 1} of {repeat}", file=sys.stderr)
        output = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        samples += [{"run": run, **json.loads(line)} for line in output.splitlines()]
    return samples


def table(samples: list[dict[str, object]]) -> str:
    """The medians, one line per codec and row count."""
    lines = [
        "| rows | codec | bytes | of raw | encode, us | decode, us (spread) | decode 4 of 100 columns, us |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    keys = dict.fromkeys((s["rows"], s["codec"]) for s in samples)
    for rows, codec in keys:
        mine = [s for s in samples if (s["rows"], s["codec"]) == (rows, codec)]

        def median(key: str, mine: list[dict[str, object]] = mine) -> float:
            return statistics.median(float(str(s[key])) for s in mine)

        decode = [float(str(s["decode_us"])) for s in mine]
        lines.append(
            f"| {rows} | {codec} | {median('bytes'):.0f} | {median('bytes') / median('raw_bytes'):.2f} "
            f"| {median('encode_us'):.1f} | {median('decode_us'):.1f} ({min(decode):.1f}-{max(decode):.1f}) "
            f"| {median('decode_4_columns_us'):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs (default 3)")
    parser.add_argument("--out", type=Path, help="write raw samples and hardware here, as JSON")
    arguments = parser.parse_args()
    samples = measure(arguments.repeat)
    print(table(samples))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"hardware": hardware(), "samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
