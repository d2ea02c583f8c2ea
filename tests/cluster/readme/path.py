"""The path of docs/cluster.md: its commands in their order, and what is run where one of them cannot be."""

from dataclasses import dataclass

from tests.documents.commands import ROOT, read_section

PAGE, SECTION = ROOT / "docs" / "cluster.md", "Step by step"


@dataclass(frozen=True)
class Step:
    """One command of the page. `line` is what a shell runs, "" = nothing; `why`, where that is something else."""

    told: str
    line: str
    why: str = ""


LOADED = ("", "tests/cluster/run has built and loaded them, by the same program")
REPLACED: dict[str, tuple[str, str]] = {
    "make setup": ("", "these tests run in what it has made"),
    'kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4"': (
        "kubectl get customresourcedefinition pytorchjobs.kubeflow.org",
        "needs GitHub; the cluster has this operator",
    ),
    "make images": LOADED,
    "kind load docker-image stratlab-trainer:0.1.0 stratlab-lab:0.1.0": LOADED,
    "images/build --archive images.out --no-sbom": LOADED,
    "kind load image-archive images.out/stratlab-trainer-0.1.0.tar": LOADED,
    "kind load image-archive images.out/stratlab-lab-0.1.0.tar": LOADED,
    "stratlab remove demo/ddp --on-cluster -n stratlab": (
        "stratlab remove demo/ddp --on-cluster -n stratlab --yes",
        "it asks, and nobody answers",
    ),
}
"""Command of the page -> what is run instead, and why."""
NO_GPU = "needs GPUs or the hub: the API server takes all of it, nothing is started"
LAST = "stratlab sweep examples/sweep.yaml"


def read_path() -> list[Step]:
    """The commands of the section, blocks and text, in the order in which a reader meets them."""
    steps = []
    for told in read_section(SECTION, PAGE):
        dry = (f"{told} --dry-run=server", NO_GPU) if "registry.example" in told else (told, "")
        steps.append(Step(told, *REPLACED.get(told, dry)))
    return steps
