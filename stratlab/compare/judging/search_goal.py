"""What a search is ranked by: the first measure of learning that all its runs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.run_directory.files import is_number


@dataclass(frozen=True)
class Goal:
    """What a search is ranked by.

    Attributes:
        key: in the rows of the report; name: for sentences; unit: behind the number.
        highest: the highest value is best.
        samples: resolved fact that says on how many it was measured, of a share of them; "" = no share.
    """

    key: str
    name: str
    unit: str
    highest: bool
    samples: str = ""


GOALS = {  # the first that all runs have: what was chosen on the test split says less about it
    "image": (
        Goal("validation_accuracy_pct", "validation accuracy", "%", True, "validation_samples"),
        Goal("test_accuracy_pct", "test accuracy", "%", True, "test_samples"),
        Goal("validation_loss", "validation loss", "", False),
    ),
    "text": (
        Goal("validation_perplexity", "validation perplexity", "", False),
        Goal("test_perplexity", "test perplexity", "", False),
        Goal("validation_loss", "validation loss", "", False),
    ),
}


def choose_goal(rows: Sequence[Mapping[str, Any]]) -> Goal | None:
    tasks = {row["task"] for row in rows}
    if len(tasks) != 1:
        return None
    return next((goal for goal in GOALS[tasks.pop()] if all(is_number(row[goal.key]) for row in rows)), None)
