"""Nothing is defined that nobody names, and nothing is imported that is not declared."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (
    *("stratlab_spec", "trainer", "stratlab", "charts", "benchmarks", "experiments"),
    *("tests", "docs", "images", "requirements"),
)
HOMES = {
    "stratlab_spec": "distributions/stratlab-spec",
    "trainer": "distributions/stratlab-trainer",
    "stratlab": ".",
}
"""Import package -> where its distribution is declared."""
WORD = re.compile(r"\w+")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def defined_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_every_name_of_a_module_is_used_somewhere() -> None:
    """By its name alone, also in another module: what this finds is dead for certain."""
    texts = [
        path.read_text() for path in (*sources(*FOLDERS), ROOT / "pyproject.toml", ROOT / "images/build")
    ]
    used = Counter(word for text in texts for word in WORD.findall(text))
    dead = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("stratlab_spec", "trainer", "stratlab", "charts")
        for name in defined_names(ast.parse(path.read_text()))
        if used[name] == 1 and not name.startswith("__")
    ]
    assert dead == []


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared() -> None:
    """A package that only comes along with another one goes when that one stops needing it."""
    distributions = packages_distributions()
    for folder, home in HOMES.items():
        project = tomllib.loads((ROOT / home / "pyproject.toml").read_text())["project"]
        lines = [*project["dependencies"], *chain(*project.get("optional-dependencies", {}).values())]
        declared = {normalised(re.split(r"[=<>;\[ ]", line)[0]) for line in lines}
        names = {name for path in sources(folder) for name in imported(path)}
        foreign = names - {*sys.stdlib_module_names, *HOMES}
        homes = {name: {normalised(each) for each in distributions.get(name, [name])} for name in foreign}
        assert foreign and {name for name, known in homes.items() if not declared & known} == set()
