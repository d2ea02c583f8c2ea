"""What the traces of a run say: where each step's time went, on which rank, in which phase."""

from stratlab.analysis.analyze import NoTraces, analyze_run

__all__ = ["NoTraces", "analyze_run"]
