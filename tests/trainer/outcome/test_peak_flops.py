"""Peaks by exact names. The numbers are the makers' data sheets', dense."""

from __future__ import annotations

import pytest

from trainer.metrics.summary import PEAK_FLOPS, read_peak_flops

BF16_TFLOPS = {
    "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA A10": 125, "NVIDIA A10G": 70, "NVIDIA L40": 181,
    "NVIDIA L4": 121,
}  # fmt: skip


def test_cards_whose_names_hold_each_other_are_told_apart() -> None:
    found = {name: read_peak_flops(name, "bf16") for name in BF16_TFLOPS}
    assert found == {name: tflops * 1e12 for name, tflops in BF16_TFLOPS.items()}


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # a seventh of the card
        "NVIDIA H100",
        "",
    ],
)
def test_a_name_that_no_data_sheet_has_has_no_peak(name: str) -> None:
    assert all(read_peak_flops(name, precision) is None for precision in ("bf16", "fp16", "fp32"))


def test_what_a_card_cannot_compute_in_has_no_peak() -> None:
    assert read_peak_flops("Tesla V100-SXM2-32GB", "bf16") is None
    assert read_peak_flops("Tesla V100-SXM2-32GB", "fp16") == 125e12
    assert read_peak_flops("Tesla V100-PCIE-16GB", "fp16") == 112e12
    assert read_peak_flops("Tesla T4", "bf16") is None and read_peak_flops("Tesla T4", "fp16") == 65e12


def test_fp32_is_without_tensor_cores() -> None:
    found = {
        name: read_peak_flops(name, "fp32") for name in ("NVIDIA H100 PCIe", "NVIDIA L40", "NVIDIA A10G")
    }
    assert found == {"NVIDIA H100 PCIe": 51e12, "NVIDIA L40": 90.5e12, "NVIDIA A10G": 35e12}
    assert all(peaks["fp32"] < peaks["fp16"] for peaks in PEAK_FLOPS.values())
