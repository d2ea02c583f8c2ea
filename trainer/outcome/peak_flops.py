"""The peak of a GPU that MFU is measured against: the dense one of its maker's data sheet, by the device's exact name.

A part of a name says too little: "L4" is in "NVIDIA L40", "H100" is three cards whose peaks differ by 30 %, and a
slice of an A100 carries the name of the whole card. A name that is not in the table has no known peak.
"""

from __future__ import annotations

TERA = 1e12


def _peaks(fp32: float, half: float, bf16: bool = True) -> dict[str, float]:
    """fp32: of the CUDA cores, without TF32. half: of the tensor cores with sums in fp32, without sparsity."""
    return {"fp32": fp32 * TERA, "fp16": half * TERA, **({"bf16": half * TERA} if bf16 else {})}


# sparsity doubles the tensor cores' number on most data sheets: halved here
_A100 = _peaks(19.5, 312)
_A30, _A40 = _peaks(10.3, 165), _peaks(37.4, 149.7)
_A10, _A10G = _peaks(31.2, 125), _peaks(35, 70)
_L4, _L40, _L40S = _peaks(30.3, 121), _peaks(90.5, 181), _peaks(91.6, 362)
_HOPPER_SXM, _HOPPER_NVL, _H100_PCIE = _peaks(67, 989), _peaks(60, 835), _peaks(51, 756)
_H20 = _peaks(44, 148)
_B200, _GB200 = _peaks(75, 2250), _peaks(80, 2500)
_V100_SXM, _V100_PCIE = _peaks(15.7, 125, bf16=False), _peaks(14, 112, bf16=False)
_V100S = _peaks(16.4, 130, bf16=False)
_T4 = _peaks(8.1, 65, bf16=False)

PEAK_FLOPS: dict[str, dict[str, float]] = {
    "NVIDIA B200": _B200,
    "NVIDIA GB200": _GB200,
    "NVIDIA H200": _HOPPER_SXM,
    "NVIDIA H200 NVL": _HOPPER_NVL,
    "NVIDIA GH200 120GB": _HOPPER_SXM,
    "NVIDIA GH200 480GB": _HOPPER_SXM,
    "NVIDIA GH200 144G HBM3e": _HOPPER_SXM,
    "NVIDIA H100 80GB HBM3": _HOPPER_SXM,
    "NVIDIA H100 NVL": _HOPPER_NVL,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H800": _HOPPER_SXM,
    "NVIDIA H20": _H20,
    "A100-SXM4-40GB": _A100,  # drivers before 455 leave the maker out
    "A100-PCIE-40GB": _A100,
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-SXM-64GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA A800-SXM4-80GB": _A100,
    "NVIDIA A800 80GB PCIe": _A100,
    "NVIDIA A40": _A40,
    "NVIDIA A30": _A30,
    "NVIDIA A10": _A10,
    "NVIDIA A10G": _A10G,
    "NVIDIA L40S": _L40S,
    "NVIDIA L40": _L40,
    "NVIDIA L4": _L4,
    "Tesla V100-SXM2-16GB": _V100_SXM,
    "Tesla V100-SXM2-32GB": _V100_SXM,
    "Tesla V100-PCIE-16GB": _V100_PCIE,
    "Tesla V100-PCIE-32GB": _V100_PCIE,
    "Tesla V100S-PCIE-32GB": _V100S,
    "Tesla T4": _T4,
}
"""Name as torch and NVML give it -> precision -> FLOP/s of one device."""


def read_peak_flops(device_name: str, precision: str) -> float | None:
    """FLOP/s of one device in this precision; None for a device that is not in the table, such as a MIG slice, and
    for a precision that its tensor cores do not have.

    fp32 is the peak without TF32, which the trainer switches off (`trainer.settings.precision.apply_whole_fp32`).
    """
    return PEAK_FLOPS.get(device_name.strip(), {}).get(precision.removesuffix("_native"))
