"""Why one run is slower than another: a difference in parts, their causes, and a sentence."""
