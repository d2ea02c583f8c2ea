"""What a run is made of is not walked again by Python's collector, and is still seen by who looks for tensors."""

from __future__ import annotations

import gc

import pytest

from trainer.measuring.garbage import list_objects, set_aside


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_what_was_set_aside_is_still_listed():
    early: list = [[]]
    set_aside()
    late: list = [[]]
    found = {id(each) for each in list_objects()}
    assert {id(early), id(late)} <= found
    assert gc.get_freeze_count() > 0, "listing does not give it back to the collector"


def test_listing_sets_nothing_aside_by_itself():
    assert gc.get_freeze_count() == 0
    list_objects()
    assert gc.get_freeze_count() == 0
