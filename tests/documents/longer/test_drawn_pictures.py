"""The pictures that are drawn from tables: as they are committed, and true to what the trainer and torch do."""

import pytest

from docs.building.pictures import DRAWN, FOLDER
from docs.building.prediction_picture import _ask, group_causes
from docs.building.schedules_picture import MICRO_BATCHES, RANKS, arrange, count_kept, find_idle_pct
from stratlab.predict import Prediction
from stratlab_spec.strategies import STRATEGIES
from tests.trainer.wire_formulas import textbook_bytes

MOST_BYTES = 30_000


@pytest.mark.parametrize("name", DRAWN)
def test_it_is_as_make_schema_writes_it(name):
    drawn = DRAWN[name]()
    assert (FOLDER / name).read_text() == drawn, "make schema"
    assert len(drawn.encode()) <= MOST_BYTES


def test_idle_time_and_kept_activations_are_those_of_the_formulas():
    """Narayanan et al., arXiv 2104.04473, section 2.2."""
    wanted = {"gpipe": (1, MICRO_BATCHES), "1f1b": (1, RANKS), "interleaved1f1b": (2, 5.5)}
    for name, (stages, kept) in wanted.items():
        cells = arrange(name)
        idle = (RANKS - 1) / (stages * MICRO_BATCHES + RANKS - 1)
        assert find_idle_pct(cells) == pytest.approx(100 * idle) and count_kept(cells) == kept


@pytest.mark.parametrize("name", [name for name, row in STRATEGIES.items() if row.wire])
def test_collectives_of_the_picture_send_what_the_table_of_bytes_says(name):
    """In a step of one micro-batch an all-reduce sends twice what a gather or a scatter sends. DeepSpeed 0.19.8
    all-reduces where the paper reduces, which is once more."""
    ranks, weight = 4, {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
    row = STRATEGIES[name]
    kinds = [each.partition(" ") for phase in row.collectives.values() for each in phase]
    sent = sum(weight[kind] for kind, _, where in kinds if where != "across")
    paper = textbook_bytes(name, 1000, ranks) / (1000 * (ranks - 1) / ranks)
    assert sent == pytest.approx(paper + (row.deepspeed_stage in (1, 2)))


def test_bars_of_predict_are_as_long_as_what_a_device_needs():
    known = [one for one in _ask() if isinstance(one, Prediction)]
    assert len(known) == 9
    for one in known:
        groups = group_causes(one)
        assert sum(groups.values()) == pytest.approx(one.needs_gib) and min(groups.values()) >= 0
