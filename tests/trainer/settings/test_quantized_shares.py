from __future__ import annotations

from stratlab_spec.settings.library_rules import block_bytes, count_blocks, describe_quantized, is_quantized


def test_a_shard_of_less_than_two_blocks_is_sent_as_it_is():
    assert is_quantized(1024, 1) and not is_quantized(1023, 1)
    assert is_quantized(4093, 4) and not is_quantized(4092, 4), "the first shard is the larger one"
    assert [count_blocks(elements, 4) for elements in (4096, 4097, 8192, 8193)] == [2, 3, 4, 5]
    assert block_bytes("qwz") == 516 and block_bytes("qgz") == 260


def test_what_is_told_of_a_model():
    """By hand, 2 shards: a matrix of 4096, one of 4096 that is frozen, a norm of 64."""
    sizes = [(4096, True), (4096, False), (64, True)]
    found = describe_quantized(["hpz", "qwz", "qgz"], sizes, 2, persistent_elements=100)
    block = {"block": 512}
    assert found == {
        "qwz": block | {"bits": 8, "parameters": 2, "of_parameters": 3, "elements_pct": 100 * 8192 / 8256},
        "qgz": block | {"bits": 4, "parameters": 1, "of_parameters": 2, "elements_pct": 100 * 4096 / 4160},
    }
    # parameters that stay whole are not gathered in blocks
    found = describe_quantized(["qwz", "qgz"], [(4096, True), (8192, True)], 2, persistent_elements=4096)
    assert (found["qwz"]["parameters"], found["qgz"]["parameters"]) == (1, 2)
