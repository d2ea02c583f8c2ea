"""The tools around the runs: rehearse, wait, analyze, compare. No torch, and nothing of `trainer`."""
