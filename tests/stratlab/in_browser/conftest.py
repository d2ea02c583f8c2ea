"""The pages that a user reads, of runs that never were: a run, comparisons of 3 and of 16 runs, a prediction."""

import pytest

from docs.pictures.devtools import open_browser
from stratlab.analysis.report_pages import build_html
from stratlab.analysis.run_facts import read_facts
from stratlab.compare.comparison import compare
from stratlab.compare.report_files import write_report
from stratlab.compare.run_sources import load_runs
from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.prediction_page import build_prediction_page
from stratlab_spec.memory import DEVICE_GIB
from tests.stratlab.analysis.example_report import build_example, build_example_ranks
from tests.stratlab.browser import serve
from tests.stratlab.compare.building import build

STRATEGIES = ("ddp", "fsdp", "single", "zero2")
PAGES = ("run", "three", "sixteen", "prediction")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("site")
    build(root / "runs" / "three", ("ddp", "fsdp", "zero2"))
    names = {f"{strategy}-with-seed-{seed}": {"seed": seed} for seed in range(4) for strategy in STRATEGIES}
    build(root / "runs" / "sixteen", names)
    for name in ("three", "sixteen"):
        runs = load_runs(root / "runs" / name)
        write_report(compare(runs, memory_limit_gib=1.5), runs, root / name).rename(root / f"{name}.html")
    tables = root / "run" / "analysis" / "tables" / "hta"
    tables.mkdir(parents=True)
    (tables / "temporal_breakdown.csv").write_text("rank,idle_time(us)\n0,1.5\n")
    (root / "run" / "config.json").write_text('{"run": "run"}')
    report = build_example(ranks=3, slow={1: 1.2})
    facts, ranks = read_facts(root / "run"), build_example_ranks(report)
    (root / "run.html").write_text(build_html(report, facts, ranks, root / "run" / "analysis"))
    answers = answer(ask_of_model("qwen2.5-3b", 8, ()), (), DEVICE_GIB, None)
    (root / "prediction.html").write_text(build_prediction_page(answers, DEVICE_GIB))
    return root


@pytest.fixture(scope="module")
def address(site):
    with serve(site) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with open_browser(1200, 900) as page:
        yield page


def show(browser, url):
    browser.open("about:blank")
    browser.wait("location.href === 'about:blank'")
    browser.open(url)
    browser.wait("document.readyState === 'complete' && document.querySelector('h1') !== null")
    browser.run("document.querySelectorAll('details').forEach(part => { part.open = true })")
