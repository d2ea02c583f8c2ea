"""Question-and-answer text for language models: read, put into chat form, tokenised and packed once, read as rows.

    source -> chat -> packing -> cache (files on the volume) -> rows -> batches (torch)

All but `batches` works without torch. `python -m trainer.prepare --tokenize` and the launcher build the cache
(trainer/prepare/preparation.py); ranks only read it.
"""
