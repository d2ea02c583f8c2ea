"""The commands in README, docs and the comments of examples, as they stand there."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").iterdir())
PROGRAMS = (
    *("make", "helm", "kubectl", "kind", "pip", "apt-get", "docker", "podman", "buildah"),
    *("stratlab", ".venv/bin/stratlab", "python", ".venv/bin/python"),
    *("tests/cluster/run", "images/build", "./start"),
)
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
REMARK = re.compile(r"(^|\s+)# .*$|\s{5,}shows .*$")


def read_commands(root=ROOT):
    """Command, on one line and without its remark -> files that hold it.

    A program's bare name and a verb alone (`helm upgrade`) are words of a sentence, unless the line is one of a block.
    """
    found = {}
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = path.read_text()
        for command in _lines("\n".join(FENCE.findall(text))):
            found.setdefault(command, set()).add(str(path.relative_to(root)))
        for span in INLINE.findall(FENCE.sub("", text)):
            command = " ".join(span.split())
            if _is_command(command) and not _is_word(command):
                found.setdefault(command, set()).add(str(path.relative_to(root)))
    for path in sorted((root / "examples").iterdir()):
        remarks = re.findall(r"^# (?:[^:`\n]*: +)?(.*)$", path.read_text(), re.MULTILINE)
        for command in _lines("\n".join(remarks)):
            found.setdefault(command, set()).add(str(path.relative_to(root)))
    return found


def read_section(title, file=ROOT / "README.md"):
    """The commands below a heading in their order, those of blocks and those in the text; each once."""
    _, _, rest = file.read_text().partition(f"\n## {title}\n")
    section = rest.partition("\n## ")[0]
    found = {}
    for block, text in re.findall(rf"{FENCE.pattern}|([^`]+|`[^`\n]+`)", section, FENCE.flags):
        if block:
            found |= dict.fromkeys(_lines(block))
        else:
            command = " ".join(text.strip("`").split()) if text.startswith("`") else ""
            if _is_command(command) and not _is_word(command):
                found[command] = None
    return list(found)


def split(command):
    """The words that a shell makes of it; of braces only one pair is expanded."""
    words = []
    for word in shlex.split(command):
        pair = re.fullmatch(r"(.*)\{([^{}]*,[^{}]*)\}(.*)", word)
        words += [f"{pair[1]}{part}{pair[3]}" for part in pair[2].split(",")] if pair else [word]
    return words


def _lines(text):
    for line in text.replace("\\\n", " ").splitlines():
        command = " ".join(REMARK.sub("", line).split())
        if _is_command(command):
            yield command


def _is_command(text):
    return text.split(" ")[0] in PROGRAMS


def _is_word(text):
    return (
        re.fullmatch(
            r"(stratlab|helm|kubectl|kind|docker|podman|buildah)( [a-z-]+)?|kind load docker-image", text
        )
        is not None
    )
