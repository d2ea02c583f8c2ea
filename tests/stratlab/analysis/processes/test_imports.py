"""What reading a trace imports: each package costs every process of an analysis its time."""

import json
import subprocess
import sys

from tests.stratlab.simulated.small import build_gpu_trace

NEEDED = {"numpy", "msgspec", "typing_extensions", "stratlab", "stratlab_spec"}  # the third is msgspec's
COSTLY = {"numpy.ma", "concurrent.futures", "multiprocessing", "importlib.metadata", "ssl", "pydantic"}
CODE = """
import json, sys
before = set(sys.modules)
from pathlib import Path
from stratlab.analysis.measure import measure_traces
assert measure_traces({0: Path(sys.argv[1])}).ranks
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_a_trace_is_read_with_numpy_and_the_decoder_only(tmp_path):
    path = build_gpu_trace(0).write(tmp_path / "rank0_trace.json")
    done = subprocess.run([sys.executable, "-c", CODE, path], capture_output=True, text=True, check=True)
    found = set(json.loads(done.stdout))
    assert found & COSTLY == set()
    assert {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names) <= NEEDED
