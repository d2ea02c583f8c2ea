"""A matrix of strategies, models and sizes as helm releases, each followed to its end, then compared."""
