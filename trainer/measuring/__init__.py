"""Measure a run while it trains: phases, traces, bytes on the wire, GPUs, and held memory."""
