"""Record the results of a run: its lines while it trains, and its summary at the end."""
