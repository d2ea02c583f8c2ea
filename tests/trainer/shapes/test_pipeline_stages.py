"""Layers of each stage of a pipeline."""

from __future__ import annotations

from stratlab_spec.models.decoder import split_layers


def test_layers_left_over_go_to_the_first_stages():
    assert [len(part) for part in split_layers(36, 5)] == [8, 7, 7, 7, 7]
    assert [i for part in split_layers(7, 3) for i in part] == list(range(7))
    assert split_layers(4, 1) == [range(4)]
