"""Pages of studies are what their results make, and an interrupted study continues."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from chronotile.errors import DataFileError, InvalidInputError
from chronotile_tools import studies
from chronotile_tools.studies import Page, Part, Record, Study

FOLDER = Path(__file__).parents[2] / "docs" / "studies"

MEASURED = (
    "alert-changes", "alert-database", "client-recovery", "historian-cluster", "job-archive", "log-store-versions",
    "read-repair",
)  # fmt: skip
"""Studies measured on nodes or beside a database: that takes up to three quarters of an hour, with other figures each
time."""
RECORDED = list(studies.STUDIES)
"""Studies whose results at full scale are in the repository."""


def record_of(name: str) -> Record:
    return Record.read(FOLDER / "data" / f"{name}.json")


@pytest.mark.parametrize("name", RECORDED)
def test_the_page_in_the_repository_is_what_its_results_make(name: str) -> None:
    study, record = studies.find(name), record_of(name)
    assert record.study == name
    assert record.parameters == next(iter(study.scales.values())), "results are of the first scale"
    assert set(record.parts) == {part.name for part in study.parts(record.parameters)}
    page = study.page(record)
    remedy = f"run `chronotile study page {name} --out docs/studies`"
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == page.text, remedy
    for figure, svg in page.figures.items():
        assert (FOLDER / "images" / f"{name}-{figure}.svg").read_text(encoding="utf-8") == svg + "\n", remedy


def test_every_figure_of_a_page_is_shown_and_no_file_is_left_over() -> None:
    names = set()
    for name in RECORDED:
        page = studies.find(name).page(record_of(name))
        for figure in page.figures:
            assert page.text.count(f"(images/{name}-{figure}.svg)") == 1
            names.add(f"{name}-{figure}.svg")
        assert page.text.count("(images/") == len(page.figures)
    assert {path.name for path in (FOLDER / "images").iterdir()} == names
    assert {path.stem for path in (FOLDER / "data").iterdir()} == set(RECORDED)


AGAIN = {"pixels": ("mq3c-9", "htm-10"), "tails": ("hints",), **dict.fromkeys(MEASURED, ())}
"""Parts of studies that take minutes, and none of those that are measured; of the others, all are computed."""


@pytest.mark.parametrize("name", RECORDED)
def test_parts_that_are_computed_again_have_the_stored_values(name: str) -> None:
    record = record_of(name)
    parts = {part.name: part for part in studies.find(name).parts(record.parameters)}
    for part in AGAIN.get(name, parts):
        again = {"run": record.parts[part]["run"], **json.loads(json.dumps(parts[part].compute()))}
        assert_alike(again, record.parts[part], f"{name}/{part}")


def assert_alike(found: Any, stored: Any, where: str) -> None:
    """The same values, but for the last digits of computed numbers."""
    if isinstance(stored, dict):
        assert found.keys() == stored.keys(), where
        for key in stored:
            assert_alike(found[key], stored[key], f"{where}/{key}")
    elif isinstance(stored, list):
        assert len(found) == len(stored), where
        for number, (one, other) in enumerate(zip(found, stored, strict=True)):
            assert_alike(one, other, f"{where}/{number}")
    else:
        assert found == (pytest.approx(stored) if isinstance(stored, float) else stored), where


class InterruptedStudyError(Exception):
    pass


@dataclasses.dataclass
class Counted:
    """A study of four parts that counts which of them it computes, and stops at one of them."""

    stop_at: str | None = None
    computed: list[str] = dataclasses.field(default_factory=list)

    def study(self, **parameters: int) -> Study:
        def part(name: str) -> Part:
            def compute() -> dict[str, int]:
                if name == self.stop_at:
                    raise InterruptedStudyError
                self.computed.append(name)
                return {"value": len(name)}

            return Part(name, compute)

        def parts(_: dict[str, int]) -> Iterator[Part]:
            yield from map(part, ("a", "bb", "ccc", "dddd"))

        def page(record: Record) -> Page:
            return Page(" ".join(f"{name}={values['value']}" for name, values in record.parts.items()), {"f": "<svg/>"})

        return Study("counted", "Counted", "nothing", {"full": parameters or {"seed": 1}}, parts, page)


def test_an_interrupted_study_continues_with_the_parts_that_are_missing(tmp_path: Path) -> None:
    counted = Counted(stop_at="ccc")
    with pytest.raises(InterruptedStudyError):
        studies.run(counted.study(), tmp_path, "full", str)
    with pytest.raises(DataFileError, match=r"lacks 2 parts, the first of them ccc: continue with `chronotile study"):
        studies.write_page(counted.study(), tmp_path)
    counted.stop_at = None
    lines: list[str] = []
    record = studies.run(counted.study(), tmp_path, "full", lines.append)
    assert counted.computed == ["a", "bb", "ccc", "dddd"]
    assert [values["run"] for values in record.parts.values()] == [0, 0, 1, 1]
    assert lines == ["ccc: done, 1 of 2 parts left", "dddd: done, 0 of 2 parts left"]
    assert studies.write_page(counted.study(), tmp_path).read_text() == "a=1 bb=2 ccc=3 dddd=4"
    assert (tmp_path / "images" / "counted-f.svg").read_text() == "<svg/>\n"


def test_a_part_that_reports_its_progress_does_so_before_it_is_done(tmp_path: Path) -> None:
    def measure(echo: Callable[[str], object]) -> dict[str, int]:
        echo("half of it")
        return {"value": 1}

    def parts(_: dict[str, int]) -> Iterator[Part]:
        yield Part("slow", measure, reports=True)

    study = Study("reporting", "Reporting", "nothing", {"full": {}}, parts, lambda record: Page("", {}))
    lines: list[str] = []
    assert studies.run(study, tmp_path, "full", lines.append).parts == {"slow": {"run": 0, "value": 1}}
    assert lines == ["half of it", "slow: done, 0 of 1 parts left"]


def test_a_complete_study_computes_nothing_and_records_no_run(tmp_path: Path) -> None:
    counted = Counted()
    first = studies.run(counted.study(), tmp_path, "full", str)
    again = studies.run(counted.study(), tmp_path, "full", str)
    assert again == first
    assert len(counted.computed) == 4


def test_results_of_other_parameters_are_kept_unless_they_are_to_be_overwritten(tmp_path: Path) -> None:
    counted = Counted()
    studies.run(counted.study(seed=1), tmp_path, "full", str)
    with pytest.raises(InvalidInputError, match="other parameters than those of scale 'full'"):
        studies.run(counted.study(seed=2), tmp_path, "full", str)
    assert len(counted.computed) == 4
    assert studies.run(counted.study(seed=2), tmp_path, "full", str, overwrite=True).parameters == {"seed": 2}
    assert len(counted.computed) == 8


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 0, "study": "x", "parameters": {}}'])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "data" / "counted.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(DataFileError, match=r"counted\.json"):
        studies.write_page(Counted().study(), tmp_path)
    assert path.read_text() == content


def test_the_command_lists_runs_and_refuses(chronotile: Run, tmp_path: Path) -> None:
    listed = json.loads(chronotile("study", "list", "--json").stdout)
    assert [each["name"] for each in listed] == list(studies.STUDIES)
    assert "quick" in chronotile("study", "list").stdout
    done = chronotile("study", "run", "pixels", "--scale", "quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20 of 20 parts" in (tmp_path / "pixels.md").read_text()
    other = chronotile("study", "run", "pixels", "--out", tmp_path)
    assert other.returncode == 2
    assert "--overwrite" in other.stderr
    assert "did you mean pixels?" in chronotile("study", "page", "pixel").stderr
    assert "chronotile study run pixels" in chronotile("study", "page", "pixels", "--out", tmp_path / "no").stderr
    scale = chronotile("study", "run", "pixels", "--scale", "huge")
    assert (scale.returncode, "full, quick" in scale.stderr) == (2, True)
