"""Work with runs: rehearse, wait, analyze, compare. Imports neither torch nor `trainer`."""
