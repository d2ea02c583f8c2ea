"""What the runs of a comparison tell, each by itself and by where and when it was at work."""
