"""Each remedy against what it says it does: the treated copy, and the lines that a user is told to write."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from zoo import ARCHITECTURES, Case

import wellcond as wc
from wellcond.errors import Unsupported, WellcondError
from wellcond.remedies.remedy import REMEDIES
from wellcond.remedies.setup import Setup
from wellcond.training.copies import CopyTrainer
from wellcond.treatment.treat import SOURCES

Loss = Callable[[Any, Any], Tensor]
CLASSES, RATE, STEPS = 3, 0.05, 6


def table(scale: float = 1.0, shift: float = 0.0, targets: str = "classes") -> list[tuple[Tensor, Tensor]]:
    """Three batches of eight examples with four features."""
    draw = torch.Generator().manual_seed(0)
    x = shift + scale * torch.randn(24, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (24,), generator=draw)
    if targets == "numbers":
        y = 300 + 50 * x.sum(1, keepdim=True) / scale
    return list(zip(x.split(8), y.split(8), strict=True))


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    made = layers or (nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    for layer in made:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return nn.Sequential(*made).double()


def setup(
    model: nn.Module, batches: Any = None, loss: Loss = F.cross_entropy, make: Callable[..., Optimizer] | None = None
) -> Setup:
    batches = batches or table()
    optimizer = (make or SGD)(model.parameters(), lr=RATE)
    return Setup(wc.Problem(model, loss, batches), optimizer, 0.0, batches[0][0], STEPS)


def treated(name: str, given: Setup) -> Setup:
    found = REMEDIES[name].apply(given)
    assert found is not None
    return found


def losses(given: Setup) -> list[float]:
    """Of a run of the treated patient."""
    trainer = CopyTrainer(given.problem, given.optimizer, before_training=given.prepare)
    return list(trainer.start(RATE).run(STEPS).losses)


def losses_by_hand(model: nn.Module, optimizer: Optimizer, batches: Any, loss: Loss) -> list[float]:
    found = []
    for step in range(STEPS):
        x, y = batches[step % len(batches)]
        value = loss(model.train()(x), y)
        found.append(float(value.detach()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return found


def assert_close(found: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-9, atol=1e-12)


def test_every_remedy_says_why_and_knows_its_findings() -> None:
    contract = {
        "learning-rate-too-high", "learning-rate-too-low", "unscaled-input", "unscaled-target", "output-loss-mismatch",
        "saturated-activation", "symmetric-initialisation", "bad-initialisation", "no-gradient", "exploding-gradient",
        "vanishing-gradient", "weight-decay-dominates", "dropout-too-strong", "small-batch-batchnorm", "non-finite",
        "ill-conditioned-input", "last-layer-drift", "dying-neurons", "attention-saturation", "diverging",
    }  # fmt: skip
    assert len(SOURCES) == len({remedy.apply.__module__ for remedy in REMEDIES.values()})
    assert all(remedy.why.splitlines()[0].endswith((".", ":")) or "\n" in remedy.why for remedy in REMEDIES.values())
    assert contract <= {rule for remedy in REMEDIES.values() for rule in remedy.rules}


# the lines to write do what the arm does

CLASSIFIER: dict[str, Callable[[], Setup]] = {
    "scale-inputs": lambda: setup(network(), table(50.0, 7.0)),
    "zero-last": lambda: setup(network()),
    "batchnorm": lambda: setup(network()),
    "layernorm": lambda: setup(network()),
    "last-bn": lambda: setup(network()),
    "bnp": lambda: setup(network()),
    "adam": lambda: setup(network()),
    "sgd": lambda: setup(network(), make=Adam),
    "rate": lambda: setup(network()),
    "scale-amended": lambda: setup(network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))),
    "no-weight-decay": lambda: setup(network(), make=lambda p, lr: AdamW(p, lr=lr, weight_decay=0.5)),
    "larger-eps": lambda: setup(network(), make=lambda p, lr: Adam(p, lr=lr, eps=1e-16)),
    "logits": lambda: setup(network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Softmax(-1))),
    "relu": lambda: setup(network(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))),
    "nonlinearity": lambda: setup(network(nn.Linear(4, 6), nn.Linear(6, 3))),
    "group-norm": lambda: setup(network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))),
    "unfreeze": lambda: setup(_frozen()),
}


def _frozen() -> nn.Module:
    model = network()
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize("name", CLASSIFIER)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_the_lines_to_write_train_as_the_arm_did(name: str) -> None:
    given = CLASSIFIER[name]()
    found = treated(name, given)
    batches = list(given.problem.batches)
    namespace: dict[str, Any] = {
        "wc": wc, "torch": torch, "nn": nn, "batches": batches, "inputs": batches[0][0],
        "model": copy.deepcopy(given.problem.model), "optimizer": None,
    }  # fmt: skip
    pairs = zip(given.problem.model.parameters(), namespace["model"].parameters(), strict=True)
    namespace["optimizer"] = copy.deepcopy(given.optimizer, {id(own): other for own, other in pairs})
    exec(found.code.replace("{lr}", str(RATE)), namespace)
    expected = losses_by_hand(namespace["model"], namespace["optimizer"], batches, F.cross_entropy)
    assert_close(losses(found), expected)
    assert losses(found) != losses(given) or name == "rate"


# data


def test_inputs_are_standardized_by_column_and_images_by_channel() -> None:
    batches = table(50.0, 7.0)
    model = wc.nn.with_standardized_inputs(nn.Linear(4, 1).double(), batches)
    x = torch.cat([each for each, _ in batches])
    expected = model.model((x - x.mean(0)) / x.std(0, correction=0))
    torch.testing.assert_close(model(x), expected)
    images = 3 + torch.arange(2.0)[:, None, None] * torch.randn(6, 2, 4, 4)  # channel 0 is constant
    inside = wc.nn.with_standardized_inputs(nn.Identity(), [(images, None)])(images)
    assert float(inside[:, 0].abs().max()) < 1e-5
    torch.testing.assert_close(inside[:, 1].std(correction=0), torch.tensor(1.0))


def test_columns_that_share_their_largest_value_share_a_scale() -> None:
    pixels = torch.tensor([[0.0, 255.0, 255.0], [3.0, 0.0, 0.0]])
    inside = wc.nn.with_standardized_inputs(nn.Identity(), [(pixels, None)])(pixels)
    torch.testing.assert_close(inside, (pixels - pixels.mean()) / pixels.std(correction=0))


def test_tokens_and_masks_pass_as_they_are() -> None:
    class Sum(nn.Module):
        def forward(self, tokens: Tensor, mask: Tensor, x: Tensor) -> list[Tensor]:
            return [tokens, mask, x]

    inputs = {
        "tokens": torch.tensor([[3], [5]]),
        "mask": torch.tensor([[1.0], [0.0]]),
        "x": torch.tensor([[4.0], [8.0]]),
    }
    tokens, mask, x = wc.nn.with_standardized_inputs(Sum(), [(inputs, None)])(**inputs)
    assert tokens.tolist() == [[3], [5]]
    assert mask.tolist() == [[1.0], [0.0]]
    assert x.tolist() == [[-1.0], [1.0]]
    with pytest.raises(Unsupported, match="nothing to standardize"):
        wc.nn.with_standardized_inputs(nn.Embedding(4, 2), [(torch.zeros(2, 1, dtype=torch.long), None)])


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss], ids=["squared", "absolute"])
def test_scaled_targets_train_on_them_and_tell_the_loss_in_old_units(loss: Loss) -> None:
    batches = table(targets="numbers")
    model = network(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    found = losses(treated("scale-targets", setup(model, batches, loss)))
    y = torch.cat([each for _, each in batches])
    mean, std = y.mean(), y.std(correction=0)
    scaled = [(x, (y - mean) / std) for x, y in batches]
    own = copy.deepcopy(model)
    expected = losses_by_hand(own, SGD(own.parameters(), RATE), scaled, loss)
    power = 2 if loss is F.mse_loss else 1
    assert_close(found, [float(std) ** power * each for each in expected])


def test_losses_that_are_not_of_differences_keep_their_targets() -> None:
    shares = [(x, y[:, None].double() / 10 + 0.7) for x, y in table()]
    model = network(nn.Linear(4, 1))
    for given in (setup(network()), setup(model, shares, F.binary_cross_entropy_with_logits)):
        assert REMEDIES["scale-targets"].apply(given) is None


def test_targets_get_the_shape_of_the_outputs() -> None:
    batches = [(x, y.squeeze(1)) for x, y in table(targets="numbers")]
    model = network(nn.Linear(4, 1))
    found = treated("match-shapes", setup(model, batches, lambda h, y: (h - y).square().mean()))
    own = copy.deepcopy(model)
    expected = losses_by_hand(own, SGD(own.parameters(), RATE), batches, lambda h, y: F.mse_loss(h.squeeze(1), y))
    assert_close(losses(found), expected)


# the forward pass


class Functional(nn.Module):
    """Activations in code: two sigmoids, dropout, and a softmax at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.dim = -1

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.first(x))
        h = F.dropout(self.second(h).sigmoid(), 0.8, self.training)
        return self.last(h).softmax(self.dim)


def outputs(given: Setup) -> Tensor:
    result: Tensor = copy.deepcopy(given.problem.model).eval()(given.inputs)
    return result


def test_functions_in_code_are_exchanged_too() -> None:
    model = Functional().double()
    x = table()[0][0]
    found = outputs(treated("logits", setup(model)))
    torch.testing.assert_close(found, model.last(model.second(model.first(x).sigmoid()).sigmoid()))
    found = outputs(treated("relu", setup(model)))
    torch.testing.assert_close(found, model.last(model.second(model.first(x).relu()).relu()).softmax(-1))
    assert "# in Functional.forward: return what softmax is given" in treated("logits", setup(model)).code
    model.dim = 0
    found = outputs(treated("class-dimension", setup(model)))
    torch.testing.assert_close(found.sum(-1), torch.ones(8, dtype=torch.float64))


def test_the_last_sigmoid_stays_where_hidden_ones_become_relus() -> None:
    model = network(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 1), nn.Sigmoid())
    found = outputs(treated("relu", setup(model, [(x, y[:, None] / 2) for x, y in table()], F.mse_loss)))
    torch.testing.assert_close(found, model[2](model[0](table()[0][0]).relu()).sigmoid())


def test_dropout_is_lowered_wherever_it_is() -> None:
    seen: list[float] = []

    def rate_of(module: nn.Module) -> float:
        torch.manual_seed(0)
        return float((module.train()(torch.ones(10_000)) == 0).double().mean())

    for model in (nn.Sequential(nn.Dropout(0.8)), nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.8), nn.Linear(6, 3))):
        if len(model) == 3:
            found = treated("less-dropout", setup(model.double())).problem.model
            kept = found.rewired[1]
            found.rewired[0], found.rewired[2] = nn.Identity(), nn.Identity()
            assert kept.p == 0.8  # the call is exchanged, not the module
            seen.append(rate_of(found))
        else:
            seen.append(rate_of(model))
    assert seen[0] == pytest.approx(0.8, abs=0.02)
    assert seen[1] == pytest.approx(0.1, abs=0.02)
    assert REMEDIES["less-dropout"].apply(setup(network())) is None


def test_a_loss_of_probabilities_gets_a_sigmoid_and_keeps_one() -> None:
    batches = [(x, (y[:, None] > 1).double()) for x, y in table()]
    ends_in_relu = network(nn.Linear(4, 1), nn.ReLU())
    found = outputs(treated("sigmoid-output", setup(ends_in_relu, batches, F.binary_cross_entropy)))
    torch.testing.assert_close(found, ends_in_relu[0](batches[0][0]).sigmoid())
    right = network(nn.Linear(4, 1), nn.Sigmoid())
    for name in ("sigmoid-output", "logits"):
        assert REMEDIES[name].apply(setup(right, batches, F.binary_cross_entropy)) is None


def test_the_logarithm_of_probabilities_becomes_a_cross_entropy() -> None:
    def log_loss(p: Tensor, y: Tensor) -> Tensor:
        return -p.log().gather(1, y[:, None]).mean()

    model = network(nn.Linear(4, CLASSES), nn.Softmax(-1))
    found = treated("cross-entropy", setup(model, loss=log_loss))
    assert_close(losses(found), losses(setup(model, loss=log_loss)))  # the same numbers, while nothing is zero
    assert REMEDIES["cross-entropy"].apply(setup(network())) is None


# weights


@pytest.mark.parametrize(("name", "variance"), [("he-init", 2.0), ("lecun-init", 1.0)])
def test_weights_are_drawn_with_the_variance_of_the_name(name: str, variance: float) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.ConvTranspose2d(64, 8, 3), nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(2, 3, 9, 9)
    model(x)
    given = Setup(wc.Problem(model, F.cross_entropy, (x, torch.tensor([0, 1]))), None, 0.0, x, STEPS)
    drawn = treated(name, given).problem.model
    assert float(drawn[0].weight.detach().var() * 3 * 25) == pytest.approx(variance, rel=0.05)
    assert float(drawn[2].weight.detach().var() * 64 * 9) == pytest.approx(variance, rel=0.05)
    assert not drawn[0].bias.any()


def test_orthogonal_weights_are_and_seeds_draw_others() -> None:
    given = treated("orthogonal-init", setup(network()))
    trainer = CopyTrainer(given.problem, given.optimizer, before_training=given.prepare)
    weights = [trainer.start(RATE, seed=seed).model[0].weight for seed in (0, 1, 0)]  # type: ignore[index]
    for weight in weights:  # (6, 4): columns
        torch.testing.assert_close(weight.T @ weight, 2 * torch.eye(4, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])


def test_forget_gates_open_for_as_long_as_the_inputs_are() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.lstm(x)[0][:, -1])
            return out

    x = torch.randn(4, 100, 2)
    given = Setup(wc.Problem(Last(), F.cross_entropy, (x, torch.tensor([0, 1, 2, 0]))), None, 0.0, x, STEPS)
    bias = treated("open-gates", given).problem.model.lstm.bias_ih_l0
    assert bool(((bias[5:10] >= 0) & (bias[5:10] <= torch.tensor(99.0).log())).all())
    assert torch.equal(bias[:5], -bias[5:10])
    assert REMEDIES["open-gates"].apply(setup(network())) is None


# norms


def test_norms_stand_behind_every_hidden_layer_and_are_trained() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(8, 1, 6, 6)
    batches = [(x, torch.arange(8) % 3)]
    given = treated("batchnorm", setup(model, batches))
    kinds = [type(module).__name__ for module in given.problem.model.modules() if "Norm" in type(module).__name__]
    assert kinds == ["BatchNorm2d", "BatchNorm1d"]
    assert given.optimizer is not None
    held = {p for group in given.optimizer.param_groups for p in group["params"]}
    assert held == set(given.problem.model.parameters())
    assert REMEDIES["layernorm"].apply(given) is None
    with pytest.raises(Unsupported, match="has norms already"):
        wc.nn.with_norms(given.problem.model, x)
    with pytest.raises(Unsupported, match="no hidden"):
        wc.nn.with_norms(nn.Linear(3, 2), torch.zeros(1, 3))


def test_post_norm_becomes_pre_norm() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    given = Setup(wc.Problem(layer, F.mse_loss, (x, x)), None, 0.0, x, STEPS)
    expected = copy.deepcopy(layer)
    expected.norm_first = True
    torch.testing.assert_close(outputs(treated("pre-norm", given)), expected.eval()(x))
    assert layer.norm_first is False


# steps


def test_gradients_are_clipped_at_the_ninetieth_percentile() -> None:
    given = setup(network())
    norms = []
    for x, y in given.problem.batches:
        given.problem.model.zero_grad()
        F.cross_entropy(given.problem.model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(given.problem.model.parameters(), 1e9)))
        given.problem.model.zero_grad()
    most = float(torch.tensor(norms).quantile(0.9))
    found = treated("clip", given)
    assert f"{most:.3g}" in found.code
    model = copy.deepcopy(given.problem.model)
    optimizer = SGD(model.parameters(), RATE)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), most) and None)
    assert_close(losses(found), losses_by_hand(model, optimizer, given.problem.batches, F.cross_entropy))


def test_the_rate_rises_over_a_tenth_of_the_steps() -> None:
    given = Setup(setup(network()).problem, None, 0.0, table()[0][0], steps=40)
    found = treated("warm-up", given)
    optimizer = CopyTrainer(found.problem, before_training=found.prepare).start(1.0).optimizer
    rates = []
    for _ in range(6):
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert "LinearLR(optimizer, 0.25, total_iters=3)" in found.code


def test_unfrozen_parameters_are_held() -> None:
    model = network()
    given = Setup(wc.Problem(model, F.cross_entropy, table()), SGD(model[2].parameters(), RATE), 0.0, table()[0][0], 3)
    found = treated("unfreeze", given)
    assert found.optimizer is not None
    assert {p for group in found.optimizer.param_groups for p in group["params"]} == set(
        found.problem.model.parameters()
    )
    assert REMEDIES["unfreeze"].apply(setup(network())) is None


def test_remedies_together_are_one_after_the_other() -> None:
    given = setup(network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Softmax(-1)), table(50.0, 7.0))
    both = treated("adam", treated("logits", treated("scale-inputs", given)))
    model = wc.nn.with_standardized_inputs(given.problem.model, given.problem.batches)
    model.model[3] = nn.Identity()
    expected = losses_by_hand(model, Adam(model.parameters(), RATE), given.problem.batches, F.cross_entropy)
    assert_close(losses(both), expected)
    assert [line.split(" = ")[0].split("(")[0] for line in both.code.splitlines()] == [
        "model",
        "model.set_submodule",
        "optimizer",
    ]


# any network


@pytest.mark.slow
@pytest.mark.parametrize("case", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_every_architecture_is_treated_or_refused_in_words(case: Callable[[], Case]) -> None:
    problem = case().problem()
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        inputs = next(data)[1][0]
    own = copy.deepcopy(problem.model.state_dict())
    tried, refused = [], {}
    for name, each in REMEDIES.items():
        given = Setup(problem, SGD(problem.params.values(), lr=1e-3), 0.0, inputs, steps=20)
        try:
            found = each.apply(given)
            if found is not None:
                trainer = CopyTrainer(found.problem, found.optimizer, before_training=found.prepare)
                assert trainer.start(1e-3).run(2).final is not None
                assert found.code.replace("{lr}", "0.1")
                tried.append(name)
        except WellcondError as error:
            refused[name] = str(error)
    assert all(refused.values())
    assert set(tried) >= {"rate", "adam", "clip", "bnp"}
    assert all(torch.equal(value, own[key]) for key, value in problem.model.state_dict().items())


def test_the_guide_names_every_remedy() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "fixing.md").read_text(encoding="utf-8")
    assert [name for name in REMEDIES if f"`{name}`" not in guide] == []
