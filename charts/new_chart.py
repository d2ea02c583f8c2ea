"""Makes the folder of a new strategy chart.

    python charts/new_chart.py zero3 --describe "DeepSpeed ZeRO-3: everything sharded"      # or: make chart NAME=zero3

Then edit charts/zero3/values.yaml, run `make golden`, and review the diff of tests/charts/golden.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

CHARTS = Path(__file__).parent
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")

CHART = """\
apiVersion: v2
name: {name}
description: {description}
version: 0.1.0
appVersion: 0.1.0
kubeVersion: ">=1.29.0-0"
maintainers:
  - name: stratlab maintainers
# charts/run in here is a link to the library. `helm dependency update` leaves a packed copy beside it, which Helm 3
# prefers and which goes stale: remove charts/run-*.tgz again.
dependencies:
  - name: run
    version: 0.1.0
    repository: file://../run
"""
VALUES = """\
run:
  processesPerNode: {processes}
  config:
    strategy: {strategy}
"""

# The same bytes in every strategy chart. The schema refuses what is not under `run`: Helm would ignore it.
FIXED = {
    "templates/run.yaml": '{{ include "run.render" . }}\n',
    "templates/NOTES.txt": '{{ include "run.notes" . }}\n',
    "values.schema.json": '{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", '
    '"additionalProperties": false, "properties": {"run": {"type": "object"}, "global": {"type": "object"}}}\n',
}
# The library itself, never a copy of it: an archive made by `helm dependency build` goes stale silently.
LIBRARY = Path("charts/run")
LIBRARY_TARGET = Path("../../run")


def build_chart(charts: Path, name: str, *, description: str, strategy: str, processes: int = 2) -> Path:
    """Writes the folder `charts`/`name`.

    Raises:
        ValueError: the name cannot name a chart and a release, or is taken.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"NAME={name}: use a-z, 0-9 and -, start with a letter, at most 40 characters [SL-chart-name]"
        )
    folder = charts / name
    if folder.exists():
        raise ValueError(f"NAME={name}: {folder} is there already [SL-chart-taken]")
    texts = {
        "Chart.yaml": CHART.format(name=name, description=json.dumps(description)),
        "values.yaml": VALUES.format(strategy=strategy, processes=processes),
        **FIXED,
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / LIBRARY).parent.mkdir()
    (folder / LIBRARY).symlink_to(LIBRARY_TARGET, target_is_directory=True)
    return folder


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="new_chart", description="Makes the folder of a new strategy chart."
    )
    parser.add_argument("name")
    parser.add_argument("--describe", default="", help="one sentence for Chart.yaml")
    parser.add_argument("--strategy", help="value of run.config.strategy; the name of the chart if left out")
    given = parser.parse_args(arguments)
    strategy = given.strategy or given.name
    try:
        folder = build_chart(
            CHARTS, given.name, description=given.describe or f"Strategy {strategy}.", strategy=strategy
        )
    except ValueError as failure:
        print(failure, file=sys.stderr)
        return 2
    print(f"{folder}: edit values.yaml, then `make golden`")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
