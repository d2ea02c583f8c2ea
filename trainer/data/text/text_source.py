"""Read a text data set from the hub, a folder or a file, and split it once.

`load_texts` returns the splits; `check_given` checks the columns without reading documents. The built-in data set
`arithmetic` generates word problems in MetaMathQA's columns and style from their index.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError, hint_of_dataset
from trainer.data.files import as_tables, usual_name, walk_files
from trainer.data.images import SPLIT_SEED
from trainer.data.text.local_files import READ, TO_UTF_8, describe_cast, open_local
from trainer.data.text.text_form import BUILT_IN, ORIGINAL, TextForm, Turns, find_form, name_columns

ORIGINALS = 2000
VERSION = 1  # increment it when a text changes: the names of caches include it
SHORT = 0.4  # share of questions without a story
SEED = 7  # not the run's seed: runs with different seeds must use the same questions
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
THINGS = ("apples", "books", "cards", "eggs", "pens", "stamps", "shells", "coins")

Asked = tuple[tuple[str, str], str, tuple[str, str]]
"""Two phrasings of the question, the answer, the types of the phrasings."""


def generate_arithmetic() -> list[dict[str, str]]:
    """Return 4000 rows of `query`, `response`, `type`, `original_question`: 2000 questions in two phrasings.

    Short questions follow MetaMathQA's MATH part: answers end with "The answer is: n". Stories of one to
    four sums follow its GSM8K part, with "#### n" before that. As bytes in chat form, a row has 49 to 180 tokens.
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
    count = int(random.choice((1, 2, 3, 4), p=(0.6, 0.25, 0.1, 0.05)))
    terms = [int(term) for term in random.integers(2, 50, size=1 + count)]
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


HUB_IDS = {"metamathqa": "meta-math/MetaMathQA"}
TEST_FRACTION = 0.05
SPLITS = ("train", "validation", "test")


READ_AT_ONCE = 10_000  # rows, while looking for their questions


@dataclass(frozen=True)
class Texts:
    """One split; `read` returns the turns of indices into the split of the source, None without a text."""

    read: Callable[[NDArray[np.int64]], list[Turns | None]]
    indices: NDArray[np.int64]
    form: TextForm
    where: str
    """name in messages"""

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: NDArray[np.int64]) -> Texts:
        """Return these rows of the source."""
        return replace(self, indices=indices)


def load_texts(
    config: Config, revision: str | None = None, tell: Callable[[str], None] = lambda sentence: None
) -> dict[str, Texts]:
    """Return the splits train, validation and test of `dataset_path` or `dataset`.

    A split `test` (else `validation`) is the test split; without either, 5 % of the documents of `train` are held out.
    If `test` exists, `validation` is the validation split; without it, `validation_fraction` of `train` is held out.
    Questions with the same `original_question` are held out together: MetaMathQA rephrases each question many times.
    A model must not be tested on a rephrased training question. At most `train_samples` remain for training.

    Calls `tell` with the form, the unused columns and splits, and the overlap of held-out splits and training.

    Raises:
        ConfigError: the columns have no known form, or do not hold text.
        DataMissing: the data set does not exist, files are unsupported, or a split has no documents.
    """
    if is_built_in(config):
        tables: dict[str, Any] = {"train": generate_arithmetic()}
        forms = {"train": BUILT_IN}
    else:
        tables = _open(config, revision)
        forms = _find_forms(config, tables)
    train_name = "train" if "train" in tables else next(iter(tables))
    sources = {
        name: _Source(table, f"{config.dataset_setting}: split {name!r}", forms[name])
        for name, table in tables.items()
    }
    train = sources[train_name].whole()
    given = {name: source.whole() for name, source in sources.items() if name != train_name}
    if not is_built_in(config):
        for sentence in _describe(tables, forms, train_name):
            tell(sentence)
    test = given.get("test") or given.get("validation")
    questions = sources[train_name].questions()
    if not any(question is not None for question in questions):
        raise DataMissing(
            f"{config.dataset_setting}: split {train_name!r}: each of its {len(questions)} documents is left out, "
            "because it has a turn or a field without text, such as a call of a tool; remove those turns "
            "[SL-text-none-whole]"
        )
    groups = sources[train_name].groups(questions)
    for name in given.keys() & {"validation", "test"}:
        known, asked = set(questions), sources[name].questions()
        if repeated := sum(question is not None and question in known for question in asked):
            tell(f"{name}: {repeated} of {len(asked)} questions are also in the training split")
    if test is None:
        train, test = _hold_out(train, groups, round(len(groups) * TEST_FRACTION))
    validation = given.get("validation") if "test" in given else None
    if validation is None:
        train, validation = _hold_out(train, groups, round(len(train) * config.validation_fraction))
    if config.train_samples:
        train = train.take(train.indices[: config.train_samples])
    splits = dict(zip(SPLITS, (train, validation, test), strict=True))
    for name, split in splits.items():
        if not len(split):
            raise DataMissing(
                f"{config.dataset_setting}: no documents for the {name} split: {train_name!r} has {len(groups)} "
                f"documents of {len(np.unique(groups))} questions, which are never divided; "
                "add documents or the missing splits, or raise TRAINER_VALIDATION_FRACTION "
                "[SL-text-split-empty]"
            )
    return splits


def check_given(config: Config) -> list[str]:
    """Return how the data set is read; documents are not read.

    Raises:
        ConfigError: the columns have no known form, or do not hold text.
        DataMissing: the data set does not exist.
    """
    tables = _open(config, None)
    return [*_describe(tables, _find_forms(config, tables), next(iter(tables)))]


def _describe(tables: dict[str, Any], forms: dict[str, TextForm], train_name: str) -> Iterator[str]:
    yield from forms[train_name].describe()
    if unused := [name for name in tables if name not in (train_name, "validation", "test")]:
        yield f"unused splits of the data set: {', '.join(unused)}"


def _find_forms(config: Config, tables: dict[str, Any]) -> dict[str, TextForm]:
    """Return the form of each split, which must be the same.

    Raises:
        ConfigError: a split has no known form, or another one than the first.
    """
    forms = {name: find_form(config, table.features) for name, table in tables.items()}
    first, *others = forms
    for name in others:
        if {*forms[name].columns} != {*forms[first].columns}:
            raise ConfigError(
                f"{config.dataset_setting}: the split {first!r} has the columns "
                f"{name_columns(tables[first].features)}, the split {name!r} has "
                f"{name_columns(tables[name].features)}; give all splits the same columns [SL-text-forms-differ]"
            )
    return forms


def is_built_in(config: Config) -> bool:
    """Return whether the documents are generated."""
    return not config.dataset_path and config.dataset == "arithmetic"


def hub_id(config: Config) -> str:
    """Return the id of the data set on the hub; meaningless with `dataset_path`."""
    return HUB_IDS.get(config.dataset, config.dataset)


def absent(config: Config) -> DataMissing:
    """Return the error for a `dataset_path` that does not exist."""
    return DataMissing(f"{config.dataset_setting}: no such folder or file [SL-text-data-absent]")


def _open(config: Config, revision: str | None) -> dict[str, Any]:
    import datasets

    datasets.disable_progress_bars()
    if config.dataset_path and not Path(config.dataset_path).exists():
        raise absent(config)
    try:
        if config.dataset_path:
            return _name_splits(open_local(config, Path(config.dataset_path)))
        source = datasets.load_dataset(hub_id(config), revision=revision)
    except (ConfigError, DataMissing):
        raise
    except Exception as failure:  # any error of the hub's client or a reader: not available
        if isinstance(failure, OSError) and failure.errno is not None:
            raise
        cause = failure.__cause__ or failure
        explained = describe_cast(failure) or str(cause) or type(cause).__name__
        hint = "" if config.dataset_path else hint_of_dataset(config.dataset)
        if isinstance(cause, UnicodeDecodeError):
            hint = f"; {TO_UTF_8.format('latin1')}, with the file's own encoding instead of latin1"
        raise DataMissing(
            f"{config.dataset_setting}: cannot be loaded; expected a data set in `datasets` format (saved with "
            f"save_to_disk, or {READ}) or an id on the hub: {explained}{hint} "
            "[SL-text-data-unloadable]"
        ) from failure
    return _name_splits(as_tables(source))


def _name_splits(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables under the usual names of splits (val is validation), unless two would have the same name."""
    found = {usual_name(name) or name: table for name, table in tables.items()}
    return found if len(found) == len(tables) else tables


@dataclass(frozen=True)
class _Source:
    """One split as stored in the source."""

    table: Any
    """a list of rows, or a table of `datasets`"""
    where: str
    """name in messages"""
    form: TextForm

    def whole(self) -> Texts:
        """Return all documents, shuffled."""
        order = np.random.default_rng(SPLIT_SEED).permutation(len(self.table))
        return Texts(self._read, order.astype(np.int64), self.form, self.where)

    def groups(self, questions: Sequence[Hashable]) -> NDArray[np.int64]:
        """Return the number of each document's original question; without that column, of its question."""
        originals: Sequence[Hashable] = []
        if isinstance(self.table, list) or ORIGINAL in self.table.features:
            (originals,) = self._columns(np.arange(len(self.table)), ORIGINAL)
        if not originals or None in originals:
            originals = [
                question if original is None else original
                for question, original in zip(questions, originals or [None] * len(questions), strict=True)
            ]
        numbers: dict[Hashable, int] = {}
        return np.fromiter((numbers.setdefault(o, len(numbers)) for o in originals), np.int64, len(originals))

    def questions(self) -> list[int | None]:
        """Return a hash for each document, in their order: of its turns before the last; of plain text, of the text.

        None = the document is left out.
        """
        found: list[int | None] = []
        for start in range(0, len(self.table), READ_AT_ONCE):
            rows = self._read(np.arange(start, min(start + READ_AT_ONCE, len(self.table))))
            found += [
                hash(tuple(turn.text for turn in (turns[:-1] or turns))) if turns else None for turns in rows
            ]
        return found

    def _read(self, indices: NDArray[np.int64]) -> list[Turns | None]:
        names = self.form.sources
        return self.form.read(dict(zip(names, self._columns(indices, *names), strict=True)))

    def _columns(self, indices: NDArray[np.int64], *names: str) -> list[list[Any]]:
        if isinstance(self.table, list):
            return [[self.table[i][name] for i in indices] for name in names]
        chosen = self.table.select_columns([*names])
        try:
            rows = chosen[indices.tolist()]
        except UnicodeDecodeError as failure:  # some readers of `datasets` accept any byte
            raise DataMissing(
                f"{self.where}: row {_find_undecodable(chosen, indices)} holds bytes that are not UTF-8: {failure} "
                f"[SL-text-not-utf-8]; {TO_UTF_8.format('latin1')}, with the file's own encoding instead of "
                "latin1"
            ) from failure
        return [list(rows[name]) for name in names]


def _find_undecodable(table: Any, indices: NDArray[np.int64]) -> int:
    """Return the first of these rows that cannot be decoded."""
    for index in sorted(indices.tolist()):
        try:
            table[index]
        except UnicodeDecodeError:
            return int(index)
    return -1


def _hold_out(whole: Texts, groups: NDArray[np.int64], wanted: int) -> tuple[Texts, Texts]:
    """Return (kept, held out): `wanted` documents, 1 or more, in whole groups; a group that does not fit is kept."""
    mine = groups[whole.indices]
    sizes, room, chosen = np.bincount(mine), max(1, wanted), np.zeros(groups.max() + 1, bool)
    for group in mine:  # in the order of their first documents
        if not chosen[group] and sizes[group] <= room:
            chosen[group] = True
            room -= sizes[group]
        if not room:
            break
    held = chosen[mine]
    return whole.take(whole.indices[~held]), whole.take(whole.indices[held])


def describe_files(path: Path) -> list[list[Any]]:
    """Return [name, bytes, modification time in ns] of every file, which identifies the data without reading it."""
    files = (
        [(path.name, path)] if path.is_file() else [(str(f.relative_to(path)), f) for f in walk_files(path)]
    )
    return [[name, file.stat().st_size, file.stat().st_mtime_ns] for name, file in files]
