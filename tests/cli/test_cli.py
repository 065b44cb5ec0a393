"""The command line, run as users run it."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from support_data import data_file

import chronotile as ct
from chronotile.cli.main import cli

Run = Callable[..., subprocess.CompletedProcess[str]]

DEFINE = ["--sky", "ra,dec", "--level", "10", "--time", "jd", "--id", "candid"]


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def night(detections: pa.Table, tmp_path: Path) -> Path:
    file = tmp_path / "night.parquet"
    pa.parquet.write_table(detections, file)
    return file


@pytest.fixture
def stored(chronotile: Run, path: Path, night: Path) -> Path:
    ok(chronotile("ingest", path, "detections", night, "--create", *DEFINE))
    return path


# ---------------------------------------------------------------- help and usage


def test_every_command_has_help_with_examples(chronotile: Run) -> None:
    top = ok(chronotile("--help"))
    commands = [
        "create",
        "datasets",
        "ingest",
        "read",
        "latest",
        "count",
        "info",
        "consolidate",
        "retire",
        "verify",
        "backup",
        "restore",
        "drop",
        "add-columns",
        "demo",
    ]
    assert "Exit codes:" in top
    assert "CHRONOTILE_ARCHIVE" in top
    for command in commands:
        assert f"  {command} " in top
        shown = CliRunner().invoke(cli, [command, "--help"])
        assert (shown.exit_code, "Example" in shown.output) == (0, True), command
    assert ok(chronotile("--version")).startswith("chronotile, version ")


def groups(context: click.Context) -> Iterator[tuple[click.Context, click.Group]]:
    """The group of a context, and all groups in it."""
    group = context.command
    assert isinstance(group, click.Group)
    yield context, group
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(click.Context(command, context, info_name=name))


def test_a_list_of_commands_shows_whole_sentences() -> None:
    found = list(groups(click.Context(cli, info_name="chronotile")))
    assert {"apdb", "ops", "upgrade"} < {group.name for _, group in found}
    for context, group in found:
        names = group.list_commands(context)
        # Columns that click leaves for the text on a terminal of 80.
        room = 78 - 6 - max(map(len, names))
        for name in names:
            command = group.get_command(context, name)
            assert command is not None
            text = command.get_short_help_str(room)
            assert re.fullmatch(r"[A-Z].*[^.]\.", text), (context.command_path, name, text)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "No such command 'nonsense'. chronotile --help lists the commands."),
        (["lba"], 2, "No such command 'lba'. Did you mean 'lab'?"),
        (["evnts", "ingest"], 2, "Did you mean 'events'?"),
        (["historain"], 2, "Did you mean 'historian'?"),
        (["apdb", "simulat"], 2, "Did you mean 'simulate'?"),
        (["historian", "wirte"], 2, "Did you mean 'write'?"),
        (["count", "--strat", "2026"], 2, "'--start'"),
        (["read"], 2, "Missing argument 'ARCHIVE'"),
        (["read", "a.db"], 2, "Missing argument 'DATASET'"),
        (["ingest", "a.db", "d"], 2, "Missing argument 'FILES...'"),
        (["count", "a.db", "d", "more"], 2, "unexpected extra argument"),
        (["create", "a.db", "d"], 2, "--like FILE or --schema"),
        (["create", "a.db", "d", "--schema", "t:timestamp[us]"], 2, "--time"),
        (["create", "a.db", "d", "--schema", "t:timestamp[us]", "--time", "t"], 2, "Give exactly one cell rule"),
        (["create", "a.db", "d", "--schema", "t:nonsense", "--time", "t", "--single"], 2, "is not a data type"),
        (["create", "a.db", "d", "--schema", "t:timestamp[us]", "--time", "t:gps", "--single"], 2, "--time"),
        (["create", "a.db", "BAD", "--schema", "t:timestamp[us]", "--time", "t", "--single"], 2, "1 to 48"),
        (["count", "nowhere.db", "d"], 3, "no archive at"),
        (
            ["create", "no/folder/a.db", "d", "--schema", "t:timestamp[us]", "--time", "t", "--single"],
            3,
            "no archive at",
        ),
        (["create", "a.db", "d", "--like", "none.csv", "--time", "t", "--single"], 3, "does not exist"),
        (["retire", "a.db", "d", "--older-than", "1d", "--before", "2026"], 2, "Give only one of"),
    ],
    ids=str,
)
def test_a_wrong_command_says_one_sentence_and_its_exit_code(
    chronotile: Run, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    done = chronotile(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def groups_of(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Group]]:
    """The group and those below it, by the words that lead to them."""
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups_of(command, (*path, name))


def test_every_group_answers_an_unknown_command_with_the_nearest_one() -> None:
    groups = dict(groups_of(cli))
    assert {(), ("apdb",), ("historian",), ("lab",), ("ops",), ("ops", "repair")} <= set(groups)
    for path, group in groups.items():
        for name in group.list_commands(click.Context(group)):
            done = CliRunner().invoke(cli, [*path, name + "x"], prog_name="chronotile")
            assert done.exit_code == 2, (path, name)
            assert f"No such command '{name}x'. Did you mean " in done.output, (path, name)
            assert repr(name) in done.output.partition("Did you mean")[2], (path, name)
        done = CliRunner().invoke(cli, [*path, "qqqqqqqqqqqq"], prog_name="chronotile")
        hint = f"No such command 'qqqqqqqqqqqq'. {' '.join(['chronotile', *path])} --help lists the commands."
        assert hint in " ".join(done.output.split()), path


def test_tables_in_help_texts_keep_their_lines() -> None:
    for path, group in groups_of(cli):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            for paragraph in (command.help or "").split("\n\n"):
                is_table = re.search(r"\S {3,}\S", paragraph) is not None
                assert not is_table or paragraph.lstrip(" \n").startswith("\b\n"), (path, name, paragraph)


def test_debug_shows_where_an_error_came_from(chronotile: Run, tmp_path: Path) -> None:
    done = chronotile("count", "nowhere.db", "d", "--debug", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_the_archive_may_come_from_the_environment_or_an_option(chronotile: Run, stored: Path) -> None:
    everywhere = {"CHRONOTILE_ARCHIVE": str(stored)}
    for arguments, env in (
        (["count", stored, "detections"], {}),
        (["count", f"sqlite:{stored}", "detections"], {}),
        (["count", "detections"], everywhere),
        (["count", stored, "detections"], {"CHRONOTILE_ARCHIVE": "elsewhere.db"}),
        (["count", "-a", stored, "detections"], {"CHRONOTILE_ARCHIVE": "elsewhere.db"}),
    ):
        assert ok(chronotile(*arguments, env=env)) == "500\n"
    assert "detections" in ok(chronotile("datasets", env=everywhere))


# ---------------------------------------------------------------- create and ingest


def test_create_takes_every_part_of_a_definition(chronotile: Run, path: Path) -> None:
    schema = "tag:int64,t:timestamp[us],x:float64,d:decimal128(10, 2),v:int32"
    out = ok(
        chronotile(
            "create", path, "values", "--schema", schema, "--id-bucket", "tag:100", "--time", "t:tai", "--window", "1d",
            "--id", "tag,t", "--merge", "latest", "--version", "v", "--retention", "365d", "--slice", "7",
            "--partition-cells", "4",
        )
    )  # fmt: skip
    assert out == "created values: 5 columns, window 1d, merge latest\n"
    (listed,) = json.loads(ok(chronotile("datasets", path, "--json")))
    assert listed == {
        "name": "values",
        "columns": {"tag": "int64", "t": "timestamp[us]", "x": "float64", "d": "decimal128(10, 2)", "v": "int32"},
        "cell": {"rule": "id_bucket", "column": "tag", "size": 100},
        "time": {"column": "t", "format": "timestamp", "scale": "tai"},
        "window": "1d",
        "windows_per_slice": 7,
        "id": ["tag", "t"],
        "merge": "latest",
        "version": "v",
        "retention": "365d",
        "layout": "chunks",
        "partition_cells": 4,
        "moves_deg": 0.0,
        "group": None,
    }
    assert "4 cells per partition" in ok(chronotile("info", path, "values"))
    rows = [
        "--schema",
        schema,
        "--id-bucket",
        "tag:100",
        "--time",
        "t:tai",
        "--layout",
        "rows",
        "--partition-cells",
        "4",
    ]
    refused = chronotile("create", path, "others", *rows)
    assert refused.returncode != 0
    assert "partition_cells is 4: use 1 to 256; with layout rows 1" in refused.stderr
    same = ["create", path, "values", "--schema", schema, "--id-bucket", "tag:100", "--time", "t:tai", "--window", "1d"]
    assert chronotile(*same).returncode == 4


def test_datasets_of_a_group_are_created_shown_and_dropped_together(chronotile: Run, path: Path) -> None:
    for name in ("objects", "sources"):
        rule = ["--schema", "id:int64,t:timestamp[us]", "--single", "--time", "t", "--id", "id", "--group", "survey"]
        ok(chronotile("create", path, name, *rule))
    listed = json.loads(ok(chronotile("datasets", path, "--json")))
    assert [entry["group"] for entry in listed] == ["survey", "survey"]
    assert "layout chunks, group survey" in ok(chronotile("info", path, "objects"))
    refused = chronotile("drop", path, "objects", "--yes")
    assert refused.returncode != 0
    assert "drop the whole group survey" in refused.stderr
    dropped = ok(chronotile("drop", path, "survey", "--yes"))
    assert [line.split(":")[0] for line in dropped.splitlines()] == ["objects", "sources", "survey"]
    assert ok(chronotile("datasets", path, "--json")).strip() == "[]"


def test_a_folder_in_place_of_a_file_is_wrong_usage(chronotile: Run, stored: Path, tmp_path: Path) -> None:
    folder = tmp_path / "night"
    folder.mkdir()
    new = tmp_path / "new.db"
    define = ["--single", "--time", "t"]
    for command, hint in (
        (["ingest", stored, "detections", folder], "give a path such as"),
        (["ingest", new, "rows", folder, "--create", *define], "give a path such as"),
        (["ingest", new, "rows", folder, "--create", "--format", "lines", *define], "give a path such as"),
        (["create", new, "rows", "--like", folder, *define], "give a path such as"),
        (["read", stored, "detections", "--out", folder, "--format", "csv"], "give a path such as"),
        (["historian", "write", new, folder], "give a path such as"),
        (["apdb", "create", new, "--schema", folder], "Is a directory"),
        (
            ["apdb", "create", new, "--density", folder, "--objects", "1e6", "--visits-a-month", "30"],
            "give a file in it",
        ),
    ):
        done = chronotile(*command)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert hint in done.stderr
    assert not new.exists()
    assert chronotile("ingest", stored, "detections", tmp_path / "none.csv").returncode == 3
    absent = ["--density", tmp_path / "none.parquet", "--objects", "1e6", "--visits-a-month", "30"]
    assert chronotile("apdb", "create", new, *absent).returncode == 3


@pytest.mark.parametrize("url", ["cassandra://node1", "cassandra://node1/", "cassandra://node1,node2:9042/?dc=a"])
def test_the_url_of_a_cluster_names_a_keyspace(chronotile: Run, url: str) -> None:
    done = chronotile("datasets", url)
    assert done.returncode == 2, done.stderr
    assert f'"{url}" is not an archive URL: it names no keyspace; write' in done.stderr
    with pytest.raises(ct.InvalidInputError) as caught:
        ct.open(url)
    assert caught.value.kind == "invalid-url"


def test_an_index_that_exists_is_a_conflict_as_a_dataset_is(chronotile: Run, stored: Path) -> None:
    create = ["index", "create", stored, "detections", "--columns", "band"]
    assert ok(chronotile(*create)).startswith("defined index band")
    again = chronotile(*create)
    assert (again.returncode, again.stdout) == (4, "")
    assert "index band exists already, on band: use it" in again.stderr
    assert chronotile("index", "create", stored, "detections", "--columns", "nothing").returncode == 2


def test_how_far_records_move_is_part_of_a_definition(chronotile: Run, path: Path) -> None:
    schema = "id:int64,t:timestamp[us],ra:float64,dec:float64"
    sky = ["--schema", schema, "--sky", "ra,dec", "--level", "10", "--time", "t", "--id", "id"]
    ok(chronotile("create", path, "objects", *sky, "--merge", "latest", "--moves", "5arcsec"))
    (listed,) = json.loads(ok(chronotile("datasets", path, "--json")))
    assert listed["moves_deg"] == 5 / 3600
    assert "records move up to 5 arcsec" in ok(chronotile("info", path, "objects"))
    for options, reason in ((["--moves", "5"], "merge latest"), (["--merge", "latest", "--moves", "far"], "arcsec")):
        refused = chronotile("create", path, "others", *sky, *options)
        assert refused.returncode != 0
        assert reason in refused.stderr


def test_a_second_ingest_changes_nothing_and_says_so(
    chronotile: Run, stored: Path, night: Path, detections: pa.Table
) -> None:
    before = stored.read_bytes()
    out = ok(chronotile("ingest", stored, "detections", night))
    assert out == "nothing to do: 500 rows of 1 file already stored\n"
    renamed = night.rename(night.with_name("renamed.parquet"))
    assert "nothing to do" in ok(chronotile("ingest", stored, "detections", renamed))
    assert stored.read_bytes() == before
    with ct.open(stored) as archive:
        assert archive["detections"].read().to_arrow().sort_by("candid").equals(detections)


def test_a_file_whose_rows_were_retired_is_ingested_again(
    chronotile: Run, stored: Path, night: Path, detections: pa.Table
) -> None:
    for json_ in ([], ["--json"]):
        ok(chronotile("retire", stored, "detections", "--before", "2200-01-01", "--yes", *json_))
        with ct.open(stored) as archive:
            assert archive["detections"].count() == 0
        assert "nothing to do" not in ok(chronotile("ingest", stored, "detections", night))
        assert "nothing to do" in ok(chronotile("ingest", stored, "detections", night))
        with ct.open(stored) as archive:
            assert archive["detections"].read().to_arrow().sort_by("candid").equals(detections)


@pytest.mark.parametrize("format_", ["csv", "csv.gz", "tsv", "ndjson", "parquet", "arrow", "stdin"])
def test_every_format_is_read_and_written_alike(
    chronotile: Run, stored: Path, tmp_path: Path, detections: pa.Table, format_: str
) -> None:
    if format_ == "stdin":
        text = ok(chronotile("read", stored, "detections", "--format", "csv"))
        done = chronotile(
            "ingest", stored, "copy", "-", "--format", "csv", "--create", *DEFINE, "--types", "mag=float32", stdin=text
        )
        assert chronotile("ingest", stored, "copy", "-", stdin=text).returncode == 2
    else:
        file = tmp_path / f"copy.{format_}"
        ok(chronotile("read", stored, "detections", "--out", file))
        assert chronotile("read", stored, "detections", "--out", file).returncode == 4
        ok(chronotile("read", stored, "detections", "--out", file, "--overwrite"))
        done = chronotile("ingest", stored, "copy", file, "--create", *DEFINE, "--types", "mag=float32")
    assert "stored 500 rows of 1 file" in ok(done)
    with ct.open(stored) as archive:
        assert archive["copy"].read().to_arrow().sort_by("candid").equals(detections)


def test_columns_are_read_in_the_types_of_the_dataset(chronotile: Run, path: Path, tmp_path: Path) -> None:
    ok(
        chronotile(
            "create", path, "d", "--schema", "code:utf8,t:timestamp[s],x:float64", "--hash", "code", "--time", "t"
        )
    )
    file = tmp_path / "codes.csv"
    file.write_text("code,t,x\n007,2026-01-31 12:00:00,1\n008,2026-01-31 13:00:00,2\n")
    ok(chronotile("ingest", path, "d", file))
    assert (
        ok(chronotile("read", path, "d", "--keys", "007", "--format", "csv"))
        == "code,t,x\n007,2026-01-31T12:00:00,1.0\n"
    )
    file.write_text("code,t,x\n009,2026-01-31 12:00:00,abc\n")
    done = chronotile("ingest", path, "d", file)
    assert done.returncode == 2
    assert 'line 2, column "x": "abc"' in done.stderr


def test_csv_options_reach_the_reader(chronotile: Run, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain.txt"
    file.write_text("# comment\n2026-01-31;-;a\n2026-02-01;2.5;b\n")
    options = [
        "--format",
        "csv",
        "--delimiter",
        ";",
        "--no-header",
        "--names",
        "day,x,s",
        "--nulls",
        "-",
        "--comment",
        "#",
    ]
    ok(chronotile("ingest", path, "d", file, "--create", "--single", "--time", "day", *options, "--columns", "day,x"))
    assert ok(chronotile("read", path, "d", "--format", "csv", "--where", "x>0")) == "day,x\n2026-02-01,2.5\n"
    assert ok(chronotile("count", path, "d")) == "2\n"


def test_a_tag_column_holds_the_files_name(chronotile: Run, path: Path, tmp_path: Path) -> None:
    files = []
    for name in ("pump_1.csv", "pump_2.csv"):
        file = tmp_path / name
        # Equal content under two names is two series.
        file.write_text("t,x\n2026-01-31T00:00:00,1.5\n2026-01-31T00:01:00,2.5\n")
        files.append(file)
    files.append(tmp_path / "pump_3.csv.gz")
    files[2].write_bytes(gzip.compress(files[0].read_bytes()))
    options = [
        "--tag-column",
        "sensor",
        "--create",
        "--hash",
        "sensor",
        "--time",
        "t",
        "--window",
        "1d",
        "--id",
        "sensor,t",
    ]
    assert "stored 6 rows of 3 files" in ok(chronotile("ingest", path, "d", *files, *options))
    assert "nothing to do: 6 rows of 3 files" in ok(chronotile("ingest", path, "d", *files, *options))
    latest = list(
        csv.reader(io.StringIO(ok(chronotile("latest", path, "d", "--columns", "sensor,x", "--format", "csv"))))
    )
    assert sorted(latest[1:]) == [["pump_1", "2.5"], ["pump_2", "2.5"], ["pump_3", "2.5"]]
    ok(chronotile("ingest", path, "d", files[0], "--tag-column", "sensor=other"))
    assert ok(chronotile("count", path, "d", "--keys", "other")) == "2\n"


def test_a_new_dataset_takes_fractions_of_later_files(chronotile: Run, path: Path, tmp_path: Path) -> None:
    whole, fraction = tmp_path / "whole.csv", tmp_path / "fraction.csv"
    whole.write_text("t,n,x\n2026-01-31T00:00:00,1,7\n")
    fraction.write_text("t,n,x\n2026-02-01T00:00:00,2,0.5\n")
    ok(chronotile("ingest", path, "d", whole, fraction, "--create", "--single", "--time", "t"))
    with ct.open(path) as archive:
        assert archive["d"].column_types == {"t": "timestamp[us]", "n": "int64", "x": "float64"}
        assert sorted(archive["d"].read().to_arrow()["x"].to_pylist()) == [0.5, 7.0]


def test_lines_of_logs_get_their_time(chronotile: Run, path: Path, tmp_path: Path) -> None:
    log = tmp_path / "sshd.log"
    log.write_text("Dec 10 06:55:46 host sshd: one\n  and more of it\nDec 10 06:55:48 host sshd: zwö\n")
    options = ["--format", "lines", "--tag-column", "stream", "--line-time", "%b %d %H:%M:%S", "--line-year", "2025"]
    define = ["--create", "--hash", "stream", "--time", "time", "--id", "stream,line_number"]
    ok(chronotile("ingest", path, "logs", log, *options, *define))
    rows = [json.loads(line) for line in ok(chronotile("read", path, "logs", "--format", "ndjson")).splitlines()]
    rows.sort(key=lambda row: row["line_number"])
    assert [row["time"][:19] for row in rows] == ["2025-12-10T06:55:46"] * 2 + ["2025-12-10T06:55:48"]
    assert [row["line"] for row in rows] == log.read_text().splitlines()
    assert {row["stream"] for row in rows} == {"sshd"}
    log.write_text("no time here\n")
    done = chronotile("ingest", path, "logs", log, *options)
    assert done.returncode == 2
    assert "line 1" in done.stderr


def test_a_dry_run_stores_nothing(chronotile: Run, path: Path, night: Path, stored: Path) -> None:
    out = ok(chronotile("ingest", stored, "detections", night, "--dry-run"))
    assert "Parquet, 500 rows" in out
    assert "already stored" in out
    other = stored.with_name("other.db")
    (as_json,) = json.loads(ok(chronotile("ingest", stored, "detections", night, "--dry-run", "--json")))
    assert (as_json["format"], as_json["rows"], as_json["stored"]) == ("Parquet", 500, True)
    assert as_json["columns"]["candid"] == "int64"
    out = ok(chronotile("ingest", other, "detections", night, "--create", *DEFINE, "--dry-run"))
    assert "  candid: int64" in out
    assert not other.exists()


def test_an_interrupted_ingest_goes_on_where_it_ended(chronotile: Run, path: Path, tmp_path: Path) -> None:
    rows = 2_300_000
    file = tmp_path / "long.parquet"
    table = pa.table({"n": np.arange(rows), "t": np.arange(rows).astype("datetime64[s]")})
    pa.parquet.write_table(table, file, row_group_size=100_000)
    ok(
        chronotile(
            "create",
            path,
            "d",
            "--like",
            file,
            "--id-bucket",
            "n:100000000",
            "--time",
            "t",
            "--window",
            "365d",
            "--id",
            "n",
        )
    )
    command = [sys.executable, "-m", "chronotile", "ingest", str(path), "d", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finished = 0
    while process.poll() is None and not finished:
        time.sleep(0.05)
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        query = "select count(*) from catalog where key like 'batch/%' or key like 'batches/%'"
        finished = connection.execute(query).fetchone()[0]
        connection.close()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with ct.open(path) as archive:
        before = [batch for batch in archive["d"].batches() if batch.finished]
    out = ok(chronotile("ingest", path, "d", file))
    if before:
        assert "rows already stored" in out or "nothing to do" in out
    assert ok(chronotile("count", path, "d")) == f"{rows}\n"
    assert "nothing to do: 2,300,000 rows" in ok(chronotile("ingest", path, "d", file))
    with ct.open(path) as archive:
        assert [batch.rows for batch in archive["d"].batches()] == [1_000_000, 1_000_000, 300_000]


# ---------------------------------------------------------------- reading


def test_reads_filter_as_the_python_surface_does(chronotile: Run, stored: Path) -> None:
    with ct.open(stored) as archive:
        dataset = archive["detections"]
        cases = [
            (["--circle", "150,2,0.5"], {"region": ct.circle(150, 2, 0.5)}),
            (["--box", "149.5,150.5,1.5,2.5"], {"region": ct.box(149.5, 150.5, 1.5, 2.5)}),
            (["--polygon", "149,1,151,1,150,3"], {"region": ct.polygon([(149, 1), (151, 1), (150, 3)])}),
            (["--ids", "1,2,3"], {"ids": [1, 2, 3]}),
            (["--start", "2461060", "--end", "2461100.5"], {"start": 2461060.0, "end": 2461100.5}),
            (["--start", "2026-02-01"], {"start": "2026-02-01"}),
            (
                ["--where", "mag<19", "--where", "band in g,r"],
                {"where": [("mag", "<", 19), ("band", "in", ["g", "r"])]},
            ),
            (["--where", "band == 'g'"], {"where": [("band", "==", "g")]}),
            (["--where", "mag between 18, 19"], {"where": [("mag", "between", (18, 19))]}),
            (["--where", "band!=g"], {"where": [("band", "!=", "g")]}),
        ]
        wanted = [
            dataset.read(columns=["candid"], **arguments).to_arrow()["candid"].to_pylist() for _, arguments in cases
        ]
    for (options, _), ids in zip(cases, wanted, strict=True):
        assert 0 < len(ids) < 500
        out = ok(chronotile("read", stored, "detections", "--columns", "candid", "--format", "csv", *options))
        assert sorted(map(int, out.split()[1:])) == sorted(ids)
        assert ok(chronotile("count", stored, "detections", *options)) == f"{len(ids)}\n"


def test_a_constant_for_a_text_column_stays_as_typed(chronotile: Run, path: Path) -> None:
    with ct.open(path) as archive:
        dataset = archive.create(
            "d", schema={"line": "utf8", "n": "int64", "t": "timestamp[us]"}, cell=ct.single(), time="t"
        )
        dataset.write({"line": ["007", "7", "true", "1e3"], "n": [1, 2, 3, 7], "t": [1, 2, 3, 4]})
    for condition, found in [("line=007", 1), ("line in 007,1e3", 2), ("line='true'", 1), ("line>=7", 2), ("n=07", 1)]:
        assert ok(chronotile("count", path, "d", "--where", condition)) == f"{found}\n", condition


def test_constants_are_compared_exactly(chronotile: Run, path: Path) -> None:
    schema = {"day": "date32", "price": "decimal128(30, 2)", "n": "uint64", "t": "timestamp[us]"}
    with ct.open(path) as archive:
        dataset = archive.create("d", schema=schema, cell=ct.single(), time="t", id="day")
        price = ["1.02", "1.03", "1234567890123456789012345.67"]
        dataset.write({"day": ["2026-01-01", "2026-01-02", "2026-01-03"], "price": price, "n": [0, 1, 2], "t": [1] * 3})
    for condition, found in [
        ("price=1.025", 0), ("price<1.025", 1), ("price in 1.025,1.03", 1), ("price=1234567890123456789012345.67", 1),
        ("day=2026-01-01T12:00", 0), ("day<2026-01-01T12:00", 1), ("day between 2026-01-01,2026-01-02", 2),
        ("n>-1", 3), ("n<=1.5", 2), ("n<1e400", 3), ("t<1970-01-01T00:00:00.0000015", 3),
    ]:  # fmt: skip
        assert ok(chronotile("count", path, "d", "--where", condition)) == f"{found}\n", condition
    assert ok(chronotile("count", path, "d", "--ids", "2026-01-01")) == "1\n"
    refused = chronotile("count", path, "d", "--ids", "2026-01-01T12:00")
    assert refused.returncode != 0
    assert "finer than the resolution of date32" in refused.stderr


def test_a_table_is_for_people_and_limit_cuts(chronotile: Run, stored: Path) -> None:
    out = ok(chronotile("read", stored, "detections", "--columns", "candid,band", "--limit", "3"))
    assert "candid" in out
    assert "int64" in out
    lines = ok(chronotile("read", stored, "detections", "--limit", "7", "--format", "ndjson")).splitlines()
    assert len(lines) == 7
    assert (
        ok(chronotile("read", stored, "detections", "--limit", "0", "--format", "csv", "--columns", "candid"))
        == "candid\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--circle", "1,2"], "RA,DEC,RADIUS"),
        (["--circle", "1,2,3", "--box", "1,2,3,4"], "Give only one of"),
        (["--circle", "1,2,300"], "300"),
        (["--where", "mag"], "invalid condition"),
        (["--where", "nope<1"], "unknown column 'nope'"),
        (["--columns", "nope"], "nope"),
        (["--start", "yesterday"], "ISO 8601"),
        (["--keys", "1"], "has no keys"),
        (["--out", "x.unknown"], "is not known"),
    ],
    ids=str,
)
def test_a_wrong_read_is_a_usage_error(
    chronotile: Run, stored: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    done = chronotile("read", stored, "detections", *options, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_the_command_quietly(stored: Path, chronotile: Run) -> None:
    command = f"{sys.executable} -m chronotile read {stored} detections --format csv | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["candid,jd,ra,dec,mag,band", "0"]


@pytest.mark.parametrize("closed", [">&-", ">/dev/full"])
@pytest.mark.parametrize("command", ["count", "info", "read", "read --json", "latest --by band --format csv"])
def test_figures_and_rows_that_cannot_be_printed_are_an_error(command: str, closed: str, stored: Path) -> None:
    command, _, options = command.partition(" ")
    line = f"exec {sys.executable} -m chronotile {command} {stored} detections {options} {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("chronotile: writing standard output failed: ")
    assert done.stderr.count("\n") == 1


def test_closed_streams_do_not_end_a_command(stored: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.csv"
    line = f"exec {sys.executable} -m chronotile read {stored} detections --out {found} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], timeout=60, check=False).returncode == 0
    assert len(found.read_text().splitlines()) == 501


# ---------------------------------------------------------------- keeping in order


def test_info_shows_text_and_json(chronotile: Run, stored: Path) -> None:
    text = ok(chronotile("info", stored, "detections"))
    assert text.startswith("detections: 500 rows in ")
    assert "rows per tile" in text
    report = json.loads(ok(chronotile("info", stored, "detections", "--json")))
    assert sum(part["rows"] for part in report["statistics"]["slices"]) == 500
    assert json.loads(ok(chronotile("info", stored, "--json"))) == [report]


def test_consolidate_and_retire_report_what_they_do(
    chronotile: Run, sqlite: ct.Archive, survey: ct.Dataset, path: Path
) -> None:
    would = ok(chronotile("consolidate", path, "detections", "--dry-run"))
    assert "would rewrite" in would
    assert ok(chronotile("consolidate", path)) == would.replace("would rewrite", "rewrote")
    assert ok(chronotile("consolidate", path)) == "detections: rewrote 0 tiles\n"
    first = survey.info().slices[0]
    limit = ["--before", str(first.end)]
    assert f"would drop 1 slice with {first.rows} rows" in ok(
        chronotile("retire", path, "detections", *limit, "--dry-run")
    )
    refused = chronotile("retire", path, "detections", *limit)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert survey.count() == 500
    assert f"dropped 1 slice with {first.rows} rows" in ok(chronotile("retire", path, "detections", *limit, "--yes"))
    assert survey.count() == 500 - first.rows
    assert "no slice is old enough" in ok(chronotile("retire", path, "detections", *limit, "--yes"))


def test_processes_share_a_consolidation(chronotile: Run, survey: ct.Dataset, path: Path) -> None:
    tiles = survey.consolidate(dry_run=True).tiles
    assert tiles > 2
    done = [
        json.loads(
            ok(chronotile("consolidate", path, "--shard", f"{number}/2", "--tiles-per-second", "1000", "--json"))
        )
        for number in (1, 2)
    ]
    assert sum(report["detections"]["tiles"] for report in done) == tiles
    assert survey.consolidate(dry_run=True).tiles == 0
    for wrong in ("3/2", "0/2", "1", "2/", "1/x", "-1/2", "1/0", "1/9999999999999999999999"):
        refused = chronotile("consolidate", path, "--shard", wrong)
        assert refused.returncode == 2
        assert "such as 2/8" in refused.stderr
    assert chronotile("consolidate", path, "--tiles-per-second", "0").returncode == 2


def test_retire_drops_slices_that_are_shared_only_together(chronotile: Run, path: Path) -> None:
    schema = "id:int64,t:timestamp[us],x:float64"
    define = ["--schema", schema, "--key", "id", "--time", "t", "--window", "1d", "--group", "g"]
    ok(chronotile("create", path, "points", *define))
    ok(chronotile("create", path, "extremes", *define, "--slices-of", "points"))
    with ct.open(path) as archive:
        days = {"id": [1] * 90, "t": [day * 86_400_000_000 for day in range(90)], "x": [0.5] * 90}
        archive.group("g").write({"points": days, "extremes": {name: column[:40] for name, column in days.items()}})
    limit = ["--before", "1970-02-05"]
    refused = chronotile("retire", path, "points", *limit, "--yes")
    assert refused.returncode == 2
    assert "also hold rows of extremes" in refused.stderr
    assert "--together" in refused.stderr
    told = ok(chronotile("retire", path, "points", *limit, "--dry-run"))
    assert "would drop 1 slice with 30 rows of points, 1 slice with 30 rows of extremes" in told
    report = json.loads(ok(chronotile("retire", path, "points", *limit, "--together", "--yes", "--json")))
    assert [part["rows"] for part in report["slices"]] == [30]
    assert [part["rows"] for part in report["shared"]["extremes"]] == [30]
    assert ok(chronotile("count", path, "points")).split()[0] == "60"
    assert ok(chronotile("count", path, "extremes")).split()[0] == "10"


def test_verify_fails_with_damage_by_tile(chronotile: Run, path: Path) -> None:
    with ct.open(path) as archive:
        schema = {"tag": "int64", "t": "timestamp[us]", "x": "float64"}
        dataset = archive.create("d", schema=schema, cell=ct.key("tag"), time="t")
        dataset.write({"tag": [7] * 50, "t": list(range(50)), "x": [k / 7 for k in range(50)]}, batch="b")
    assert "no damage" in ok(chronotile("verify", path))
    connection = sqlite3.connect(path)
    (table,) = [name for (name,) in connection.execute("select name from sqlite_master where name like 'chunks%'")]
    connection.execute(f'update "{table}" set body = zeroblob(length(body)) where body is not null')
    connection.commit()
    connection.close()
    done = chronotile("verify", path)
    assert done.returncode == 5
    assert "1 damaged" in done.stdout
    assert "cell 7 window 0: chunk " in done.stdout
    report = json.loads(chronotile("verify", path, "d", "--json").stdout)
    assert report["d"]["damage"][0]["tile"] == {"cell": 7, "window": 0}
    read = chronotile("read", path, "d")
    assert read.returncode == 5
    assert "is damaged" in read.stderr


def test_a_held_archive_exits_with_repeat(chronotile: Run, stored: Path, night: Path, detections: pa.Table) -> None:
    pa.parquet.write_table(detections.slice(0, 5), night)
    holder = sqlite3.connect(stored, isolation_level=None)
    holder.execute("begin immediate")
    done = chronotile("ingest", stored, "detections", night, "--timeout", "0")
    holder.execute("rollback")
    holder.close()
    assert done.returncode == 6
    assert "held by other writers" in done.stderr


def test_an_interrupt_ends_with_its_own_code(path: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "endless.csv"
    os.mkfifo(fifo)
    command = [
        sys.executable,
        "-m",
        "chronotile",
        "ingest",
        str(path),
        "d",
        str(fifo),
        "--create",
        "--single",
        "--time",
        "t",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    source = open_once_read(fifo, process)
    process.send_signal(signal.SIGINT)
    # The end of its input lets the command go on from where the operating system held it.
    os.close(source)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "chronotile: interrupted"


INTERRUPTING = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_MODULE"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
SCRIPT = "import sys\nfrom chronotile.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.parametrize("how", ["script", "-m"])
@pytest.mark.parametrize("module", ["chronotile.archive", "chronotile.cli.main", "chronotile.apdb"])
def test_an_interrupt_of_imports_ends_with_its_own_code(how: str, module: str, tmp_path: Path) -> None:
    done = interrupted([*command_of(how, tmp_path), "apdb", "create", str(tmp_path / "s.db")], module, tmp_path)
    assert done.returncode == 130, done.stderr
    assert done.stderr.split("\n") == ["", "chronotile: interrupted", ""]


@pytest.mark.parametrize("code", ["import chronotile", "import sys; sys.argv = ['chronotile']; import chronotile"])
def test_an_interrupt_of_imports_is_left_to_programs_that_use_the_library(code: str, tmp_path: Path) -> None:
    done = interrupted([sys.executable, "-c", code], "chronotile.archive", tmp_path)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def command_of(how: str, folder: Path) -> list[str]:
    (folder / "chronotile").write_text(SCRIPT)
    return [sys.executable, *(["-m", "chronotile"] if how == "-m" else [str(folder / "chronotile")])]


def interrupted(command: list[str], module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What becomes of a command that is interrupted as it begins to import a module."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(INTERRUPTING)
    path = os.pathsep.join(filter(None, [str(folder / "hook"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"INTERRUPTED_MODULE": module, "PYTHONPATH": path},
    )  # fmt: skip


def open_once_read(fifo: Path, reader: subprocess.Popen[str]) -> int:
    """A pipe's writing end, opened as soon as `reader` has opened the other."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert reader.poll() is None, reader.communicate()
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            time.sleep(0.01)
    raise AssertionError(f"{fifo} was not opened within a minute")


# ---------------------------------------------------------------- real data


def test_real_detections_come_back_bit_for_bit(chronotile: Run, path: Path, tmp_path: Path) -> None:
    source = data_file("ztf_detections.parquet")
    ok(chronotile("ingest", path, "detections", source, "--create", *DEFINE))
    assert "nothing to do: 582 rows" in ok(chronotile("ingest", path, "detections", source))
    out = tmp_path / "out.parquet"
    ok(chronotile("read", path, "detections", "--out", out))
    stored, given = (pa.parquet.read_table(file).sort_by("candid") for file in (out, source))
    assert stored.column_names == given.column_names
    for name in given.column_names:
        assert stored[name].cast(given[name].type).combine_chunks().equals(given[name].combine_chunks()), name


def test_real_sensors_and_logs_are_taken(chronotile: Run, path: Path) -> None:
    sensors = sorted(data_file("sensors").glob("*.csv"))
    options = ["--tag-column", "sensor", "--create", "--hash", "sensor", "--time", "timestamp", "--window", "1d"]
    ok(chronotile("ingest", path, "sensors", *sensors, *options))
    lines = sum(len(file.read_text().splitlines()) - 1 for file in sensors)
    assert ok(chronotile("count", path, "sensors")) == f"{lines}\n"
    patterns = {
        "HDFS": ["%y%m%d %H%M%S"],
        "Apache": ["[%a %b %d %H:%M:%S %Y]"],
        "SSH": ["%b %d %H:%M:%S", "--line-year", "2015"],
    }
    logs = sorted(data_file("logs").glob("*.log"))
    assert logs
    for log in logs:
        pattern = next(pattern for word, pattern in patterns.items() if word in log.name)
        define = ["--create", "--hash", "stream", "--time", "time", "--id", "stream,line_number"]
        ok(
            chronotile(
                "ingest",
                path,
                "logs",
                log,
                "--format",
                "lines",
                "--tag-column",
                "stream",
                "--line-time",
                *pattern,
                *define,
            )
        )
        count = len(log.read_bytes().splitlines())
        assert ok(chronotile("count", path, "logs", "--keys", log.stem)) == f"{count}\n"


def test_every_option_that_a_message_advises_exists() -> None:
    known: set[str] = set()

    def gather(command: click.Command) -> None:
        known.update(*(parameter.opts + parameter.secondary_opts for parameter in command.params))
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                gather(below)

    gather(cli)
    root = Path(__file__).resolve().parents[2]
    sources = [path for folder in ("python", "crates") for path in (root / folder).rglob("*.*")]
    advised = {
        option
        for path in sources
        if path.suffix in (".py", ".rs") and "target" not in path.parts
        for option in re.findall(r"(?<!var)\((--[a-z][a-z-]*[a-z])", path.read_text(encoding="utf-8"))
    }
    assert {"--nulls", "--types", "--overwrite"} <= advised, "the messages are written in another way now"
    assert advised <= known
