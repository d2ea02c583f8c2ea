"""What examples and README ask for, rendered, and judged by the trainer as the first pod would judge it."""

import io

from stratlab.helm import find_helm
from stratlab.rehearsal_plan import build_training_pods
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import build_sweep_plan
from stratlab_spec.settings.config import Config
from tests.charts.rendering import CHARTS, render
from tests.documents.commands import ROOT, read_commands, split
from trainer.launch.preflight import check, check_elsewhere, read_pods

SWEEP = ROOT / "examples" / "sweep.yaml"
COMMANDS = sorted(read_commands())
CLUSTERS = "examples/cluster-"
"""tests/charts/slow/test_clouds.py"""
FROM_CHARTS = [
    c
    for c in COMMANDS
    if (c.startswith("helm install") or "rehearse" in c) and "charts/" in c and CLUSTERS not in c
]
ON_THE_HUB = ("food101", "metamathqa", "/results/_prepared/pets", "/data/pets")


def options(command, name):
    words = split(command)
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def gpu_command():
    (found,) = [c for c in COMMANDS if c.startswith("helm install") and "vit_huge" in c]
    return found


def write_photos(folder, count, edge=64):
    """A data set of `count` equal photos in two classes, with the columns of Food-101."""
    import datasets
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (edge, edge), (200, 30, 40)).save(file, "PNG")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    images = [{"bytes": file.getvalue(), "path": None}] * count
    rows = {"image": images, "label": [i % 2 for i in range(count)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder))
    return folder


def render_told(command, chart, release):
    """The workload, with the command's values but those that a reader has to write."""
    arguments = [f"--set={setting}" for setting in options(command, "--set")]
    arguments += [f"--values={ROOT / file}" for file in options(command, "--values") if "my-" not in file]
    documents = render(find_helm(), CHARTS / chart, arguments, release=release)
    return next((each for each in documents if each["kind"] == "PyTorchJob"), documents[0])


def judge(job, **env):
    """As the first pod would, before torch is imported; of data that is not here, all the rest."""
    pod = {**build_training_pods(job, 29500)[0].commands[-1].env, **env}
    config = Config.from_env(pod)
    if any(name in str(pod) for name in ON_THE_HUB) and "TRAINER_DATASET_PATH" not in env:
        check_elsewhere(config, read_pods(pod))
    else:
        check(config, read_pods(pod).world_size, pod)


def sweep_plan():
    return build_sweep_plan(read_sweep(SWEEP), SWEEP.parent, find_helm(), lambda text: None)
