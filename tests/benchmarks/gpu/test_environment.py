"""Which kernels count as fused attention."""

from __future__ import annotations

import pytest

from benchmarks.gpu.environment import is_fused


@pytest.mark.parametrize(
    ("kernels", "fused"),
    [
        (["31 us cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "2 us add"], True),
        (["9 us void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>"], True),
        (["88 us fmha_cutlassF_bf16_aligned_64x64_rf_sm80"], False),  # memory-efficient
        (["40 us softmax_warp_forward", "30 us sm90_xmma_gemm_bf16"], False),
        ("RuntimeError: no available kernel: flash attention is switched off", False),
    ],
)
def test_only_cudnn_and_flash_count(kernels, fused):
    assert is_fused(kernels) is fused
