"""`text_columns` is the part of each column of a text data set.

`query=instruction,response=output` maps parts to columns; `qa.q` is a field of the column `qa`. Names without parts are
allowed if they are clear: one column, or the question and the answer.
"""

from __future__ import annotations

COLUMNS_PATTERN = r"^([^=,]+(=[^=,]+)?(,[^=,]+(=[^=,]+)?)*)?$"
CHAT, TEXT = "messages", "text"
QUESTION, ANSWER, CONTEXT, SYSTEM = "query", "response", "context", "system"
START, END = "prompt", "completion"
FORMS = (
    ({QUESTION, ANSWER}, {CONTEXT, SYSTEM}),
    ({START, END}, set[str]()),
    ({CHAT}, {SYSTEM}),
    ({TEXT}, set[str]()),
)
"""Parts that belong together: those that are needed, and those that may be added."""
EXAMPLE = (
    "query=COLUMN,response=COLUMN with or without context=COLUMN and system=COLUMN, prompt=COLUMN,completion=COLUMN, "
    "messages=COLUMN or text=COLUMN"
)


def parse_text_columns(given: str) -> dict[str, str]:
    """Return part -> column; the part of a single name is "".

    Raises:
        ValueError: parts do not belong together; the message names those that do.
    """
    pairs = [each.strip().rpartition("=") for each in given.split(",") if each.strip()]
    names = [column.strip() for _, _, column in pairs]
    parts = [part.strip() for part, _, _ in pairs]
    if not any(parts) and len(names) <= 2:
        return dict(zip((QUESTION, ANSWER) if len(names) == 2 else ("",), names, strict=False))
    found = dict(zip(parts, names, strict=True))
    if len(found) == len(parts) and any(needed <= {*parts} <= needed | more for needed, more in FORMS):
        return found
    raise ValueError(f"expected {EXAMPLE} [SL-text-columns-form]")
