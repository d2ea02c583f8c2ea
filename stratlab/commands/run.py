"""The verb `stratlab run`: one line starts a run, or a comparison of several strategies."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratlab import UserError
from stratlab.commands import print_json, say

if TYPE_CHECKING:
    from stratlab.run_line import RunLine


class Target(StrEnum):
    """The program that starts a printed script."""

    torchrun = "torchrun"
    slurm = "slurm"
    ssh = "ssh"
    docker = "docker"


def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A preset (docs/models.md), a hub id, or a folder in Hugging Face format.",
            show_default=False,
        ),
    ],
    strategies: Annotated[
        str,
        typer.Argument(
            metavar="STRATEGY,...", help="One strategy, or several to compare.", show_default=False
        ),
    ] = "",
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="GPUs in total; here all of this machine, or 2 CPU processes."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines or pods that share them.")] = None,
    data: Annotated[
        str, typer.Option(metavar="PATH|NAME", help="Your folder or file, a hub id, or a built-in data set.")
    ] = "",
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of an optimizer step, all GPUs.")] = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a forward pass of one GPU.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps, instead of epochs.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting, or a flag of Hugging Face's Trainer; may be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="DeepSpeed's JSON or Accelerate's YAML.", show_default=False),
    ] = None,
    comparison: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of the comparison; default: MODEL-DATA.")
    ] = "",
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the runs.")] = Path(
        "results/runs"
    ),
    replace: Annotated[bool, typer.Option("--replace", help="Remove runs of the same name first.")] = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Run on the cluster, in this namespace.")
    ] = None,
    target: Annotated[
        Target | None, typer.Option("--for", help="Print a script instead of running.", show_default=False)
    ] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For `--for ssh`: a line per machine, `node-01 slots=8`."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="The script's file; a folder for several strategies."
        ),
    ] = None,
    charts: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Charts; the repository's if left out.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the settings without starting.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: as JSON.")] = False,
) -> None:
    """Train MODEL with a strategy, or compare several, here, on a cluster, or by a script.

    Example: stratlab run cnn ddp,fsdp,zero2

    Example: stratlab run Qwen/Qwen2.5-0.5B fsdp --data chat.jsonl --gpus 8 --batch 64 --epochs 1 --set lr=1e-5

    Example: stratlab run vit_base zero2 --data /data/pets --for slurm --gpus 16 --nodes 2 -o pets.sbatch
    """
    from stratlab.run_line import RunRequest, build_run_line, count_gpus

    folder = charts or find_charts()
    names = list_charts(folder)
    if namespace is not None and target:
        raise UserError(
            "--namespace runs on a cluster, --for prints a script: use one of them [SL-run-place]"
        )
    if as_json and not dry_run:
        raise UserError("--json: only with --dry-run [SL-run-json]")
    here = namespace is None and target is None
    line = build_run_line(
        RunRequest(
            model,
            strategies,
            gpus,
            nodes,
            data,
            batch,
            micro_batch,
            epochs,
            steps,
            comparison,
            settings or (),
            config,
        ),
        names,
        local_gpus=count_gpus() if here else None,
    )
    for note in line.notes:
        say(note)
    if dry_run:
        _show(line, as_json=as_json)
    elif target:
        _render(line, folder, target, results, hostfile, output)
    elif namespace is not None:
        _run_on_cluster(line, folder, namespace)
    else:
        _run_here(line, folder, results, replace=replace)


def find_charts() -> Path:
    """Return the folder of charts: of the working directory, else of the repository.

    Raises:
        UserError: neither exists.
    """
    from stratlab.helm import REPOSITORY

    for folder in (Path("charts"), REPOSITORY / "charts"):
        if (folder / "run").is_dir() or any(folder.glob("ddp*")):
            return folder
    raise UserError(
        "no folder `charts` here; name one with --charts: the repository's, or packages of `helm pull` "
        "[SL-run-no-charts]"
    )


def list_charts(folder: Path) -> list[str]:
    """Return names of the strategies' charts in `folder`: folders, or packages.

    Raises:
        UserError: it holds none.
    """
    no_strategy = ("run", "prepare")
    names = {path.parent.name for path in folder.glob("*/Chart.yaml")}
    names |= {path.name.rpartition("-")[0] for path in folder.glob("*-[0-9]*.tgz")}
    if not (found := sorted(names.difference(no_strategy))):
        raise UserError(f"--charts {folder}: expected a chart of a strategy there [SL-run-charts-empty]")
    return found


def _show(line: RunLine, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "strategies": line.strategies,
                "nodes": line.nodes,
                "processes_per_node": line.processes,
                "config": dict(line.config),
                "paths": line.paths,
                "notes": line.notes,
            }
        )
        return
    size = [f"--nodes {line.nodes}"] * bool(line.nodes) + [f"--processes {line.processes}"] * bool(
        line.processes
    )
    given = [f"--set {shlex.quote(each)}" for each in line.settings]
    print(" ".join(["stratlab rehearse", *(f"charts/{name}" for name in line.strategies), *size, *given]))


def _run_here(line: RunLine, charts: Path, results: Path, *, replace: bool) -> None:
    from stratlab.commands.compare import compare
    from stratlab.commands.local import find_chart, run_request
    from stratlab.rehearsal import next_commands
    from stratlab.rehearsal_plan import RehearsalRequest

    root = results.expanduser().resolve()
    mlflow = root.parent / "mlflow"
    found = [find_chart(charts, name) for name in line.strategies]
    ends = run_request(
        RehearsalRequest(
            found,
            root,
            mlflow,
            settings=line.settings,
            nodes=line.nodes,
            processes=line.processes,
            replace=replace,
        )
    )
    code = next((end.code for end in ends if end.code), 0)
    if not code and len(line.strategies) > 1:
        compare([root / line.comparison], mlflow_store=mlflow)
    for text in next_commands(ends, mlflow):
        print(text)
    raise typer.Exit(code)


def _render(
    line: RunLine, charts: Path, target: Target, results: Path, hostfile: Path | None, output: Path | None
) -> None:
    from stratlab.commands.local import Starter, find_chart, render

    if len(line.strategies) > 1 and not output:
        raise UserError(
            f"--for {target}: {len(line.strategies)} strategies make as many scripts; name a folder with --output "
            "[SL-run-scripts]"
        )
    starter = Starter.hostfile if target is Target.ssh else Starter(target.value)
    ending = {"slurm": "sbatch"}.get(target.value, "sh")
    for name in line.strategies:
        file = output
        if output and len(line.strategies) > 1:
            output.mkdir(parents=True, exist_ok=True)
            file = output / f"{name}.{ending}"
        render(
            find_chart(charts, name),
            starter,
            settings=line.settings,
            nodes=line.nodes,
            processes=line.processes,
            results=results,
            hostfile=hostfile,
            output=file,
        )
        if file:
            say(f"script of {name}: {file}")


COPY_FIRST = (
    "is on this machine, which pods cannot see; copy it to the results volume first (docs/cluster.md), then"
)


def _run_on_cluster(line: RunLine, charts: Path, namespace: str) -> None:
    """Write the line as a sweep's file next to the user's files, and run it: the same file resumes it."""
    from stratlab.commands.sweep import sweep
    from stratlab.run_line import ON_VOLUME

    if (path := line.config.get("dataset_path")) and Path(path).exists() and not path.startswith(ON_VOLUME):
        raise UserError(f"--data {path}: {COPY_FIRST} --data {ON_VOLUME}... [SL-run-data-here]")
    if (path := line.config.get("model_path")) and Path(path).exists() and not path.startswith(ON_VOLUME):
        raise UserError(f"model {path}: {COPY_FIRST} name it {ON_VOLUME}... [SL-run-model-here]")
    given: dict[str, object] = {
        f"run.config.{name}": None if value == "null" else value
        for name, value in line.config.items()
        if name != "comparison"
    }
    given |= dict(path.split("=", 1) for path in line.paths)
    given |= {"run.nodes": line.nodes} if line.nodes else {}
    given |= {"run.processesPerNode": line.processes} if line.processes else {}
    file = Path(f"{line.comparison}.sweep.yaml")
    content = {
        "comparison": line.comparison,
        "namespace": namespace,
        "charts": str(charts.resolve()),
        "set": {path: _typed(value) for path, value in given.items() if value is not None},
        "matrix": {"strategy": list(line.strategies)},
    }
    text = json.dumps(content, indent=1)
    if file.exists() and file.read_text() != text:
        raise UserError(
            f"{file}: exists with other settings; choose another --name, or remove it [SL-run-sweep-file]"
        )
    file.write_text(text)
    say(f"the line as a sweep: {file}; `stratlab sweep {file}` continues it")
    sweep(file)


def _typed(value: object) -> object:
    """Return a number or truth value as YAML reads the text."""
    import yaml

    return yaml.safe_load(value) if isinstance(value, str) and value else value
