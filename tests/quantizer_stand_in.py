"""A stand-in for DeepSpeed's CUDA quantizer, which no CPU has: its formula. It says nothing about the kernel itself."""

from benchmarks.gpu.quantizer_formula import StandInQuantizer

__all__ = ["StandInQuantizer", "load_stand_in"]


def load_stand_in() -> StandInQuantizer:
    return StandInQuantizer()
