"""A service under attack: does it live, within its memory, and is a polite client served?

`./dev bench attack` serves a small archive under a limit of its address space, lets a polite client ask for a while,
and then again while every attack of `tests/support_attack.py` runs against the service. It prints what the client saw,
the memory that the service took and how often each attack was made. It ends with status 1 where the service died, took
more memory than it may, or where the client's 99th percentile is more than five times that of the quiet time. A short
form of it runs among the tests.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import common

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import support_attack
from support_service import Service

TIMES = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of each phase (default 60)")
    parser.add_argument("--memory", type=int, default=256, help="the service's --memory, MiB (default 256)")
    parser.add_argument("--limit", type=int, default=4096, help="of its address space, MiB (default 4096)")
    parser.add_argument("--unpacked", type=int, default=16, help="MiB to which bodies unpack (default 16)")
    parser.add_argument("--threads", type=int, default=1, help="of each attack (default 1)")
    given = parser.parse_args()
    print(common.hardware())

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (given.limit << 20, given.limit << 20))

    with tempfile.TemporaryDirectory() as folder:
        archive, tokens = Path(folder) / "plant.db", Path(folder) / "tokens"
        support_attack.fill(archive)
        tokens.touch(0o600)
        tokens.write_text(support_attack.TOKENS)
        options = ("--tokens", str(tokens), "--memory", f"{given.memory}MiB", "--log-format", "off")
        with Service(archive, Path(folder) / "log", *options, limits=limit) as service:
            quiet = support_attack.polite(service.port, given.seconds)
            base = service.memory("VmHWM")
            with support_attack.Attackers(
                service.port, unpacked=given.unpacked << 20, threads=given.threads
            ) as attackers:
                time.sleep(1)
                loud = support_attack.polite(service.port, given.seconds)
            lives = service.process.poll() is None
            peak = service.memory("VmHWM") if lives else 0
            print(f"quiet:  {said(quiet)}; resident at most {base >> 20} MiB")
            print(f"attack: {said(loud)}; resident at most {peak >> 20} MiB")
            for name, count in attackers.done.items():
                print(f"  {count:6} x {name}")
            began = time.monotonic()
            status = service.stop() if lives else service.process.returncode
            took = time.monotonic() - began
            if status != 0:
                print(service.log_path.read_text()[-4_000:])
            print(f"the service {'lives' if lives else 'DIED'}; it ended with {status} in {took:.1f} s")
    ratio = loud.p99_ms() / quiet.p99_ms()
    held = peak <= base + (2 * given.memory << 20)
    print(f"p99 {ratio:.1f} times that of the quiet time (at most {TIMES}); memory {'held' if held else 'NOT HELD'}")
    return 0 if lives and status == 0 and held and ratio <= TIMES else 1


def said(seen: support_attack.Polite) -> str:
    times = sorted(seen.seconds)
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(seen.statuses.items()))
    return (
        f"{len(times)} requests, median {times[len(times) // 2] * 1e3:.1f} ms, p99 {seen.p99_ms():.1f} ms ({answers})"
    )


if __name__ == "__main__":
    raise SystemExit(main())
