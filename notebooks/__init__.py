"""The lab from Python, with outputs; `python -m notebooks` executes them again."""
