"""What the demo runs, and what it says without a chart. All of it: tests/nightly/rehearsals/test_documents.py."""

import os
from pathlib import Path

from stratlab.commands.local import SETTINGS, STRATEGIES, demo, find_chart
from stratlab.rehearsal import RunEnd
from tests.codes import find_codes
from tests.stratlab.raised import raised

ROOT = Path(__file__).parents[3]


def test_a_chart_is_a_folder_or_the_newest_package(tmp_path):
    for age, name in enumerate(("ddp-0.2.0.tgz", "ddp-0.10.0.tgz", "ddp-extra-1.0.0.tgz")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    assert find_chart(tmp_path, "ddp") == tmp_path / "ddp-0.10.0.tgz"
    assert find_chart(ROOT / "charts", "ddp") == ROOT / "charts/ddp"
    assert find_codes(raised(find_chart, tmp_path, "fsdp")) == ["SL-demo-no-chart"]


def test_it_compares_what_it_has_run_and_nothing_that_failed(monkeypatch, tmp_path, capsys):
    from stratlab.commands import compare as comparing
    from stratlab.commands import local as rehearsing

    called = []
    code = 0

    def run_request(request):
        called.append([path.name for path in request.charts])
        assert request.replace and request.settings == SETTINGS
        return [RunEnd("ddp", request.results / "demo/ddp", code)]

    monkeypatch.setattr(rehearsing, "run_request", run_request)
    monkeypatch.setattr(comparing, "compare", lambda folder, **_: called.append(folder))
    demo(ROOT / "charts", tmp_path)
    assert called == [list(STRATEGIES), [tmp_path / "runs" / "demo"]]
    assert capsys.readouterr().out == "", "the comparison names the commands, once"
    code = 7
    assert raised(demo, ROOT / "charts", tmp_path).exit_code == 7 and len(called) == 3
