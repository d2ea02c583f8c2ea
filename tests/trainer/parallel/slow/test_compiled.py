from __future__ import annotations

import pytest

from tests.trainer.parallel.ranks.test_compiled import compare_with_eager


@pytest.mark.parametrize("name", ["pp2 selective, bf16", "cp2 packed"])
def test_first_gradients_are_those_of_eager_layers(name):
    compare_with_eager(name)
