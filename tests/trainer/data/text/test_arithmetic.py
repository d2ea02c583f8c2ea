from __future__ import annotations

import hashlib
import json
import re

from trainer.data.text.arithmetic import VERSION, generate_arithmetic


def test_it_has_metamathqa_s_schema_and_every_answer_is_right():
    rows = generate_arithmetic()
    assert len(rows) == 4000 and len({row["query"] for row in rows}) > 3000
    assert {row["type"] for row in rows} == {"MATH_AnsAug", "MATH_Rephrased", "GSM_AnsAug", "GSM_Rephrased"}
    for row in rows:
        assert list(row) == ["query", "response", "type", "original_question"]
        text, _, answer = row["response"].rpartition("The answer is: ")
        terms = [int(number) for number in re.findall(r"\d+", row["query"])]
        for place, verb in enumerate(re.findall("gets|gives away", row["query"]), 1):
            terms[place] *= -1 if verb == "gives away" else 1
        assert sum(terms) == int(answer), row
        for left, right in re.findall(r"([\d+-]+)=(\d+)", text):
            assert sum(int(term) for term in re.findall(r"[+-]?\d+", left)) == int(right)
        assert "####" not in text or f"#### {answer}\n" in text


def test_the_texts_are_those_of_the_version():
    """Caches are named after the version of the texts: whoever changes a text raises VERSION, and this hash."""
    found = hashlib.sha256(json.dumps(generate_arithmetic()).encode()).hexdigest()[:16]
    assert (VERSION, found) == (1, "59b1bbc876522187")
