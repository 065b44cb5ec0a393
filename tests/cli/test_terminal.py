"""Progress lines, as a terminal shows them."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest
from support_waiting import wait_until

from chronotile.cli.common import CountProgress
from chronotile.terminal import ReportedProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_line_shows_the_latest_call_and_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ReportedProgress("looking", "{} of {:,} files".format) as progress:
        wait_until(lambda: "\r\x1b[Klooking" in terminal.getvalue(), "the text before the first call")
        progress(1, 2000)
        progress(2, 2000)
        wait_until(lambda: "\r\x1b[K2 of 2,000 files" in terminal.getvalue(), "the latest call")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_count_shows_its_rate_once_the_total_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with CountProgress("indexing", "windows") as progress:
        progress(0, 0)
        wait_until(lambda: "\r\x1b[Kindexing" in terminal.getvalue(), "the line without a total")
        assert "0 of 0" not in terminal.getvalue()
        progress(3, 4)
        wait_until(lambda: "3 of 4 windows" in terminal.getvalue(), "the count")
    shown = terminal.getvalue()
    assert re.search(r"\[#+-+\]  3 of 4 windows  [\d,.]+/s", shown), shown


def test_a_pipe_gets_no_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, threads = io.StringIO(), threading.active_count()
    monkeypatch.setattr(sys, "stderr", pipe)
    with ReportedProgress("looking", str) as progress:
        progress(1)
        assert threading.active_count() == threads
    assert pipe.getvalue() == ""
