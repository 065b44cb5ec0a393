"""Live screens: updated in place on a terminal, printed one after another in a pipe."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

import click

__all__ = ["live", "ticks"]

_ENTER, _LEAVE, _HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"
_LINE_END, _BELOW = "\x1b[K", "\x1b[J"


def ticks(every_s: float, count: int | None, wait: Callable[[float], bool] | None = None) -> Iterator[int]:
    """Count from 0 every `every_s` seconds without drift; an overdue tick follows at once, and missed ticks are
    skipped. `wait` sleeps and returns whether to continue.
    """
    began = time.monotonic()
    number = 0
    while True:
        yield number
        number += 1
        if number == count:
            return
        passed = time.monotonic() - began
        rest_s = every_s * (int(passed / every_s) + 1) - passed
        if wait is None:
            time.sleep(rest_s)
        elif not wait(rest_s):
            return


def live(draw: Callable[[], str], every_s: float, count: int | None) -> None:
    """Show the text from `draw` repeatedly, `count` times or until `q` or Ctrl-C."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        for number in ticks(every_s, count):
            click.echo(("\n" if number else "") + draw())
        return
    with _screen(), contextlib.suppress(KeyboardInterrupt):
        for _ in ticks(every_s, count, _no_quit_within):
            _paint(draw())


def _paint(text: str) -> None:
    size = shutil.get_terminal_size()
    lines = [line[: size.columns] for line in text.splitlines()[: size.lines - 1]]
    sys.stdout.write(_HOME + "".join(f"{line}{_LINE_END}\r\n" for line in lines) + _BELOW)
    sys.stdout.flush()


def _no_quit_within(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (rest_s := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], rest_s)
        if ready and os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b""):
            return False
    return True


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Use the terminal's alternate screen with unbuffered keys; always restore the terminal."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
