"""What each rank holds, of every layout that is chosen for 1 to 32 processes."""

from __future__ import annotations

from tests.ranks import run_ranks
from tests.trainer.ranks.test_decoder_memory import DENSE, MOE, compare, config, narrowed
from trainer.layout.resolve import resolve_layout

PROCESSES = (1, 2, 3, 4, 6, 8, 12, 16, 32)


def list_layouts():
    """Every layout that is chosen for 1 to 32 processes, once."""
    seen = set()
    for model, dimensions in ((DENSE, (1, 2, 3, 4)), (MOE, (1, 4, 5))):
        for processes in PROCESSES:
            for number in dimensions:
                chosen = config(model, dimensions=number)
                name = resolve_layout(chosen, processes, narrowed(model)).name
                if (model, processes, name) not in seen:
                    seen.add((model, processes, name))
                    yield chosen, processes, narrowed(model)


def test_every_chosen_layout_at_the_published_widths():
    cases = list(list_layouts())
    assert len(cases) > 40
    run_ranks(lambda: compare(cases), 1, timeout_s=300)
