"""From a file's counts to a peak, and which file answers."""

import json
from itertools import product

import pytest

from stratlab_spec.memory.extrapolation import Sample
from stratlab_spec.memory.profiles import (
    CPU,
    describe_setting,
    find_operations,
    read_operations,
    read_operations_file,
)
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab_spec.memory.operations_files import (
    SAMPLES,
    ask,
    build_content,
    hold,
    make_file,
    write_damaged,
    write_file,
)

WANTED = {"model": "qwen2.5-3b", "strategy": "fsdp", "seq_len": "2048"}


def test_what_grows_evenly_is_scaled_exactly(tmp_path):
    file = make_file(tmp_path)
    for layers, rows, ranks in product((3, 36), (1, 2, 3, 100), (2, 8, 60)):
        peak = file.peak(rows, ranks, layers)
        window = max(hold(layers, rows, ranks).items(), key=lambda one: sum(one[1].values()))
        assert (peak.window, peak.causes) == (window[0], window[1])
    last = [one | {"rank": 7, "windows": {"forward": {"activations": 10**9}}} for one in SAMPLES[:6]]
    assert make_file(tmp_path, samples=[*SAMPLES[:6], *last]).peak(4, 8, 36).rank == 7, "the fullest decides"


@pytest.mark.parametrize(("stages", "first", "last"), [(1, 4, 3), (2, 2 + 2, 2 + 1)])
def test_a_rank_holds_the_layers_of_its_stages(stages, first, last):
    sample = Sample(layers=8, rows=1, ranks=2, rank=0, axes={"pp": 2}, windows={"forward": {}})
    ends = [sample.model_copy(update={"rank": rank}).own_layers(7, stages) for rank in (0, 1)]
    assert ends == [first, last]


@pytest.mark.parametrize(
    ("change", "ranks", "others", "missed"),
    [
        ({}, 64, {}, ""),
        ({"precision": "auto", "packing": "True"}, 8, {}, ""),
        ({"seq_len": "4096"}, 8, {}, "seq_len=2048 4096"),
        ({"packing": "false"}, 8, {}, "packing=true false"),
        ({"strategy": "ddp"}, 8, {}, "strategy=fsdp ddp"),
        ({}, 1, {}, "ranks=2, 8 1"),
        ({}, 8, {"accumulates": False}, "one micro-batch in a step several"),
        ({}, 8, {"per_node": 4}, "4 ranks on a node 8"),
        ({"seed": "3"}, 8, {"known": [*WANTED]}, "no setting seed when it was counted 3"),
        ({"seed": "0"}, 8, {"known": [*WANTED]}, ""),  # as it was when it was not there
    ],
)
def test_a_file_answers_for_its_own_settings(tmp_path, change, ranks, others, missed):
    file = make_file(tmp_path, **others)
    question = ask(WANTED | change, ranks)
    told = "".join(file.misses(question)).replace(" (wanted", "").replace(")", "")
    assert told == missed and (find_operations([file], question) is file) is not missed
    if "accumulates" in others:
        assert not [*file.misses(ask(WANTED, global_batch=8))], "a step of one micro-batch"
        bounds = [make_file(tmp_path).is_upper_bound(ask(WANTED, global_batch=batch)) for batch in (8, 16)]
        assert bounds == [True, False], "counted with several micro-batches"


@pytest.mark.parametrize(
    ("optimizer", "counted", "asked", "answers"),
    [
        ("sgd", 0.0, "0.01", False),
        ("sgd", 0.01, "0", False),
        ("sgd", 0.01, "0.1", True),
        ("adamw", 0.0, "0.01", True),
    ],
)
def test_a_decay_matters_where_it_takes_a_copy(tmp_path, optimizer, counted, asked, answers):
    settings = {"optimizer": optimizer, "weight_decay": counted}
    file = make_file(tmp_path, settings)
    question = ask(WANTED | {"optimizer": optimizer, "weight_decay": asked})
    assert bool([*file.misses(question)]) is not answers


def test_a_setting_left_out_has_its_default_or_is_as_counted(tmp_path):
    short = {"model": "qwen2.5-3b", "strategy": "fsdp"}
    file = make_file(tmp_path)
    assert len([*file.misses(ask(short))]) == 1 and not [*file.misses(ask(short, whole=False))]
    # nobody says a depth who asks for a model; what scales with depth keeps none in its settings
    content = json.loads(write_file(tmp_path, {"model_layers": 6}).read_text())
    file = make_file(tmp_path, {"model_layers": 6}, defaults=content["defaults"] | {"model_layers": 0})
    assert len([*file.misses(ask(short, whole=False))]) == 1
    assert not [*file.misses(ask(short | {"model_layers": "6"}, whole=False))]


def test_a_file_of_a_cpu_s_rules_answers_on_a_cpu_alone(tmp_path):
    gpu, cpu, question = make_file(tmp_path), make_file(tmp_path, rules=CPU), ask(WANTED)
    assert find_operations([gpu], question, CPU) is gpu and find_operations([gpu, cpu], question, CPU) is cpu
    assert find_operations([cpu, gpu], question) is gpu and find_operations([cpu], question) is None


def test_a_damaged_file_is_refused_with_its_place(tmp_path):
    content = build_content()
    newer = json.dumps(content | {"schema_version": 9})
    path = tmp_path / "damaged.json"
    for name, text in (write_damaged(content) | {"newer": newer}).items():
        path.write_text(text)
        refused = raised(read_operations_file, path)
        code = "SL-operations-schema" if name == "newer" else "SL-operations-file"
        assert find_codes(refused) == [code] and str(path) in str(refused), name
    left_out = []
    assert [*read_operations([tmp_path, tmp_path / "not there"], left_out.append)] == []
    assert [each.path for each in left_out] == [path]


def test_a_nought_is_told_as_what_it_means():
    assert describe_setting("vit_huge", "image_size", 64) == "64"
    assert "224" in describe_setting("vit_huge", "image_size", 0)
    for name in ("image_size", "model_layers"):
        assert not any(letter.isdigit() for letter in describe_setting("owner/name", name, 0))
