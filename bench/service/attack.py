"""A service under attack: does it survive, within its memory, and is a polite client still served?

`./dev bench attack` serves a small archive with a limited address space. A polite client sends requests for a while,
first alone, then while every attack of `support_attack` runs against the service. The program prints the outcomes of
each attack, the memory of the service, and the client's response times. It exits with status 1 if the service dies,
exceeds its memory, keeps growing, does not stop properly, or keeps the client waiting: the 99th percentile may be at
most five times that of the quiet time. The tests include a short version.

In reality, attackers run on other machines. Here they run at the lowest priority (`--nice`), so that they take no
processor time from the service and the polite client. The service still handles all of their requests.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import common
import support_attack
from support_service import Service

TIMES = 5
"""Maximum ratio of the 99th percentiles under attack and in the quiet time."""

SERVED_PER_S = 2
"""Minimum rate of the polite client's successful requests."""

MIB = 1 << 20
GROWTH = 1.3
"""Maximum ratio of the anonymous memory in the last and in the second third of the attack."""


@contextlib.contextmanager
def sampled(service: Service) -> Iterator[list[int]]:
    """Samples the anonymous memory of the service each second, in bytes."""
    samples: list[int] = []
    ended = threading.Event()

    def sample() -> None:
        while service.process.poll() is None and not ended.wait(1):
            # The process may end between the check and the read.
            with contextlib.suppress(OSError, StopIteration):
                samples.append(service.memory("RssAnon"))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=60, help="duration of the attack; the quiet time is a quarter (default 60)"
    )
    parser.add_argument("--memory", type=int, default=128, help="the service's --memory, MiB (default 128)")
    parser.add_argument("--resident", type=int, default=512, help="maximum resident memory, MiB (default 512)")
    parser.add_argument("--limit", type=int, default=4096, help="limit of its address space, MiB (default 4096)")
    parser.add_argument("--unpacked", type=int, default=4, help="size of unpacked bodies, MiB (default 4)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each attack (default 1)")
    parser.add_argument("--nice", type=int, default=19, help="niceness of attackers, 0 like the service (default 19)")
    options = parser.parse_args()
    print(common.hardware())
    print(f"load average of this machine: {common.load_average():.1f}")
    print(f"attackers share the processors with the service and the polite client, with niceness {options.nice}")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (options.limit << 20, options.limit << 20))

    with tempfile.TemporaryDirectory() as folder:
        archive, tokens = Path(folder) / "plant.db", Path(folder) / "tokens"
        support_attack.fill(archive)
        tokens.touch(0o600)
        tokens.write_text(support_attack.TOKENS)
        serve_options = ("--tokens", str(tokens), "--memory", f"{options.memory}MiB", "--log-format", "off")
        with Service(archive, Path(folder) / "log", *serve_options, limits=limit) as service:
            quiet = support_attack.polite(service.port, options.seconds / 4)
            base = service.memory("VmHWM")
            attackers = support_attack.Attackers(
                service.port, unpacked=options.unpacked << 20, threads=options.threads, nice=options.nice
            )
            with sampled(service) as anonymous, attackers:
                time.sleep(1)
                loud = support_attack.polite(service.port, options.seconds)
            lives = service.process.poll() is None
            peak = service.memory("VmHWM") if lives else 0
            began = time.monotonic()
            status = service.stop() if lives else service.process.returncode
            took = time.monotonic() - began
            if status != 0:
                print(service.log_path.read_text()[-4_000:])
    print_kinds(attackers.done)
    print(f"\nquiet:    {summary(quiet)}; resident at most {base >> 20} MiB")
    print(f"attacked: {summary(loud)}; resident at most {peak >> 20} MiB\n")
    third = max(1, len(anonymous) // 3)
    before, after = (statistics.median(part or [0]) for part in (anonymous[third : 2 * third], anonymous[-third:]))
    bound_ms = TIMES * quiet.p99_ms()
    served = sum(loud.statuses[status] for status in ("200", "204"))
    verdicts = {
        f"the service survived, and stopped with status {status} in {took:.1f} s": lives and status == 0,
        f"resident {peak >> 20} MiB of at most {options.resident}, with a budget of {options.memory}": peak
        <= options.resident << 20,
        f"anonymous memory {after / MIB:.0f} MiB in the last third of the attack, {before / MIB:.0f} before": after
        <= GROWTH * before,
        f"p99 {loud.p99_ms():.0f} ms of at most {bound_ms:.0f}, quiet {quiet.p99_ms():.0f}": loud.p99_ms() <= bound_ms,
        f"{served} requests served of at least {SERVED_PER_S * options.seconds:.0f}": served
        >= SERVED_PER_S * options.seconds,
        f"{len(attackers.done)} kinds of attack": len(attackers.done) >= len(support_attack.attacks(1_000)),
    }
    for text, holds in verdicts.items():
        print(f"{'ok    ' if holds else 'FAILED'}  {text}")
    return 0 if all(verdicts.values()) else 1


def print_kinds(done: dict[str, dict[str, int]]) -> None:
    """Print a line for each kind of attack, with its outcomes."""
    print(f"{'attack':<30} {'times':>7}  outcomes")
    for name, outcomes in done.items():
        counts = ", ".join(f"{count} x {outcome}" for outcome, count in sorted(outcomes.items())) or "none finished"
        print(f"{name:<30} {sum(outcomes.values()):>7}  {counts}")


def summary(seen: support_attack.PoliteClient) -> str:
    """The client's results, in one line."""
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(seen.statuses.items()))
    return f"{len(seen.seconds)} requests, median {seen.median_ms():.1f} ms, p99 {seen.p99_ms():.1f} ms ({answers})"


if __name__ == "__main__":
    raise SystemExit(main())
