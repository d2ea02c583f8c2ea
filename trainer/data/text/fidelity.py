"""What of the texts is not learnt as it stands in the data: counted while they are tokenised, told, refused if much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainer.data.text.tokenizer import tokenizer_source
from trainer.failures import DataMissing

if TYPE_CHECKING:
    from trainer.settings.config import Config

MOST_ALTERED = 0.05
"""Share of the documents, over all splits, that a chat template may alter without a setting that allows it."""
EMPTY, LONG, CUT, ALTERED, CONTROL, REPLACED = "empty", "long", "cut", "altered", "control", "replaced"
SAID = {
    EMPTY: "left out, without a question or an answer",
    LONG: "left out, without room for the answer in a row of seq_len tokens",
    CUT: "cut at the end of a row of seq_len tokens",
    ALTERED: "the tokenizer's chat template drops a part of the text",
    CONTROL: "control tokens of the tokenizer in the text, encoded as text",
    REPLACED: "U+FFFD in the text, which was decoded in another encoding than it was written in",
}


class Tally:
    """Counts the documents of one split by what happens to them."""

    def __init__(self) -> None:
        self.documents = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def add(self, index: int, kinds: Iterable[str]) -> None:
        """One document. `index` is its row in the split of the source."""
        self.documents += 1
        for kind in kinds:
            self.counts[kind] += 1
            self.first[kind] = min(index, self.first.get(kind, index))

    def describe(self, split: str) -> Iterator[str]:
        """One sentence per kind that occurs."""
        for kind, said in SAID.items():
            if count := self.counts[kind]:
                yield f"{split}: {count} of {self.documents} documents: {said}; first row {self.first[kind]}"


def keeps_text(text: str, rendered: str) -> bool:
    """Whether a rendered turn holds a text; templates may change white space."""
    return text.strip() in rendered or "".join(text.split()) in "".join(rendered.split())


def count_altered(tallies: Iterable[Tally]) -> dict[str, int]:
    """For index.json: the documents of all splits, and those of them that the template alters."""
    kept = list(tallies)
    return {
        "documents": sum(tally.documents for tally in kept),
        ALTERED: sum(tally.counts[ALTERED] for tally in kept),
    }


def refuse_altered(config: Config, counted: Mapping[str, Any]) -> None:
    """Refuses texts of which the chat template drops too many parts.

    Args:
        counted: of `count_altered`.

    Raises:
        DataMissing: above `MOST_ALTERED`, unless the settings allow it.
    """
    documents, altered = counted["documents"], counted[ALTERED]
    if config.allow_altered_answers or altered <= MOST_ALTERED * documents:
        return
    raise DataMissing(
        f"TRAINER_TOKENIZER={tokenizer_source(config)!r}: its chat template drops a part of the text of {altered} of "
        f"{documents} documents, as some do with the reasoning before </think>; at most {MOST_ALTERED:.0%} of them "
        "may be altered; name a tokenizer whose template keeps it, take that part out of the data, or allow it with "
        "TRAINER_ALLOW_ALTERED_ANSWERS=true [SL-answers-altered]"
    )
