"""`python -m trainer.settings deepspeed`: prints what `deepspeed_config` gives."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from trainer.api.deepspeed_stages import build_deepspeed
from trainer.failures import DataMissing
from trainer.settings.config import ConfigError

EXAMPLES = """\
examples:
  python -m trainer.settings deepspeed --set strategy=zero3 --set model=vit_huge --processes 8
  python -m trainer.settings deepspeed --config examples/digits.yaml --set strategy=zeropp --processes 2 --nodes 2

Labels and channels of the data set, where they are not known: --labels 37 --channels 3. Exit codes: 0 done,
2 bad configuration, 3 model missing."""


def main(arguments: Sequence[str]) -> int:
    """Prints the JSON; 0, or 2 or 3 with a sentence per broken rule."""
    given = _parser().parse_args(arguments)
    try:
        found = build_deepspeed(_list_options(given), given.nodes, given.device, given.labels, given.channels)
    except ConfigError as failure:
        print(failure, file=sys.stderr)
        return 2
    except DataMissing as failure:
        print(failure, file=sys.stderr)
        return 3
    print(json.dumps(found, indent=2))
    return 0


def _list_options(given: argparse.Namespace) -> list[str]:
    """Those that `python -m trainer` knows too."""
    named = (("--config", given.config), ("--processes", given.processes))
    options = [word for name, value in named if value is not None for word in (name, value)]
    return options + [word for pair in given.pairs for word in ("--set", pair)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.settings deepspeed",
        description="DeepSpeed's configuration of a ZeRO stage, as a run of these settings gives it to DeepSpeed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="settings as YAML, or a chart's values")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="pairs", help="may be repeated"
    )
    parser.add_argument("--processes", metavar="N", help="on each node; else what FILE says, else 1")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (1)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what computes (cuda)")
    parser.add_argument("--labels", type=int, default=0, metavar="N", help="classes of the images")
    parser.add_argument("--channels", type=int, default=0, metavar="N", help="channels of the images")
    return parser
