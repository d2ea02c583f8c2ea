"""What a run has found out: its lines while it trains, its summary at the end."""
