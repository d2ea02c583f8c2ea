"""Recognize the roles of a text data set's columns, and read rows as turns.

`find_form` uses the setting `text_columns`, else the names of the columns. A row of every form becomes a list of
turns. The chat template of the tokenizer formats the turns of questions and chats. Plain text and the pair
prompt, completion are not formatted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.text_columns import (
    ANSWER,
    CHAT,
    CONTEXT,
    END,
    QUESTION,
    START,
    SYSTEM,
    TEXT,
    parse_text_columns,
)

ORIGINAL = "original_question"
CHATS = ("messages", "conversations", "conversation")
PAIRS = (
    ("query", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("prompt", "response"),
    ("input", "output"),
)
"""Names of a question and its answer, in the order in which they are tried."""
CONTEXTS = {"instruction": ("input", "context"), "input": ()}
SYSTEMS = ("system", "system_prompt")
ROLE_KEYS, TEXT_KEYS = ("role", "from"), ("content", "value")
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "ai", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
}
"""Role in data sets -> role in chat templates; other roles stay unchanged."""


class Turn(NamedTuple):
    """One text with its role; outside of chats the roles are prompt and completion."""

    role: str
    text: str


Turns = list[Turn]


@dataclass(frozen=True)
class TextForm:
    """The roles of a data set's columns."""

    columns: Mapping[str, str]
    """part of `text_columns` -> column, or path into its fields"""
    unused: tuple[str, ...] = ()

    @property
    def is_chat(self) -> bool:
        """Return whether the chat template formats the turns."""
        return CHAT in self.columns or QUESTION in self.columns

    @property
    def sources(self) -> list[str]:
        """Return the columns to read, without paths."""
        return list(dict.fromkeys(path.split(".")[0] for path in self.columns.values()))

    def describe(self) -> Iterator[str]:
        """Yield how rows are read, and the unused columns."""
        parts = ",".join(f"{part}={column}" for part, column in self.columns.items())
        learned = {CHAT: "the assistant's turns", TEXT: "all tokens", START: "completion"}
        what = next((what for part, what in learned.items() if part in self.columns), "response")
        yield f"read as TRAINER_TEXT_COLUMNS={parts}; learned: {what}"
        if self.unused:
            yield f"unused columns of the data set: {name_columns(self.unused)}"

    def read(self, table: Mapping[str, Sequence[Any]]) -> list[Turns | None]:
        """Return the turns of each row; None for a row with a missing or empty text.

        Args:
            table: column -> values of `sources`.
        """
        columns = {part: [*_follow(table, path)] for part, path in self.columns.items()}
        count = len(next(iter(columns.values())))
        return [self._read_row({part: column[i] for part, column in columns.items()}) for i in range(count)]

    def _read_row(self, row: Mapping[str, Any]) -> Turns | None:
        if CHAT in self.columns:
            turns = [*_read_turns(row[CHAT])]
        elif QUESTION in self.columns:
            asked: list[str] = [text for text in (row[QUESTION], row.get(CONTEXT)) if _has_text(text)]
            question = "\n".join(asked) if _has_text(row[QUESTION]) else ""
            turns = [Turn("user", question), Turn("assistant", row[ANSWER] or "")]
        elif START in self.columns:
            turns = [Turn(START, row[START] or ""), Turn(END, row[END] or "")]
            return turns if _has_text(turns[1].text) else None
        else:
            turns = [Turn(END, row[TEXT] or "")]
        if _has_text(row.get(SYSTEM)) and turns and turns[0].role != "system":
            turns.insert(0, Turn("system", row[SYSTEM]))
        turns = [turn for turn in turns if turn.role != "system" or _has_text(turn.text)]
        return turns if turns and all(_has_text(turn.text) for turn in turns) else None


BUILT_IN = TextForm({QUESTION: "query", ANSWER: "response"})
"""Form of the built-in data set `arithmetic`."""


def find_form(config: Config, features: Mapping[str, Any]) -> TextForm:
    """Return the form of a table with these features of `datasets`.

    Raises:
        ConfigError: no known form, a column in the setting is absent, or a column does not hold what its part needs.
    """
    kinds, columns = dict(_list_kinds(features)), find_columns(config, features)
    if not columns:
        raise ConfigError(_unknown_form(config, kinds))
    if absent := [path for path in columns.values() if path not in kinds]:
        raise ConfigError(
            f"{config.dataset_setting}: TRAINER_TEXT_COLUMNS={config.text_columns!r}: no column "
            f"{name_columns(absent)}; the data set has {name_columns(kinds)} [SL-text-column-absent]"
        )
    problems = []
    for part, path in columns.items():
        wanted = CHAT if part == CHAT else TEXT
        if kinds[path] not in (wanted, "null"):  # null = no row has it
            cure = "each row must hold a list of turns, with role and content, or from and value"
            if wanted == TEXT:
                change = "str.decode('utf-8')" if "binary" in kinds[path] else "astype(str)"
                cure = f"write it as text; in pandas, rows[{path!r}] = rows[{path!r}].{change}"
                if kinds[path] in ("List", "LargeList", "dict", "Json", CHAT):
                    cure = "name another column in TRAINER_TEXT_COLUMNS, or write one text per row"
            problems.append(
                f"{config.dataset_setting}: column {path} holds {kinds[path]}, expected {wanted} for the part {part} "
                f"[SL-text-column-kind]; {cure}"
            )
    if problems:
        raise ConfigError(problems)
    used = {path.split(".")[0] for path in columns.values()}
    return TextForm(columns, tuple(name for name in features if name not in used | {ORIGINAL}))


def find_columns(config: Config, features: Mapping[str, Any]) -> dict[str, str]:
    """Return part -> column, or path into its fields, unchecked; empty for an unknown form."""
    kinds = dict(_list_kinds(features))
    given = parse_text_columns(config.text_columns)
    if "" in given:
        given = {CHAT if kinds.get(given[""]) == CHAT else TEXT: given[""]}
    return given or _guess(kinds)


def name_columns(names: Iterable[str]) -> str:
    """Join the names; quote those with invisible characters, such as a byte order mark."""
    return ", ".join(name if name.isprintable() else ascii(name) for name in names)


def _unknown_form(config: Config, kinds: Mapping[str, str]) -> str:
    texts = [name for name, kind in kinds.items() if kind == TEXT]
    chats = [name for name, kind in kinds.items() if kind == CHAT]
    example = "query=COLUMN,response=COLUMN"
    if chats:
        example = f"messages={chats[0]}"
    elif len(texts) > 1:
        example = f"query={texts[0]},response={texts[1]}"
    elif texts:
        example = f"text={texts[0]}"
    return (
        f"{config.dataset_setting}: no known form of text has the columns {name_columns(kinds) or 'none'}; name them, "
        f"for example TRAINER_TEXT_COLUMNS={example}; docs/text_data.md lists the forms [SL-text-form-unknown]"
    )


def _guess(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return part -> column of the first form that matches; empty if none does. Capital letters do not count."""
    names = {name.strip().casefold(): name for name in reversed([*kinds])}
    found: dict[str, str] = {}
    more: tuple[tuple[str, Sequence[str]], ...] = ((SYSTEM, SYSTEMS),)
    pair = next(((query, response) for query, response in PAIRS if {query, response} <= {*names}), None)
    if chats := [names[name] for name in CHATS if name in names and kinds[names[name]] == CHAT]:
        found = {CHAT: chats[0]}
    elif "prompt" in names and "completion" in names:
        return {START: names["prompt"], END: names["completion"]}
    elif pair:
        found = {QUESTION: names[pair[0]], ANSWER: names[pair[1]]}
        more = ((CONTEXT, CONTEXTS.get(pair[0], ("context",))), *more)
    for part, usual in more if found else ():
        for name in usual:
            if name in names and _may_be_text(kinds[names[name]]):
                found.setdefault(part, names[name])
    if found:
        return found
    if "text" in names:
        return {TEXT: names["text"]}
    return {CHAT: names["messages"]} if "messages" in names else {}  # no chat: refused by its kind


def _list_kinds(features: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, kind) of every column and of every field of a column of structs.

    Kinds: text, messages, else the name of the type in `datasets`.
    """
    for name, feature in features.items():
        inner = getattr(feature, "feature", None)
        kind = getattr(feature, "dtype", "") or type(feature).__name__
        if kind in ("string", "large_string"):
            yield before + name, TEXT
        elif is_turn(inner) or is_turn(feature, many=True) or (inner is not None and _is_json(inner)):
            yield before + name, CHAT
        elif isinstance(feature, dict):
            yield from _list_kinds(feature, f"{before}{name}.")
        else:
            yield before + name, kind


def _is_json(feature: Any) -> bool:
    """Return whether values have any form, which `datasets` uses for turns with different fields."""
    return type(feature).__name__ == "Json"


def _may_be_text(kind: str) -> bool:
    return kind == TEXT or kind.startswith("timestamp")  # texts that `datasets` converts to dates


def is_turn(feature: Any, many: bool = False) -> bool:
    """Return whether a feature has a role and a text; with `many`, a list of each."""
    if not isinstance(feature, dict) or not all({*keys} & {*feature} for keys in (ROLE_KEYS, TEXT_KEYS)):
        return False
    return not many or all(hasattr(each, "feature") for each in feature.values())


def _follow(table: Mapping[str, Sequence[Any]], path: str) -> Iterator[Any]:
    """Yield the values at a path into structs."""
    name, *fields = path.split(".") if path not in table else [path]
    for value in table[name]:
        for field in fields:
            value = value.get(field) if isinstance(value, dict) else None
        yield value


def _read_turns(value: Any) -> Iterator[Turn]:
    if isinstance(value, dict):  # a list of each field
        value = [dict(zip(value, each, strict=True)) for each in zip(*value.values(), strict=True)]
    for turn in value or ():
        turn = turn if isinstance(turn, dict) else {}
        role = next((turn[key] for key in ROLE_KEYS if turn.get(key)), "")
        said = next((turn[key] for key in TEXT_KEYS if turn.get(key) is not None), "")
        if isinstance(said, list):  # a list of parts; a part without text makes the turn empty
            parts = [part.get("text") if isinstance(part, dict) else part for part in said]
            texts = [part for part in parts if isinstance(part, str)]
            said = "".join(texts) if len(texts) == len(parts) else ""
        yield Turn(ROLES.get(str(role).strip().casefold(), str(role)), said if isinstance(said, str) else "")


def _has_text(text: Any) -> TypeGuard[str]:
    return isinstance(text, str) and bool(text.strip())
