"""A teacher beside its student: what it says, how it is kept, and that nobody else sees it."""

import copy

import pytest
import torch
import torch.nn.functional as F

from stratlab_spec.models.model_specs import Preprocessing
from stratlab_spec.settings.config import Config
from trainer.models import build_model
from trainer.models.model_with_loss import ClassLoss, Taught, sum_distances, sum_losses
from trainer.models.teacher import Teacher, place_teacher
from trainer.tasks.normalization import find_rescaling

CLASSES, SIZE = 10, 16


def network(model: str = "cnn", seed: int = 0, **values):
    config = Config(run="r", model=model, seed=seed, **values)
    return build_model(config, image_size=SIZE, channels=1, num_labels=CLASSES)


def pictures(count: int = 4):
    return torch.rand(count, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_the_distance_is_that_of_the_paper():
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (torch.randn(3, 5, generator=generator) for _ in range(2))
    p, q = (theirs / 4).softmax(1), (ours / 4).softmax(1)
    assert float(sum_distances(ours, theirs, 4.0)) == pytest.approx(float(16 * (p * (p / q).log()).sum()))
    assert float(sum_distances(ours, ours, 4.0)) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(AssertionError, match="same classes"):
        sum_distances(ours, theirs[:, :4], 4.0)


@pytest.mark.parametrize("mixed", [False, True])
def test_labels_and_teacher_share_the_loss_and_an_evaluation_knows_no_teacher(mixed):
    loss = ClassLoss(smoothing=0.1)
    logits, taught = torch.randn(4, CLASSES), Taught(torch.randn(4, CLASSES), 3.0, 0.25)
    labels = torch.arange(4)
    given = F.one_hot(labels, CLASSES).float() * 0.75 + 0.025 if mixed else labels
    hard, soft = sum_losses(logits, given, 0.1), sum_distances(logits, taught.logits, 3.0)
    torch.testing.assert_close(loss(logits, given, taught)[0], 0.75 * hard + 0.25 * soft)
    torch.testing.assert_close(loss.eval()(logits, labels, taught)[0], sum_losses(logits, labels))


def test_a_student_learns_from_it_in_training_alone():
    student, teacher = network("vit_tiny"), Teacher(place_teacher(network(seed=3), "cpu", None), 2.0, 0.5)
    images, labels = pictures(), torch.arange(4)
    plain, judged = student(images, labels)[0], student.eval()(images, labels)[0]
    student.train().teacher = teacher
    taught = student(images, labels)[0]
    wanted = 0.5 * plain + 0.5 * sum_distances(student(images), teacher.model(images), 2.0)
    torch.testing.assert_close(taught, wanted)
    teacher.answer = None  # an evaluation does not even ask
    torch.testing.assert_close(student.eval()(images, labels)[0], judged)


def test_nobody_sees_it():
    student, teacher = network("vit_tiny"), Teacher(place_teacher(network(seed=3), "cpu", None), 2.0, 0.5)
    names, count = {*student.state_dict()}, len([*student.parameters()])
    student.teacher = teacher
    student.train()
    student(pictures(), torch.arange(4))[0].backward()
    assert {*student.state_dict()} == names and len([*student.parameters()]) == count
    assert not teacher.model.training and not any(p.requires_grad for p in teacher.model.parameters())
    assert all(p.grad is None for p in teacher.model.parameters())
    assert copy.deepcopy(student).teacher is teacher


def test_it_gets_pixels_as_it_was_trained_with_them():
    ours, theirs = Preprocessing(), Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    pixels = torch.rand(2, 3, 4, 4)
    factor, offset = find_rescaling(ours, theirs)
    wanted = (pixels - torch.tensor(theirs.mean).view(3, 1, 1)) / torch.tensor(theirs.std).view(3, 1, 1)
    torch.testing.assert_close(((pixels - 0.5) / 0.5) * factor + offset, wanted)
    assert find_rescaling(ours, Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)) is None
    grey = find_rescaling(ours, Preprocessing(mean=(0.25,) * 3, std=(0.5,) * 3))
    assert grey is not None and grey[0].numel() == grey[1].numel() == 1
    teacher = Teacher(place_teacher(network(), "cpu", None), 2.0, 0.5, grey)
    torch.testing.assert_close(teacher.answer(pictures()).logits, teacher.model(pictures() + 0.5))
