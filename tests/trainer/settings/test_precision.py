from collections.abc import Iterator

import pytest
import torch

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import refuses
from trainer.distributed.world import apply_whole_fp32, resolve_precision, uses_tf32


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
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
    with refuses(ConfigError, "SL-fp16-cpu"):
        resolve_precision(Config(run="r", precision="fp16"), "cpu")
