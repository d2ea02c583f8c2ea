from __future__ import annotations

import gc

from trainer.measuring.held_tensors import list_objects, set_aside


def test_what_was_set_aside_is_not_collected_and_still_listed():
    early: list = [[]]
    set_aside()
    late: list = [[]]
    try:
        assert {id(early), id(late)} <= {id(each) for each in list_objects()}
        assert gc.get_freeze_count() > 0, "listing does not give it back to the collector"
    finally:
        gc.unfreeze()
    list_objects()
    assert gc.get_freeze_count() == 0, "listing sets nothing aside by itself"
