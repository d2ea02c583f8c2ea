"""Takes the pictures of the documentation: what the demo shows, in a real browser.

    make pictures        # after `make demo`; needs chromium

Pages are opened in headless Chromium from this machine only; MLflow is the demo's own server on the demo's store.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
from pathlib import Path

from docs.pictures.devtools import Page, open_browser
from stratlab.tracking.server import run_server

FOLDER = Path(__file__).parent
# on MLflow's page: only what differs, without the panel at the right
SWITCHES = "[...document.querySelectorAll('button[role=switch]')]"
CLOSE = "document.querySelector('button[aria-label=\"Close\"]')"
# its table of metrics has a window of its own, in which labels and values scroll apart: both are moved
TABLES = """[...document.querySelectorAll('div')].filter(
  d => d.scrollHeight > d.clientHeight + 5 && d.clientHeight > 100 && d.clientHeight < 600)"""
LABELS = "[...document.querySelectorAll('a')].filter(e => e.textContent.startsWith('trace/'))"
ROW_PX = 45


def take_page(page: Page, url: str, path: Path) -> None:
    """The top of a page of ours."""
    page.open(url)
    page.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    save(page, path)


def take_compare(page: Page, url: str, path: Path) -> None:
    """MLflow's comparison, where the numbers of the traces are."""
    page.open(url)
    page.wait(f"{SWITCHES}.length > 1 && {CLOSE} !== null")
    page.run(f"{CLOSE}.click(); {SWITCHES}.forEach(b => b.click()); 0")
    time.sleep(2)  # its own animations
    tops = f"{LABELS}.map(e => Math.round(e.getBoundingClientRect().top))"
    at, window = 0, page.run(f"{TABLES}[0].getBoundingClientRect().top")
    while not (found := page.run(tops)) or min(found) > window + ROW_PX:  # until they are at the top of it
        at += ROW_PX
        assert at < 10_000, "no metric of the traces on the page"
        for _ in range(3):  # moving one moves the other, a little late
            page.run(f"{TABLES}.forEach(d => {{d.scrollTop = {at}}}); 0")
            time.sleep(0.2)
    page.run(f"{SWITCHES}[0].scrollIntoView({{block: 'start'}}); 0")
    time.sleep(1)
    save(page, path)


def save(page: Page, path: Path) -> None:
    page.take(path)
    print(f"{path.name}: {path.stat().st_size >> 10} KiB")


def build_compare_url(server: str, runs: list[Path]) -> str:
    """The page on which MLflow shows the runs side by side."""
    found = [json.loads((run / "mlflow.json").read_text()) for run in runs]
    query = {
        "runs": json.dumps([entry["run_id"] for entry in found]),
        "experiments": json.dumps(sorted({str(entry["experiment_id"]) for entry in found})),
    }
    return f"{server}/#/compare-runs?{urllib.parse.urlencode(query)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "demo", type=Path, nargs="?", default=Path("demo-results"), help="what `make demo` left"
    )
    demo: Path = parser.parse_args().demo.resolve()
    runs = sorted(path.parent for path in demo.glob("runs/demo/*/mlflow.json"))
    if not runs or not (demo / "report.html").is_file():
        print(f"{demo}: holds no demo; run `make demo` first", file=sys.stderr)
        return 2
    slowest = max(runs, key=lambda run: json.loads((run / "summary.json").read_text())["step_time_ms_p50"])
    with open_browser(1120, 1900) as page:
        take_page(page, (demo / "report.html").as_uri(), FOLDER / "comparison.png")
        take_page(page, (slowest / "analysis/report.html").as_uri(), FOLDER / "report.png")
    with run_server(demo / "mlflow") as server, open_browser(1400, 1300) as page:
        take_compare(page, build_compare_url(server, runs), FOLDER / "mlflow.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
