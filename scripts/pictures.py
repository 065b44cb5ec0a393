"""Takes the documentation's screenshots of pages with a headless browser: `./dev pictures`.

Screenshots are 1200 pixels wide with a palette of 256 colours, so that a clone stays small.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image
from support_browser import NAMES, Browser, find_browser
from support_service import Service

from chronotile import demo

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH_PIXELS = 1200
SECTIONS = 3
"""Number of sections of the demo's page in its screenshot: the map, the light curve and the times."""
SERVICE_SECTIONS = 4
DAY = datetime(2026, 1, 1, tzinfo=UTC)
UNCERTAIN, BAD = 0x40000000, 0x80000000
"""Status codes of OPC UA."""
COLOURS = 256
BYTES_MAX = 150_000


def main() -> None:
    program = find_browser()
    if program is None:
        sys.exit(f"no browser found: install one of {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcome = demo.run(out=folder / "demo")
        plant = Service(folder / "plant.db", folder / "service.log")
        with plant, Browser(program, folder / "profile") as browser:
            photograph(browser, outcome.page.resolve().as_uri(), SECTIONS, folder / "demo.png")
            photograph(browser, f"{plant.url}/?{urlencode(fill(plant))}", SERVICE_SECTIONS, folder / "service.png",
                       shows=("#latest tbody tr", "#datasets tbody tr"))  # fmt: skip
        for name in ("demo.png", "service.png"):
            write_small(folder / name, IMAGES / name)


def fill(service: Service) -> list[tuple[str, str]]:
    """Store a day of a boiler's data through a service; returns the query parameters of its page for that day."""
    tags = [
        {"name": "boiler.temperature", "unit": "degC"},
        {"name": "boiler.pressure", "unit": "bar"},
        {"name": "mill.running", "data_type": "bool"},
    ]
    for path, body in (("/v1/tags", {"tags": tags}), ("/v1/points", list(points()))):
        answer = service.ask("POST", path, body=body)
        if answer.status != 200:
            sys.exit(f"{path}: {answer.error}")
    end = DAY + timedelta(days=1)
    shown = [("tag", "boiler.temperature"), ("tag", "boiler.pressure")]
    return [*shown, ("start", DAY.isoformat()), ("end", end.isoformat())]


def points() -> Iterator[dict[str, Any]]:
    """A value of two tags for each minute: some have status Uncertain, and one hour has status Bad."""
    for minute in range(1_440):
        moment = (DAY + timedelta(minutes=minute)).isoformat()
        status = UNCERTAIN if 300 <= minute < 400 else BAD if 700 <= minute < 760 else 0
        temperature, pressure = 80 + 5 * math.sin(minute / 90), 60 + 10 * math.cos(minute / 200)
        for tag, value in (("boiler.temperature", temperature), ("boiler.pressure", pressure)):
            yield {"tag": tag, "time": moment, "value": None if status == BAD else value, "status": status}


def photograph(browser: Browser, address: str, sections: int, to: Path, *, shows: tuple[str, ...] = ()) -> None:
    """Take a screenshot of a page down to the end of its first `sections` sections. Waits until the page has an element
    for each selector in `shows`.
    """
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=WIDTH_PIXELS, height=900, deviceScaleFactor=1, mobile=False
    )
    browser.call("Emulation.setScrollbarsHidden", hidden=True)
    browser.call("Page.navigate", url=address)
    browser.run("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")
    browser.run("document.fonts.ready.then(() => true)")
    for selector in shows:
        wait_for(browser, selector)
    if complaints := browser.complaints():
        sys.exit(f"{address}: {complaints}")
    end = browser.run(f"document.querySelectorAll('section')[{sections - 1}].getBoundingClientRect().bottom + 16")
    clip = {"x": 0, "y": 0, "width": WIDTH_PIXELS, "height": round(end), "scale": 1}
    picture = browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    to.write_bytes(base64.b64decode(picture["data"]))


def wait_for(browser: Browser, selector: str) -> None:
    """Wait until the page has an element."""
    for _ in range(100):
        if browser.run(f"document.querySelector({json.dumps(selector)}) != null"):
            return
        time.sleep(0.1)
    sys.exit(f"the page shows no {selector}: correct scripts/pictures.py")


def write_small(picture: Path, to: Path) -> None:
    """Write the picture with a palette that keeps rare colours. Dithering would blur text and double the size."""
    with Image.open(picture) as whole:
        small = whole.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
        )
        small.save(to, optimize=True)
    size = to.stat().st_size
    print(f"{to.relative_to(ROOT)}: {whole.width} x {whole.height} pixels, {size:,} bytes")
    if size > BYTES_MAX:
        sys.exit(f"{to.name} has more than {BYTES_MAX:,} bytes: show less on the page or use fewer colours")


if __name__ == "__main__":
    main()
