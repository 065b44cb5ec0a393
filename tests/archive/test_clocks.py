"""Processes on machines whose clocks are off: what was acknowledged last is what is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support_lab import keyspace_of

from chronotile_tools import lab

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long skew(void) {
    const char *text = getenv("CLOCK_SKEW_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, now);
    if (!done && clock == CLOCK_REALTIME) now->tv_sec += skew();
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int done = real(now, zone);
    if (!done && now) now->tv_sec += skew();
    return done;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""

_CREATE = """
import sys, chronotile as ct
with ct.open(sys.argv[1]) as archive:
    for merge in ("append", "latest"):
        archive.create(
            merge, schema={"id": "int64", "t": "timestamp[us]", "value": "int64"}, cell=ct.single(), time="t", id="id",
            merge=merge,
        )
"""

_WRITE = """
import sys, chronotile as ct
url, value, batch = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
with ct.open(url) as archive:
    for merge in ("append", "latest"):
        row = {"id": [1], "t": ["2026-01-01"], "value": [value]}
        archive[merge].write(row, batch=batch, replace=batch is not None)
        print(archive[merge].read().to_arrow()["value"].to_pylist())
"""

_POINTS = """
import datetime as dt, sys
from chronotile import historian
url, action = sys.argv[1], sys.argv[2]
with historian.open(url) as plant:
    if action == "delete":
        print(plant.delete("boiler", "2026-01-01", "2026-01-02"))
    else:
        plant.define("boiler")
        plant.write({"tag": ["boiler"], "time": [dt.datetime(2026, 1, 1, 12)], "value": [float(action)]})
    print(plant.raw("boiler", "2026-01-01", "2026-01-02").to_arrow()["value"].to_pylist())
"""

Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a script in a process whose clock is off by so many seconds; gives the lines it prints."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler, for a library that sets a process's clock")
    folder = tmp_path_factory.mktemp("clock")
    source, library = folder / "skew.c", folder / "skew.so"
    source.write_text(_SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)

    def run(script: str, *arguments: object, skew_s: int = 0) -> list[str]:
        environment = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_SKEW_S": str(skew_s)}
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]

    now, later = (int(run("import time; print(int(time.time()))", skew_s=skew_s)[0]) for skew_s in (0, 1_000))
    assert 990 <= later - now <= 1_100, "the clock was not set"
    return run


SKEWS_S = [0, -120, 600, 0, -120]


def _write_in_turn(skewed: Run, url: str) -> None:
    skewed(_CREATE, url)
    for batch in ("", "named"):
        for value, skew_s in enumerate(SKEWS_S):
            assert skewed(_WRITE, url, value, batch, skew_s=skew_s) == [f"[{value}]"] * 2, (batch, skew_s)


def test_a_write_is_visible_whatever_the_clocks_say(skewed: Run, path: Path) -> None:
    _write_in_turn(skewed, f"sqlite:{path}")


def test_points_written_after_a_deletion_are_there(skewed: Run, path: Path) -> None:
    url = f"sqlite:{path}"
    assert skewed(_POINTS, url, 1) == ["[1.0]"]
    assert skewed(_POINTS, url, "delete", skew_s=600) == ["1", "[]"]
    assert skewed(_POINTS, url, 2) == ["[2.0]"]
    assert skewed(_POINTS, url, 3, skew_s=-120) == ["[3.0]"]
    assert skewed(_POINTS, url, "delete", skew_s=-120) == ["1", "[]"]


def test_writers_on_a_cluster_go_by_the_clocks_of_its_nodes(
    skewed: Run, single_node: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    _write_in_turn(skewed, f"{single_node.url(keyspace_of(request))}?catalog_buckets=16")
