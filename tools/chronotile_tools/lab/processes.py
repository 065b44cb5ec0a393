"""Handles to processes that outlive their parent, safe against reuse of process ids."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_STATE, _USER_TICKS, _SYSTEM_TICKS, _THREADS, _START_TICKS = 0, 11, 12, 17, 19
_SETTLE_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process, identified by pid, start time (kernel ticks since boot) and boot id. Pids are reused; the three
    together are unique.
    """

    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process with this pid, or None."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[_START_TICKS]), boot_id())

    def alive(self) -> bool:
        """Whether the process runs; zombies do not count."""
        if self.boot != boot_id():
            return False
        fields = _stat(self.pid)
        if fields is None or int(fields[_START_TICKS]) != self.start_ticks:
            return False
        if fields[_STATE] in "ZX":
            # Reap the process if it is our child.
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
                    return False
            # The main thread has ended, but other threads may still use ports and files.
            return int(fields[_THREADS]) > 1
        return True

    def stopped(self) -> bool:
        """Whether a signal has suspended it."""
        fields = _stat(self.pid)
        return self.alive() and fields is not None and fields[_STATE] in "Tt"

    def signal(self, number: int) -> bool:
        """Send a signal; return False if the process has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # Check with the pidfd open: from here on it cannot refer to another process.
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return False if the process still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_SETTLE_S)
        return True

    def end(self, timeout_s: float) -> None:
        """Terminate the process, kill it after `timeout_s`, and wait for its end."""
        # A suspended process handles SIGTERM only after it continues.
        if self.stopped():
            self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if not self.wait(timeout_s):
            self.kill()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.signal(signal.SIGKILL)
        self.wait(30)

    def cpu_s(self) -> float:
        """Processor time that it has used, in seconds; 0 if it has ended."""
        fields = _stat(self.pid) if self.alive() else None
        ticks = 0 if fields is None else int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Resident memory; 0 if it has ended."""
        if not self.alive():
            return 0
        try:
            resident = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(resident) * os.sysconf("SC_PAGE_SIZE")


def boot_id() -> str:
    """Unique id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start(command: Sequence[str], output: Path, environment: Mapping[str, str]) -> Process:
    """Start a program in its own session, without input; append its output to a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # Reset signals that the interpreter may ignore or block.
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP],
    )
    # A process that has already ended stays a zombie until we wait for it, so its pid is valid.
    return Process.of(pid) or Process(pid, -1, boot_id())


def with_argument(argument: str) -> list[Process]:
    """Processes with exactly this argument in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in arguments:
            process = Process.of(int(folder.name))
            if process is not None and process.alive():
                found.append(process)
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; the name before them may contain any character."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
