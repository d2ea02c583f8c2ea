"""Writes the pictures that are drawn from tables in code: `make schema`.

python -m docs.building.pictures    # docs/pictures/*.svg
"""

from __future__ import annotations

from pathlib import Path

from docs.building.prediction_picture import draw_prediction
from docs.building.schedules_picture import draw_schedules
from docs.building.strategies_picture import draw_strategies
from experiments.network.picture import draw_network

FOLDER = Path(__file__).parents[1] / "pictures"
DRAWN = {
    "strategies.svg": draw_strategies,
    "schedules.svg": draw_schedules,
    "predict.svg": draw_prediction,
    "network.svg": draw_network,
}


def main() -> None:
    """Writes all of them."""
    for name, draw in DRAWN.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    main()
