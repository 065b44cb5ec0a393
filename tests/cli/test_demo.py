"""The demo's claims: its checks bite, its page stands alone, its folder is safe, its survey repeats."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support_pages import check_page

import chronotile as ct
from chronotile import _native, demo

np = pytest.importorskip("numpy", reason="the demo needs numpy")
pa = pytest.importorskip("pyarrow", reason="the demo needs pyarrow")

from chronotile import apdb  # noqa: E402
from chronotile.demo import measure, stars  # noqa: E402

NOTHING = pa.table({
    **dict.fromkeys(["diaObjectId", "nDiaSources"], pa.array([], pa.int64())),
    **dict.fromkeys(["ra", "dec", "validityStartMjdTai", "firstDiaSourceMjdTai"], pa.array([], pa.float64())),
})  # fmt: skip
"""What a detector knows of a part of the sky that nobody looked at."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> measure.Outcome:
    """A short night, run once for all tests that look at it."""
    lines: list[str] = []
    done = demo.run(out=tmp_path_factory.mktemp("demo") / "out", seed=7, visits=12, echo=lines.append)
    (done.page.parent.parent / "printed").write_text("\n".join(lines))
    return done


def test_the_database_holds_every_detector_visit_with_all_its_rows(outcome: measure.Outcome) -> None:
    with apdb.open(outcome.archive, read_only=True) as database:
        visits = database.visits().to_arrow()
        infos = database.info()
        forced = database.forced_sources(object_ids=[outcome.curve.object_id])
    stored = set(zip(visits["visit"].to_pylist(), visits["detector"].to_pylist(), strict=True))
    assert stored == {(e.visit, e.detector) for e in outcome.survey.exposures}
    assert sum(sum(visits[name].to_pylist()) for name in ("objects", "sources", "forced_sources")) == outcome.rows
    assert infos["dia_source"].rows == outcome.stored["DiaSource"] > 2_000
    # Known objects are measured again where they are not detected.
    assert outcome.stored["DiaForcedSource"] > outcome.stored["DiaSource"]
    curve = outcome.curve.points.values()
    assert len(forced) >= sum(len(points["mjd"]) for points in curve) > 2


def test_printed_tables_tell_rows_bytes_and_times_and_end_with_the_page(outcome: measure.Outcome) -> None:
    lines = (outcome.page.parent.parent / "printed").read_text().splitlines()
    (total,) = [line.split() for line in lines if line.startswith("all ")]
    assert total[1] == f"{outcome.rows:,}"
    assert 10 < int(total[3]) <= int(total[2]) < 300, "bytes a row, after maintenance and before"
    assert [sum(line.startswith(kind) for line in lines) for kind in measure.KINDS] == [1, 1, 1, 1]
    assert outcome.reads == 3 * 48
    # Tests run in a development build, whose times are not those of an installed package.
    assert (measure.DEVELOPMENT_NOTE in lines) == _native.DEVELOPMENT_BUILD
    assert ("development build" in outcome.page.read_text()) == _native.DEVELOPMENT_BUILD
    # What was written last may lie in the log beside the file.
    assert outcome.archive_bytes > sum(info.bytes for info in outcome.after.values())
    assert f"All {outcome.reads} footprint reads returned exactly what was stored." in lines[-2]
    assert lines[-1] == f"The page: {outcome.page.resolve()}"


def test_page_is_well_formed_and_fetches_nothing(outcome: measure.Outcome) -> None:
    text = outcome.page.read_text(encoding="utf-8")
    check_page(text, drawings=5)
    assert text.count("<svg") == 5


@pytest.mark.parametrize("table", ["objects", "sources", "forced_sources"])
def test_a_read_that_misses_a_row_ends_the_demo(table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = apdb.Apdb.footprint

    def short(self: apdb.Apdb, region: Any, **arguments: Any) -> apdb.Footprint:
        found = whole(self, region, **arguments)
        rows = getattr(found, table).to_arrow()
        return dataclasses.replace(found, **{table: apdb.Rows(rows.slice(0, max(rows.num_rows - 1, 0)))})

    monkeypatch.setattr(apdb.Apdb, "footprint", short)
    with pytest.raises(demo.CheckError, match="the footprint of visit"):
        demo.run(out=tmp_path / "out", visits=6, echo=lambda line: None)


def test_a_read_with_another_flux_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    exposure = stars.Survey(1, 1, 4).exposures[0]
    keys, flux = np.array([3, 1, 2]), np.array([0.3, 0.1, 0.2])
    measure._compare(exposure, "DiaSource", np.sort(keys), np.sort(flux), keys, flux)
    with pytest.raises(demo.CheckError, match="not the same ones"):
        measure._compare(exposure, "DiaSource", np.sort(keys), np.sort(flux), keys, flux + [0, 0, 1e-9])


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


@pytest.mark.parametrize(("module", "package"), [("numpy", "numpy"), ("pyarrow", "pyarrow"), ("yaml", "PyYAML")])
def test_without_a_package_one_sentence_says_what_to_install(module: str, package: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None\nfrom chronotile import demo\ndemo.run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(f"MissingPackageError: the demo needs {package}: pip install 'chronotile[demo]'")


def test_same_seed_makes_the_same_survey() -> None:
    first, second, other = (stars.Survey(1, seed, 4) for seed in (3, 3, 4))
    one, two, three = (survey.observe(survey.exposures[0], NOTHING).sources for survey in (first, second, other))
    assert set(one.column_names) <= set(stars.SCHEMA["DiaSource"].column_names)
    assert one == two
    assert one["ra"] != three["ra"]


def test_density_is_uneven_and_detections_lie_in_the_footprint() -> None:
    survey = stars.Survey(1, 1, 36)
    counts = []
    for exposure in survey.exposures:
        sources = survey.observe(exposure, NOTHING).sources
        inside = exposure.footprint().contains(sources["ra"], sources["dec"])
        assert [bool(held) for held in inside.to_pylist()] == [True] * len(sources["ra"])
        counts.append(len(sources["ra"]))
    assert max(counts) > 5 * min(counts)
