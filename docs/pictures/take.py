"""Take the pictures of the documentation in a real browser, from kept runs.

    make pages        # needs chromium

Headless Chromium opens local pages only; MLflow is a server of its own that gets the demo's runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from docs.pictures.devtools import Page, open_browser
from docs.pictures.shown_pages import FOLDER, draw_demo, draw_gpu, hash_given_to_mlflow, hash_page, write_mark
from stratlab.analysis.mlflow_upload import log_analysis
from stratlab.compare.publishing import log_comparison
from stratlab.tracking import find_places
from stratlab.tracking_server import run_server
from stratlab_spec.run_directory import RunDirectory
from trainer.launch.tensorboard import replay

# on MLflow's page: the panel at the right, its note about views, and the tools that every chart shows without a mouse
IN_THE_WAY = (
    """[...document.querySelectorAll('button[aria-label="Close"], button[aria-label="Hide banner"]')]"""
)
NO_TOOLS = (
    "document.head.insertAdjacentHTML('beforeend', '<style>.modebar {display: none !important}</style>')"
)
DRAWN = "document.querySelectorAll('.js-plotly-plot').length"


def take_page(page: Page, drawn: Path, path: Path, folder: Path) -> None:
    """Take the top of a page that stratlab has written in `folder`."""
    page.open(drawn.as_uri())
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    save(page, path, hash_page(drawn, folder))


def take_charts(page: Page, url: str, path: Path) -> None:
    """Take MLflow's page of runs, with the charts of the comparison's view."""
    page.open(url)
    page.wait(f"{DRAWN} >= 4 && {IN_THE_WAY}.length > 0")
    page.run(f"{NO_TOOLS}; {IN_THE_WAY}.forEach(b => b.click()); 0")
    time.sleep(5)  # its own animations, and the charts again in the width that is free now
    save(page, path, hash_given_to_mlflow())


def save(page: Page, path: Path, mark: str) -> None:
    page.take(path)
    write_mark(path, mark)
    print(f"{path.name}: {path.stat().st_size >> 10} KiB")


def fill_mlflow(comparison: Path, uri: str) -> None:
    """Give a server what the launcher, the analysis and `stratlab compare` gave theirs."""
    for run in sorted(path.parent for path in comparison.glob("*/metrics.jsonl")):
        replay(RunDirectory(comparison.parent, comparison.name, run.name), uri, {})
        log_analysis(run, json.loads((run / "analysis/report.json").read_text()), uri)
    log_comparison(
        json.loads((comparison / "report/report.json").read_text()), comparison / "report", uri, "demo"
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        with open_browser(1120, 1330) as page:
            take_page(page, draw_gpu(folder / "gpu"), FOLDER / "gpu.png", folder)
        pages = draw_demo(folder / "demo")
        with open_browser(1120, 1900) as page:
            for picture, drawn in pages.items():
                take_page(page, drawn, FOLDER / picture, folder)
        with run_server(folder / "mlflow") as server, open_browser(1400, 1560) as page:
            fill_mlflow(pages["comparison.png"].parents[1], server)
            (place,) = (place for experiment, place in find_places(server) if experiment == "demo")
            take_charts(page, f"{server}/{place}", FOLDER / "mlflow.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
