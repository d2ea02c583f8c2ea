"""The site's pages: the Markdown files of the repository under their own paths, and nine generated from the code.

MkDocs calls these functions (mkdocs.org/user-guide/configuration/#hooks). A link to a file that is not a page goes to
the repository if `repo_url` is set, and is plain text otherwise.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.building.advice_page import write_advice
from docs.building.batches_page import write_batches
from docs.building.columns_page import write_columns
from docs.building.commands_page import write_commands
from docs.building.decoders_page import write_decoders
from docs.building.metrics_page import write_metrics
from docs.building.settings_page import write_settings
from docs.building.strategies_page import write_strategies
from docs.building.sweep_page import write_sweep

REPOSITORY = Path(__file__).parents[2]
BESIDE = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LAB.md"),
    *("experiments/README.md", "experiments/*/README.md"),
)
MADE = {
    "docs/reference/settings.md": write_settings,
    "docs/reference/commands.md": write_commands,
    "docs/reference/strategies.md": write_strategies,
    "docs/reference/tables.md": write_columns,
    "docs/reference/advice.md": write_advice,
    "docs/reference/metrics.md": write_metrics,
    "docs/reference/sweep.md": write_sweep,
    "docs/reference/batches.md": write_batches,
    "docs/reference/decoders.md": write_decoders,
}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every experiment has its page, without being named."""
    (results,) = (each["Results"] for each in config.nav or [] if "Results" in each)
    results += [
        path.relative_to(REPOSITORY).as_posix() for path in sorted(REPOSITORY.glob("experiments/*/README.md"))
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every page under its path in the repository, so that links between files hold on the site too."""
    ours = [file for file in files if file.src_dir == config.docs_dir and file.inclusion.is_included()]
    found = [file for file in files if file.src_dir != config.docs_dir]  # the theme's
    found += [_build_file(config, f"docs/{file.src_uri}", file.abs_src_path) for file in ours]
    for pattern in BESIDE:
        for path in sorted(REPOSITORY.glob(pattern)):
            found.append(_build_file(config, path.relative_to(REPOSITORY).as_posix(), str(path)))
    found += [File.generated(config, uri, content=write(REPOSITORY)) for uri, write in MADE.items()]
    return Files(found)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with links to code and data resolved."""
    here = Path(page.file.src_uri).parent

    def follow(link: re.Match[str]) -> str:
        path = _normalize(here / link["target"])
        if files.get_file_from_path(path) or not (REPOSITORY / path).exists():
            return link[0]  # a page, or a dead link, which MkDocs reports
        return (
            f"[{link['text']}]({config.repo_url.rstrip('/')}/blob/main/{path})"
            if config.repo_url
            else link["text"]
        )

    return LINK.sub(follow, markdown)


def _build_file(config: MkDocsConfig, uri: str, path: str | None) -> File:
    assert path, uri
    return File.generated(config, uri, abs_src_path=path)


def _normalize(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
