"""Each helm refuses every value that nobody can mean; which one, tests/charts/test_bounds.py looks at in detail."""

from __future__ import annotations

from pathlib import Path

from tests.charts.bad_values import BAD, BAD_FOR_THE_CLUSTER, GOOD, build_values
from tests.charts.rendering import CHARTS, helm_template
from tests.charts.test_bounds import batches


def test_refused_and_taken(helm: Path) -> None:
    for batch in batches([*BAD, *BAD_FOR_THE_CLUSTER]):
        done = helm_template(helm, CHARTS / "ddp", values={"run": build_values(*batch)})
        assert done.returncode == 1 and not done.stdout
        between = "." if helm.name == "helm3" else "/"
        paths = [between.join(path.split(".")) for path, value in batch if not isinstance(value, dict)]
        assert [path for path in paths if path not in done.stderr] == []
    for batch in batches(GOOD):
        done = helm_template(helm, CHARTS / "ddp", values={"run": build_values(*batch)})
        assert done.returncode == 0, done.stderr
