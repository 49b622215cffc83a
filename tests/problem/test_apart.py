"""Steps that are `loss(model(inputs), targets)` in other words, and steps that are not."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.labels import relation
from wellcond.problem.apart import StepLoss, taken_apart, with_drawn_targets
from wellcond.problem.problem import Problem

X, Y = torch.randn(16, 5, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def by_name(model, batch):
    model.train()
    return {"loss": F.cross_entropy(model(batch["x"]).float(), batch["y"]), "error": torch.tensor(0.5)}


def denoise(model, batch):
    return F.mse_loss(model(batch + 0.1 * torch.randn_like(batch)), batch[:, :3])


@pytest.mark.parametrize(
    ("step", "batch", "targets"),
    [(classify, (X, Y), Y), (by_name, {"x": X, "y": Y, "id": torch.arange(16)}, Y), (denoise, X, X)],
    ids=["a pair", "a dict", "noise in the inputs"],
)
def test_apart(step, batch, targets):
    problem = Problem.from_step(nn.Linear(5, 3), step, [batch])
    apart = taken_apart(problem)
    assert isinstance(apart.loss, StepLoss)
    ((_, own),) = apart.batches
    assert torch.equal(own, targets)
    assert float(apart.loss_and_gradients()[0]) == pytest.approx(float(problem.loss_and_gradients()[0]), rel=1e-5)
    assert apart.loss(torch.zeros(4, 3), own[:4]) is not None  # fewer examples than in the batch


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size, self.kind = nn.Linear(5, 1), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"size": self.size(x)[:, 0], "kind": self.kind(x)}


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["equal terms", "the second is lost in the rounding of the first"])
def test_a_step_with_a_tuple_of_losses_keeps_all_of_them_apart(scale: float) -> None:
    sizes = scale * X.sum(1)

    def step(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, size, kind = batch
        outputs = model(x)
        error = (outputs["kind"].argmax(1) != kind).float().mean()  # for printing: it has no gradient
        return F.mse_loss(outputs["size"], size), F.cross_entropy(outputs["kind"], kind), error

    model = TwoHeads()
    apart = taken_apart(Problem.from_step(model, step, [(X, sizes, Y)]))
    assert isinstance(apart.loss, StepLoss)
    first, second, _ = step(model, (X, sizes, Y))
    (by_hand,) = torch.autograd.grad(second, [model.kind.weight])
    gradients = apart.loss_and_gradients()[1]
    torch.testing.assert_close(gradients["kind.weight"], by_hand)
    assert float(apart.loss_and_gradients()[0]) == pytest.approx(float((first + second).detach()))


def test_a_number_without_a_gradient_next_to_the_loss_does_not_count() -> None:
    def step(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        outputs = model(batch[0])
        return F.cross_entropy(outputs, batch[1]), (outputs.argmax(1) == batch[1]).float().mean()

    problem = Problem.from_step(nn.Linear(5, 3), step, [(X, Y)])
    apart = taken_apart(problem)
    assert isinstance(apart.loss, StepLoss)
    assert float(apart.loss_and_gradients()[0]) == pytest.approx(float(problem.loss_and_gradients()[0]))
    assert apart.notes == problem.notes == []


def penalized(model, batch):
    return classify(model, batch) + sum(p.square().sum() for p in model.parameters())


def twice(model, batch):
    return (model(batch[0]) - model(-batch[0])).square().mean()


def mixed(model, batch):
    x, y = batch
    share, order = torch.rand(()), torch.randperm(len(x))
    outputs = model(share * x + (1 - share) * x[order])
    return share * F.cross_entropy(outputs, y) + (1 - share) * F.cross_entropy(outputs, y[order])


def diffuse(model, batch):
    noise = torch.randn(16, 3)
    return F.mse_loss(model(batch[0] + noise.sum()), noise)


def inside(model, batch):
    return F.cross_entropy(F.linear(batch[0], model.weight), batch[1])


@pytest.mark.parametrize("step", [penalized, twice, mixed, diffuse, inside], ids=lambda step: step.__name__)
def test_not_apart(step):
    problem = Problem.from_step(nn.Linear(5, 3), step, [(X, Y)])
    before = torch.random.get_rng_state()
    assert taken_apart(problem) is problem
    assert torch.equal(torch.random.get_rng_state(), before)


def with_length_of_inputs(model, batch):
    goal = torch.full((len(batch[0]),), 2)
    goal[:] = torch.cat([each["label"] for each in batch[1]])
    return F.cross_entropy(model(batch[0]), goal)


def at_places(model, batch):
    outputs = model(batch[0])
    picked = [outputs[i, each["place"][0] + each["place"][1]] for i, each in enumerate(batch[1])]
    return F.mse_loss(torch.stack(picked), torch.cat([each["label"] for each in batch[1]]).float())


@pytest.mark.slow
@pytest.mark.parametrize("step", [with_length_of_inputs, at_places], ids=lambda step: step.__name__)
def test_targets_in_a_dict_for_each_example_are_not_cut_along_the_batch(step):
    targets = [{"label": y[None], "place": torch.tensor([int(y) // 2, int(y) % 2])} for y in Y]
    problem = Problem.from_step(nn.Linear(5, 3), step, [(X, targets)])
    assert taken_apart(problem) is problem
    diagnosis = wc.diagnose(problem, torch.optim.Adam(problem.model.parameters(), 1e-3))
    assert "output-loss-mismatch" not in [each.rule for each in diagnosis.findings]
    assert not [why for why in diagnosis.failed.values() if "Error" in why]


def test_lengths_of_sequences_next_to_targets_of_another_length():
    """CTC's targets in one row: the loss with the batch's own targets is that of the step."""
    flat, lengths = torch.tensor([1, 2, 1, 2, 2, 1]), torch.tensor([2, 3, 1])
    x = X[:3, None].expand(3, 8, 5).contiguous()

    def ctc(model, batch):
        x, flat, lengths = batch
        logs = model(x).log_softmax(2).transpose(0, 1)
        return F.ctc_loss(logs, flat, torch.full((len(x),), 8), lengths)

    model = nn.Linear(5, 3)
    apart = taken_apart(Problem.from_step(model, ctc, [(x, flat, lengths)]))
    assert isinstance(apart.loss, StepLoss)
    (outputs, targets) = model(x), next(iter(apart.loader))[1]
    torch.testing.assert_close(apart.loss(outputs, targets), ctc(model, (x, flat, lengths)))


def test_batches_stay_as_they_are():
    x: Tensor = X.clone()

    def writes(model, batch):
        batch[0].mul_(2)
        return F.cross_entropy(model(batch[0]), batch[1])

    taken_apart(Problem.from_step(nn.Linear(5, 3), writes, [(x, Y)]))
    assert torch.equal(x, X)


def test_a_step_that_copies_the_weights_every_so_many_calls():
    model, target, calls = nn.Linear(5, 3), nn.Linear(5, 3), [1]

    def bootstrapped(model, batch):
        if calls[0] % 20 == 0:
            target.load_state_dict(model.state_dict())
        calls[0] += 1
        with torch.no_grad():
            best = target(batch[0]).amax(1)
        return F.mse_loss(model(batch[0]).gather(1, batch[1][:, None])[:, 0], best)

    apart = taken_apart(Problem.from_step(model, bootstrapped, [(X, Y)]))
    assert isinstance(apart.loss, StepLoss)
    ((_, own),) = apart.batches
    assert all(apart.loss(torch.zeros(16, 3), own).isfinite() for _ in range(40))


def unlike(model, batch):
    return F.mse_loss(model(batch + torch.randn_like(batch)), torch.randn(16, 3))


def alike(model, batch):
    noise = torch.randn_like(batch)
    return F.mse_loss(model(batch + noise), noise[:, :3])


def fixed(model, batch):
    return F.mse_loss(model(batch + torch.randn_like(batch)), batch[:, :3])


@pytest.mark.parametrize(("step", "is_related"), [(unlike, False), (alike, True), (fixed, None)])
def test_targets_that_the_step_draws(step, is_related):
    batches = [torch.randn(16, 5, generator=torch.Generator().manual_seed(i)) for i in range(20)]
    drawn = with_drawn_targets(Problem.from_step(nn.Linear(5, 3), step, batches))
    assert (drawn is None) == (is_related is None)
    if drawn is not None:
        assert (relation(drawn).best > 4) == is_related
