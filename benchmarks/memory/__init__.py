"""The counting instrument against figures that an earlier, independent count has found (expected.py)."""
