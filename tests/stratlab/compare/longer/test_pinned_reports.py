"""Whole comparisons field by field against report.json as it was, beside the runs (tests/data/runs).

python -m tests.stratlab.compare.longer.test_pinned_reports    # pins them anew: a changed line is a changed behaviour
"""

import gzip
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab.api import compare
from tests.stratlab.compare.building import build, edit
from tests.stratlab.compare.sixteen_runs import build_sixteen
from tests.stratlab.example_numbers import THREE
from tests.stratlab.example_text import LACKING, LAYOUTS, build_text_run
from tests.stratlab.pinned import list_differences, read_pinned, reduce

DATA = THREE.parents[1]
PINNED = {
    "of_3": DATA / "comparison_of_3" / "report.json",
    "of_16": DATA / "comparison_of_16" / "report.json.gz",
    "of_layouts": DATA / "comparison_of_layouts" / "report.json.gz",
}
SPEEDS = {"llm-1d": 100.0, "llm-2d": 120.0, "llm-3d": 90.0, "llm-4d": 95.0, "llm-5d": 70.0}


def copy_three(root):
    return Path(shutil.copytree(THREE, root))


def build_layouts(root):
    """Of one language model; a name for what is another's layout, one that lacks what its name says, and images."""
    for name, speed in SPEEDS.items():
        run = build_text_run(root, name, LAYOUTS[name], device="cuda", samples_per_s=speed)
        edit(run / "summary.json", lambda summary: summary.update(peak_flops_per_device=1e12))
    build_text_run(root, "llm-again", replace(LAYOUTS["llm-4d"], dimensions=3), device="cuda", seed=1)
    smallest = {"parameter_memory_gib": 1e-9, "peak_memory_gib": 0.01, "samples_per_s": 900.0}
    build_text_run(root, "llm-lacking", LACKING, device="cuda", **smallest)
    return build(root, ["ddp"])


BUILT = {"of_3": copy_three, "of_16": build_sixteen, "of_layouts": build_layouts}


def build_report(name, root):
    """As report.json holds it, without what depends on where the runs lie and on how it is worded."""
    runs = BUILT[name](root / "demo")
    compare(runs, memory_limit_gib=1.5, output=root / "report")
    report = json.loads((root / "report" / "report.json").read_text())
    names = {row["run"] for row in report["runs"]}
    if name == "of_16":
        searched = compare(runs, varied="lr,micro_batch_size", baseline="ddp-a")
        report["as a search"] = {
            part: searched[part] for part in ("headline", "fairness", "search", "attribution")
        }
    found = reduce(report, names)
    return found


@pytest.mark.parametrize("name", PINNED)
def test_a_comparison_says_what_it_said(name, tmp_path):
    assert list(list_differences(build_report(name, tmp_path), read_pinned(PINNED[name]))) == []


def main():
    for name, path in PINNED.items():
        with tempfile.TemporaryDirectory() as folder:
            report = build_report(name, Path(folder))
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(part)}" for key, part in report.items())
        text = f"{{{lines}}}\n".encode()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
