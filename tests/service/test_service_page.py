"""The page of the service, in a real browser, by mouse and by keyboard alone."""

from __future__ import annotations

import base64
import csv
import io
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support_browser import NAMES, Browser, find_browser
from support_service import Service

from chronotile import historian

S = 10**9
START = datetime(2026, 1, 1, tzinfo=UTC)
START_NS = int(START.timestamp()) * S
LINK = "?start=2026-01-01T00:00:00Z&end=2026-01-02T00:00:00Z"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A day of a plant: some Good, some Uncertain, some Bad."""
    folder = tmp_path_factory.mktemp("page")
    minutes = np.arange(1440)
    status = np.zeros(1440, "uint32")
    status[300:400] = historian.UNCERTAIN
    status[700:760] = historian.BAD
    with historian.open(folder / "plant.db") as h:
        h.define("boiler.temperature", unit="degC", description="feed <b>water</b>")
        h.define("boiler.pressure", unit="bar")
        h.define("mill.running", data_type="bool")
        times = START_NS + minutes * 60 * S
        for name, values in (
            ("boiler.temperature", 80 + 5 * np.sin(minutes / 90)),
            ("boiler.pressure", 60 + 10 * np.cos(minutes / 200)),
        ):
            h.write({"tag": [name] * 1440, "time": times, "value": values, "status": status})
        h.write({"tag": ["mill.running"] * 2, "time": ["2026-01-01", "2026-01-01T12:00"], "value": [True, False]})
    with Service(folder / "plant.db", folder / "log") as service:
        yield service


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser of this machine."""
    program = find_browser()
    if program is None:
        pytest.skip(f"NO BROWSER: the page was not looked at; install one of {', '.join(NAMES)}")
    with Browser(program, tmp_path / "profile") as browser:
        yield browser


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + 30
    while not browser.run(f"Boolean({condition})"):
        page = browser.run("document.body?.innerText")
        assert time.monotonic() < end, f"{condition} did not come about:\n{page}\n{browser.complaints()}"
        time.sleep(0.02)


def opened(browser: Browser, url: str) -> None:
    browser.call("Page.navigate", url=url)
    wait(browser, "document.querySelector('#state')?.textContent.startsWith('ready')")


def shown(browser: Browser) -> tuple[datetime, datetime]:
    start, end = browser.run("[document.querySelector('#start').value, document.querySelector('#end').value]")
    parse = lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC)  # noqa: E731
    return parse(start), parse(end)


def test_the_keyboard_alone_finds_plots_and_zooms(service: Service, browser: Browser) -> None:
    opened(browser, f"{service.url}/{LINK}")
    wait(browser, "document.querySelectorAll('#found li').length === 3")
    browser.press("/")
    assert browser.run("document.activeElement.id") == "find"
    for letter in "temp":
        browser.press(letter)
    wait(browser, "document.querySelectorAll('#found li').length === 1")
    browser.press("Enter")
    wait(browser, "document.querySelector('#plot path.line')?.getAttribute('d').length > 1000")
    assert browser.run("document.querySelector('#found li').getAttribute('aria-selected')") == "true"
    wait(browser, "document.querySelector('#latest-rows').innerText.includes('degC')")
    kinds = set(browser.run("[...document.querySelectorAll('#plot rect')].map(r => r.getAttribute('class'))"))
    assert kinds == {"good", "uncertain", "bad"}
    while browser.run("document.activeElement.id") != "plot":
        browser.press("Tab")
    assert shown(browser) == (START, START + timedelta(days=1))
    browser.press("+")
    assert shown(browser) == (START + timedelta(hours=6), START + timedelta(hours=18))
    browser.press("ArrowRight")
    assert shown(browser) == (START + timedelta(hours=9), START + timedelta(hours=21))
    browser.press("0")
    browser.press("0")
    assert shown(browser) == (START, START + timedelta(days=1))
    assert browser.complaints() == []


def test_the_mouse_zooms_and_aggregates_and_datasets_are_shown(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    opened(browser, f"{service.url}/{LINK}&tag=boiler.temperature&tag=boiler.pressure")
    wait(browser, "document.querySelectorAll('#plot path.line').length === 2")
    browser.screenshot(tmp_path / "page.png")
    box = browser.run(
        "(({left, top, width}) => [left, top, width])(document.querySelector('#plot').getBoundingClientRect())"
    )
    left, top, width = box
    browser.drag((left + width / 3, top + 60), (left + width / 2, top + 60))
    wait(browser, "!document.querySelector('#back').disabled")
    start, end = shown(browser)
    assert timedelta(hours=3) < end - start < timedelta(hours=6)
    assert START < start < end
    browser.run("document.querySelector('#aggregate').value = 'Maximum'")
    browser.run("document.querySelector('#interval').value = '1h'")
    browser.run("document.querySelector('#range').requestSubmit()")
    wait(browser, "/\\(([4-7])\\)/.test(document.querySelector('#legend').innerText)")
    browser.run("document.querySelector('[aria-label=\"Count historian_main_float\"]').click()")
    wait(browser, "document.querySelector('#dataset-rows').innerText.includes('2,882')")
    assert "2026-01-01" not in browser.run("document.querySelector('#error').textContent")
    assert browser.run("document.querySelector('#error').hidden")
    assert browser.complaints() == []


def test_the_time_axis_has_marks_with_room_for_them_on_any_screen(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    link = LINK.replace("2026-01-02", "2026-01-08")
    opened(browser, f"{service.url}/{link}&tag=boiler.temperature")
    wait(browser, "document.querySelector('#plot path.line')")
    browser.screenshot(tmp_path / "week.png")
    marks = browser.run("[...document.querySelectorAll('#plot text')].map(t => t.textContent)")
    assert [text for text in marks if text.startswith("01-")] == ["01-01", "01-03", "01-05", "01-07"]
    for width in (240, 282, 500, 1200):
        for seconds in (2, 45, 600, 5_400, 86_400, 7 * 86_400, 31 * 86_400, 400 * 86_400, 25 * 365 * 86_400):
            for shift in (0, 0.3, 0.7):
                start, span = int(START.timestamp() * 1000) + int(shift * seconds * 1000), seconds * 1000
                marks = browser.run(f"timeTicks({start}, {start + span}, {width}).map(([time]) => time)")
                assert 1 <= len(marks) <= 9, (width, seconds, marks)
                assert len(marks) > 1 or width < 282, (width, seconds, marks)
                gaps = [(late - early) / span * width for early, late in pairwise(marks)]
                assert all(gap >= 66 for gap in gaps), (width, seconds, gaps)


def periods(browser: Browser) -> str:
    text: str = browser.run("document.querySelector('#plot .period').textContent")
    return text


def test_a_page_without_a_link_opens_where_the_data_are_and_its_address_holds_the_view(
    service: Service, browser: Browser, tmp_path: Path
) -> None:
    opened(browser, service.url)
    wait(browser, "document.querySelector('#plot path.line')?.getAttribute('d').length > 100")
    start, end = shown(browser)
    newest = START + timedelta(minutes=1439)
    assert start < newest < end < newest + timedelta(minutes=1)
    assert "2026-01-01" in periods(browser)
    assert periods(browser).endswith("UTC")
    assert browser.run("document.querySelector('#empty').hidden")
    # What is set is in the address, and a page that is opened with it shows the same.
    browser.run("document.querySelector('#aggregate').value = 'Maximum'")
    browser.run("document.querySelector('#interval').value = '2h'")
    browser.run("document.querySelector('#zone').value = 'local'")
    browser.run("document.querySelector('#range').requestSubmit()")
    browser.run("document.querySelector('#zone').dispatchEvent(new Event('change'))")
    wait(browser, "location.search.includes('Maximum')")
    view = "[state.start, state.end, state.chosen.map(tag => tag.name), csvText()]"
    wait(browser, "csvText().split('\\n').length < 20")
    before, address = browser.run(view), browser.run("location.href")
    assert before[2] == ["boiler.pressure"]
    opened(browser, address)
    wait(browser, "document.querySelector('#plot path.line') && csvText().split('\\n').length < 20")
    assert browser.run(view) == before
    # A period without data says so, and leads back.
    browser.run("show(Date.UTC(2020, 0, 1), Date.UTC(2020, 0, 2))")
    wait(browser, "!document.querySelector('#empty').hidden")
    browser.run("document.querySelector('#fit').click()")
    wait(browser, "document.querySelector('#empty').hidden")
    assert browser.complaints() == []


def test_times_are_shown_in_local_time_on_demand_on_either_side_of_a_change_to_summer_time(
    service: Service, browser: Browser
) -> None:
    browser.call("Emulation.setTimezoneOverride", timezoneId="Europe/Berlin")
    opened(browser, f"{service.url}/{LINK}&tag=boiler.temperature&zone=local")
    wait(browser, "document.querySelector('#plot path.line')")
    assert periods(browser) == "2026-01-01 01:00:00 to 2026-01-02 01:00:00, Europe/Berlin"
    assert browser.run("document.querySelector('#start').value").startswith("2026-01-01T01:00")
    assert "2026-01-02 00:59:00" in browser.run("document.querySelector('#latest-rows').innerText")
    assert browser.run("document.querySelector('#latest th .zone').textContent") == "local"
    browser.run("document.querySelector('#range').requestSubmit()")
    assert browser.run("state.start") == int(START.timestamp() * 1000), "what the field says is read as it was written"
    night = "Date.UTC(2026, 2, 28, 12)", "Date.UTC(2026, 2, 29, 12)"
    marks = browser.run(f"timeTicks({night[0]}, {night[1]}, 1200)")
    hours = [text for _, text in marks]
    assert "03-29" in hours
    assert all(text == "03-29" or int(text[:2]) % 3 == 0 for text in hours), hours
    assert all(late > early for (early, _), (late, _) in pairwise(marks))


def test_what_is_shown_is_saved_as_csv_and_as_a_picture(service: Service, browser: Browser, tmp_path: Path) -> None:
    opened(browser, f"{service.url}/{LINK}&tag=boiler.temperature&tag=boiler.pressure&aggregate=Count&interval=6h")
    wait(browser, "document.querySelectorAll('#plot path.line').length === 2")
    rows = list(csv.DictReader(io.StringIO(browser.run("csvText()"), newline="")))
    assert [row["tag"] for row in rows] == ["boiler.temperature"] * 4 + ["boiler.pressure"] * 4
    assert rows[0]["time"] == "2026-01-01T00:00:00.000Z"
    assert rows[0]["unit"] == "degC"
    assert rows[3]["quality"].startswith("Good")
    assert rows[0]["quality"].startswith("Uncertain")
    text = "Array.from(new Uint8Array(bytes), byte => String.fromCharCode(byte)).join('')"
    picture = base64.b64decode(browser.run(f"picture().then(blob => blob.arrayBuffer()).then(bytes => btoa({text}))"))
    assert picture.startswith(b"\x89PNG")
    (tmp_path / "saved.png").write_bytes(picture)
    assert len(picture) > 10_000
    assert browser.run("fileName('csv')") == "boiler.temperature-2026-01-01.csv"
    assert browser.complaints() == []


def test_nodes_are_shown_and_their_figures_plotted(tmp_path: Path, browser: Browser) -> None:
    now = datetime.now(UTC)
    figures = {
        ("10.0.0.1", "up"): 1.0, ("10.0.0.1", "cql"): 1.0, ("10.0.0.1", "load"): 3 * 2.0**30,
        ("10.0.0.1", "latency_p99/Read"): 4.5678, ("10.0.0.2", "up"): 0.0, ("10.0.0.2", "cql"): 0.0,
    }  # fmt: skip
    with historian.open(tmp_path / "plant.db") as h:
        h.define_many({"name": f"ops/plant/{node}/{metric}", "stepped": True} for node, metric in figures)
        for age in (60, 0):
            at = [now - timedelta(seconds=age)] * len(figures)
            tags = [f"ops/plant/{node}/{metric}" for node, metric in figures]
            h.write({"tag": tags, "time": at, "value": list(figures.values())})
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        opened(browser, service.url)
        wait(browser, "document.querySelectorAll('#node-rows tr').length === 2")
        rows = browser.run("[...document.querySelectorAll('#node-rows tr')].map(row => row.innerText)")
        assert "10.0.0.1" in rows[0]
        assert "up" in rows[0]
        assert "3.0 GiB" in rows[0]
        assert "4.57" in rows[0]
        assert "down" in rows[1]
        browser.run("document.querySelector('[aria-label=\"Plot Load of 10.0.0.1\"]').click()")
        wait(browser, "document.querySelector('#legend').innerText.includes('ops/plant/10.0.0.1/load')")
        browser.screenshot(tmp_path / "nodes.png")
        assert browser.complaints() == []


def test_a_page_without_a_link_opens_on_a_tag_that_has_points(tmp_path: Path, browser: Browser) -> None:
    with historian.open(tmp_path / "plant.db") as h:
        h.define("a.unused", unit="bar")
        h.define("b.used", unit="bar")
        h.write({"tag": ["b.used"] * 2, "time": ["2026-01-01", "2026-01-02"], "value": [1.0, 2.0]})
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        opened(browser, service.url)
        wait(browser, "document.querySelector('#plot path.line')")
        assert browser.run("state.chosen.map(tag => tag.name)") == ["b.used"]
        assert browser.complaints() == []


def test_the_page_asks_for_a_token_and_shows_what_is_wrong(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "tokens").write_text("ann read - read-0123456789abcdef\n")
    with Service(tmp_path / "plant.db", tmp_path / "log", "--tokens", str(tmp_path / "tokens")) as service:
        browser.call("Page.navigate", url=service.url)
        wait(browser, "document.querySelector('#error')?.textContent.includes('token')")
        assert browser.run("document.activeElement.id") == "token"
        for letter in "read-0123456789abcdef":
            browser.press(letter)
        browser.press("Enter")
        wait(browser, "document.querySelector('#error').hidden && document.querySelector('#dataset-rows').rows.length")
