"""The folder of a run on the volume: its names, and how a line or a file gets into it whole."""
