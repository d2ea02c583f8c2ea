from __future__ import annotations

import hashlib
import json

from trainer.data.text.text_source import VERSION, generate_arithmetic


def test_the_texts_are_those_of_the_version():
    """Caches are named after the version of the texts: whoever changes a text raises VERSION, and this hash."""
    found = hashlib.sha256(json.dumps(generate_arithmetic()).encode()).hexdigest()[:16]
    assert (VERSION, found) == (1, "59b1bbc876522187")
