from __future__ import annotations

from stratlab.drawing.canvas import FILLS
from stratlab.predict.prediction_page import BESIDE, COLOURS
from trainer.counting.timeline import CAUSES


def test_every_cause_has_a_colour_of_its_own():
    assert set(COLOURS) == {*CAUSES, BESIDE}
    assert len(set(COLOURS.values())) == len(COLOURS) and max(COLOURS.values()) < FILLS
