"""Handle Ctrl-C while a command is still being imported: the command ends without a traceback.

Imported before the rest of the package. Where the package is a library, this changes nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

__all__: list[str] = []

INTERRUPTED = 130
"""Exit code of an interrupted command: 128 plus the number of the signal."""


def _is_command() -> bool:
    """Whether this process runs the command line: its script, or ``python -m chronotile``."""
    script = sys.argv[0] if sys.argv else ""
    if script == "-m":
        # `python -m` has not found the module yet.
        given = sys.orig_argv
        return "-mchronotile" in given or ("-m" in given and given[given.index("-m") + 1] == "chronotile")
    # Worker processes inherit the command's arguments, but are not commands.
    return os.path.basename(script) == "chronotile" and script in sys.orig_argv


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"\nchronotile: interrupted\n")
    os._exit(INTERRUPTED)


def end_imports() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Some shells start background processes with SIGINT ignored; keep it ignored there.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
