"""A PostgreSQL server that runs as long as it is needed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chronotile.errors import MissingPackageError
from chronotile_tools.load.generator import LoadError

__all__ = ["postgresql", "programs"]


def programs() -> Path | None:
    """Folder of the server's programs; None where PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found:
        return found[0].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a server with an empty database on a free port of 127.0.0.1; yields the database's URL.

    Its data are removed at the end. It does not sync to disk, since nothing has to survive a crash.

    Raises
    ------
    MissingPackageError
        PostgreSQL's server is not installed.
    """
    bin_folder = programs()
    if bin_folder is None:
        raise MissingPackageError(
            "PostgreSQL's server is not installed (no initdb in /usr/lib/postgresql/*/bin nor on PATH): install "
            "Debian's package postgresql (apt-get install postgresql), then repeat; it need not be running",
            kind="missing-package",
        )
    folder = Path(tempfile.mkdtemp(prefix="chronotile-pg-", dir="/tmp"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        # The server refuses to run as root.
        account = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            shutil.chown(folder, account)
        data = folder / "data"
        _run(account, bin_folder / "initdb", "-D", data, "-U", "jobs", "-A", "trust", "--no-sync")
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [bin_folder / "postgres", "-D", data, "-p", port, *options]
        with _server(account, [str(word) for word in command], folder / "log"):
            _wait_for(account, bin_folder / "pg_isready", port, folder / "log")
            yield f"postgresql://jobs@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(account: str, command: list[str], log: Path) -> Iterator[None]:
    """Run a server that ends with this process, even if that is killed: the end of the process closes a pipe that the
    server's shell reads."""
    watch = 'exec 3<&0; "$@" </dev/null & server=$!; cat <&3 >/dev/null; kill -INT $server; wait $server'
    user = account if os.geteuid() == 0 else None
    with log.open("wb") as out:
        server = subprocess.Popen(
            ["sh", "-c", watch, "sh", *command], stdin=subprocess.PIPE, stdout=out, stderr=out, user=user, cwd="/tmp"
        )
    try:
        yield
    finally:
        if server.stdin is not None:
            server.stdin.close()
        server.wait(60)


def _wait_for(account: str, is_ready: Path, port: int, log: Path) -> None:
    user = account if os.geteuid() == 0 else None
    for _ in range(300):
        asked = [str(is_ready), "-h", "127.0.0.1", "-p", str(port)]
        if subprocess.run(asked, user=user, cwd="/tmp", capture_output=True, timeout=30, check=False).returncode == 0:
            return
        time.sleep(0.2)
    raise LoadError(f"PostgreSQL does not answer: {log.read_text(errors='replace')[-2_000:]}", kind="load-failed")


def _run(account: str, *command: object) -> None:
    user = account if os.geteuid() == 0 else None
    done = subprocess.run(
        list(map(str, command)), user=user, cwd="/tmp", capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise LoadError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2_000:]}", kind="load-failed")
