"""Holistic Trace Analysis (`traceinsight`) in a process of its own, with limits and a status per analysis."""
