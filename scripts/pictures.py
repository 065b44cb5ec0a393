"""Draws the pictures of the documentation that show pages, in a headless browser: `./dev pictures`.

Pictures are 1200 pixels wide and have a palette of 256 colours, so that a clone stays small.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from PIL import Image
from support_browser import NAMES, Browser, find_browser

from chronotile import demo

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH_PIXELS = 1200
SECTIONS = 3
"""Sections of the demo's page that its picture shows: the map, the light curve and the times."""
COLOURS = 256
BYTES_MAX = 150_000


def main() -> None:
    program = find_browser()
    if program is None:
        sys.exit(f"no browser found: install one of {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcome = demo.run(out=folder / "demo")
        with Browser(program, folder / "profile") as browser:
            photograph(browser, outcome.page.resolve().as_uri(), SECTIONS, folder / "page.png")
        write_small(folder / "page.png", IMAGES / "demo.png")


def photograph(browser: Browser, address: str, sections: int, to: Path) -> None:
    """The page at `address` down to the end of its first `sections`, as wide as pictures are."""
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=WIDTH_PIXELS, height=900, deviceScaleFactor=1, mobile=False
    )
    browser.call("Emulation.setScrollbarsHidden", hidden=True)
    browser.call("Page.navigate", url=address)
    browser.run("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")
    browser.run("document.fonts.ready.then(() => true)")
    if complaints := browser.complaints():
        sys.exit(f"{address}: {complaints}")
    end = browser.run(f"document.querySelectorAll('section')[{sections - 1}].getBoundingClientRect().bottom + 16")
    clip = {"x": 0, "y": 0, "width": WIDTH_PIXELS, "height": round(end), "scale": 1}
    picture = browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    to.write_bytes(base64.b64decode(picture["data"]))


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
