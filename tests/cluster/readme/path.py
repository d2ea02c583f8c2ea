"""The README's path on a cluster: its commands in their order, and what is run where one of them cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from tests.documents.commands import read_section

SECTION = "On a cluster"


@dataclass(frozen=True)
class Step:
    """One command of the README. `line` is what a shell runs, "" = nothing; `why`, where that is something else."""

    told: str
    line: str
    why: str = ""


REPLACED: dict[str, tuple[str, str]] = {
    "make setup": ("", "these tests run in what it has made"),
    'kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4"': (
        "kubectl get customresourcedefinition pytorchjobs.kubeflow.org",
        "needs GitHub; the cluster has this operator",
    ),
    "make images": ("", "tests/cluster/run has built them, by the same program"),
    "kind load docker-image stratlab-trainer:0.1.0 stratlab-lab:0.1.0": (
        "",
        "tests/cluster/run has loaded them",
    ),
    "images/build --archive images.out --no-sbom": ("", "as `make images`"),
    "kind load image-archive images.out/stratlab-trainer-0.1.0.tar": (
        "",
        "tests/cluster/run has loaded them",
    ),
    "kind load image-archive images.out/stratlab-lab-0.1.0.tar": ("", "tests/cluster/run has loaded them"),
    "stratlab remove demo/ddp --on-cluster -n stratlab": (
        "stratlab remove demo/ddp --on-cluster -n stratlab --yes",
        "it asks, and nobody answers",
    ),
    "make gpu-kit": ("", "not on a cluster"),
    "./start --part 1 --out RESULTS": ("", "not on a cluster"),
}
"""Command of the README -> what is run instead, and why."""
NO_GPU = "needs GPUs or the hub: the API server takes all of it, nothing is started"
LAST = "stratlab sweep examples/sweep.yaml"


def read_path() -> list[Step]:
    """The commands of the section, blocks and text, in the order in which a reader meets them."""
    steps = []
    for told in read_section(SECTION):
        if told in REPLACED:
            line, why = REPLACED[told]
        elif "registry.example" in told:
            line, why = f"{told} --dry-run=server", NO_GPU
        else:
            line, why = told, ""
        steps.append(Step(told, line, why))
    return steps
