"""A bare GPU machine, played by a CPU: the kit from an empty folder, and the trainer's tests, without network.

    make bare                                        everything; Python 3.12, torch 2.11, transformers 5.17
    python -m tests.bare --smallest                  three stages of the kit, and one strategy against one process

Neither pydantic, msgspec, datasets nor deepspeed is installed there. The tests get what they alone need besides
(requirements/bare_tests.in), behind everything else on the path. Processes run in a network namespace with nothing but
a loopback where that is permitted; elsewhere proxies that nobody answers stand for it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".tools/bare/bin/python"
TEST_PACKAGES = ROOT / ".tools/bare_tests"
KIT = ROOT / "gpu-kit"
FACTS = ROOT / "reports/raw/supported-versions.json"
MEASURED = ("torch", "torchvision", "transformers", "peft", "safetensors", "numpy")
ABSENT = ("pydantic", "msgspec", "datasets", "deepspeed")
LOOPBACK_ONLY = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
NAMESPACES = (("unshare", "--net", *LOOPBACK_ONLY), ("unshare", "--map-root-user", "--net", *LOOPBACK_ONLY))
"""As root, and as anybody where the kernel lets them."""
NO_PROXY = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
SMALLEST_STAGES = "environment,numerics,traces"
SMALLEST_TESTS = ["tests/parity/test_parity.py::test_every_strategy_equals_one_process[2]"]
TESTS = ["tests/trainer", "tests/parity", "tests/nightly/parity", "--numprocesses", "2", "--dist", "loadfile"]


def find_isolation() -> tuple[list[str], dict[str, str]]:
    """(what comes before a command, further environment) that keep a process off the network."""
    for before in NAMESPACES:
        if subprocess.run([*before, "true"], capture_output=True).returncode == 0:
            return [*before], {}
    return [], NO_PROXY


def find_present() -> list[str]:
    """Packages that a bare machine must not have, and this environment has."""
    code = f"from importlib.util import find_spec; print(*(n for n in {ABSENT} if find_spec(n)))"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def read_versions() -> dict[str, str]:
    """Of the bare environment."""
    code = (
        "import json, platform; from importlib.metadata import version; "
        f"print(json.dumps({{'python': platform.python_version(), **{{n: version(n) for n in {MEASURED}}}}}))"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str]) -> int:
    """0 if the kit's stages and the tests passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bare", description=__doc__.splitlines()[0])
    parser.add_argument("--smallest", action="store_true", help="three stages and one group of tests")
    options = parser.parse_args(arguments)
    for path, target in (
        (PYTHON, ".tools/bare/ready"),
        (KIT, "gpu-kit"),
        (TEST_PACKAGES, ".tools/bare_tests/ready"),
    ):
        if not path.exists():
            print(f"{path.relative_to(ROOT)} is missing: make {target}", file=sys.stderr)
            return 2
    if present := find_present():
        print(f".tools/bare has {', '.join(present)}: it is not bare", file=sys.stderr)
        return 2
    before, env = find_isolation()
    print(
        f"network: {'a namespace with a loopback alone' if before else 'proxies that nobody answers'}",
        flush=True,
    )
    env = {**os.environ, **env, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="stratlab-bare-") as folder:
        kit = Path(shutil.copytree(KIT, Path(folder) / "kit"))
        start = [*before, str(PYTHON), str(kit / "start")]
        stages = ["--stages", SMALLEST_STAGES] if options.smallest else []
        places = ["--out", f"{folder}/out", "--work", f"{folder}/work"]
        kit_code = subprocess.call([*start, "--device", "cpu", "--tiny", *stages, *places], env=env, cwd=kit)
        subprocess.call([*start, "--read", f"{folder}/out"], env=env, cwd=kit)
        chosen = SMALLEST_TESTS if options.smallest else TESTS
        pytest = ["--also", str(TEST_PACKAGES), "--python", "-m", "pytest", "-p", "no:cacheprovider", *chosen]
        tests_code = subprocess.call([*start, *pytest], env=env, cwd=ROOT)
    FACTS.parent.mkdir(parents=True, exist_ok=True)
    found = {"versions": read_versions(), "kit": _say(kit_code), "tests": _say(tests_code), "chosen": chosen}
    FACTS.write_text(json.dumps(found) + "\n")
    print(f"kit: {_say(kit_code)}; tests: {_say(tests_code)}", flush=True)
    return int(bool(kit_code or tests_code))


def _say(code: int) -> str:
    return "passed" if code == 0 else f"ended with {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
