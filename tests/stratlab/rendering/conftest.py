"""The tiny chart."""

from tests.stratlab.rehearse.conftest import chart

__all__ = ["chart"]
