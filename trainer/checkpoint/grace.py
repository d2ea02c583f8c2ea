"""Whether a stop leaves time for a last checkpoint, and what to set where it does not.

The grace period belongs to the release and cannot change while it runs; what a checkpoint takes is known only then.
"""

from __future__ import annotations

import math
import os

from trainer.settings.spelling import name_again

SHARE = 0.5
"""Of the time that a stop leaves the ranks, a checkpoint may take so much: the step before it takes time as well."""
MARGIN_S = 15
ROUND_TO_S = 30


def find_grace_problem(checkpoint_s: float, grace_s: int) -> str | None:
    """A sentence where a checkpoint that takes `checkpoint_s` is long for a grace period of `grace_s`."""
    ranks_s = grace_s - min(MARGIN_S, grace_s / 3)
    if checkpoint_s <= SHARE * ranks_s:
        return None
    wish = math.ceil((checkpoint_s / SHARE + MARGIN_S) / ROUND_TO_S) * ROUND_TO_S
    return (
        f"the last checkpoint took {checkpoint_s:.0f} s, and a stop leaves it {ranks_s:.0f} s of "
        f"TRAINER_GRACE_S={grace_s}: so that no step is lost, {name_again(os.environ)} with TRAINER_GRACE_S={wish} "
        "(under its name the run goes on) [SL-grace-short]"
    )
