"""What DeepSpeed's stages hold in a step of a tiny model whose sizes are whole KiB."""

from dataclasses import replace

import pytest

from stratlab_spec.memory.recording import PLAIN, Allocation, NotRecorded, Recording, Weight
from stratlab_spec.memory.simulation import HeldMemory, simulate
from stratlab_spec.memory.zero3_rules import Zero3Rules
from stratlab_spec.memory.zero3_trace import ModuleTrace
from stratlab_spec.memory.zero_rules import ZeroRules

KIB = 1024
LAYERS = 3
SIZES = {"H": 128, "V": 256}
"""A layer's weight has 64 KiB in fp32, embedding and head have 128 KiB each: 448 KiB in all."""


def copy(size: str):
    return [(True, "copy", "low-precision copies", size), (False, "copy", "low-precision copies", size)]


def gradient(size: str):
    return [(True, "gradient", "gradients", size), (False, "gradient", "gradients", size)]


def measure_tiny(*, recomputed: bool = False):
    """Return a model of one product in each layer."""
    product = copy("2 H H")
    forward = {"start": [], "head": copy("2 H V")}
    backward = {"head backward": gradient("4 H V"), "start backward": gradient("4 H V")}
    for name in ("first", "second", "middle", "last"):
        forward[name] = product
        again = product if recomputed else []
        backward[f"{name} backward"] = [*again, *product, *gradient("4 H H")]
    ends = {place: [(f"{place}.weight", ["1 V", "1 H"], True, True)] for place in ("start", "head")}
    layer = [("layer.linear.weight", ["1 H", "1 H"], True, True)]
    return Recording({}, {**ends, "layer": layer}, forward | backward, ["0"]).measure(SIZES)


SETTINGS = {
    "shards": 2,
    "bucket_elements": 64 * KIB // 4,
    "persistent_elements": 0,
    "prefetch_elements": 0,
    "live_elements": 0,
    "reuse_elements": 0,
    "moments": 2,
    "accumulates": False,
    "keeps_embedding": True,
}
"""Nothing is gathered before its module, or stays."""


def hold_zero3(measured=None, layers=LAYERS, **given):
    """Return the fullest moments of two ranks' windows in KiB."""
    measured = measured or measure_tiny()
    rules = Zero3Rules(ModuleTrace(measured, layers), **(SETTINGS | given))
    windows = simulate(measured, rules, layers, 1).windows
    return {name: total / KIB for name, (total, _) in windows.items() if name}


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("bucket_kib", [64, 160, 1000])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_layers_that_are_passed_over_hold_what_they_hold_when_played(
    monkeypatch, recomputed, bucket_kib, ahead
):
    layer = 64 * KIB // 4
    settings = {
        "bucket_elements": bucket_kib * KIB // 4,
        "prefetch_elements": ahead * layer,
        "live_elements": (ahead + 2) * layer,
        "reuse_elements": ahead * layer,
        "layers": 40,
    }
    skipped = []
    skip = Zero3Rules.skip
    monkeypatch.setattr(Zero3Rules, "skip", lambda *given: (skipped.append(given), skip(*given)))
    found = hold_zero3(measure_tiny(recomputed=recomputed), **settings)
    assert skipped
    monkeypatch.setattr(Zero3Rules, "count_alike", lambda *_: 0)
    assert hold_zero3(measure_tiny(recomputed=recomputed), **settings) == found


STATE = 5 * 448 / 2 + 64
"""Shards, their masters, two moments, gradients; a bucket."""


def test_stage_3_holds_shards_and_the_modules_at_work():
    """Forward: the embedding stays, the head is gathered from a buffer. Backward: its gradient or a layer's."""
    found = hold_zero3()
    assert found["forward"] == STATE + 128 + 64 + 128
    assert found["backward"] == STATE + 128 + 128 + 128
    assert found["optimizer"] == STATE + 224


def test_an_embedding_that_is_not_asked_for_outside_its_module_is_freed():
    assert hold_zero3(keeps_embedding=False)["forward"] == STATE + 64 + 128


def test_weights_that_are_used_soon_stay():
    """All three layers are still there in the head."""
    assert hold_zero3(reuse_elements=10**6)["forward"] == STATE + 128 + 3 * 64 + 64 + 128


def test_a_weight_that_is_asked_for_outside_its_module_lies_between_the_passes():
    """The last layer is 65,536 elements away from its next use: the head's two calls; the embedding adds 32,768."""
    assert hold_zero3(reuse_elements=70000)["forward"] == STATE + 128 + 64 + 128
    assert hold_zero3(reuse_elements=70000, keeps_embedding=False)["forward"] == STATE + 64 + 64 + 128


def test_weights_are_gathered_ahead_up_to_the_live_elements():
    """At the embedding, which is live: one layer more fits, and the two others when it is released."""
    one = hold_zero3(prefetch_elements=128 * 128, live_elements=256 * 128 + 1)
    assert one["forward"] == STATE + 128 + 64 + 128
    every = hold_zero3(prefetch_elements=10**6, live_elements=10**6)
    assert every["forward"] > STATE + 128 + 3 * 64 + 64 + 128


def test_a_full_bucket_is_reduced_through_a_copy():
    """The whole model's gradients: bucket and copy of 448 KiB."""
    wide = hold_zero3(bucket_elements=448 * KIB // 4)
    assert wide["backward"] == STATE - 64 + 448 + 448 + 128


def test_ranks_hold_padded_shards():
    """On each of 300 ranks 3 x 55 + 2 x 110 numbers, 1,540 bytes: four blocks."""
    assert hold_zero3(shards=300)["optimizer"] == 5 * 2 + 64 + 2


def test_an_optimizer_may_copy_the_flat_gradients_once_more():
    assert hold_zero3(update_copies=1)["optimizer"] == STATE + 2 * 224


def test_what_persists_is_freed_before_the_update():
    found = hold_zero3(persistent_elements=128 * 128)
    assert found["forward"] == STATE + 3 * 64 + 128 + 64 + 128
    assert found["optimizer"] == STATE + 224


def test_hpz_holds_shards_over_the_node_too():
    """Of four ranks two share a node: half of every weight, after its first use."""
    held = HeldMemory()
    given = SETTINGS | {"shards": 4, "accumulates": True, "node_shards": 2}
    rules = Zero3Rules(ModuleTrace(measure_tiny(), LAYERS), **given)
    rules.hold_state(held)
    assert held.held["parameters"] / KIB == 448 / 4 + 448 / 2


def test_offloaded_state_is_on_the_host():
    """Shards of weights stay unless all is offloaded; masters, two moments and gradients, twice, go.

    Backward: the embedding; the last layer with its gradient, while the norm of the head's is taken in fp64.
    """
    kept, gone = hold_zero3(offload="optimizer"), hold_zero3(offload="all")
    assert (kept["optimizer"], gone["optimizer"]) == (224 + 64, 64)
    assert kept["backward"] - gone["backward"] == 224
    assert kept["backward"] == 224 + 64 + 128 + 64 + 64 + 128 + 128
    rules = Zero3Rules(ModuleTrace(measure_tiny(), LAYERS), **SETTINGS | {"offload": "all"})
    rules.hold_state(held := HeldMemory())
    assert {cause: size / KIB for cause, size in held.host.items()} == {
        "parameters": 224,
        "master copies": 224,
        "optimizer state": 448,
        "gradients": 448,
    }


def test_a_recomputed_layer_calls_its_module_again():
    trace = ModuleTrace(measure_tiny(recomputed=True), LAYERS)
    assert trace.calls == [0, 1, 2, 3, 4, 4, 3, 3, 2, 2, 1, 1, 0]
    assert trace.early == {6, 8, 10}
    assert hold_zero3(measure_tiny(recomputed=True)) == hold_zero3()


def test_a_bias_of_a_recomputed_product_gathers_no_other_weight():
    """Its copy comes between the two of its weight. A rank's half of all weights has 225 KiB in whole blocks."""
    measured = measure_tiny(recomputed=True)
    measured.weights["layer"].append(Weight("layer.linear.bias", (128,), False, True))
    taken, freed = (event._replace(bytes=512) for event in measured.segments["last"])
    for name in ("first", "second", "last"):
        backward = measured.segments[f"{name} backward"]
        for events in (measured.segments[name], backward):
            events[:2] = [events[0], taken, events[1], freed]
        backward += [event._replace(bytes=512) for event in backward[-2:]]
    assert hold_zero3(measured, persistent_elements=128)["optimizer"] == 5 * 225 + 64 + 225


def measure_pictures():
    """Return the same with 64 KiB of positions, which enter no product, next to the first product."""
    measured = measure_tiny()
    measured.weights["start"].insert(0, Weight("positions", (128, 128), False, True))
    measured.segments["start backward"][:0] = [
        event._replace(bytes=64 * KIB) for event in measured.segments["start backward"]
    ]
    return measured


def test_positions_are_gathered_for_the_start_of_each_pass():
    """The first product's weight stays for the whole pass: its type is asked for outside its module."""
    state = 5 * 512 / 2 + 64
    found = hold_zero3(measure_pictures())
    assert found["forward"] == state + 128 + 64 + 128  # in the head, without the positions
    assert found["backward"] == state + 128 + 128 + 128
    assert found["optimizer"] == state + 256


def test_one_rank_gathers_nothing():
    """Its shards are the weights. Forward: the head in 16 bits. Backward: its gradient, and a layer's."""
    state = 5 * 448 + 64
    assert hold_zero3(shards=1) == {
        "forward": state + 64,
        "backward": state + 128 + 64,
        "optimizer": state + 448,
    }


def measure_adapters(*, recomputed: bool = False):
    """Return frozen weights with a trained one of 32 KiB in each layer, which multiplies before the layer's own.

    The first layer's input needs no gradient, so its adapter is not copied in the backward pass.
    """
    product, adapter = copy("2 H H"), copy("2 H r")
    forward = {name: [*adapter, *product] for name in ("first", "second", "last")}
    backward = [*product, *adapter, *gradient("4 H r")]
    segments = {"start": [], **forward, "head": copy("2 H V"), "head backward": []}
    segments |= {"last backward": backward, "second backward": backward}
    segments["first backward"] = [*product, *gradient("4 H r")]
    if recomputed:
        segments |= {f"{name} backward": [*forward[name], *segments[f"{name} backward"]] for name in forward}
    ends = {place: [(f"{place}.weight", ["1 V", "1 H"], True, False)] for place in ("start", "head")}
    layer = [
        ("layer.adapter.weight", ["1 H", "1 r"], True, True),
        ("layer.linear.weight", ["1 H", "1 H"], True, False),
    ]
    return Recording({}, {**ends, "layer": layer}, segments, ["0"]).measure(SIZES | {"r": 64})


def test_frozen_weights_are_called_where_they_multiply():
    """Neither the start nor the first adapter has a gradient to pass on."""
    trace = ModuleTrace(measure_adapters(), LAYERS)
    assert trace.calls == [0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2]
    again = ModuleTrace(measure_adapters(recomputed=True), LAYERS)
    assert again.calls == [0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 6, 5, 4, 3, 4, 3, 2, 1, 2]


def test_frozen_weights_have_neither_masters_nor_gradients():
    """Shards of 448 + 96 KiB; master, two moments and gradients of 96; a bucket. The adapters persist to the update.

    The head is gathered while the embedding stays, in both passes; its weight is released before the last layer.
    """
    state = 544 / 2 + 4 * 96 / 2 + 64
    found = hold_zero3(measure_adapters(), persistent_elements=64 * 128)
    assert found["forward"] == found["backward"] == state + 96 + 128 + 64 + 128
    assert found["optimizer"] == state + 96
    assert hold_zero3(measure_adapters(recomputed=True), persistent_elements=64 * 128) == found


def test_secondary_shards_of_frozen_weights_stay_from_step_to_step():
    held = HeldMemory()
    trace = ModuleTrace(measure_adapters(), LAYERS)
    given = SETTINGS | {"shards": 4, "persistent_elements": 64 * 128, "node_shards": 2}
    Zero3Rules(trace, **given).hold_state(held)
    assert held.held["parameters"] / KIB == 544 / 4 + 448 / 2


def measure_kept():
    """Return the tiny model with copies that autocast keeps: 32 KiB in each layer, marks around the products."""
    measured = measure_tiny()
    for name in ("first", "second", "last"):
        copy_taken, copy_freed, *backward = measured.segments[f"{name} backward"]
        begin, end = copy_taken._replace(bytes=0), copy_freed._replace(bytes=0)
        measured.segments[name] = [begin, copy_taken._replace(kind=PLAIN), end]
        measured.segments[f"{name} backward"] = [begin, end, copy_freed._replace(kind=PLAIN), *backward]
    return measured


def test_a_mark_gathers_the_weight_of_a_product_whose_copy_stays():
    """Forward: all three copies in the head, with its own. Backward: with a layer's weight and its gradient."""
    trace = ModuleTrace(measure_kept(), LAYERS)
    assert trace.calls == ModuleTrace(measure_tiny(), LAYERS).calls
    found = hold_zero3(measure_kept(), keeps_embedding=False)
    assert found["forward"] == hold_zero3(keeps_embedding=False)["forward"] + 3 * 32
    assert found["backward"] == hold_zero3(keeps_embedding=False)["backward"] + 3 * 32


def measure_one_type(*, element_bytes: int = 4):
    """Return the tiny model where nothing casts: marks around the products."""
    measured = measure_tiny()
    for name, events in measured.segments.items():
        measured.segments[name] = [
            event._replace(bytes=0 if event.kind == "copy" else event.bytes * element_bytes // 4)
            for event in events
        ]
    for group in measured.weights.values():
        group[:] = [replace(one, element_bytes=element_bytes) for one in group]
    return measured


def test_a_weight_of_the_products_type_is_gathered_into_its_place():
    """No buffer and no copy: embedding and head in fp32."""
    found = hold_zero3(measure_one_type(), casts=False)
    assert found["forward"] == STATE + 128 + 128
    assert found["backward"] == STATE + 128 + 128 + 128


def test_weights_of_16_bits_have_masters_in_fp32():
    """Shards and gradients of 112 KiB, masters and two moments of 224; the bucket has fp32."""
    found = hold_zero3(measure_one_type(element_bytes=2), casts=False)
    state = 2 * 112 + 3 * 224 + 64
    assert found["forward"] == state + 64 + 64
    assert found["optimizer"] == state + 112 + 224  # flat gradients in both types


def measure_router(marked: bool):
    """Return the tiny model with a router of 8 KiB before the product of each layer."""
    measured = measure_tiny()
    measured.weights["layer"].insert(0, Weight("mlp.gate.weight", (16, 128), False, True))
    for name in ("first", "second", "last"):
        forward, backward = measured.segments[name], measured.segments[f"{name} backward"]
        mark = [event._replace(bytes=0) for event in forward] if marked else []
        gradients = [event._replace(bytes=8 * KIB) for event in backward[-2:]]
        measured.segments[name] = [*mark, *forward]
        measured.segments[f"{name} backward"] = [*backward, *mark, *gradients]
    return measured


def test_a_router_is_gathered_in_its_own_type_or_must_persist():
    trace = ModuleTrace(measure_router(marked=True), LAYERS)
    assert trace.multiplies == [True] * 8 and trace.calls[1:3] == [1, 2]
    gathered, persistent = (hold_zero3(measure_router(True), persistent_elements=n) for n in (0, 16 * 128))
    assert gathered["forward"] + 3 * 8 == persistent["forward"]
    assert hold_zero3(measure_router(False), persistent_elements=16 * 128) == persistent
    with pytest.raises(NotRecorded, match="gate"):
        hold_zero3(measure_router(False))


def test_a_network_may_have_no_weights_before_its_layers():
    """It has a head and three layers, 320 KiB in all."""
    measured = measure_tiny()
    measured.weights["start"].clear()
    del measured.segments["start backward"]
    state = 5 * 320 / 2 + 64
    found = hold_zero3(measured, keeps_embedding=False)
    assert found["forward"] == state + 128 + 64 and found["optimizer"] == state + 160


def test_a_gradient_of_no_weight_is_not_recorded():
    measured = measure_tiny()
    extra = [event._replace(bytes=KIB) for event in measured.segments["head backward"]]
    measured.segments["head backward"] += extra
    with pytest.raises(NotRecorded, match="1024 bytes"):
        hold_zero3(measured)


@pytest.mark.parametrize(("segment", "said"), [("second", "copies"), ("second backward", "gradient")])
def test_products_without_a_copy_or_a_gradient_are_not_recorded(segment, said):
    measured = measure_tiny()
    measured.segments[segment].clear()
    with pytest.raises(NotRecorded, match=said):
        ModuleTrace(measured, LAYERS)


def test_a_norm_must_persist():
    trace = ModuleTrace(measure_tiny(), LAYERS)
    trace.weights[1], trace.multiplies[1] = Weight("norm.weight", (128,), False, True), False
    with pytest.raises(NotRecorded, match="norm"):
        Zero3Rules(trace, **SETTINGS | {"persistent_elements": 127})


def hold_zero1(buckets: int, accumulates: bool = False):
    """Return the backward window of zero1 on two ranks, above the state, in KiB."""
    measured = measure_tiny()
    ends = Weight("end", (256, 128), True, True)
    layer = [Weight("layer", (128, 128), True, True)]
    rules = ZeroRules([ends], [layer] * LAYERS, [ends], 2, 1, 64 * KIB // 4, buckets, 2, accumulates)
    return simulate(measured, rules, LAYERS, 1).windows["backward"][0] / KIB - 448 * (1 + 3 / 2)


def test_zero1_without_overlap_keeps_whole_gradients_to_the_end_of_a_pass():
    """All gradients, one bucket, this rank's part with the layer that both ranks share; before them the bucket."""
    assert hold_zero1(1) == 64 + 448 + 256


def test_an_earlier_micro_batch_of_zero1_may_be_the_fullest():
    """Its end, with 1 MiB for a moment: all gradients and two buckets. The last one has reduced most by then."""
    measured = measure_tiny()
    moment = [Allocation(taken, PLAIN, "activations", 1024 * KIB) for taken in (True, False)]
    measured.segments["start backward"][:0] = moment
    ends = Weight("end", (256, 128), True, True)
    layer = [Weight("layer", (128, 128), True, True)]
    last, earlier = (
        ZeroRules([ends], [layer] * LAYERS, [ends], 8, 1, 64 * KIB // 4, 2, 2, True, completes)
        for completes in (True, False)
    )
    found = simulate(measured, last, LAYERS, 3, earlier).windows["backward"][0]
    assert found / KIB == 448 * (1 + 3 / 8) + 448 + 2 * 64 + 1024
