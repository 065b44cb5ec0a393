"""The demo's claims: its checks bite, its page stands alone, its folder is safe, its survey repeats."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import chronotile as ct
from chronotile import demo

np = pytest.importorskip("numpy", reason="the demo needs numpy")

from chronotile.demo import columns, measure, simulate  # noqa: E402


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> measure.Outcome:
    """One night, run once for all tests that look at it."""
    lines: list[str] = []
    done = demo.run(nights=1, out=tmp_path_factory.mktemp("demo") / "out", seed=7, echo=lines.append)
    (done.page.parent.parent / "printed").write_text("\n".join(lines))
    return done


def test_archive_holds_every_detector_visit_as_a_batch(outcome: measure.Outcome) -> None:
    with ct.open(f"sqlite:{outcome.archive}", read_only=True) as archive:
        stored = {batch.key: batch for batch in archive["sources"].batches()}
        rows = archive["sources"].count() + archive["objects"].info().rows
    assert set(stored) == {exposure.name for exposure in outcome.survey.exposures}
    assert all(batch.finished for batch in stored.values())
    assert rows == outcome.rows > 5_000


def test_printed_table_has_a_line_for_each_night_and_ends_with_the_page(outcome: measure.Outcome) -> None:
    lines = (outcome.page.parent.parent / "printed").read_text().splitlines()
    assert any(line.split()[:2] == ["1", "2025-10-02"] for line in lines)
    assert lines[-1] == f"The page: {outcome.page.resolve()}"


def test_page_is_well_formed_and_fetches_nothing(outcome: measure.Outcome) -> None:
    text = outcome.page.read_text(encoding="utf-8")
    open_tags: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in ("script", "link", "img", "iframe")
            assert not [value for name, value in attrs if name in ("src", "href", "onload", "onclick")]
            if tag not in ("meta", "br"):
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            """Nothing to close."""

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Checker().feed(text)
    assert open_tags == []
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert text.count("<svg") == 5
    assert not re.search(r"\b(nan|inf)\b", text)


def test_a_read_that_misses_a_source_ends_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def short(rows: object, *names: str) -> tuple[int, dict[str, Any]]:
        count, found = columns.draw(rows, *names)
        return count, {name: values[1:] for name, values in found.items()}

    monkeypatch.setattr(measure, "draw", short)
    with pytest.raises(demo.CheckError, match="footprint of visit-"):
        demo.run(nights=1, out=tmp_path / "out", echo=lambda line: None)


def test_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "survey.db").write_text("precious")
    with pytest.raises(ct.DataFileError, match=r"survey\.db") as refused:
        demo.run(nights=1, out=tmp_path)
    assert refused.value.kind == "file-exists"
    assert (tmp_path / "survey.db").read_text() == "precious"


def test_files_of_an_earlier_run_are_cleared(tmp_path: Path) -> None:
    demo._fresh_folder(tmp_path)
    (tmp_path / "survey.db").write_text("old")
    demo._fresh_folder(tmp_path)
    assert not (tmp_path / "survey.db").exists()


def test_without_numpy_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['numpy'] = None\nfrom chronotile import demo\ndemo.run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("MissingPackageError: the demo needs numpy: pip install 'chronotile[demo]'")


def test_same_seed_makes_the_same_survey() -> None:
    first, second, other = (simulate.Survey(1, seed) for seed in (3, 3, 4))
    one, two, three = (survey.expose(survey.exposures[0]).sources for survey in (first, second, other))
    assert set(one) == set(simulate.SOURCE_COLUMNS)
    assert all(one[name].tolist() == two[name].tolist() for name in one)
    assert not np.array_equal(one["ra"], three["ra"])


def test_density_is_uneven_and_detections_lie_in_the_footprint() -> None:
    survey = simulate.Survey(1, 1)
    counts = []
    for exposure in survey.exposures[:32]:
        sources = survey.expose(exposure).sources
        inside = ct.polygon(exposure.corners).contains(sources["ra"], sources["dec"])
        assert [bool(held) for held in inside.to_pylist()] == [True] * len(sources["ra"])
        counts.append(len(sources["ra"]))
    assert max(counts) > 5 * min(counts)


def test_drawn_columns_equal_what_was_written() -> None:
    with ct.open("memory:") as archive:
        dataset = archive.create(
            "numbers",
            schema={"id": "int64", "mjd": "float64", "size": "float32"},
            cell=ct.single(),
            time="mjd",
            id="id",
        )
        ids = np.arange(50_000)
        dataset.write({"id": ids, "mjd": 60_000 + ids / 1e5, "size": (ids / 7).astype("float32")})
        count, found = columns.draw(dataset.read(), "size", "id")
        empty, nothing = columns.draw(dataset.read(end=59_000.0), "id")
    order = np.argsort(found["id"])
    assert count == len(ids)
    assert np.array_equal(found["id"][order], ids)
    assert np.array_equal(found["size"][order], (ids / 7).astype("float32"))
    assert (empty, len(nothing["id"])) == (0, 0)
