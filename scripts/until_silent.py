"""Runs a command, and stops it with all its child processes when it has printed nothing for some time.

`python scripts/until_silent.py SECONDS COMMAND [ARGUMENT...]` passes on the output and exit code of the command; the
exit code is 124 if the command was stopped. Unlike a timeout, this does not stop a command that is merely slow.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

ENDED = 124
GRACE_S = 30.0
"""Time between SIGTERM and SIGKILL."""
CHUNK_BYTES = 65_536


def run(command: list[str], silent_s: float) -> int:
    """Run a command until it ends or is silent for `silent_s` seconds; its exit code, or `ENDED`."""
    # A new session, so that signals reach all processes that the command started, and no others.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        assert process.stdout is not None

        def interrupted(number: int, frame: FrameType | None) -> None:
            _end(process)
            sys.exit(128 + number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupted)
        output = process.stdout.fileno()
        last_output = time.monotonic()
        while True:
            ready, _, _ = select.select([output], [], [], 1.0)
            if ready:
                chunk = os.read(output, CHUNK_BYTES)
                if not chunk:
                    break
                _pass_on(chunk)
                last_output = time.monotonic()
            # Background processes of the command may keep its output open after it has ended.
            elif process.poll() is not None:
                break
            elif time.monotonic() - last_output > silent_s:
                _end(process)
                return ENDED
        code = process.wait()
        return code if code >= 0 else 128 - code


def _pass_on(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask all processes of the command to end, and kill those that do not."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], float(sys.argv[1])))
