"""Take the pictures of the documentation in a real browser.

    make pictures        # after `make demo`; needs chromium

gpu.png shows the kept runs of an H200 (tests/data/runs/h200) and needs no demo. The other pictures show the demo.
Headless Chromium opens local pages only; MLflow is the demo's own server on the demo's store.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from docs.pictures.devtools import Page, open_browser
from stratlab.api import compare
from stratlab.tracking import find_places
from stratlab.tracking_server import run_server

FOLDER = Path(__file__).parent
H200 = Path(__file__).parents[2] / "tests/data/runs/h200"
# on MLflow's page: the panel at the right, its note about views, and the tools that every chart shows without a mouse
IN_THE_WAY = (
    """[...document.querySelectorAll('button[aria-label="Close"], button[aria-label="Hide banner"]')]"""
)
NO_TOOLS = (
    "document.head.insertAdjacentHTML('beforeend', '<style>.modebar {display: none !important}</style>')"
)
DRAWN = "document.querySelectorAll('.js-plotly-plot').length"


def take_page(page: Page, url: str, path: Path) -> None:
    """Take the top of a page that stratlab has written."""
    page.open(url)
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    save(page, path)


def take_charts(page: Page, url: str, path: Path) -> None:
    """Take MLflow's page of runs, with the charts of the comparison's view."""
    page.open(url)
    page.wait(f"{DRAWN} >= 4 && {IN_THE_WAY}.length > 0")
    page.run(f"{NO_TOOLS}; {IN_THE_WAY}.forEach(b => b.click()); 0")
    time.sleep(5)  # its own animations, and the charts again in the width that is free now
    save(page, path)


def save(page: Page, path: Path) -> None:
    page.take(path)
    print(f"{path.name}: {path.stat().st_size >> 10} KiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "demo", type=Path, nargs="?", default=Path("demo-results"), help="what `make demo` left"
    )
    demo: Path = parser.parse_args().demo.resolve()
    with tempfile.TemporaryDirectory() as folder, open_browser(1120, 1330) as page:
        compare(H200, output=Path(folder))
        take_page(page, (Path(folder) / "report.html").as_uri(), FOLDER / "gpu.png")
    runs = sorted(path.parent for path in demo.glob("runs/demo/*/mlflow.json"))
    if not runs or not (demo / "report.html").is_file():
        print(f"{demo}: holds no demo; run `make demo` first", file=sys.stderr)
        return 2
    slowest = max(runs, key=lambda run: json.loads((run / "summary.json").read_text())["step_time_ms_p50"])
    with open_browser(1120, 1900) as page:
        take_page(page, (demo / "report.html").as_uri(), FOLDER / "comparison.png")
        take_page(page, (slowest / "analysis/report.html").as_uri(), FOLDER / "report.png")
    with run_server(demo / "mlflow") as server, open_browser(1400, 1560) as page:
        (place,) = (place for experiment, place in find_places(server) if experiment == "demo")
        take_charts(page, f"{server}/{place}", FOLDER / "mlflow.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
