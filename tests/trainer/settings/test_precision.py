from collections.abc import Iterator

import pytest
import torch

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.distributed.world import apply_whole_fp32, resolve_precision, uses_tf32


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Set back afterwards; torch lets nobody patch them."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def test_one_switch_for_tf32_is_enough_and_both_go_off() -> None:
    for cudnn, matmul in ((True, False), (False, True), (False, False)):
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = cudnn, matmul
        assert uses_tf32() is (cudnn or matmul)
        apply_whole_fp32()
        assert not uses_tf32()


def test_a_cpu_has_no_fp16() -> None:
    assert resolve_precision(Config(run="r", precision="auto"), "cpu").name == "fp32"
    with pytest.raises(ConfigError) as refused:
        resolve_precision(Config(run="r", precision="fp16"), "cpu")
    assert find_codes(refused.value) == ["SL-fp16-cpu"]
