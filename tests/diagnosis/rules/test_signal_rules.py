"""Weights, signals and gradients of a wrong scale; what healthy networks have as well is silent."""

from __future__ import annotations

import math

import pytest
import torch
from rule_cases import CLASSES, FEATURES, N, findings, perceptron, seen, severe, table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from wellcond import Problem
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.inspection.signals import Signals
from wellcond.diagnosis.rules.activation_drift import activation_drift
from wellcond.diagnosis.trial_result import Trial
from wellcond_papers.models import mlp

LOSS = nn.CrossEntropyLoss()


def test_constant_weights_are_symmetric_and_stay_so() -> None:
    model = perceptron(depth=3)
    for p in model.parameters():
        nn.init.constant_(p, 0.1)
    finding = findings(model, LOSS, table())["symmetric-initialisation"]
    assert (finding.severity, finding.layer, finding.evidence["different units"]) == ("severe", "0", 1.0)
    optimizer = Adam(model.parameters(), lr=1e-2)
    for _ in range(20):  # training does not tell the units apart
        optimizer.zero_grad()
        LOSS(model(table()[0]), table()[1]).backward()
        optimizer.step()
    assert "symmetric-initialisation" in findings(model, LOSS, table())


def test_all_zero_weights_are_symmetric() -> None:
    model = perceptron()
    for p in model.parameters():
        nn.init.zeros_(p)
    assert "symmetric-initialisation" in findings(model, LOSS, table())


@pytest.mark.parametrize("what", ["last layer", "residual branch", "adapter"])
def test_zeros_that_are_meant_so(what: str) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(8, 16)
            nn.init.zeros_(self.b.weight)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return x + self.b(h if what == "adapter" else h.relu())

    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), Branch(), nn.Linear(16, CLASSES))
    if what == "last layer":
        nn.init.zeros_(model[-1].weight)
    assert severe(model, LOSS, table()) == []


def test_weights_from_a_standard_normal() -> None:
    model = perceptron(width=256)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)
    finding = findings(model, LOSS, table())["bad-initialisation"]
    assert (finding.severity, finding.layer) in {("severe", "0"), ("severe", "2")}


@pytest.mark.parametrize("between", [nn.Identity(), nn.Dropout(0.1), nn.Flatten()])
def test_small_weights_before_a_norm_are_sound_also_through_a_dropout(between: nn.Module) -> None:
    """As the patches of a vision transformer have them, which are drawn from N(0, 0.02²) whatever their size."""

    def starting_small(*norm: nn.Module) -> nn.Sequential:
        model = nn.Sequential(nn.Linear(FEATURES, 32), between, *norm, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        nn.init.normal_(model[0].weight, std=1e-3)
        nn.init.zeros_(model[0].bias)
        return model

    assert "bad-initialisation" not in findings(starting_small(nn.LayerNorm(32)), LOSS, table())
    assert "bad-initialisation" in findings(starting_small(), LOSS, table())


def test_the_gain_of_he_is_the_root_of_two() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(400, 400)
    nn.init.kaiming_normal_(layer.weight)
    inspection, _ = seen(layer, nn.MSELoss(), (torch.randn(N, 400), torch.randn(N, 400)))
    weight = next(w for w in inspection.weights if w.role == "weight")
    # 160,000 entries: the standard error of the RMS is 0.2 %
    assert weight.gain == pytest.approx(math.sqrt(2), rel=0.01)


@pytest.mark.parametrize("init", ["he", "lecun", "default"])
@pytest.mark.parametrize("depth", [1, 4])
def test_ordinary_initializations_are_silent(init: str, depth: int) -> None:
    torch.manual_seed(0)
    model = mlp([FEATURES, *[64] * depth, CLASSES], init=init)
    assert severe(model, LOSS, table()) == []


def test_a_scale_that_a_norm_takes_away_is_none() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    with torch.no_grad():
        model[0].weight *= 1000
    assert severe(model, LOSS, table()) == []


def test_a_stack_of_sigmoids_loses_its_gradient() -> None:
    torch.manual_seed(0)
    layers = [m for k in range(12) for m in (nn.Linear(FEATURES if k == 0 else 16, 16), nn.Sigmoid())]
    finding = findings(nn.Sequential(*layers, nn.Linear(16, CLASSES)), LOSS, table())["vanishing-gradient"]
    assert (finding.severity, finding.layer) == ("severe", "0")
    assert (
        float(finding.evidence["per layer"]) < 0.25
    )  # a sigmoid's slope is 1/4 at most, and torch's weights are below 1


def test_sensitivity_is_what_a_relative_change_does_to_the_loss() -> None:
    """‖∂ℓ/∂h‖·‖h‖ of every example, by hand; ℓ is its own loss and not its share of the mean."""
    model, (x, y) = perceptron(depth=1), table()
    inspection, _ = seen(model, LOSS, (x, y))
    h = model[0](x).detach().requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(model[1:](h), y, reduction="sum"), h)
    by_hand = (g.norm(dim=1) * h.norm(dim=1)).square().mean().sqrt()
    assert inspection.weighted()[0].sensitivity == pytest.approx(float(by_hand), rel=1e-4)


def test_sensitivity_does_not_depend_on_the_scale_before_a_norm() -> None:
    """huang2020, theorem 2: with a BatchNorm after it, ∂L/∂h is proportional to 1/h's scale."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, 16), nn.BatchNorm1d(16, eps=1e-12), nn.ReLU(), nn.Linear(16, CLASSES)
    ).double()
    x, y = table()
    batch = x.double(), y

    def sensitivity() -> float:
        value = seen(model, LOSS, batch)[0].weighted()[0].sensitivity
        assert value is not None
        return value

    before = sensitivity()
    with torch.no_grad():
        model[0].weight *= 30
        model[0].bias *= 30
    assert sensitivity() == pytest.approx(before, rel=1e-6)


class LastState(nn.Module):
    def __init__(self, forget: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.out = nn.LSTM(2, 8, batch_first=True), nn.Linear(8, 2)
        with torch.no_grad():
            self.lstm.bias_ih_l0[8:16] = forget

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def test_a_long_sequence_is_forgotten_unless_the_gates_are_open() -> None:
    x = torch.randn(32, 300, 2, generator=torch.Generator().manual_seed(0))
    batch = x, (x[:, 0, 0] > 0).long()
    finding = findings(LastState(0.0), LOSS, batch)["vanishing-gradient"]
    assert (finding.severity, finding.layer) == ("severe", "lstm")
    assert "vanishing-gradient" not in findings(LastState(6.0), LOSS, batch)


def test_a_short_sequence_may_fade() -> None:
    x = torch.randn(32, 28, 2, generator=torch.Generator().manual_seed(0))
    assert severe(LastState(0.0), LOSS, (x, (x[:, 0, 0] > 0).long())) == []


def test_relus_that_are_always_off() -> None:
    model = perceptron()
    with torch.no_grad():
        model[2].bias -= 100
    finding = findings(model, LOSS, table())["dying-neurons"]
    assert (finding.severity, finding.layer, finding.evidence["dead units"]) == ("severe", "2", 16.0)


def test_flat_tanhs_and_a_softmax_that_is_none() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    assert "saturated-activation" not in findings(model, LOSS, table())
    with torch.no_grad():
        model[0].weight *= 300
        model[2].weight /= 10
    assert findings(model, LOSS, table())["saturated-activation"].layer == "0"


class Reads(nn.Module):
    """Tokens, through a recurrent layer or a cell in a loop."""

    def __init__(self, size: float, nonlinearity: str = "tanh", *, is_cell: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(8, 12), nn.Linear(16, CLASSES)
        self.state = (nn.RNNCell if is_cell else nn.RNN)(12, 16, nonlinearity=nonlinearity)
        with torch.no_grad():
            self.table.weight *= size

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.table(x).transpose(0, 1)
        if isinstance(self.state, nn.RNN):
            h = self.state(tokens)[0][-1]
        else:
            h = tokens.new_zeros(tokens.shape[1], 16)
            for step in tokens:
                h = self.state(step, h)
        out: Tensor = self.out(h)
        return out


@pytest.mark.parametrize("is_cell", [False, True])
def test_states_of_a_recurrent_layer_that_are_flat(is_cell: bool) -> None:
    x = torch.randint(8, (N, 6), generator=torch.Generator().manual_seed(0))
    data = x, x[:, 3] % CLASSES
    finding = findings(Reads(60.0, is_cell=is_cell), LOSS, data)["saturated-activation"]
    assert (finding.layer, finding.severity) == ("state", "warning")
    assert "saturated-activation" not in findings(Reads(1.0, is_cell=is_cell), LOSS, data)
    assert "saturated-activation" not in findings(Reads(3.0, is_cell=is_cell), LOSS, data)
    assert "saturated-activation" not in findings(Reads(60.0, "relu", is_cell=is_cell), LOSS, data)


def test_large_outputs_of_a_linear_layer_are_no_saturation() -> None:
    """What lies beyond ±0.95 saturates a tanh, not a logit."""
    model = perceptron()
    with torch.no_grad():
        model[-1].weight *= 5
    assert "saturated-activation" not in findings(model, LOSS, table())


class Attention(nn.Module):
    def __init__(self, scale: float, dim: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out, self.scale, self.dim = nn.Linear(8, 24), nn.Linear(8, CLASSES), scale, dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((self.scale * q @ k.transpose(1, 2)).softmax(self.dim) @ v).mean(1)


def test_attention() -> None:
    batch = torch.randn(N, 6, 8, generator=torch.Generator().manual_seed(0)), table()[1]
    assert severe(Attention(0.3), LOSS, batch) == []
    finding = findings(Attention(300.0), LOSS, batch)["attention-saturation"]
    assert (finding.severity, finding.layer) == ("severe", "qkv")
    assert findings(Attention(0.3, dim=1), LOSS, batch)["wrong-softmax-dimension"].severity == "severe"


def test_the_entropy_of_equal_logits_is_one() -> None:
    model = Attention(0.0)
    signals = Signals(model, Failures())
    with signals.watched(N):
        model(torch.randn(N, 6, 8))
    (observed,) = signals.attention()
    assert (observed.entropy, observed.largest) == (pytest.approx(1.0), pytest.approx(1 / 6))


def test_not_a_number_is_named_where_it_comes_first() -> None:
    x, y = table()
    broken = x.clone()
    broken[3, 2] = math.nan
    assert "inputs" in findings(perceptron(), LOSS, (broken, y))["non-finite"].summary
    model = perceptron()
    with torch.no_grad():
        model[2].weight[0, 0] = math.inf
    assert findings(model, LOSS, (x, y))["non-finite"].layer == "2"

    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sqrt()

    assert findings(nn.Sequential(nn.Linear(FEATURES, CLASSES), Root()), LOSS, (x, y))["non-finite"].layer == "1"


def test_half_precision_is_looked_at() -> None:
    x, y = table()
    inspection, _ = seen(perceptron().half(), LOSS, (x.half(), y))
    assert inspection.loss is not None
    assert all(w.gradient is not None for w in inspection.weights)


class PostNorm(nn.Module):
    def __init__(self, depth: int, prenorm: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=prenorm)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(8) if prenorm else None)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(("prenorm", "norms"), [(False, 2 * 6 - 1), (True, 1)])
def test_norms_on_the_residual_stream_are_counted(prenorm: bool, norms: int) -> None:
    """Two sums per layer are normalized, but for the first, of data; in a pre-norm network only the last one is."""
    batch = torch.randn(N, 4, 8, generator=torch.Generator().manual_seed(0)), table()[1]
    model = PostNorm(6, prenorm)
    inspection, _ = seen(model, LOSS, batch)
    assert inspection.output is not None
    assert inspection.output.post_norms == norms
    is_high = "learning-rate-too-high" in findings(model, LOSS, batch, Adam(model.parameters(), lr=0.02))
    assert is_high is not prenorm
    assert "learning-rate-too-high" not in findings(model, LOSS, batch, Adam(model.parameters(), lr=1e-4))


def nan_in(model: nn.Module, *names: str) -> nn.Module:
    with torch.no_grad():
        for name in names or dict(model.named_parameters()):
            model.get_parameter(name).view(-1)[0] = math.nan
    return model


@pytest.mark.parametrize("scale", [1.0, 1e5])
@pytest.mark.parametrize(("names", "layer"), [(("2.weight",), "2"), (("4.bias",), "4"), ((), "0")])
def test_nan_in_weights_is_the_first_finding_whatever_else_is_wrong(
    names: tuple[str, ...], layer: str, scale: float
) -> None:
    """A run that has gone NaN: units are not compared, outputs not judged, and large inputs come second."""
    model = nan_in(perceptron(nn.Sigmoid()), *names)
    _, (first, *others) = seen(model, LOSS, table(scale=scale), Adam(model.parameters(), lr=0.02))
    assert (first.rule, first.layer, first.severity) == ("non-finite", layer, "severe")
    assert "checkpoint" in first.remedy
    assert "0.002 instead of 0.02" in first.remedy
    assert [each.rule for each in others] == ["unscaled-input"] * (scale > 1)


def test_outputs_of_nan_are_not_judged() -> None:
    def of_wrong_sign(outputs: Tensor, targets: Tensor) -> Tensor:
        return -F.cross_entropy(outputs, targets)

    assert "output-loss-mismatch" in findings(perceptron(), of_wrong_sign, table())
    assert set(findings(nan_in(perceptron()), of_wrong_sign, table())) == {"non-finite"}


def test_infinite_logits_of_masked_classes_are_ordinary() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(nn.Softmax(1), outputs=CLASSES + 1)
            self.register_buffer("mask", torch.tensor([0.0] * CLASSES + [-math.inf]))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + self.mask

    assert "non-finite" not in findings(Masked(), LOSS, table())


@pytest.mark.parametrize("where", ["buffer", "optimizer"])
def test_nan_that_is_left_when_only_the_parameters_are_restored(where: str) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = Adam(model.parameters(), lr=1e-3)
    LOSS(model(table()[0]), table()[1]).backward()
    optimizer.step()
    assert "non-finite" not in findings(model, LOSS, table(), optimizer)
    broken = model[1].running_var if where == "buffer" else optimizer.state[model[0].weight]["exp_avg"]
    broken.view(-1)[0] = math.nan
    finding = findings(model, LOSS, table(), optimizer)["non-finite"]
    assert ("1.running_var" if where == "buffer" else "'exp_avg' of '0.weight'") in finding.summary
    assert finding.layer == ("1" if where == "buffer" else "0")


class Branches(nn.Module):
    """A large signal and a small one that are added, as of an image and a time step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.time = nn.Linear(FEATURES, 16, bias=False), nn.Linear(FEATURES, 16, bias=False)
        self.after, self.out = nn.Linear(16, 16), nn.Linear(16, CLASSES)
        with torch.no_grad():
            self.image.weight *= 40
            self.time.weight *= 1e-2
            self.out.weight /= 40

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.after((self.image(x) + self.time(x)).relu()))


def test_activations_of_different_branches_do_not_drift() -> None:
    assert "activation-drift" not in findings(Branches(), LOSS, table())
    in_line = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, CLASSES))
    with torch.no_grad():
        in_line[0].weight *= 1e-2
        in_line[0].bias.zero_()
        in_line[2].weight *= 1e4
    finding = findings(in_line, LOSS, table())["activation-drift"]
    assert finding.layer == "2"
    in_line[2:].requires_grad_(False)  # what judges the outputs of another network is as it is
    assert "activation-drift" not in findings(in_line, LOSS, table())


@pytest.mark.parametrize(("place", "drifts"), [(-1, False), (2, True)])
def test_a_head_that_starts_small_is_no_drift(place: int, drifts: bool) -> None:
    """As that of a policy; but a layer in the middle is."""
    model = perceptron(depth=2)
    with torch.no_grad():
        model[place].weight *= 1e-3
        model[place].bias.zero_()
    assert ("activation-drift" in findings(model, LOSS, table())) is drifts


def test_the_small_head_of_one_of_two_branches_is_no_drift() -> None:
    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = perceptron(seed=1), perceptron(outputs=1, seed=2)
            with torch.no_grad():
                self.actor[-1].weight *= 1e-3
                self.actor[-1].bias.zero_()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.actor(x), self.critic(x)

    def loss(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return LOSS(outputs[0], y) + outputs[1].square().mean()

    assert "activation-drift" not in findings(ActorCritic(), loss, table())


@pytest.mark.parametrize("fails", [False, True])
def test_a_drift_that_the_trial_makes_severe_has_no_limit_that_it_does_not_reach(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = perceptron()
    with torch.no_grad():
        model[2].weight *= 1e3  # type: ignore[operator]
    monkeypatch.setattr(Trial, "fails", property(lambda _: fails))
    problem = Problem(model, LOSS, table())
    (finding,) = activation_drift(Evidence(problem, None, inspect(problem), trial=Trial((2.0, 2.0))))
    reached = finding.evidence["largest RMS"]
    assert isinstance(reached, float)
    assert finding.limits["warning"] < reached
    assert finding.severity == ("severe" if fails else "warning")
    assert all(reached > limit for limit in finding.limits.values()) == fails
    assert ("The network trains at no rate that was tried." in finding.summary) == fails


def test_all_layers_that_start_alike_are_drawn_in_one_round() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.LSTM(3, 8, batch_first=True), nn.LSTM(8, 8, batch_first=True)
            self.hidden, self.out = nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.hidden(self.b(self.a(x)[0])[0][:, -1]).relu())

    model, data = Tagger(), (torch.randn(N, 5, 3), table()[1])
    for p in model.parameters():
        nn.init.zeros_(p)
    exec(findings(model, LOSS, data)["symmetric-initialisation"].remedy, {"torch": torch, "model": model})
    assert "symmetric-initialisation" not in findings(model, LOSS, data)
