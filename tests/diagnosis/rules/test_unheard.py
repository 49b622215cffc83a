"""Losses that do not depend on all examples, or hardly on the right answer, and sound ones that look like them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellcond as wc

G = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=G)
LABELS = (torch.tanh(X @ torch.randn(8, 12, generator=G)) @ torch.randn(12, 3, generator=G)).argmax(1)
NUMBERS = torch.sin(X @ torch.randn(8, generator=G))
SIDES = (X[:, 0] > X[:, 1]).float()
PAIRED = torch.rand(256, generator=G) < 0.5
PARTNERS = torch.where(PAIRED[:, None], X + 0.1 * torch.randn(256, 8, generator=G), X.roll(1, 0))


def network(outputs):
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs), *([nn.Flatten(0)] * (outputs == 1)))


def findings(model, loss, *tensors, size=32):
    batches = [tuple(t[i : i + size] for t in tensors) for i in range(0, 256, size)]
    problem = (
        wc.Problem.from_step(model, loss[0], batches)
        if isinstance(loss, tuple)
        else wc.Problem(model, loss, [(batch[0], batch[1] if len(batch) == 2 else batch[1:]) for batch in batches])
    )
    return wc.diagnose(problem, torch.optim.Adam(model.parameters(), 3e-3)).findings


def hinge(outputs, targets):
    return F.relu(1 - targets * outputs).mean()


def of_pairs(model, batch):
    return F.cosine_embedding_loss(model(batch[0]), model(batch[1]), batch[2])


FAULTS = {
    "the first example only": (1, lambda o, t: F.mse_loss(o[0], t[0]), (X, NUMBERS), "severe"),
    "the last example only": (1, lambda o, t: F.mse_loss(o, t, reduction="none")[-1], (X, NUMBERS), "severe"),
    "a hinge of 0 and 1": (1, hinge, (X, SIDES), "severe"),
    "pairs that are 0 and 1": (8, (of_pairs,), (X, PARTNERS, PAIRED.float()), "severe"),
    "a class that is ignored": (3, nn.CrossEntropyLoss(ignore_index=1), (X, LABELS), "warning"),
    "a class without a weight": (3, nn.CrossEntropyLoss(torch.tensor([1.0, 0.0, 1.0])), (X, LABELS), "warning"),
    "labels smoothed away": (3, nn.CrossEntropyLoss(label_smoothing=0.99), (X, LABELS), "severe"),
}
WEIGHTS = (torch.arange(256) % 2).float()
HALF = torch.where(WEIGHTS > 0, LABELS, -1)
SOUND = {
    "a hinge of -1 and 1": (1, hinge, (X, 2 * SIDES - 1)),
    "pairs that are -1 and 1": (8, (of_pairs,), (X, PARTNERS, 2 * PAIRED.float() - 1)),
    "labels that are missing": (3, nn.CrossEntropyLoss(ignore_index=-1), (X, HALF)),
    "weights of zero": (
        3,
        lambda o, t: (t[1] * F.cross_entropy(o, t[0], reduction="none")).mean(),
        (X, LABELS, WEIGHTS),
    ),
    "labels smoothed by a tenth": (3, nn.CrossEntropyLoss(label_smoothing=0.1), (X, LABELS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_found(name):
    torch.manual_seed(0)
    outputs, loss, data, severity = FAULTS[name]
    first = findings(network(outputs), loss, *data)[0]
    assert (first.rule, first.severity, first.basis) == ("output-loss-mismatch", severity, "proven")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound(name):
    torch.manual_seed(0)
    outputs, loss, data = SOUND[name]
    assert not [each for each in findings(network(outputs), loss, *data) if each.severity != "note"]


def test_how_many_are_heard():
    from wellcond.diagnosis.probes.heard import heard
    from wellcond.diagnosis.probes.subject import Subject

    model = network(3)
    problem = wc.Problem(model, nn.CrossEntropyLoss(ignore_index=2), (X[:64], LABELS[:64]))
    with problem.measuring():
        shown = heard(Subject.of(problem))
    is_ignored = LABELS[:64] == 2
    assert shown.count == int((~is_ignored).sum())
    assert (shown.value, shown.values) == (2.0, 3)
    assert shown.share == pytest.approx(float(is_ignored.double().mean()))


def contrastive(factor):
    def step(model, batch):
        one, other = (F.normalize(model(view), dim=1) for view in batch)
        return F.cross_entropy(factor * one @ other.T, torch.arange(len(one)))

    return step


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "is_sound"), [(0.07, False), (1 / 0.07, True), (2.0, True)])
def test_a_temperature_that_is_multiplied(factor, is_sound):
    torch.manual_seed(0)
    views = X, X + 0.1 * torch.randn(256, 8)
    diagnosed = findings(network(16), (contrastive(factor),), *views)
    severe = [each.rule for each in diagnosed if each.severity == "severe"]
    assert severe == ([] if is_sound else ["output-loss-mismatch"])


def test_what_bounded_similarities_leave():
    from wellcond.diagnosis.probes.similarities import similarity_floor
    from wellcond.diagnosis.probes.subject import Subject

    torch.manual_seed(0)
    same = X[:32]  # a similarity of 1 with itself is the bound
    problem = wc.Problem.from_step(network(16), contrastive(0.5), [(same, same)])
    with problem.measuring():
        floor = similarity_floor(Subject.of(problem))
    assert floor == pytest.approx(math.log(1 + 31 * math.exp(-1)) / math.log(32), rel=1e-5)


@pytest.mark.slow
def test_as_many_classes_as_examples_are_no_similarities():
    torch.manual_seed(0)
    assert not [each for each in findings(network(3), nn.CrossEntropyLoss(), X, LABELS, size=4) if each.rule != "note"]
