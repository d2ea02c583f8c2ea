"""The Grafana dashboard of manifests/components/prometheus, as its queries."""

import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[3] / "manifests/components/prometheus/dashboard.json"
METRIC = re.compile(r"\bstratlab_\w+")


def read_dashboard() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def read_queries() -> dict[str, str]:
    """`title, A` -> PromQL, with every variable set to everything."""
    return {
        f"{panel['title']}, {target['refId']}": re.sub(r"\$(comparison|run)\b", ".*", target["expr"])
        for panel in read_dashboard()["panels"]
        for target in panel["targets"]
    }
