from __future__ import annotations

from stratlab.tables.image_sizes import say_image_size


def test_nought_is_told_as_what_it_means() -> None:
    assert say_image_size("vit_huge", 0) == "224 (the model's own)"
    assert say_image_size("vit_huge", 64) == "64"
    assert say_image_size("google/vit-base-patch16-224", 0) == "the model's own"
