"""Takes the screenshots in this folder from a running server; needs Playwright and Chromium.

endx train --config=quickstart && endx serve --workdir=runs/quickstart
python docs/images/take.py http://127.0.0.1:8000 "How do I send an email?"
"""

import pathlib
import shutil
import sys
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

FOLDER = pathlib.Path(__file__).parent
# Width and height of the window in CSS pixels, device pixels per CSS pixel, and search mode, by file.
SHOTS = {"search.png": (1000, 760, 2, "hybrid")}


def take(address: str, question: str, where: str = "") -> None:
    """Writes the screenshots of `SHOTS`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height, scale, mode) in SHOTS.items():
            viewport = {"width": width, "height": height}
            page = browser.new_page(viewport=viewport, device_scale_factor=scale, color_scheme="light")
            for _ in range(2):  # the first search in a mode takes longer
                page.goto(f"{address}/?{urlencode({'q': question, 'mode': mode, 'where': where})}")
                page.locator("#answers > li").first.wait_for()
            page.screenshot(path=FOLDER / name)
        browser.close()


if __name__ == "__main__":
    take(*sys.argv[1:])
