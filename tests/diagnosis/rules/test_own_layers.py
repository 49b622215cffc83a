"""Faults in layers that are written with parameters, functions and blocks of one's own; and sound ones like them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rule_cases import CLASSES, FEATURES, N, findings, table
from torch import Tensor, nn

import wellcond as wc

LOSS = nn.CrossEntropyLoss()
Function = Callable[[Tensor], Tensor]

RECTIFIERS: dict[str, Function] = {
    "clamp": lambda h: h.clamp(min=0),
    "clamp_": lambda h: h.clone().clamp_(0),
    "clamp_min": lambda h: torch.clamp_min(h, 0),
    "where": lambda h: torch.where(h > 0, h, 0.0),
    "mask": lambda h: h * (h > 0),
    "float mask": lambda h: (h > 0).float() * h,
    "maximum": lambda h: torch.maximum(h, torch.zeros_like(h)),
    "masked_fill": lambda h: h.masked_fill(h < 0, 0.0),
    "threshold": lambda h: F.threshold(h, 0.0, 0.0),
}


class Dense(nn.Module):
    """x W + b, with a function after it if there is one."""

    def __init__(self, inputs: int, outputs: int, shift: float = 0.0, function: Function | None = None) -> None:
        super().__init__()
        self.w = nn.Parameter((torch.rand(inputs, outputs) * 2 - 1 + shift) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("ni,io->no", x, self.w) + self.b
        return h if self.function is None else self.function(h)


class OnPixels(nn.Module):
    """A perceptron of own layers on numbers that are not negative."""

    def __init__(self, function: Function, shift: float, is_inside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        inside = function if is_inside else None
        self.first, self.second = Dense(FEATURES, 16, shift, inside), Dense(16, CLASSES)
        self.function = (lambda h: h) if is_inside else function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x.abs())))


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("name", RECTIFIERS)
def test_relus_that_are_off_are_found_by_any_name(name: str, is_inside: bool) -> None:
    finding = findings(OnPixels(RECTIFIERS[name], -1.0, is_inside), LOSS, table())["dying-neurons"]
    assert (finding.layer, finding.severity) == ("first", "severe")
    assert "dying-neurons" not in findings(OnPixels(RECTIFIERS[name], 0.0, is_inside), LOSS, table())


@pytest.mark.parametrize(
    "function",
    [
        lambda h: h.clamp(min=-10.0),
        lambda h: h.exp().clamp(min=0),
        lambda h: torch.where(torch.arange(16) > 14, h, 0.0),  # a mask, which is no function of what it hides
        lambda h: h * (torch.arange(16) > 14),
    ],
)
def test_masks_and_limits_are_no_relus(function: Function) -> None:
    by_rule = findings(OnPixels(function, -1.0, is_inside=False), LOSS, table())
    assert not {"dying-neurons", "full-neurons"} & set(by_rule)


def test_a_hinge_in_a_loss_is_no_unit() -> None:
    def loss(outputs: Tensor, _targets: Tensor) -> Tensor:
        return (outputs.abs() - 100).clamp(min=0).mean() + outputs.square().mean()

    assert "dying-neurons" not in findings(OnPixels(torch.relu, 0.0, is_inside=False), loss, table())


class Normalized(nn.Module):
    """A perceptron with a function, such as a norm, in its middle."""

    def __init__(self, norm: nn.Module | Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(FEATURES, 16), norm, nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(torch.relu(self.first(x))))


class OwnNorm(nn.Module):
    """Normalizes over one dimension, in groups."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups, self.scale, self.shift = groups, nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        h = x.unflatten(1, (self.groups, -1))
        h = (h - h.mean(2, keepdim=True)) / (h.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
        return h.flatten(1) * self.scale + self.shift


@pytest.mark.parametrize(
    "norm_in",
    [
        lambda groups: nn.GroupNorm(groups, 16),
        lambda groups: lambda h: F.group_norm(h, groups),
        lambda groups: lambda h: F.layer_norm(h.unflatten(1, (groups, -1)), (16 // groups,)).flatten(1),
        OwnNorm,
    ],
)
def test_a_norm_of_single_values_gives_every_example_the_same(norm_in: Callable[[int], nn.Module]) -> None:
    finding = findings(Normalized(norm_in(16)), LOSS, table())["rank-collapse"]
    assert finding.severity == "severe"
    assert finding.layer in ("norm", "first")  # a function has no name of its own
    assert "rank-collapse" not in findings(Normalized(norm_in(4)), LOSS, table())


class Scale(nn.Module):
    """Multiplies by a number per unit, as the branches of deep residual networks do."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((16,), start))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Branch(nn.Module):
    """h + f(h)."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, h: Tensor) -> Tensor:
        return h + self.function(h)


def test_branches_that_start_at_nothing_are_no_collapse() -> None:
    zero_gamma = nn.LayerNorm(16)
    nn.init.zeros_(zero_gamma.weight)
    for function in (Scale(0.0), Scale(1e-6), zero_gamma):
        assert "rank-collapse" not in findings(Normalized(Branch(function)), LOSS, table())


class Experts(nn.Module):
    """Experts with stacked weights, (E, in, out), and a softmax gate or an even mean."""

    def __init__(self, w1: Tensor, w2: Tensor, is_gated: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(FEATURES, len(w1))
        self.w1, self.w2, self.is_gated = nn.Parameter(w1), nn.Parameter(w2), is_gated

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(torch.einsum("ni,eih->neh", x, self.w1))
        each = torch.einsum("neh,eho->neo", h, self.w2)
        gate = self.gate(x).softmax(1) if self.is_gated else torch.full((len(x), len(self.w1)), 1 / len(self.w1))
        return torch.einsum("ne,neo->no", gate, each).squeeze(1)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) / shape[-2] ** 0.5


def curve() -> tuple[Tensor, Tensor]:
    x, _ = table()
    return x, x[:, 0].sin() + x[:, 1] * x[:, 2]


@pytest.mark.parametrize(
    ("w1", "w2", "is_gated"),
    [
        (torch.full((3, FEATURES, 8), 0.3), torch.full((3, 8, 1), 0.1), True),
        (drawn(1, FEATURES, 8).repeat(3, 1, 1), drawn(1, 8, 1).repeat(3, 1, 1), False),
        (drawn(3, FEATURES, 1).repeat(1, 1, 8), torch.full((3, 8, 1), 0.1), True),
    ],
)
def test_stacked_units_that_are_alike_stay_alike(w1: Tensor, w2: Tensor, is_gated: bool) -> None:
    by_rule = findings(Experts(w1, w2, is_gated), nn.MSELoss(), curve())
    assert by_rule["symmetric-initialisation"].layer == "w1"
    assert "output-loss-mismatch" not in by_rule


@pytest.mark.parametrize(
    ("w1", "w2", "is_gated"),
    [
        (drawn(3, FEATURES, 8), drawn(3, 8, 1), True),
        (drawn(3, FEATURES, 8), torch.full((3, 8, 1), 0.1), True),
        (drawn(3, FEATURES, 8), torch.zeros(3, 8, 1), False),
        (drawn(1, FEATURES, 8).repeat(3, 1, 1), drawn(1, 8, 1).repeat(3, 1, 1), True),  # the gate tells them apart
    ],
)
def test_stacked_units_that_differ_are_sound(w1: Tensor, w2: Tensor, is_gated: bool) -> None:
    assert "symmetric-initialisation" not in findings(Experts(w1, w2, is_gated), nn.MSELoss(), curve())


class Block(nn.Module):
    """A residual block with matrices of its own."""

    def __init__(self, function: Function, scale: float) -> None:
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(16, 16) * scale) for _ in range(2))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return x + self.function(x @ self.up) @ self.down


def stream(function: Function, scale: float = 0.1, depth: int = 8) -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(function, scale) for _ in range(depth)]
    return nn.Sequential(nn.Linear(FEATURES, 16), *blocks, nn.Linear(16, CLASSES))


@pytest.mark.parametrize("function", [torch.relu, F.gelu, lambda h: h.clamp(min=0), lambda h: h * h.sigmoid()])
def test_a_linear_projection_before_a_residual_stream_is_ordinary(function: Function) -> None:
    assert "no-nonlinearity" not in findings(stream(function), LOSS, table())
    assert "no-nonlinearity" in findings(stream(lambda h: h), LOSS, table())


def test_a_stream_that_grows_names_the_block_where_it_is_too_large() -> None:
    finding = findings(stream(torch.relu, scale=0.7), LOSS, table())["activation-drift"]
    assert finding.layer in [str(i) for i in range(1, 9)]


class Sines(nn.Module):
    """A sine network."""

    def __init__(self, omega: float, hidden: float, last: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)])
        for layer in list(self.layers)[1:3]:
            nn.init.uniform_(layer.weight, -hidden, hidden)
        nn.init.uniform_(self.layers[3].weight, -math.sqrt(6 / 32) / last, math.sqrt(6 / 32) / last)
        self.omega, self.last = omega, last

    def forward(self, x: Tensor) -> Tensor:
        for layer in list(self.layers)[:-1]:
            x = torch.sin(self.omega * layer(x))
        return self.last * self.layers[3](x)


def picture() -> tuple[Tensor, Tensor]:
    x = torch.rand(N, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return x, torch.sin(3 * x[:, :1] + x[:, 1:])


@pytest.mark.parametrize(("omega", "last"), [(30.0, 1.0), (30.0, 30.0), (10.0, 1.0), (1.0, 1.0)])
def test_a_factor_in_the_code_is_part_of_the_scale_of_weights(omega: float, last: float) -> None:
    sound = Sines(omega, math.sqrt(6 / 32) / omega, last)
    assert "bad-initialisation" not in findings(sound, nn.MSELoss(), picture())


def test_phases_of_more_than_a_period_are_a_bad_start() -> None:
    finding = findings(Sines(30.0, 1 / math.sqrt(32)), nn.MSELoss(), picture())["bad-initialisation"]
    assert finding.layer in ("layers.1", "layers.2")


def test_weights_that_are_small_with_nothing_to_make_up_for_it_are_still_reported() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, CLASSES))
    nn.init.normal_(model[2].weight, std=1e-4)
    assert findings(model, LOSS, table())["bad-initialisation"].layer == "2"


def test_where_there_is_no_module_the_parameter_is_named() -> None:
    class Distances(nn.Module):
        def __init__(self, centers: Tensor) -> None:
            super().__init__()
            self.centers, self.last = nn.Parameter(centers.clone()), nn.Linear(len(centers), CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x[:, None] - self.centers).square().sum(-1).sqrt())

    x, y = table()
    assert findings(Distances(x[:5]), LOSS, (x, y))["non-finite"].layer == "centers"


@pytest.mark.parametrize("is_inverted", [True, False])
def test_a_pooling_that_sees_padding_alone_is_named(is_inverted: bool) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.last = nn.Linear(3, 16), nn.Linear(16, CLASSES)
            self.query = nn.Parameter(torch.randn(1, 1, 16))
            self.pool = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor, is_there: Tensor) -> Tensor:
            h = torch.tanh(self.embed(x))
            query = self.query.expand(len(h), -1, -1)
            return self.last(self.pool(query, h, h, key_padding_mask=is_there ^ (not is_inverted))[0][:, 0])

    draw = torch.Generator().manual_seed(0)
    is_there = torch.arange(9) < torch.randint(2, 8, (N, 1), generator=draw)
    x = torch.randn(N, 9, 3, generator=draw) * is_there[..., None]
    inputs = {"x": x, "is_there": is_there}
    by_rule = findings(Pooled(), LOSS, [(inputs, (x.sum((1, 2)) > 0).long())])
    assert ("wrong-mask" in by_rule) == is_inverted
    assert not is_inverted or by_rule["wrong-mask"].layer == "pool"


def spirals() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    side = torch.randint(0, 2, (640,), generator=draw)
    t = 2 + 4 * torch.rand(640, generator=draw)
    angle = 1.2 * t + math.pi * side
    x = torch.stack([t * angle.cos(), t * angle.sin()], 1) / 3
    return list(zip(x.split(64), side.split(64), strict=True))


def planes() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(640, 2, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(64), (x.sum(1) > 0).long().split(64), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("data", "severity"), [(spirals, "severe"), (planes, "note")])
def test_a_lack_of_nonlinearity_is_as_severe_as_what_an_affine_map_lacks(
    data: Callable[[], list[tuple[Tensor, Tensor]]], severity: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    by_rule = {each.rule: each for each in wc.diagnose(wc.Problem(model, LOSS, data()), optimizer).findings}
    assert by_rule["no-nonlinearity"].severity == severity


@pytest.mark.slow
def test_updates_that_are_lost_name_the_layer_with_most_of_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES)).bfloat16()
    signs = torch.randint(2, (64, FEATURES)) * 2 - 1
    model[0].weight.data = nn.init.uniform_(model[0].weight.data, 0.9, 1.0) * signs
    data = [(x.bfloat16(), y) for x, y in batches()]
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    by_rule = {each.rule: each for each in wc.diagnose(wc.Problem(model, LOSS, data), optimizer).findings}
    assert by_rule["lost-updates"].layer == "0"


@pytest.mark.slow
def test_a_rate_that_is_too_high_in_one_group_names_its_module() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    model = nn.Sequential()
    model.body, model.head = body, nn.Linear(32, CLASSES)
    optimizer = torch.optim.Adam([{"params": body.parameters(), "lr": 0.5}, {"params": model.head.parameters()}], 1e-3)
    by_rule = {each.rule: each for each in wc.diagnose(wc.Problem(model, LOSS, batches()), optimizer).findings}
    assert by_rule["learning-rate-too-high"].layer == "body"
    even = torch.optim.Adam(model.parameters(), 0.5)
    by_rule = {each.rule: each for each in wc.diagnose(wc.Problem(model, LOSS, batches()), even).findings}
    assert by_rule["learning-rate-too-high"].layer == ""


def batches() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(256, FEATURES, generator=torch.Generator().manual_seed(0))
    y = (x[:, :CLASSES] + 0.3 * x[:, 1 : CLASSES + 1]).argmax(1)
    return [(x[i : i + 32], y[i : i + 32]) for i in range(0, 256, 32)]


class Asked(nn.Module):
    """A pooling by attention to a learned query, which is the same for all examples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.query = nn.Linear(6, 16), nn.Parameter(0.02 * torch.randn(1, 1, 16))
        self.q, self.k, self.v, self.head = (nn.Linear(16, n) for n in (16, 16, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        q = self.q(self.query.expand(len(x), -1, -1))
        weights = (q @ self.k(h).transpose(1, 2) / 4).softmax(-1)
        out: Tensor = self.head((weights @ self.v(h))[:, 0])
        return out


def test_a_learned_query_is_no_collapse() -> None:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(96, 12, 6, generator=draw)
    data = x, x[:, 3, :1]  # hard to find: the network stays at a constant for a while
    assert "rank-collapse" not in findings(Asked(), nn.MSELoss(), data)
