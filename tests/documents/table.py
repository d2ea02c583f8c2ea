"""Every command that a user is told to type: which test executes it, or why none can and what stands in for it."""

from __future__ import annotations

from dataclasses import dataclass

HERE = "tests/documents/test_commands.py::"
EXAMPLES_HERE = "tests/documents/test_examples.py::"
REHEARSED = "tests/nightly/rehearsals/test_examples.py::"
PATH = "tests/cluster/e2e/test_runs.py::"
NIGHT = "tests/cluster/nightly/"
RENDERS = f"{HERE}test_charts_render_as_told"
PARSES = f"{HERE}test_stratlab_knows_every_option"
TARGET = f"{HERE}test_make_has_the_target"
DEMO = "tests/nightly/rehearsals/test_documents.py::test_the_tutorial_as_it_stands"
LLM = "tests/nightly/rehearsals/test_llm.py::test_every_layout_is_complete_and_says_what_it_is"
TUNED = "tests/nightly/rehearsals/test_documents.py::test_the_best_of_each_is_compared_and_the_report_says_how"


@dataclass(frozen=True)
class Row:
    """`by`: tests that execute the command. With `instead`, why they cannot, they are what stands in for it."""

    by: tuple[str, ...]
    instead: str = ""


def row(*by: str, instead: str = "") -> Row:
    return Row(by, instead)


GPU_KIT = "tests/benchmarks/gpu/test_program.py::test_each_part_has_a_start_line_in_the_readme"
GPU_SUITE = "tests/suites/test_runner.py::test_each_suite_leaves_its_result"
WHEELS = "tests/distributions/processes/test_wheels.py::test_the_sdist_alone_gives_the_same_wheel"
PACKED = "tests/charts/helms/test_packages.py::test_a_package_renders_what_its_folder_renders"
PUSHED = "tests/charts/helms/test_packages.py::test_pushed_packages_are_pulled_by_their_version"
NO_REGISTRY = "the tests push to a registry on loopback, which has no login"
BOTH = "tests/distributions/processes/test_wheels.py::test_both_in_one_environment"
NO_GPU = "needs a GPU; the suite `gpu` runs every stage on a CPU, small"
RUNS_TESTS = "it runs the tests, and this one among them"
SYSTEM = "changes the system, as root"
PLACEHOLDER = "holds a placeholder"
BUILDS = "builds images for minutes; `make e2e` does"
HEADLINE = "tests/stratlab/compare/judging/test_headline.py::"
COMPARE = f"{PATH}test_the_runs_are_compared_over_the_volume"
INSTALL = f"{PATH}test_a_run_succeeds_by_helm_install_alone"
UNINSTALL = f"{PATH}test_uninstall_leaves_the_results_and_nothing_else"
HELM_TEST = f"{PATH}test_helm_test"
MANIFESTS = "tests/manifests/test_objects.py::test_kubernetes_knows_every_field"
DATA_POD = "tests/manifests/test_data_pod.py::*"
SIZE = "with fewer samples, on another cluster than the user's"
COMPARES = (
    "tests/rehearsals/test_comparison.py::test_the_comparison_is_fair_and_names_no_fastest_strategy_on_a_cpu"
)

LAPTOP = "tests/trainer/environment/ranks/test_laptop.py::"
CHECKED = f"{NIGHT}test_environment_check.py::*"

DIGITS = "-n stratlab --values examples/digits.yaml --values examples/cpu.yaml"
LLM_CHARTS = "charts/llm-1d charts/llm-2d charts/llm-3d charts/llm-4d charts/llm-5d"

DISTIL = "tests/nightly/rehearsals/test_documents.py::*"
STUDIES = "--values examples/digits.yaml --results distil-results/runs"
STUDENT = (
    "--set run.config.comparison=students --set run.config.model=vit_tiny --set run.config.model_layers=2"
)
API = "tests/trainer/ranks/test_api_loading.py::"
GUIDE_LINES = "tests/documents/test_guide_lines.py::"
MEANS = f"{GUIDE_LINES}test_ours_means_something"
ON_GPUS = "trains for hours on several GPUs; its settings are checked as before a start"
VIT_HUGE = "--set model=vit_huge --set init=pretrained"
OF_VIT_HUGE = "--set dataset=food101 --set micro_batch_size=16 --set global_batch_size=32 --processes 2"
START = "tests/nightly/programs/test_start_document.py::test_the_command_trains"
STOPS = "tests/nightly/trainer/test_stops_document.py::"
STOPPED = "python -m trainer --config examples/faults.yaml --processes 2 --set"
EXPORTED = "tests/stratlab/export/processes/test_command.py::test_the_documents_command_writes_what_tensorboard_reads"
OTHERS = "tests/nightly/programs/test_foreign_document.py::"
RENDERED = "tests/stratlab/render/test_command.py::test_the_documents_commands_write_their_script"
FORMS = "tests/experiments/test_forms.py::test_the_full_form_renders_and_the_trainer_takes_it"
RESULTS = "tests/experiments/test_results.py::test_each_part_has_the_result_of_its_small_form"
EXPERIMENTS = (
    *(
        "vit-huge-food101/full/eight-gpus",
        "fsdp-against-standard/full/cifar100",
        *(
            f"guide-examples/full/{name}"
            for name in ("mobilenet-ddp", "efficientnet-zero2", "ensemble-zero3", "vgg-zero3")
        ),
    ),
    *("llm-1d-to-5d/full/gpus-8", "llm-1d-to-5d/full/experts", "llm-1d-to-5d/full/nodes-4"),
    *("vit-lora-cifar100/full/lora", "zeropp-two-nodes/full/quantized", "offload/full/two-gpus"),
    "mobilenet-finetuned/full/cifar100",
    *("seven-models/full/cnn", "two-t4/full/kaggle", "hyperparameters/full/cnn"),
    *("scaling/full/strong", "scaling/full/weak", "distillation/full/taught"),
)
"""Whose full form docs/requirements.md names as what measures something."""

TUTORIAL = "tests/nightly/rehearsals/test_documents.py::test_the_tutorial_as_it_stands"
READS_PODS = "kubectl's own words; what they show is what `stratlab watch` reads on the cluster"

CLOUDS = "tests/charts/test_clouds.py::test_charts_of_several_nodes_render_valid_objects"
ADMISSION = "tests/cluster/parts/test_clouds.py::test_the_admission_is_what_the_page_says"
HAS_NO_CLOUD = "needs that cluster; the real admission, and the parts that any cluster has, are tried on ours"
OPERATED = "tests/cluster/operating/test_operating.py::*"
IN_SERVER = "kubectl -n stratlab exec deployment/mlflow --"
LABEL = "kubectl label namespace stratlab --overwrite pod-security.kubernetes.io/enforce=privileged"

TABLE: dict[str, Row] = {
    **{
        f"helm install fsdp charts/fsdp -n stratlab --values examples/cluster-{name}.yaml "
        "--set run.config.micro_batch_size=4": row(RENDERS, CLOUDS, instead=HAS_NO_CLOUD)
        for name in ("eks-efa", "gke-a3-ultra", "infiniband")
    },
    **{
        command: row(OPERATED)
        for command in (
            "helm install ddp charts/ddp -n stratlab --set run.certificates.configMap=company-ca "
            "--set run.mlflow.trackingUri=https://mlflow.example.com",
            "kubectl -n stratlab create configmap company-ca --from-file=ca.crt",
            "kubectl -n stratlab cp backup/my-comparison data:/results/my-comparison",
            "kubectl -n stratlab exec -i deployment/mlflow -- tar -C /mlflow -xzf - < mlflow-backup.tar.gz",
            f"{IN_SERVER} cat /mlflow/backup.tar.gz > mlflow-backup.tar.gz",
            f"{IN_SERVER} tar -C /mlflow -czf /mlflow/backup.tar.gz backup.db artifacts",
            *(
                f'{IN_SERVER} python -c "import sqlite3; '
                f"sqlite3.connect('/mlflow/{source}.db').backup(sqlite3.connect('/mlflow/{target}.db'))\""
                for source, target in (("mlflow", "backup"), ("backup", "mlflow"))
            ),
            "kubectl -n stratlab rollout restart deployment/mlflow",
            "stratlab fetch my-comparison --with traces,checkpoints,models --output backup -n stratlab",
            "stratlab metrics replay my-comparison/ddp --on-cluster -n stratlab",
            "stratlab remove --older-than 30d --on-cluster -n stratlab",
            "stratlab remove --older-than 30d --with-mlflow --on-cluster -n stratlab",
        )
    },
    "helm template ddp charts/ddp -n stratlab --no-hooks --values my-values.yaml": row(
        RENDERS,
        "tests/charts/test_workloads.py::test_a_trainjob_comes_after_its_runtime",
        instead=PLACEHOLDER,
    ),
    LABEL: row(ADMISSION),
    "helm template fsdp charts/fsdp -n stratlab --values examples/cluster-gke-a3-ultra.yaml "
    "--set run.podSecurity.level=restricted": row(
        "tests/charts/test_clouds.py::test_its_level_is_the_lowest_that_will_do"
    ),
    ".venv/bin/stratlab list demo-results/runs": row(TUTORIAL),
    ".venv/bin/stratlab analyze demo-results/runs/demo/fsdp": row(TUTORIAL),
    ".venv/bin/stratlab rehearse charts/ddp charts/zero2 --values examples/digits.yaml "
    "--set run.config.comparison=half --set run.config.global_batch_size=32 "
    "--set run.config.micro_batch_size=16 --results demo-results/runs": row(TUTORIAL),
    ".venv/bin/stratlab compare demo-results/runs/half --mlflow demo-results/mlflow": row(TUTORIAL),
    ".venv/bin/stratlab rehearse charts/ddp charts/fsdp --results demo-results/runs --values my-values.yaml": row(
        TUTORIAL
    ),
    ".venv/bin/stratlab compare demo-results/runs/pets --mlflow demo-results/mlflow": row(TUTORIAL),
    "stratlab mlflow demo-results/mlflow": row(PARSES, DEMO),
    **{
        f"kubectl -n stratlab {words}": row("tests/cluster/e2e/test_runs.py::*", instead=READS_PODS)
        for words in (
            "describe pytorchjob ddp",
            "get pods -l app.kubernetes.io/instance=ddp",
            "get pytorchjobs",
            "logs -f -l app.kubernetes.io/instance=ddp,app.kubernetes.io/component=training --tail 20",
            "port-forward svc/mlflow 5000",
        )
    },
    **{
        command: row(PARSES, instead=PLACEHOLDER)
        for command in (
            "stratlab check -n NAMESPACE",
            "stratlab compare DIR --varied lr,optimizer",
            "stratlab list --on-cluster",
            "stratlab logs RELEASE",
            "stratlab logs RELEASE -n NAMESPACE --rank 1",
            "stratlab mlflow FOLDER",
            "stratlab remove COMPARISON/RUN --on-cluster",
            "stratlab verify RUN_DIR",
            "stratlab watch RELEASE -n NAMESPACE",
        )
    },
    **{
        f"stratlab sweep experiments/{part}.yaml": row(
            PARSES, FORMS, RESULTS, instead="needs a cluster with GPUs; the small form is run"
        )
        for part in EXPERIMENTS
    },
    "make faults": row(TARGET, "tests/suites/test_faults.py::*", instead="hours; it is the suite `faults`"),
    "python -m tests.image_models.rounding": row(
        "tests/image_models/slow/test_rounding.py::*", instead="minutes; the tests run one network"
    ),
    "python benchmarks/shipped_operations.py": row(
        "tests/benchmarks/processes/test_benchmarks.py::"
        "test_a_shipped_operations_file_that_is_not_what_is_counted_is_found_and_written",
        instead="six minutes; the test counts one of twenty files",
    ),
    "python -m benchmarks.batch_sizes": row(
        "tests/benchmarks/test_memory.py::*", instead="minutes; the tests count one small pair"
    ),
    "stratlab compare results/runs/demo --varied lr,optimizer": row(
        PARSES,
        "tests/stratlab/test_cli.py::test_compare_ranks_over_what_is_varied_and_only_a_sweep_leaves_it_there",
    ),
    # make
    "make": row(f"{HERE}test_make_alone_lists_the_targets"),
    "make demo": row(DEMO),
    "make docs": row(TARGET, "tests/documents/test_site.py::*", instead="the tests build it elsewhere"),
    "make setup": row(TARGET, instead="downloads 6 GB; every test runs in what it has made"),
    "make test": row(TARGET, instead=RUNS_TESTS),
    "make test-fast": row(TARGET, instead=RUNS_TESTS),
    "make e2e": row(TARGET, instead=RUNS_TESTS),
    "make nightly": row(TARGET, GPU_SUITE, instead=RUNS_TESTS),
    "make experiments": row(
        TARGET,
        "tests/experiments/test_results.py::test_each_part_has_the_result_of_its_small_form",
        instead="forty minutes; it is the suite `experiments`",
    ),
    'make notebooks NAMES="api"': row(
        TARGET, "tests/notebooks/processes/test_api_notebook.py::*", instead="writes into the repository"
    ),
    "make status": row(TARGET, "tests/suites/test_runner.py::test_status_tells_result_and_age"),
    "make parity": row(
        TARGET, "tests/suites/test_runner.py::test_each_suite_leaves_its_result", instead=RUNS_TESTS
    ),
    "make parity-llm": row(TARGET, GPU_SUITE, instead=RUNS_TESTS),
    "make lint": row(TARGET, instead="part of `make test`"),
    "make mutants": row(TARGET, "tests/mutants/longer/test_mutants.py::*", instead=RUNS_TESTS),
    "make images": row(TARGET, "tests/images/test_build.py::test_the_build_command", instead=BUILDS),
    "make pictures": row(TARGET, instead="writes into the repository; needs what `make demo` left"),
    "make backtest": row(
        TARGET,
        "tests/benchmarks/test_backtest.py::*",
        instead="it is the suite `backtest`, and writes reports",
    ),
    "make bench-traces": row(TARGET, instead="40 minutes; `reports/traces.json` holds its result"),
    "make dist": row(
        TARGET, WHEELS, instead="writes into the repository; the tests build the same in a copy"
    ),
    "make packages": row(TARGET, PACKED, instead="writes into the repository; the tests pack elsewhere"),
    "make packages REGISTRY=oci://registry.example/team": row(TARGET, PUSHED, instead=NO_REGISTRY),
    "helm registry login registry.example": row(PUSHED, instead=NO_REGISTRY),
    "helm install ddp oci://registry.example/team/ddp --version 0.1.0 -n stratlab --values my-values.yaml": row(
        PACKED, PUSHED, instead=NO_REGISTRY
    ),
    "helm pull oci://registry.example/team/ddp --version 0.1.0": row(PUSHED, instead=NO_REGISTRY),
    "stratlab predict ddp-0.1.0.tgz --values my-values.yaml": row(
        PARSES,
        "tests/distributions/processes/test_empty_environment.py::test_predict_and_render_on_a_packed_chart",
        instead=PLACEHOLDER,
    ),
    "stratlab metrics serve": row("tests/stratlab/metrics/slow/test_prometheus.py::*"),
    "stratlab metrics serve results/runs --port 9464": row(
        PARSES,
        "tests/stratlab/metrics/slow/test_prometheus.py::*",
        instead="with another folder and port",
    ),
    "pip install dist/*.whl": row(BOTH, instead="takes its packages from an index"),
    "make gpu-kit": row(TARGET, GPU_KIT, instead="downloads packages; `make bare` uses what it makes"),
    "make bare": row(TARGET, instead="needs Python 3.12 and 5 GB; it is the suite supported-versions"),
    "make gpu": row(TARGET, GPU_SUITE, instead=NO_GPU),
    "make gpu PART=1 OUT=results/gpu": row(TARGET, GPU_SUITE, instead=NO_GPU),
    "make gpu STAGES=numerics,ab OUT=...": row(TARGET, GPU_SUITE, instead=NO_GPU),
    "make gpu STAGES=project RUNS=resnet:single,vit_base:zero2+compile OUT=...": row(
        TARGET, GPU_SUITE, instead=NO_GPU
    ),
    "make gpu DEVICE=cpu TINY=1": row(TARGET, GPU_SUITE, instead="five minutes; it is the suite `gpu`"),
    "make schema": row(TARGET, "tests/charts/test_values_schema.py::*", instead="writes into the repository"),
    "make chart NAME=<name>": row("tests/charts/test_new_chart.py::test_from_the_command_line"),
    "make golden": row(TARGET, "tests/charts/test_golden.py::*", instead="writes into the repository"),
    "make clean": row(TARGET, instead="would remove what others work with"),
    # the system
    "apt-get install python3-venv": row(instead=SYSTEM),
    "apt-get install chromium": row(instead=SYSTEM),
    "apt-get install buildah debootstrap": row(instead=SYSTEM),
    # here
    ".venv/bin/stratlab rehearse charts/ddp charts/fsdp --set run.config.comparison=pets "
    "--set run.config.dataset_path=/data/pets --set run.config.image_column=photo "
    "--set run.config.model=resnet --set run.config.image_size=64 --set run.config.steps=40 "
    "--set run.config.global_batch_size=32 --set run.config.micro_batch_size=16 --set run.processesPerNode=2": row(
        f"{REHEARSED}test_a_folder_of_ones_own", f"{EXAMPLES_HERE}test_the_readme_s_own_comparison_is_whole"
    ),
    ".venv/bin/stratlab compare results/runs/pets --mlflow results/mlflow": row(
        f"{REHEARSED}test_a_folder_of_ones_own"
    ),
    f".venv/bin/stratlab rehearse {LLM_CHARTS} --values examples/llm_tiny.yaml --results llm-results/runs": row(
        PARSES, RENDERS, LLM
    ),
    ".venv/bin/stratlab compare llm-results/runs/llm-tiny --output llm-results": row(PARSES, LLM),
    f"stratlab rehearse {LLM_CHARTS.split()[0].replace('1d', '{1,2,3,4,5}d')} --values examples/llm_tiny.yaml "
    "--results llm-results/runs": row(PARSES, RENDERS, LLM),
    "stratlab compare llm-results/runs/llm-tiny": row(PARSES, LLM),
    f".venv/bin/stratlab rehearse charts/single {STUDIES} --set run.processesPerNode=1 "
    "--set run.config.comparison=teachers --set run.config.checkpoint_every=100": row(PARSES, DISTIL),
    f".venv/bin/stratlab rehearse charts/ddp charts/fsdp {STUDIES} {STUDENT} --set run.config.teacher=teachers/single "
    "--set run.config.distil_temperature=4 --set run.config.distil_weight=0.7": row(PARSES, DISTIL),
    f".venv/bin/stratlab rehearse charts/zero2 {STUDIES} {STUDENT}": row(PARSES, DISTIL),
    ".venv/bin/stratlab compare distil-results/runs/students --output distil-results "
    "--mlflow distil-results/mlflow": row(PARSES, DISTIL),
    ".venv/bin/stratlab rehearse charts/ddp charts/fsdp --values examples/digits.yaml --set run.config.optimizer=sgd "
    "--set run.config.momentum=0.9 --set run.config.nesterov=true --set run.config.lr=0.01": row(
        PARSES, RENDERS
    ),
    "stratlab analyze RUN_DIR": row("tests/stratlab/analysis/test_analyze.py::*"),
    "stratlab analyze RUN": row("tests/stratlab/analysis/test_analyze.py::*"),
    "stratlab compare DIR": row(COMPARES),
    "stratlab compare results/runs/demo": row(PARSES, COMPARES),
    "stratlab compare results/runs/demo --baseline ddp": row(
        PARSES, "tests/stratlab/compare/test_comparison.py::*"
    ),
    "stratlab compare results/runs/demo --json": row(
        PARSES, "tests/stratlab/test_cli.py::test_compare_prints_its_report_or_writes_it_to_a_file"
    ),
    "stratlab compare results/runs/gpus-2 results/runs/gpus-4 --output scaling": row(
        PARSES, f"{HEADLINE}test_several_folders_are_one_comparison"
    ),
    "stratlab compare results/runs/demo --memory-limit-gib 80": row(
        PARSES, "tests/stratlab/compare/test_comparison.py::*"
    ),
    "stratlab compare --experiment demo --tracking-uri http://mlflow:5000": row(
        PARSES, "tests/stratlab/compare/reading/processes/test_experiment.py::*"
    ),
    **{
        f"python -m trainer --config examples/{rest}": row(START)
        for rest in (
            "training.yaml",
            "training.yaml --set strategy=fsdp --set lr=0.01 --processes 2",
            "digits.yaml --set strategy=ddp --set run=mine --set results=results/runs",
        )
    },
    **{
        f"{STOPPED} {rest}": row(f"{STOPS}test_the_fault_ends_as_the_page_says")
        for rest in (
            "run=hanging --set fault=hang@12:1",
            "run=poisoned --set fault=nan@12:1",
            "run=large --set fault=oom@12",
            "run=smaller --set fault=oom@12 --set oom_ladder=true",
            "run=full --set fault=disk-full@12",
            "run=damaged --set fault=corrupt@25,kill@25:1",
            "run=refused --set allow_faults=false --set fault=kill@25:1",
            "run=late --set fault=kill@5000",
        )
    },
    **{
        f"{STOPPED} {rest}": row(f"{STOPS}test_a_killed_run_goes_on_and_then_under_another_strategy")
        for rest in (
            "run=killed --set fault=kill@25:1",
            "run=moved --set strategy=fsdp --set epochs=4 --set resume_from=faults/killed",
        )
    },
    **{
        f"python -m trainer --set model={model} --set strategy={strategy} --set dataset=cifar100 "
        f"--set micro_batch_size={batch} --set global_batch_size={batch * gpus} --set epochs=100 "
        f"--processes {gpus}": row(
            MEANS, f"{GUIDE_LINES}test_ours_on_one_machine_has_the_values_of_the_line", instead=ON_GPUS
        )
        for model, strategy, gpus, batch in (
            ("mobilenet", "ddp", 4, 16),
            ("efficientnet", "zero2", 8, 16),
            ("ensemble", "zero3", 8, 4),
        )
    },
    **{
        f"python -m trainer {VIT_HUGE} --set strategy={strategy} {OF_VIT_HUGE}": row(
            MEANS, f"{GUIDE_LINES}test_a_line_names_its_gpus_and_its_batch", instead=ON_GPUS
        )
        for strategy in ("ddp", "zero2", "zero3")
    },
    "python -m trainer --processes 2 --config charts/llm-2d/values.yaml": row(MEANS, instead=ON_GPUS),
    "python -m trainer --set model=MODEL --set strategy=STRATEGY --set micro_batch_size=BATCH "
    "--set global_batch_size=TOTAL --set epochs=EPOCHS --processes GPUS": row(
        f"{GUIDE_LINES}test_each_of_their_programs_has_a_line", instead=PLACEHOLDER
    ),
    "helm install llm-2d charts/llm-2d -n stratlab --set run.processesPerNode=2": row(
        RENDERS, f"{EXAMPLES_HERE}test_every_chart_as_it_is_means_something", instead=ON_GPUS
    ),
    f"helm install killed charts/ddp {DIGITS} --set run.config.checkpoint_every=20 --set run.allowFaults=true "
    "--set run.config.fault=kill@37:1": row(
        RENDERS, f"{EXAMPLES_HERE}test_the_trainer_takes_it", "tests/trainer/ranks/test_faults.py::*"
    ),
    "python -m trainer --config FILE --set key=value": row(
        START, "tests/trainer/ranks/test_api.py::*", instead=PLACEHOLDER
    ),
    **{
        f"stratlab analyze RUN {rest}": row(
            "tests/stratlab/analysis/slow/test_shares_document.py::test_the_commands_give_what_one_process_gives"
        )
        for rest in ("--share 0/2", "--share 1/2", "--shares 2")
    },
    "stratlab analyze traces.zip": row(f"{OTHERS}test_real_traces_are_analysed_and_compared"),
    "stratlab compare traces-analysis": row(f"{OTHERS}test_real_traces_are_analysed_and_compared"),
    'stratlab analyze traces.zip --rank-pattern "gpu(\\d+)" --output by-gpu': row(
        f"{OTHERS}test_ranks_that_only_a_pattern_finds"
    ),
    "stratlab export tensorboard results/runs/demo --output boards": row(EXPORTED),
    "stratlab export tensorboard results/runs/demo/ddp": row(EXPORTED),
    "stratlab render charts/ddp --for torchrun --values examples/digits.yaml --set run.accelerator= "
    "--output ddp.sh": row(PARSES, RENDERED),
    "stratlab render charts/fsdp --for slurm --values examples/digits.yaml --nodes 2 --processes 1 --repeats 3 "
    "--output fsdp.sbatch": row(PARSES, RENDERED),
    "stratlab render charts/zero2 --for hostfile --hostfile hostfile.txt --values examples/digits.yaml "
    "--set run.config.micro_batch_size=4 --output zero2.sh": row(PARSES, RENDERED),
    "stratlab render charts/single --for docker --values examples/digits.yaml --processes 1 "
    "--output single.sh": row(PARSES, RENDERED),
    "apt-get install slurm-wlm openssh-server iproute2": row(instead=SYSTEM),
    **{
        f"python -m trainer.settings deepspeed{options}": row(f"{API}test_the_documents_command")
        for options in (
            "",
            " --set strategy=zero3 --set model=vit_huge --processes 2",
            " --set strategy=zero3 --set flops_profiler=true",
            " --config examples/digits.yaml --set strategy=zeropp --set micro_batch_size=16 --processes 2 --nodes 2",
        )
    },
    "python -m trainer.settings --schema": row(f"{HERE}test_programs_without_torch_do_as_told"),
    ".venv/bin/python -m trainer.settings --schema": row(f"{HERE}test_programs_without_torch_do_as_told"),
    ".venv/bin/python -m trainer.layout --model qwen2.5-3b --processes 8 --dimensions 3": row(
        f"{HERE}test_programs_without_torch_do_as_told"
    ),
    "python -m trainer.layout --model qwen2.5-3b --processes 8 --dimensions 3": row(
        f"{HERE}test_programs_without_torch_do_as_told"
    ),
    "python -m trainer.layout --model qwen2.5-3b --processes 8 --dimensions 3 model_layers=12 model_hidden=1024": row(
        f"{HERE}test_programs_without_torch_do_as_told"
    ),
    "python -m trainer": row("tests/trainer/ranks/test_launcher.py::*"),
    "python -m trainer.program check": row("tests/stratlab/rendering/test_checking.py::*"),
    "python -m trainer.layout": row("tests/trainer/layout/test_layout.py::*"),
    "python -m trainer.count": row("tests/trainer/counting/test_command.py::*"),
    "python -m trainer.evaluate RUN_DIRECTORY": row("tests/trainer/ranks/test_evaluate.py::*"),
    "python -m trainer.prepare": row("tests/trainer/processes/test_prepare.py::*"),
    "python -m trainer.prepare --dataset metamathqa --tokenize qwen2.5-3b --seq-len 2048 --to /results": row(
        "tests/trainer/processes/test_prepare_tokens.py::*",
        instead="loads from the hub; tested with a stand-in of it",
    ),
    "python -m trainer.count --ranks 8 --rank 0 --set strategy=fsdp --set model=vit_huge "
    "--set dataset=timm/imagenet-1k "
    "--set precision=bf16 --set micro_batch_size=32 --set global_batch_size=512 --json fsdp.json": row(
        "tests/trainer/counting/test_command.py::*",
        "tests/benchmarks/test_memory.py::*",
        instead="minutes; the suite `memory` counts such configurations",
    ),
    "python -m benchmarks.memory": row(
        "tests/benchmarks/test_memory.py::*", instead="it is the suite `memory`"
    ),
    "python -m benchmarks.memory.before TREE": row(
        "tests/benchmarks/processes/test_benchmarks.py::*",
        instead="an hour; the tests count one small model",
    ),
    "python -m benchmarks.gpu --help": row(
        "tests/benchmarks/gpu/test_program.py::test_help_has_the_stages_and_an_example"
    ),
    ".venv/bin/python -m benchmarks.gpu.read results/gpu": row(
        "tests/benchmarks/gpu/test_program.py::test_the_exit_code_tells_whether_something_failed"
    ),
    ".venv/bin/python -m benchmarks.gpu.read benchmarks/gpu/measured/h200-2026-11-26.jsonl": row(
        "tests/benchmarks/gpu/test_measured.py::test_what_was_measured_is_shown_as_tables"
    ),
    ".venv/bin/python -m benchmarks.gpu.read benchmarks/gpu/measured/h200-2026-11-26-second.jsonl": row(
        "tests/benchmarks/gpu/test_measured.py::test_the_second_half_hour_is_shown_as_tables"
    ),
    "python -m benchmarks.gpu.foreseen": row(
        "tests/benchmarks/gpu/processes/test_processes.py::*",
        instead="nine minutes; the test counts the quickest one",
    ),
    "./start --part 1 --out RESULTS": row(GPU_KIT, instead=NO_GPU),
    "./start --part 2 --out RESULTS": row(GPU_KIT, instead=NO_GPU),
    "./start --part 3 --out RESULTS": row(GPU_KIT, instead=NO_GPU),
    "./start --part 4 --out RESULTS": row(GPU_KIT, instead=NO_GPU),
    "./start --part 5 --out RESULTS": row(GPU_KIT, instead=NO_GPU),
    "./start --read RESULTS": row(GPU_KIT, instead=NO_GPU),
    "images/build --help": row("tests/images/test_build.py::test_help_shows_examples"),
    "tests/cluster/run CLUSTER TESTS": row("tests/cluster/processes/test_run.py::*"),
    # on a cluster: tests/cluster does these with the same programs
    'kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4"': row(
        "tests/charts/test_pytorchjob.py::*",
        instead="needs GitHub; the cluster of `make e2e` has that operator",
    ),
    "kind load docker-image stratlab-trainer:0.1.0 stratlab-lab:0.1.0": row(
        "tests/images/test_build.py::test_an_image_goes_into_a_cluster_through_a_pipe",
        instead="needs docker and kind",
    ),
    "images/build --archive images.out --no-sbom": row(
        "tests/images/test_build.py::test_an_archive_carries_the_name_pods_use", instead=BUILDS
    ),
    "kind load image-archive images.out/stratlab-trainer-0.1.0.tar": row(
        "tests/images/test_build.py::test_an_archive_carries_the_name_pods_use", instead="needs kind"
    ),
    "kind load image-archive images.out/stratlab-lab-0.1.0.tar": row(
        "tests/images/test_build.py::test_an_archive_carries_the_name_pods_use", instead="needs kind"
    ),
    "python -m trainer.program replay": row("tests/trainer/processes/test_replay.py::*"),
    "stratlab metrics replay": row("tests/stratlab/metrics/slow/test_replay.py::*"),
    "stratlab metrics replay COMPARISON/RUN --on-cluster": row(
        "tests/stratlab/metrics/slow/test_replay.py::*", instead=PLACEHOLDER
    ),
    "stratlab predict --model qwen2.5-3b --gpus 8": row(PARSES, f"{HERE}test_stratlab_predicts_as_told"),
    "stratlab predict --model vit_huge --gpus 16 --set micro_batch_size=32": row(
        PARSES, f"{HERE}test_stratlab_predicts_as_told"
    ),
    "stratlab predict --model vit_base --gpus 8 --count": row(
        "tests/trainer/counting/slow/test_operations.py::test_predict_asks_the_trainer_for_a_model",
        instead="counts for minutes; the test has one strategy of a small model",
    ),
    "stratlab predict --model vit_huge --set strategy=zero3 --set offload=optimizer --count": row(
        "tests/stratlab/predict/processes/test_trainer_asked.py::test_only_what_is_typed_is_asked_of_the_trainer",
        "tests/stratlab/predict/test_operations_files.py::test_what_leaves_the_device_is_found_on_the_host",
        instead="counts for minutes",
    ),
    "stratlab predict --model vit_huge --gpus 8 --gpus-per-node 4": row(
        PARSES, f"{HERE}test_stratlab_predicts_as_told"
    ),
    "stratlab predict --model vit_huge --gpus 64 --set micro_batch_size=32 --device-gib 139.8 --page fits.html": row(
        PARSES, f"{HERE}test_stratlab_predicts_as_told"
    ),
    "stratlab predict charts/ddp charts/fsdp --set run.processesPerNode=8 --set run.config.model=qwen2.5-3b "
    "--set run.config.dataset=metamathqa --set run.config.seq_len=2048 --set run.config.micro_batch_size=4": row(
        PARSES, f"{HERE}test_stratlab_predicts_as_told"
    ),
    "python -m trainer.count --ranks 8 --set strategy=fsdp --set model=qwen2.5-3b --set dataset=metamathqa "
    "--set seq_len=2048 --set micro_batch_size=1 --set global_batch_size=64 --operations fsdp.json": row(
        "tests/nightly/trainer/test_scaled_operations.py::*",
        instead="half a minute; the tests count small models, the shipped file of this name is what it wrote",
    ),
    "stratlab list --on-cluster -n stratlab": row(
        PARSES, "tests/stratlab/list/processes/test_list_on_cluster.py::*"
    ),
    "stratlab fetch my-comparison -n stratlab --with traces": row(
        PARSES, "tests/stratlab/fetch/test_fetch.py::*", instead=PLACEHOLDER
    ),
    "stratlab fetch demo/ddp -n stratlab": row(PARSES, "tests/stratlab/fetch/test_fetch.py::*"),
    "stratlab remove demo/ddp --on-cluster -n stratlab": row(
        PARSES, "tests/stratlab/remove/test_remove.py::*"
    ),
    "stratlab remove my-comparison/ddp --on-cluster -n stratlab": row(
        PARSES, "tests/stratlab/remove/test_remove.py::*", instead=PLACEHOLDER
    ),
    "kubectl apply -k": row(MANIFESTS, INSTALL),
    **{
        f"kubectl -n stratlab {words}": row(DATA_POD, instead="kubectl's own words; the pod is checked")
        for words in (
            "apply -f manifests/data-pod.yaml",
            "wait --for=condition=Ready pod/data --timeout=300s",
            "cp /data/pets data:/results/_raw",
            "delete pod data",
            "wait --for=jsonpath='{.status.conditions[0].type}' job -l app.kubernetes.io/instance=pets --timeout=3600s",
            "logs -l app.kubernetes.io/instance=pets",
            "create role data-copier --verb=create --resource=pods/exec",
        )
    },
    "helm install pets charts/prepare -n stratlab --set prepare.dataset=/results/_raw/pets": row(
        RENDERS,
        "tests/trainer/processes/test_prepare.py::test_a_folder_of_images_is_prepared_once_and_a_run_trains_from_it",
        instead="needs what was copied",
    ),
    "helm install ddp charts/ddp -n stratlab --set run.config.dataset_path=/results/_prepared/pets "
    "--values my-values.yaml": row(RENDERS, instead=PLACEHOLDER),
    "helm dependency update": row(
        "tests/charts/test_new_chart.py::test_a_packed_copy_of_the_library_is_ignored_by_git_said_and_not_here",
        instead="told only to warn of what it leaves",
    ),
    "python -m tests.mutants.drawing": row("tests/mutants/longer/test_mutants.py::*"),
    "python -m tests.memory_faults": row(
        "tests/memory_faults/test_verdict.py::*", instead="minutes; it is the suite `memory-faults`"
    ),
    "kubectl apply -k manifests/overlays/kind": row(MANIFESTS, INSTALL),
    "kubectl delete -k manifests/overlays/kind": row(
        MANIFESTS, instead="takes away what the other tests use"
    ),
    "kubectl delete pod NAME-test": row(HELM_TEST, instead=PLACEHOLDER),
    "helm -n default uninstall NAME": row(UNINSTALL, instead=PLACEHOLDER),
    "helm upgrade RELEASE CHART -n stratlab --reuse-values --set run.analysis.resources.requests.cpu=510m": row(
        f"{NIGHT}test_faults.py::test_a_running_release_is_upgraded", instead=PLACEHOLDER
    ),
    "kubectl -n stratlab rollout status deployment/mlflow": row(INSTALL),
    "stratlab check -n stratlab": row(PARSES, INSTALL),
    f"helm install ddp charts/ddp {DIGITS}": row(
        RENDERS, f"{EXAMPLES_HERE}test_the_trainer_takes_it", INSTALL
    ),
    f"helm install fsdp charts/fsdp {DIGITS}": row(
        RENDERS, f"{EXAMPLES_HERE}test_the_trainer_takes_it", f"{NIGHT}test_path.py::*"
    ),
    "stratlab watch fsdp -n stratlab": row(PARSES, f"{NIGHT}test_path.py::*"),
    "stratlab compare demo --on-cluster -n stratlab --output demo-report": row(PARSES, COMPARE),
    "helm -n stratlab uninstall ddp fsdp": row(UNINSTALL),
    "helm install food101 charts/prepare -n stratlab --set prepare.dataset=ethz/food101 "
    "--set run.image.repository=registry.example/stratlab-trainer": row(
        RENDERS, "tests/trainer/processes/test_prepare.py::*", instead="loads from the hub"
    ),
    "helm install fsdp-1 charts/fsdp -n stratlab --set run.image.repository=registry.example/stratlab-trainer "
    "--set run.analysis.image.repository=registry.example/stratlab-lab --set run.nodes=2 --set run.processesPerNode=8 "
    "--set run.config.comparison=vit --set run.config.model=vit_huge --set run.config.precision=bf16 "
    "--set run.config.dataset_path=/results/_prepared/food101 --set run.config.global_batch_size=512 "
    "--set run.config.micro_batch_size=32": row(
        RENDERS,
        f"{EXAMPLES_HERE}test_the_gpu_command_of_the_readme_means_something",
        f"{REHEARSED}test_the_gpu_command_of_the_readme_at_a_tiny_size",
        instead="needs 16 GPUs",
    ),
    "stratlab sweep examples/sweep.yaml": row(
        PARSES,
        f"{EXAMPLES_HERE}test_the_trainer_takes_every_release_of_the_sweep",
        f"{REHEARSED}test_a_release_of_the_sweep_as_it_is",
        "tests/cluster/parts/test_sweep.py::*",
    ),
    "stratlab sweep examples/sweep.yaml --dry-run": row(PARSES, "tests/stratlab/sweep/test_command.py::*"),
    "stratlab sweep examples/tuned.yaml --rehearse tuned-rehearsal": row(PARSES, TUNED),
    "stratlab sweep examples/tuned.yaml --dry-run": row(PARSES, TUNED),
    "stratlab sweep examples/tuned.yaml": row(
        PARSES, TUNED, instead="needs a cluster; the rehearsal does the same without one"
    ),
    "helm install ddp charts/ddp -n stratlab --values my-values.yaml": row(RENDERS, instead=PLACEHOLDER),
    "helm install ddp-8 charts/ddp -n stratlab --set run.config.micro_batch_size=8 --values my-values.yaml": row(
        RENDERS, instead=PLACEHOLDER
    ),
    "helm install check charts/ddp -n stratlab --set run.config.mode=check --values my-values.yaml": row(
        RENDERS, CHECKED, instead=PLACEHOLDER
    ),
    **dict.fromkeys(
        ("stratlab watch check -n stratlab", "stratlab logs check -n stratlab"), row(PARSES, CHECKED)
    ),
    "helm -n stratlab uninstall check": row(CHECKED),
    "python -m trainer.environment": row(f"{LAPTOP}test_the_documents_command"),
    "python -m trainer.environment --processes 2 --results results --json": row(
        f"{LAPTOP}test_a_healthy_machine_lacks_nothing"
    ),
    "stratlab watch ddp -n stratlab": row(PARSES, INSTALL),
    "stratlab logs ddp -n stratlab --rank 1": row(PARSES, "tests/stratlab/logs/test_rank_log.py::*"),
    "helm -n stratlab test ddp --logs": row(HELM_TEST),
    "stratlab compare my-comparison --on-cluster -n stratlab": row(PARSES, COMPARE, instead=PLACEHOLDER),
    "helm -n stratlab uninstall ddp": row(UNINSTALL),
    "helm install tokens charts/prepare -n stratlab --set prepare.dataset=metamathqa,prepare.tokenize=qwen2.5-3b "
    "--set run.config.seq_len=2048,run.config.validation_fraction=0.01": row(
        RENDERS,
        "tests/charts/test_prepare.py::test_a_token_cache_is_the_one_that_a_run_with_the_same_settings_reads",
        instead="loads from the hub",
    ),
    "helm install llm-3d charts/llm-3d -n stratlab --set run.config.comparison=math": row(
        RENDERS, "tests/charts/test_llm.py::*", instead="needs 8 GPUs"
    ),
    "helm install llm-4d charts/llm-4d -n stratlab --set run.config.comparison=math": row(
        RENDERS, "tests/charts/test_llm.py::*", instead="needs 8 GPUs"
    ),
    "stratlab compare math --on-cluster -n stratlab": row(
        PARSES, f"{NIGHT}test_llm.py::test_the_five_layouts_are_compared"
    ),
    "helm install llm-3d charts/llm-3d -n stratlab --values examples/llm_tiny.yaml "
    "--set run.nodes=8,run.processesPerNode=1": row(
        RENDERS,
        f"{EXAMPLES_HERE}test_the_trainer_takes_it",
        f"{NIGHT}test_llm.py::test_a_layout_runs_on_eight_pods",
    ),
}

FILES: dict[str, tuple[str, ...]] = {
    **{
        f"cluster-{name}.yaml": (f"{EXAMPLES_HERE}test_the_trainer_takes_it", CLOUDS, ADMISSION)
        for name in ("eks-efa", "gke-a3-ultra", "infiniband")
    },
    "cpu.yaml": (f"{EXAMPLES_HERE}test_the_trainer_takes_it", INSTALL),
    "digits.yaml": (f"{EXAMPLES_HERE}test_the_trainer_takes_it", COMPARES, DEMO),
    "training.yaml": (START,),
    "faults.yaml": (f"{STOPS}test_the_fault_ends_as_the_page_says",),
    "llm_tiny.yaml": (f"{EXAMPLES_HERE}test_the_trainer_takes_it", LLM),
    "sweep.yaml": (
        f"{EXAMPLES_HERE}test_the_trainer_takes_every_release_of_the_sweep",
        f"{REHEARSED}test_a_release_of_the_sweep_as_it_is",
    ),
    "tuned.yaml": (TUNED,),
}
"""Files of examples/ and the tests that execute them."""
