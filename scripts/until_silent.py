"""Runs a command and ends it, with all that it started, when it has printed nothing for so long.

`python scripts/until_silent.py SECONDS COMMAND [ARGUMENT...]` passes on what the command prints and its exit code; that
of a command that was ended is 124. A slow machine is no reason to end a command, as long as that gets on.
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
"""How long a command that is asked to end may take for it."""
CHUNK_BYTES = 65_536


def run(command: list[str], silent_s: float) -> int:
    """Run a command until it ends or is silent for `silent_s` seconds; its exit code, or `ENDED`."""
    # A session of its own: everything that the command starts can be ended, and nothing else.
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
        heard = time.monotonic()
        while True:
            ready, _, _ = select.select([output], [], [], 1.0)
            if ready:
                chunk = os.read(output, CHUNK_BYTES)
                if not chunk:
                    break
                _pass_on(chunk)
                heard = time.monotonic()
            # What it left running in the background may hold its output open.
            elif process.poll() is not None:
                break
            elif time.monotonic() - heard > silent_s:
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
