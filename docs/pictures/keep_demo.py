"""Keep the runs of a demo for the pictures of the documentation.

python -m docs.pictures.keep_demo demo-results    # after `make demo` on a quiet machine; then `make pages`
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.pictures.shown_pages import DEMO
from experiments.kept_runs import pack_runs


def main(demo: Path) -> None:
    pack_runs(demo / "runs/demo", DEMO, demo, with_traces=True)
    print(f"{DEMO.name}: {DEMO.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
