"""A command is stopped when it has printed nothing for the given time, and only then."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support_waiting import wait_until

PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "until_silent.py"


def run(seconds: float, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, str(seconds), "bash", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("code", [0, 7])
def test_output_and_exit_code_are_passed_on(code: int) -> None:
    done = run(60, f"echo one; echo two >&2; exit {code}")
    assert (done.stdout, done.returncode) == ("one\ntwo\n", code)


def test_a_slow_command_that_prints_is_not_stopped() -> None:
    done = run(2, "for n in 1 2 3 4 5 6 7 8; do echo -n .; sleep 0.5; done")
    assert (done.stdout, done.returncode) == ("........", 0)


def test_a_silent_command_is_stopped_with_its_child_processes(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    began = time.monotonic()
    done = run(1, f"echo begun; sleep 600 & echo $! > {file}; wait")
    assert (done.stdout, done.returncode) == ("begun\n", 124)
    assert time.monotonic() - began < 60
    wait_until(lambda: not Path(f"/proc/{file.read_text().strip()}").exists(), "the child to end")
