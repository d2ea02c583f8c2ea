"""What is watched of storages, what they are held for, and that what is replaced is put back."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.memory_estimation.causes import _nodes_between
from trainer.memory_estimation.steps import OrdinaryValues
from trainer.memory_estimation.storages import NODE_CAUSE, StorageWatch

KIB = 1024


@pytest.fixture
def watch():
    with FakeTensorMode(allow_non_fake_inputs=True), OrdinaryValues(), StorageWatch(1) as watch:
        watch.phase = "forward"
        yield watch


def held(watch):
    return watch.timeline.moment(len(watch.timeline.events))


def test_what_resize_frees_is_given_back_and_the_patch_is_taken_back():
    before = torch.UntypedStorage.resize_
    with FakeTensorMode(), StorageWatch(1) as watch:
        gathered = torch.empty(KIB)
        gathered.untyped_storage().resize_(0)
        assert held(watch).total == 0
        gathered.untyped_storage().resize_(4 * KIB)
        assert held(watch).total == 4 * KIB
        assert torch.UntypedStorage.resize_ is not before
    assert torch.UntypedStorage.resize_ is before
    events = len(watch.timeline.events)
    del gathered
    gc.collect()
    assert len(watch.timeline.events) == events, "it goes on after its end"


def test_casts_of_parameters_are_low_precision_copies_and_those_of_activations_are_not(watch):
    weight, activation = torch.empty(KIB), torch.empty(KIB)
    watch.attribute(weight, "parameters", final=True)
    kept = weight.to(torch.bfloat16), activation.to(torch.bfloat16), weight.double()
    causes = held(watch).by_cause()
    assert causes["low-precision copies"] == 2 * KIB
    assert causes["activations"] == (4 + 2 + 8) * KIB and kept


def test_a_region_says_what_it_is_for_and_final_is_final(watch):
    with watch.region("gathered", final=True):
        gathered = torch.empty(KIB)
    with watch.region("gradient buckets"):
        bucket = torch.empty(KIB)
    for tensor in (gathered, bucket):
        watch.attribute(tensor, "gradients")
    causes = held(watch).by_cause()
    assert (causes["gathered"], causes["gradients"]) == (4 * KIB, 4 * KIB)


def test_what_the_loss_s_backward_pass_makes_is_told_from_the_rest(watch):
    logits = torch.ones(8, requires_grad=True) * 2
    loss = (logits * 3).exp().sum()
    nodes = _nodes_between(loss, logits)
    assert len(nodes) == 3 and logits.grad_fn not in nodes
    for node in nodes:
        node.metadata[NODE_CAUSE] = "logits and loss"
    before, watch.phase = held(watch).by_cause()["logits and loss"], "backward"
    (gradient,) = torch.autograd.grad(loss, logits)
    assert held(watch).by_cause()["logits and loss"] - before == 8 * 4 and gradient is not None


@pytest.mark.parametrize(("phase", "moved"), [("optimizer", True), ("backward", False)])
def test_the_host_updates_what_is_offloaded(watch, phase, moved):
    gradient, other = torch.empty(KIB), torch.empty(KIB)
    watch.move_to_host(gradient)
    watch.phase = phase
    made = torch._foreach_add([gradient], [other]), torch._foreach_add([other], [gradient])
    assert watch.timeline.host_peak(0).total == (8 if moved else 4) * KIB and made
