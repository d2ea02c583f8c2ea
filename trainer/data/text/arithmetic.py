"""The built-in data set: word problems in the columns and the tone of MetaMathQA, made from their number alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

ORIGINALS = 2000
VERSION = 1  # raise it when a text changes: caches are named after it
SHORT = 0.4  # share of questions without a story
SEED = 7  # never the run's seed: runs with different seeds must see the same questions
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("apples", "books", "cards", "eggs", "pens", "stamps", "shells", "coins")

Asked = tuple[tuple[str, str], str, tuple[str, str]]
"""Two ways to ask, the answer, the types."""


def generate_arithmetic() -> list[dict[str, str]]:
    """4000 rows of `query`, `response`, `type`, `original_question`: 2000 questions, each asked in two ways.

    Short ones in the manner of its part from MATH, where the answer ends with "The answer is: n", and stories of one
    to four sums in that of its part from GSM8K, with "#### n" before it. In bytes and chat form 49 to 180 tokens.
    """
    return [row for index in range(ORIGINALS) for row in _ask_twice(index)]


def _ask_twice(index: int) -> Iterator[dict[str, str]]:
    random = np.random.default_rng([SEED, index])
    queries, answer, kinds = _ask_short(random) if random.random() < SHORT else _tell_story(random)
    for query, kind in zip(queries, kinds, strict=True):
        yield {"query": query, "response": answer, "type": kind, "original_question": queries[0]}


def _ask_short(random: np.random.Generator) -> Asked:
    terms = random.integers(2, 50, size=random.integers(2, 9))
    asked, answer = "+".join(map(str, terms)), f"The answer is: {sum(terms)}"
    return (f"Compute {asked}.", f"What is {asked}?"), answer, ("MATH_AnsAug", "MATH_Rephrased")


def _tell_story(random: np.random.Generator) -> Asked:
    name, thing = NAMES[random.integers(len(NAMES))], THINGS[random.integers(len(THINGS))]
    terms = [int(term) for term in random.integers(2, 50, size=1 + _count_sums(random))]
    total, sums = terms[0], []
    for i, term in enumerate(terms[1:]):
        takes = i % 2 == 1 and term < total
        result = total - term if takes else total + term
        sums.append((f"{total}{'-' if takes else '+'}{term}={result}", takes, term))
        total = result
    told = ", ".join(f"{'gives away' if takes else 'gets'} {term}" for _, takes, term in sums)
    queries = (
        f"{name} has {terms[0]} {thing}, {told}. How many now?",
        f"{name} starts with {terms[0]} {thing} and {told}. What is left?",
    )
    answer = f"{', '.join(text for text, _, _ in sums)}\n#### {total}\nThe answer is: {total}"
    return queries, answer, ("GSM_AnsAug", "GSM_Rephrased")


def _count_sums(random: np.random.Generator) -> int:
    return int(random.choice((1, 2, 3, 4), p=(0.6, 0.25, 0.1, 0.05)))
