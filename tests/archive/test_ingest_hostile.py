"""Files that are damaged, made to cost more than they are, or never come: refused in one line, or left."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from support_jobs import make

import chronotile as ct

GIB = 1 << 30
CREATE = ["--create", "--single", "--time", "t"]


def ingest(
    archive: Path, *words: object, memory: int = 2 * GIB, stdin: int | None = None, command: str = "ingest"
) -> subprocess.CompletedProcess[str]:
    """`chronotile ingest`, within `memory` bytes of address space."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return subprocess.run(
        [sys.executable, "-m", "chronotile", *command.split(), str(archive), *map(str, words)],
        stdin=stdin if stdin is not None else subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        preexec_fn=limit, check=False,
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], text: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("byte", [b",", b",\n", b'"",', b"{},"])
def test_a_small_packed_file_that_unpacks_to_much_takes_no_memory(path: Path, tmp_path: Path, byte: bytes) -> None:
    file = tmp_path / "bomb.csv.gz"
    file.write_bytes(
        gzip.compress(b"t,x\n" + byte * (200 << 20 // len(byte)) if byte == b",\n" else byte * (200 << 20))
    )
    assert file.stat().st_size < 2 << 20
    done = ingest(path, "d", file, *CREATE)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_very_many_columns_and_keys_are_refused_at_once(path: Path, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(300_000)]
    for name, text in [
        ("wide.csv", ",".join(names) + "\n" + ",".join("1" * 300_000) + "\n"),
        ("wide.ndjson", json.dumps(dict.fromkeys(names, 1)) + "\n"),
        ("deep.ndjson", json.dumps({"a": [{name: 1} for name in names]}) + "\n"),
    ]:
        (tmp_path / name).write_text(text)
        began = time.monotonic()
        refused(ingest(path, "d", tmp_path / name, *CREATE), "more than 10000 fields")
        assert time.monotonic() - began < 30


def test_as_many_columns_as_a_dataset_has_are_stored(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "wide.csv"
    names = ["t", *(f"c{number}" for number in range(4_000))]
    row = "2026-01-01T00:00:00" + ",1" * 4_000 + "\n"
    file.write_text(",".join(names) + "\n" + row * 3)
    done = ingest(path, "d", file, *CREATE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("name", ["long.csv", "long.ndjson", "long.log"])
def test_a_line_of_any_length_takes_bounded_memory(path: Path, tmp_path: Path, name: str, end: str) -> None:
    file = tmp_path / name
    with file.open("wb") as out:
        for _ in range(96):
            out.write(b"x" * (1 << 20))
        out.write(end.encode())
    words = CREATE
    if name.endswith(".log"):
        words = ["--format", "lines", "--line-time", "%Y", "--create", "--single", "--time", "time"]
    done = ingest(path, "d", file, *words, memory=GIB)
    assert done.returncode == 2, done.stderr
    assert "longer than 16777216 bytes" in done.stderr


def test_a_record_of_jobs_of_any_length_takes_bounded_memory(path: Path, tmp_path: Path) -> None:
    with ct.open(path) as archive:
        make(archive)
    for name, head in [("long.csv", b""), ("open.csv", b'job_id,site\n"'), ("long.ndjson", b"")]:
        file = tmp_path / name
        with file.open("wb") as out:
            out.write(head)
            for _ in range(96):
                out.write(b"x" * (1 << 20))
        done = ingest(path, "jobs", file, memory=2 * GIB, command="jobs load")
        assert done.returncode != 0
        assert "longer than" in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_damaged_arrow_files_are_damaged_and_no_panic(path: Path, tmp_path: Path) -> None:
    table = pa.table({"t": pa.array(range(1000), pa.timestamp("us")), "x": [float(value) for value in range(1000)]})
    rnd, files = random.Random(1), []
    for kind, writer in [("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)]:
        sink = pa.BufferOutputStream()
        with writer(sink, table.schema) as out:
            out.write_table(table)
        whole = sink.getvalue().to_pybytes()
        for number in range(20):
            damaged = bytearray(whole)
            for _ in range(rnd.randrange(1, 6)):
                damaged[rnd.randrange(min(700, len(damaged)))] = rnd.choice([0, 1, 127, 128, 255])
            files.append(tmp_path / f"{kind}{number}.arrow")
            files[-1].write_bytes(damaged)
    code = (
        "import sys, chronotile as ct\nfrom chronotile import _native\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        file = _native.RecordFile.open(path)\n        memory = ct.open('memory:')\n"
        "        memory.create('d', schema=file.schema(), cell=ct.single(), time='t').write(file)\n"
        "    except (ct.DataFileError, ct.InvalidInputError) as error: print('refused', '\\n' in str(error))\n"
        "    else: print('read')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == len(files)
    assert lines.count("refused False") > 10
    assert "refused True" not in lines


def interrupted(command: list[str], folder: Path) -> tuple[int, str]:
    """What becomes of a command that is interrupted as by Ctrl-C while it waits for the other end of a pipe."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        try:
            threads = Path(f"/proc/{process.pid}/task")
            for _ in range(300):
                assert process.poll() is None, process.communicate()[1]
                if any((thread / "wchan").read_text() == "wait_for_partner" for thread in threads.iterdir()):
                    break
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=10)[1]
            return process.returncode, output
        finally:
            process.kill()


@pytest.mark.parametrize(
    "command",
    [
        "ingest a.db d {} --create --single --time t", "create a.db d --like {} --single --time t",
        "jobs load b.db jobs {} --format csv", "read b.db jobs --out {} --format csv",
    ],
)  # fmt: skip
def test_a_pipe_that_nobody_opens_is_left_by_an_interrupt(command: str, tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.csv"
    os.mkfifo(fifo)
    with ct.open(tmp_path / "b.db") as archive:
        make(archive)
    code, output = interrupted([sys.executable, "-m", "chronotile", *command.format(fifo).split()], tmp_path)
    assert code == 130, output
    assert output.strip() == "chronotile: interrupted"


def test_a_pipe_is_stored_as_its_content_would_be(path: Path, tmp_path: Path) -> None:
    text = "t,x\n2026-01-01T00:00:00,1\n2026-01-01T00:00:01,2\n"
    fifo, file = tmp_path / "pipe.csv", tmp_path / "file.csv"
    os.mkfifo(fifo)
    file.write_text(text)
    writer = subprocess.Popen(["sh", "-c", f"cat {file} > {fifo}"])
    done = ingest(path, "d", fifo, *CREATE)
    writer.wait(10)
    assert done.returncode == 0, done.stderr
    assert "nothing to do: 2 rows" in ingest(path, "d", file).stdout


def test_standard_input_fills_the_temporary_folder_up_to_its_limit(path: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    endless = subprocess.Popen(["yes", "2026-01-01T00:00:00,1"], stdout=subprocess.PIPE)
    command = [sys.executable, "-m", "chronotile", "ingest", str(path), "d", "-", "--format", "csv", *CREATE]
    try:
        done = subprocess.run(
            [*command, "--spool-max", "64MiB"], stdin=endless.stdout, capture_output=True, text=True, timeout=60,
            env=os.environ | {"TMPDIR": str(spool)}, check=False,
        )  # fmt: skip
    finally:
        endless.kill()
        endless.communicate()
    refused(done, "--spool-max of 64.0 MiB")
    assert list(spool.iterdir()) == []
