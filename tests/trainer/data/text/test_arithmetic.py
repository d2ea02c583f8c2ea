from __future__ import annotations

import hashlib
import json
import re

from trainer.data.text.arithmetic import VERSION, generate_arithmetic


def test_the_schema_is_metamathqa_s():
    rows = generate_arithmetic()
    assert len(rows) == 4000
    for row in rows:
        assert list(row) == ["query", "response", "type", "original_question"]
        assert re.fullmatch(r"(MATH|GSM)_(AnsAug|Rephrased)", row["type"])
        assert row["response"].rpartition("\n")[2].startswith("The answer is: ")
    assert {row["type"] for row in rows} == {"MATH_AnsAug", "MATH_Rephrased", "GSM_AnsAug", "GSM_Rephrased"}
    assert len({row["query"] for row in rows}) > 3000


def test_every_answer_is_right():
    for row in generate_arithmetic():
        answer = int(row["response"].rpartition(" ")[2])
        numbers = [int(number) for number in re.findall(r"\d+", row["query"])]
        takes = [0, *re.findall("gets|gives away", row["query"])]
        signed = [
            -n if t == "gives away" else n
            for n, t in zip(numbers, takes + [0] * (len(numbers) - len(takes)), strict=True)
        ]
        assert sum(signed) == answer, row
        for left, right in re.findall(r"([\d+-]+)=(\d+)", row["response"]):
            assert sum(int(term) for term in re.findall(r"[+-]?\d+", left)) == int(right)
        if "####" in row["response"]:
            assert f"#### {answer}\n" in row["response"]


def test_the_texts_are_those_of_the_version():
    """Caches are named after the version of the texts: whoever changes a text raises VERSION, and this hash."""
    found = hashlib.sha256(json.dumps(generate_arithmetic()).encode()).hexdigest()[:16]
    assert (VERSION, found) == (1, "59b1bbc876522187")
