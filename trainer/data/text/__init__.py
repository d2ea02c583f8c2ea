"""Prepare question-and-answer text for language models: read, format as chat, tokenize and pack once, read as rows.

    source -> chat -> packing -> cache (files on the volume) -> rows -> batches (torch)

Only `batches` needs torch. `python -m trainer.prepare --tokenize` and the launcher build the cache
(trainer/prepare/preparation.py); ranks only read it.
"""
