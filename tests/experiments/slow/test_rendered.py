"""A release of each strategy renders, and the trainer takes it, as `stratlab sweep FILE --dry-run` has it."""

from stratlab.helm import find_helm
from stratlab.sweep.definition import read_sweep
from stratlab.sweep.planned_release import build_sweep_plan, expand
from stratlab_spec.settings.config import Config
from tests.experiments.test_forms import each_part
from trainer.launch.preflight import check_elsewhere, read_pods


def plan(file, *, strategies):
    """The first release, or the last one of each strategy."""
    sweep = read_sweep(file)
    every = expand(sweep)
    chosen = list({release.strategy: release for release in every}.values()) if strategies else every[:1]
    return build_sweep_plan(sweep, file.parent, find_helm(), lambda text: None, chosen)


def check_form(file, *, strategies):
    for planned in plan(file, strategies=strategies):
        check_elsewhere(Config.from_env(planned.environment), read_pods(planned.environment))


@each_part
def test_each_strategy(part):
    check_form(part.full, strategies=True)
    assert plan(part.small, strategies=False)
