"""What a run is asked for: every setting, its rules and bounds, and what follows from them alone."""
