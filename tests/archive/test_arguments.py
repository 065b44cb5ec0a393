"""Arguments of wrong types: every message names the argument, the type given and what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest

import chronotile as ct
from chronotile import arguments, events, historian, jobs

TIME = datetime(2026, 1, 1)
POINTS = {"tag": ["x", "x"], "time": [TIME, TIME], "value": [1.0, 2.0]}
JOBS = {"job_id": "int64", "submitted": "timestamp[us]", "user": "utf8", "run_s": "float64"}
JOB = {"job_id": [1], "submitted": [TIME], "user": ["ann"], "run_s": [1.0]}


@pytest.fixture
def history(memory: ct.Archive) -> historian.Historian:
    history = historian.open(memory)
    history.define("x")
    return history


def refused(call: Callable[[], object], name: str, value: object, expected: str) -> None:
    message = f"{name} is {value!r}, of type {type(value).__name__}: give {expected}"
    with pytest.raises(ct.InvalidInputError, match=f"^{re.escape(message)}"):
        call()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("number", "7", "an integer"),
        ("number", True, "an integer"),
        ("number", 2**63, "an integer of at most 64 bits"),
        ("unit", 3, "text"),
        ("unit", None, "text"),
        ("description", b"x", "text"),
        ("group", 3, "text"),
        ("data_type", float, "text"),
        ("stepped", 1, "True or False"),
        ("treat_uncertain_as_bad", "no", "True or False"),
        ("percent_good", "50", "a number"),
        ("percent_bad", None, "a number"),
        ("sloped_extrapolation", 0.0, "True or False"),
        ("exception_deviation", "0.1", "a number"),
        ("compression_deviation", [1], "a number"),
    ],
)
def test_a_property_of_a_tag_of_a_wrong_type_is_named(
    history: historian.Historian, name: str, value: Any, expected: str
) -> None:
    refused(lambda: history.define("new", **{name: value}), f"{name} of tag 'new'", value, expected)
    assert [tag.name for tag in history.tags()] == ["x"]


def test_properties_may_be_scalars_of_numpy(history: historian.Historian) -> None:
    given = {"number": np.int64(3), "percent_good": np.float32(50), "stepped": np.bool_(True)}
    tag = history.define("n", **given, exception_deviation=None)
    assert (tag.number, tag.percent_good, tag.stepped, tag.exception_deviation) == (3, 50.0, True, None)


def test_arguments_of_the_historian_are_named(history: historian.Historian, memory: ct.Archive) -> None:
    h = history
    for call, name, value, expected in (
        (lambda: h.define_many(3), "tags", 3, "a list of tags"),
        (lambda: h.define_many(["y"]), "a tag to define", "y", "a mapping with a name"),
        (lambda: h.write(POINTS, batch=3), "batch", 3, "text"),
        (lambda: h.write(POINTS, replace="yes"), "replace", "yes", "True or False"),
        (lambda: h.tags(3), "pattern", 3, "text"),
        (lambda: h.tags(limit="x"), "limit", "x", "an integer"),
        (lambda: h.annotate("x", TIME, 3), "text", 3, "text"),
        (lambda: h.annotate("x", TIME, "a", author=3), "author", 3, "text"),
        (lambda: h.set_retention(3, "1d"), "group", 3, "text"),
        (lambda: h.retire("main", dry_run="x"), "dry_run", "x", "True or False"),
        (lambda: h.buffered(points="x"), "points", "x", "an integer"),
        (lambda: h.buffered(seconds="x"), "seconds", "x", "a number"),
        (lambda: h.raw("x", 1, 2, bounds="x"), "bounds", "x", "True or False"),
        (lambda: h.at("x", 1, stepped="x"), "stepped", "x", "True or False"),
        (lambda: h.plot("x", 1, 2, points="x"), "points", "x", "an integer"),
        (lambda: h.plot("x", 1, 2, method=3), "method", 3, "text"),
        (lambda: h.aggregate("x", 1, 2, 1, 3), "aggregate", 3, "text"),
        (lambda: h.aggregate("x", 1, 2, 1, "Count", stepped="x"), "stepped", "x", "True or False"),
        (lambda: h.aggregate("x", 1, 2, 1, "Count", percent="x"), "percent", "x", "a number"),
        (lambda: historian.compute(POINTS, 1, 2, 1, "Count", percent_good="x"), "percent_good", "x", "a number"),
        (lambda: historian.open(3), "archive", 3, "an open archive, a URL or a path"),
        (lambda: historian.open(memory, create="x"), "create", "x", "True or False"),
        (lambda: historian.connect(3), "url", 3, "text"),
    ):
        refused(call, name, value, expected)


def test_arguments_of_jobs_are_named(memory: ct.Archive) -> None:
    j = jobs.create(memory, "done", schema=JOBS)
    j.write(JOB)
    create = lambda **given: jobs.create(memory, **{"name": "more", "schema": JOBS, **given})  # noqa: E731
    for call, name, value, expected in (
        (lambda: create(name=3), "name", 3, "text"),
        (lambda: create(id=3), "id", 3, "text"),
        (lambda: create(version=3), "version", 3, "text"),
        (lambda: create(id_bucket="x"), "id_bucket", "x", "an integer"),
        (lambda: create(indexes=3), "indexes", 3, "a list of column names"),
        (lambda: create(indexes=[3]), "each of indexes", 3, "a name, or a list of names"),
        (lambda: create(exist_ok="x"), "exist_ok", "x", "True or False"),
        (lambda: jobs.create("x", schema=JOBS), "archive", "x", "an open archive"),
        (lambda: jobs.open("x"), "archive", "x", "an open archive"),
        (lambda: jobs.open(memory, 3), "name", 3, "text"),
        (lambda: j.write(JOB, replace="x"), "replace", "x", "True or False"),
        (lambda: j.get(1, columns=3), "columns", 3, "a name, or a list of names"),
        (lambda: j.get(1, history="x"), "history", "x", "True or False"),
        (lambda: j.find(where=3), "where", 3, 'a condition such as "mag<18"'),
        (lambda: j.group_by(3), "columns", 3, "a name, or a list of names"),
        (lambda: j.top(3), "columns", 3, "a name, or a list of names"),
        (lambda: j.top("user", 2.5), "n", 2.5, "an integer"),
        (lambda: j.histogram(by=3), "by", 3, "a name, or a list of names"),
        (lambda: j.percentiles(3), "duration", 3, "a name, or a list of names"),
        (lambda: j.percentiles("run_s", 50), "q", 50, "a list of numbers"),
        (lambda: j.percentiles("run_s", ["x"]), "each of q", "x", "a number"),
        (lambda: j.explain(by=3), "by", 3, "a name, or a list of names"),
    ):
        refused(call, name, value, expected)
    with pytest.raises(ct.InvalidInputError, match="duration has 3 columns: give one, or a pair of time columns"):
        j.percentiles(("a", "b", "c"))
    assert memory.datasets() == ["done"]


def test_arguments_of_events_are_named(memory: ct.Archive) -> None:
    e = events.create(memory, "log")
    before = memory.datasets()
    for call, name, value, expected in (
        (lambda: events.create(memory, 3), "name", 3, "text"),
        (lambda: events.create(memory, "more", fields=3), "fields", 3, "a dict of names and types"),
        (lambda: events.create(memory, "more", paths=[1]), "paths", [1], "a dict of fields"),
        (lambda: events.create(memory, "more", exist_ok="x"), "exist_ok", "x", "True or False"),
        (lambda: events.create("x"), "archive", "x", "an open archive"),
        (lambda: events.open("x"), "archive", "x", "an open archive"),
        (lambda: e.search(columns=3), "columns", 3, "a name, or a list of names"),
        (lambda: e.search(limit="x"), "limit", "x", "an integer"),
        (lambda: e.search(streams=3), "streams", 3, "a name, or a list of names"),
        (lambda: e.search(text=3), "text", 3, "text"),
        (lambda: e.search(where=3), "where", 3, "a condition"),
        (lambda: e.histogram(by=3), "by", 3, "a name, or a list of names"),
        (lambda: e.top(3), "columns", 3, "a name, or a list of names"),
        (lambda: e.top("stream", "x"), "n", "x", "an integer"),
    ):
        refused(call, name, value, expected)
    assert memory.datasets() == before


def test_a_long_value_is_cut_in_a_message() -> None:
    with pytest.raises(ct.InvalidInputError) as caught:
        arguments.text(list(range(1_000)), "name")
    assert str(caught.value).startswith("name is [0, 1, 2,")
    assert str(caught.value).endswith("..., of type list: give text")
    assert len(str(caught.value)) < 130
