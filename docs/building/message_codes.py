"""Writes docs/codes.md: every code of a message, where it is raised and what it says.

python -m docs.building.message_codes docs/codes.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("stratlab", "stratlab_spec", "trainer", "benchmarks")
CODE = re.compile(r"\s*\[(SL-[a-z0-9]+(?:-[a-z0-9]+)*)\]")
HEAD = """# Codes of messages

After reading this page you can go from a code such as `[SL-run-live]` to its cause. The message on the screen has the
values; this page has the fix:

```text
error: no run was started: run.config.warmup_steps=100000: must be below the 202 steps [SL-warmup-above-run]
```

A code names one cause and stays when words change. Search this page for it: each section names the codes of one
subject. `python -m docs.building.message_codes docs/codes.md` makes the page from the sources; `...` stands for a
filled-in value.
"""
LONGEST = 70
"""Characters of a message that the page shows."""
SECTIONS: dict[str, tuple[str, str]] = {
    "MLflow": (
        "[MLflow is unreachable, refuses, or lacks points](troubleshooting.md#mlflow-is-away-or-lacks-points).",
        r"^(stratlab/(tracking|compare/publishing|analysis/mlflow)|trainer/launch/mlflow)|SL-(check|verify)-mlflow",
    ),
    "GPUs": (
        "[The GPUs cannot be used](troubleshooting.md#the-gpus-cannot-be-used).",
        r"SL-(gpu-unusable|image-for-cpus|driver-|torch-no-|too-few-devices|no-gpus)",
    ),
    "Memory": (
        "[Out of memory on the GPU](troubleshooting.md#out-of-memory-on-the-gpu), "
        "[a pod is killed for memory](troubleshooting.md#a-pod-is-killed-for-memory).",
        r"^trainer/launch/memory_limits|SL-(device-memory|ladder-|oom-|no-layout-fits)",
    ),
    "Losses and hanging ranks": (
        "[The loss is not finite](troubleshooting.md#the-loss-is-not-finite), "
        "[a rank hangs](troubleshooting.md#a-rank-hangs).",
        r"^trainer/(hang_detection|metrics/training_failures)|SL-skips-in-a-row",
    ),
    "Pods and the namespace": (
        "`stratlab check` prints a fix for each: [pods stay Pending](troubleshooting.md#pods-stay-pending), "
        "[no pods](troubleshooting.md#nothing-happens-after-helm-install), "
        "[images](troubleshooting.md#an-image-cannot-be-pulled), [quotas](operating.md#quotas).",
        r"^stratlab/(namespace_checks|pod_checks|workload_checks|cluster/(pod|volume))",
    ),
    "A value is refused": (
        "Nothing has started. The message names the setting, option or key and the allowed values: "
        "[fix it and repeat the command](troubleshooting.md#a-value-is-refused).",
        r"^stratlab_spec/(layout|settings|registry|renamed|schedule|strategies|models/(model_specs|teacher)|plan|memory)"
        r"|^charts/|^stratlab/(sweep/(definition|planned)|rehearsal_plan|script|commands|predict|api|helm\.py)"
        r"|^trainer/(api|launch/(options|preflight|mpi)|memory_estimation|prepare/request)",
    ),
    "Data, models and weights": (
        "[Data or a model is missing](troubleshooting.md#data-or-a-model-is-missing), "
        "[a picture cannot be decoded](troubleshooting.md#a-picture-cannot-be-decoded), "
        "[a folder without classes](troubleshooting.md#a-folder-without-classes-or-with-text), "
        "[a wrong label](troubleshooting.md#a-label-is-wrong), [text](text_data.md#select-the-data).",
        r"^trainer/(data|prepare|models|tasks|evaluation|engines/deepspeed_config)|^stratlab_spec/models",
    ),
    "Traces": (
        "A trace or a part of it is left out or missing: [traces of a run](troubleshooting.md#traces-are-missing), "
        "[of other programs](foreign.md#set-the-rank-of-a-trace).",
        r"^stratlab/traces|^stratlab/analysis/(?!hta)",
    ),
    "Holistic Trace Analysis": (
        "Reasons of a skipped or failed analysis: [HTA](hta.md).",
        r"^stratlab/analysis/hta",
    ),
    "Nodes and networks": (
        "Lines of the check of a run's pods: [their meaning](multi_node.md#looking-before-the-run).",
        r"^trainer/environment",
    ),
    "Checkpoints": (
        "A checkpoint is damaged, foreign or could not be written: [checkpoints](stops.md#checkpoints), "
        "[a full volume](troubleshooting.md#the-volume-is-full-or-read-only).",
        r"^trainer/(checkpoint|engines)",
    ),
}
"""Title -> the fix, and a pattern of `FILE CODE`. Its codes have no messages: the linked section explains them."""
OTHERS = "Other codes"


@dataclass(frozen=True)
class Message:
    """One sentence of the sources.

    Attributes:
        code: at its end, without brackets.
        sentence: with `...` for what is filled in.
        file: where it stands, from the root of the project.
        line: in that file.
    """

    code: str
    sentence: str
    file: str
    line: int


def find_messages(root: Path = ROOT) -> list[Message]:
    """List the messages with a code in Python modules and in charts' templates, by code."""
    found: list[Message] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found += _find_in_module(path.read_text(), path.relative_to(root).as_posix())
    for path in sorted(path for kind in ("*.tpl", "*.yaml") for path in (root / "charts").rglob(kind)):
        if "tests" not in path.parts:
            found += _find_in_template(path.read_text(), path.relative_to(root).as_posix())
    return sorted(found, key=lambda message: (message.code, message.file, message.line))


def _find_in_module(text: str, file: str) -> Iterator[Message]:
    if "[SL-" not in text:
        return
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            sentence = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            sentence = node.value
        else:
            continue
        for code in CODE.findall(sentence):
            yield Message(code, sentence, file, node.lineno)


def _find_in_template(text: str, file: str) -> Iterator[Message]:
    for number, line in enumerate(text.splitlines(), 1):
        for code in CODE.findall(line):
            quoted = re.search(rf'"([^"]*\[{code}\])', line)
            yield Message(code, re.sub(r"%[a-z]", "...", quoted[1] if quoted else line.strip()), file, number)


def write_page(messages: list[Message]) -> str:
    """Return the page: sections of codes with one link, then a table of the other codes with their messages."""
    sections: dict[str, list[Message]] = {title: [] for title in [*SECTIONS, OTHERS]}
    for message in messages:
        sections[_find_section(message)].append(message)
    parts = [HEAD]
    for title, (fix, _) in SECTIONS.items():
        codes = ", ".join(f"`{message.code}`" for message in sections[title])
        parts.append(f"## {title}\n\n{fix}\n\n{codes}\n")
    rows = [f"| `{message.code}` | {shorten(message)} |" for message in sections[OTHERS]]
    return "\n".join([*parts, f"## {OTHERS}\n", "| code | message |", "|---|---|", *rows]) + "\n"


def _find_section(message: Message) -> str:
    place = f"{message.file} {message.code}"
    return next((title for title, (_, pattern) in SECTIONS.items() if re.search(pattern, place)), OTHERS)


def shorten(message: Message) -> str:
    """Return the start of a message, at most LONGEST characters, cut after a word; its module if it has no words."""
    words = " ".join(CODE.sub("", message.sentence).replace("......", "...").split())
    if not re.search(r"[a-z]{3}", words):
        return f"filled in by `{message.file}`"
    if len(words) > LONGEST:
        words = words[: LONGEST - 3].rpartition(" ")[0].rstrip(" ,;:(") + " ..."
    return words.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(write_page(find_messages()))
