"""Rules that judge what layers and blocks do, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rule_cases import CLASSES, FEATURES, N, findings, severe, table
from torch import Tensor, nn

import wellcond as wc
from wellcond.remedies import Setup, lines_for

LOSS = nn.CrossEntropyLoss()
Function = Callable[[Tensor], Tensor]


class Perceptron(nn.Module):
    """Three layers, with a function after each of the first two."""

    def __init__(self, function: Function, norm: bool = False, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(FEATURES, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.function, self.norm = function, nn.BatchNorm1d(width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = self.function(self.norm(layer(x)))
        return self.third(x)


def drops_its_result(h: Tensor) -> Tensor:
    F.relu(h)
    h.tanh()
    return h


class Own(nn.Module):
    """A layer of one's own."""

    def __init__(self, inputs: int, outputs: int, function: Function) -> None:
        super().__init__()
        self.kernel, self.function = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(torch.einsum("ni,io->no", x, self.kernel))


def own_layers(function: Function) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Own(FEATURES, 16, function), Own(16, 16, function), Own(16, CLASSES, lambda h: h))


def tokens() -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 9, (N, 6), generator=torch.Generator().manual_seed(0))
    return x, x.sum(1) % CLASSES


def bag(function: Function) -> nn.Module:
    torch.manual_seed(0)
    hidden, out = nn.Linear(48, 16), nn.Linear(16, CLASSES)
    return nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), hidden, Lambda(function), out)


class Lambda(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


NOTHING: dict[str, Function] = {
    "a result that is not used": drops_its_result,
    "a slope of one": nn.LeakyReLU(1.0),
    "a PReLU that starts at one": nn.PReLU(init=1.0),
    "a clamp far away": lambda h: h.clamp(-1e3, 1e3),
    "dropout only": nn.Dropout(0.3),
    "one's own that returns its argument": lambda h: h.view_as(h),
    "a softplus far up": lambda h: F.softplus(h + 40) - 40,
}
SOMETHING: dict[str, Function] = {
    "relu": torch.relu,
    "a slope of a fifth": nn.LeakyReLU(0.2),
    "tanh": torch.tanh,
    "by hand": lambda h: h * (h > 0),
    "a sine": torch.sin,
    "a softmax": lambda h: h.softmax(1),
    "a product": lambda h: h * h.flip(1),
    "max with zero": lambda h: torch.maximum(h, torch.zeros(())),
    "a norm": lambda h: F.layer_norm(h, h.shape[1:]),
    "small, and still bent": lambda h: torch.tanh(0.03 * h),
}


@pytest.mark.parametrize("name", NOTHING)
def test_activations_that_do_nothing(name: str) -> None:
    function = NOTHING[name]
    for model, batch in (
        (Perceptron(function), table()),
        (Perceptron(function, norm=True), table()),
        (own_layers(function), table()),
        (bag(function), tokens()),
    ):
        finding = findings(model, LOSS, batch)["no-nonlinearity"]
        assert finding.severity == "warning"  # one look does not tell more


@pytest.mark.parametrize("name", ["a result that is not used", "a slope of one", "a clamp far away"])
def test_the_remedy_puts_activations_that_do_something(name: str) -> None:
    model = Perceptron(NOTHING[name])
    lines = lines_for("nonlinearity", Setup.of(wc.Problem(model, LOSS, table()), None))
    exec(lines, {"model": model, "nn": nn})
    assert "no-nonlinearity" not in findings(model, LOSS, table())


@pytest.mark.parametrize("name", SOMETHING)
def test_activations_that_do_something(name: str) -> None:
    function = SOMETHING[name]
    for model, batch in (
        (Perceptron(function), table()),
        (Perceptron(function, norm=True), table()),
        (own_layers(function), table()),
        (bag(function), tokens()),
    ):
        assert "no-nonlinearity" not in findings(model, LOSS, batch)


class FeedForward(nn.Module):
    """A block of a transformer with an activation, or without."""

    def __init__(self, function: Function, hidden: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, hidden), nn.Linear(hidden, 16)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.function(self.up(self.norm(x))))


def blocks(*functions: Function, hidden: int = 32) -> nn.Module:
    torch.manual_seed(0)
    each = [FeedForward(function, hidden) for function in functions]
    return nn.Sequential(nn.Linear(FEATURES, 16), *each, nn.Linear(16, CLASSES))


def test_an_activation_that_is_lost_in_one_block() -> None:
    finding = findings(blocks(F.gelu, drops_its_result, F.gelu), LOSS, table())["no-nonlinearity"]
    assert (finding.severity, finding.layer) == ("warning", "2.up")
    assert "no-nonlinearity" not in findings(blocks(F.gelu, F.gelu, F.gelu), LOSS, table())
    low_rank = findings(blocks(F.gelu, nn.Identity(), hidden=4), LOSS, table())
    assert "no-nonlinearity" not in low_rank
    wide_enough = findings(blocks(F.gelu, nn.Identity(), hidden=16), LOSS, table())["no-nonlinearity"]
    assert wide_enough.severity == "note"


def test_attention_and_separable_convolutions_have_products_of_layers_by_design() -> None:
    torch.manual_seed(0)
    separable = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip
    images = torch.randn(32, 3, 8, 8), table()[1][:32]
    assert "no-nonlinearity" not in findings(separable, LOSS, images)
    encoder = nn.Sequential(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Flatten(), nn.Linear(64, CLASSES)
    )
    assert "no-nonlinearity" not in findings(encoder, LOSS, (torch.randn(32, 4, 16), table()[1][:32]))
    assert severe(encoder, LOSS, (torch.randn(32, 4, 16), table()[1][:32])) == []


class Moded(nn.Module):
    """A function of a signal and of the mode."""

    def __init__(self, function: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(torch.relu(x), self.training)


class DropPath(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.keep = 1 - p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x.relu() * x.new_empty(len(x), 1).bernoulli_(self.keep).div_(self.keep)


DROPS: dict[str, tuple[nn.Module, bool]] = {
    "a function": (Moded(lambda h, _: F.dropout(h, 0.9)), True),
    "a function that knows the mode": (Moded(lambda h, training: F.dropout(h, 0.9, training)), False),
    "in place": (Moded(lambda h, _: F.dropout(h, 0.9, inplace=True)), True),
    "a mask": (Moded(lambda h, _: h * (torch.rand_like(h) > 0.9)), True),
    "a mask in training": (Moded(lambda h, mode: h * (torch.rand_like(h) > 0.9) / 0.1 if mode else h), False),
    "where": (Moded(lambda h, _: torch.where(torch.rand(h.shape) < 0.8, torch.zeros(()), h)), True),
    "filled": (Moded(lambda h, _: h.masked_fill(torch.rand_like(h) < 0.8, 0.0)), True),
    "Bernoulli": (Moded(lambda h, _: torch.bernoulli(torch.full_like(h, 0.1)) * h), True),
    "a distribution": (Moded(lambda h, _: h * torch.distributions.Bernoulli(0.1).sample(h.shape)), True),
    "whole examples": (DropPath(0.9), False),
}
NOISE: dict[str, nn.Module] = {
    "added": Moded(lambda h, _: h + torch.randn_like(h)),
    "factors": Moded(lambda h, _: h * (1 + 0.1 * torch.randn_like(h))),
    "a sample of a VAE": Moded(lambda h, _: h + torch.randn_like(h) * (0.5 * h).exp()),
    "half": Moded(lambda h, training: F.dropout(h, 0.5, training)),
    "a choice": Moded(lambda h, _: F.gumbel_softmax(h, hard=True)),
    "a ReLU after dropout": Moded(lambda h, training: torch.relu(F.dropout(h, 0.3, training) - 0.1)),
    "a mask that is not random": Moded(lambda h, _: h * (h > h.quantile(0.9))),
    "few whole examples": DropPath(0.2),
    "torch's": nn.Sequential(nn.ReLU(), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", DROPS)
def test_dropout_by_its_effect(name: str) -> None:
    module, stays_on = DROPS[name]
    by_rule = findings(Perceptron(module), LOSS, table())
    strong = by_rule["dropout-too-strong"]
    assert strong.layer == "function"
    assert strong.evidence["p"] == pytest.approx(0.85, abs=0.09)
    assert ("dropout-in-eval" in by_rule) == stays_on


@pytest.mark.parametrize("name", NOISE)
def test_noise_that_is_no_strong_dropout(name: str) -> None:
    by_rule = findings(Perceptron(NOISE[name]), LOSS, table())
    assert by_rule.keys().isdisjoint(("dropout-too-strong", "dropout-in-eval"))


def test_masked_inputs_are_what_an_autoencoder_learns_from() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Perceptron(torch.relu)
            self.body.third = nn.Linear(16, FEATURES)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x * (torch.rand_like(x) > 0.75))

    x, _ = table()
    by_rule = findings(Masked(), nn.MSELoss(), (x, x))
    assert by_rule.keys().isdisjoint(("dropout-too-strong", "dropout-in-eval"))


class MaskedLoss(nn.Module):
    """An autoencoder that asks for what it has hidden, of its inputs or of its first layer's units; its own loss."""

    def __init__(self, share: float, hides_units: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(FEATURES, 16), nn.Linear(16, FEATURES)
        self.share, self.hides_units = share, hides_units

    def forward(self, x: Tensor) -> Tensor:
        mask = (torch.rand_like(x) < self.share).float()
        h = self.first(x if self.hides_units else x * (1 - mask)).relu()
        outputs = self.second(h * (torch.rand_like(h) > self.share) if self.hides_units else h)
        return ((outputs - x).square() * mask).sum() / mask.sum()


@pytest.mark.parametrize("hides_units", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.85])
def test_a_mask_of_the_loss_is_no_dropout(share: float, hides_units: bool) -> None:
    x, _ = table()
    by_rule = findings(MaskedLoss(share, hides_units), None, x)
    assert by_rule.keys().isdisjoint(("dropout-too-strong", "dropout-in-eval"))


def test_advice_on_a_line_begins_with_a_word_and_not_with_the_file() -> None:
    dropout = findings(Perceptron(DROPS["a function"][0]), LOSS, table())["dropout-in-eval"]
    assert dropout.advice.startswith("In test_effect_rules.py, line ")


def test_attention_that_drops_in_evaluation_mode() -> None:
    class Attention(nn.Module):
        def __init__(self, knows_mode: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.qkv, self.out, self.knows_mode = nn.Linear(8, 24), nn.Linear(8, CLASSES), knows_mode

        def forward(self, x: Tensor) -> Tensor:
            p = 0.3 if self.training or not self.knows_mode else 0.0
            q, k, v = self.qkv(x)[:, None].chunk(3, -1)
            return self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=p)[:, 0].mean(1))

    batch = torch.randn(32, 5, 8), table()[1][:32]
    assert findings(Attention(False), LOSS, batch)["dropout-in-eval"].layer == "qkv"
    assert "dropout-in-eval" not in findings(Attention(True), LOSS, batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a function", "a mask"])
def test_the_trial_leaves_dropout_out_also_where_it_is_a_function(name: str) -> None:
    model = Perceptron(DROPS[name][0])
    diagnosis = wc.diagnose(wc.Problem(model, LOSS, table()), torch.optim.Adam(model.parameters(), lr=1e-2))
    first = diagnosis.findings[0]
    assert (first.rule, first.severity, first.basis) == ("dropout-too-strong", "severe", "tried")


OUTSIDE = nn.Linear(FEATURES, 16)


class Unregistered(nn.Module):
    """Uses a weight that it does not register."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out, self.how, hidden = nn.Linear(16, CLASSES), how, nn.Linear(FEATURES, 16)
        self.layers = [hidden] if how == "list" else nn.ModuleList([hidden] if how == "registered" else [])
        self.table = {"first": hidden} if how == "dict" else {}
        self.call = (lambda x: hidden(x)) if how == "closure" else None
        self.w = torch.randn(FEATURES, 16, requires_grad=True) if how == "tensor" else None
        self.scaled = nn.Parameter(torch.randn(FEATURES, 16)) * 0.1 if how == "scaled" else None
        self.random = torch.randn(FEATURES, 16) if how == "random features" else None

    def forward(self, x: Tensor) -> Tensor:
        weight = next((w for w in (self.w, self.scaled, self.random) if w is not None), None)
        if weight is not None:
            h = x @ weight
        elif self.how == "anew":
            h = nn.Linear(FEATURES, 16)(x)
        else:
            layers = [*self.layers, *self.table.values(), self.call] if self.how != "global" else [OUTSIDE]
            h = layers[0](x)  # type: ignore[misc]
        return self.out(h.relu())


@pytest.mark.parametrize(
    ("how", "layer"),
    [
        ("list", "layers.0"), ("dict", "table.first"), ("closure", "call.hidden"), ("tensor", "w"),
        ("scaled", "scaled"), ("global", "OUTSIDE"), ("anew", ""),
    ],
)  # fmt: skip
def test_weights_that_are_not_registered(how: str, layer: str) -> None:
    model = Unregistered(how)
    finding = findings(model, LOSS, table(), torch.optim.SGD(model.parameters(), lr=0.1))["no-gradient"]
    assert (finding.severity, finding.layer) == ("severe", layer)


def test_weights_that_are_registered_or_held_or_fixed() -> None:
    for how in ("registered", "random features"):
        assert "no-gradient" not in findings(Unregistered(how), LOSS, table())
    model = Unregistered("list")
    held = torch.optim.SGD([*model.parameters(), *model.layers[0].parameters()], lr=0.1)
    assert findings(model, LOSS, table(), held)["no-gradient"].severity == "note"


class Adapted(nn.Module):
    """A layer with a correction of low rank."""

    def __init__(self, zeros: str) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(4, 16)), nn.Parameter(torch.randn(16, 4))
        for name in zeros:
            nn.init.zeros_(self.get_parameter(name))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


class Gated(nn.Module):
    """A residual block with a gate, a branch whose last layer may be zero, or both."""

    def __init__(self, gate: float, last: bool) -> None:
        super().__init__()
        self.gate, self.branch = nn.Parameter(torch.tensor(gate)), Perceptron(torch.relu)
        self.branch.first, self.branch.third = nn.Linear(16, 16), nn.Linear(16, 16)
        if last:
            nn.init.zeros_(self.branch.third.weight)
            nn.init.zeros_(self.branch.third.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * self.branch(x)


def with_zero_head(*blocks: nn.Module, zero: bool = False) -> nn.Module:
    torch.manual_seed(0)
    head = nn.Linear(16, CLASSES)
    if zero:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Linear(FEATURES, 16), *blocks, head)


class Chain(nn.Module):
    """Two layers of zeros after one another, inside a residual block."""

    def __init__(self, *zeros: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))
        for k in zeros:
            nn.init.zeros_(self.layers[k].weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers[1](torch.tanh(self.layers[0](x)))


BLOCKED = {
    "LoRA": lambda: with_zero_head(Adapted("ab")),
    "a gate and a last layer": lambda: with_zero_head(Gated(0.0, True), Gated(0.0, True)),
    "two layers": lambda: with_zero_head(Chain(0, 1), Chain(0, 1)),
    "one block of two": lambda: with_zero_head(Chain(0, 1), Gated(0.0, False)),
    "two layers before a head of zeros": lambda: with_zero_head(Chain(0, 1), zero=True),
}
UNLOCKED = {
    "LoRA": lambda: with_zero_head(Adapted("b"), Adapted("b")),
    "LoRA the other way round": lambda: with_zero_head(Adapted("a"), Adapted("a")),
    "gates": lambda: with_zero_head(Gated(0.0, False), Gated(0.0, False)),
    "last layers": lambda: with_zero_head(Gated(1.0, True), Gated(1.0, True)),
    "last layers, and a head of zeros": lambda: with_zero_head(Gated(1.0, True), Chain(1), Adapted("b"), zero=True),
    "first layers": lambda: with_zero_head(Chain(0), Chain(0)),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_zeros_that_block_each_other(name: str) -> None:
    by_rule = findings(BLOCKED[name](), LOSS, table())
    assert "severe" in {
        by_rule[rule].severity for rule in ("no-gradient", "symmetric-initialisation") if rule in by_rule
    }
    assert "block each other" in by_rule["no-gradient"].summary


@pytest.mark.parametrize("name", UNLOCKED)
def test_zeros_that_the_first_steps_unlock(name: str) -> None:
    by_rule = findings(UNLOCKED[name](), LOSS, table())
    assert "symmetric-initialisation" not in by_rule
    assert "no-gradient" not in by_rule or "frozen" in by_rule["no-gradient"].summary


def by_hand(scores: Tensor, dim: int) -> Tensor:
    e = (scores - scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


class Pooled(nn.Module):
    """Attention pooling: a score for each of six positions."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.score, self.out, self.pool = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, CLASSES), pool

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).relu()
        return self.out(self.pool(self.score(h), h))


class Attending(nn.Module):
    """Attention of six positions to each other."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out, self.attend = nn.Linear(8, 24), nn.Linear(8, CLASSES), attend

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attend(*self.qkv(x).chunk(3, -1)).relu().mean(1))


def split(t: Tensor) -> Tensor:
    return t.view(-1, 6, 2, 4).transpose(1, 2)


WRONG_DIMENSIONS: dict[str, nn.Module] = {
    "one score": Pooled(lambda s, h: (s.softmax(-1) * h).sum(1)),
    "one score, in an einsum": Pooled(lambda s, h: torch.einsum("nto,ntd->nd", F.softmax(s, 2), h)),
    "one score, by hand": Pooled(lambda s, h: (by_hand(s, -1) * h).sum(1)),
    "examples": Pooled(lambda s, h: torch.einsum("nt,ntd->nd", s.squeeze(-1).softmax(0), h)),
    "examples, by hand": Pooled(lambda s, h: (by_hand(s, 0) * h).sum(1)),
    "examples, by torch's choice": Pooled(lambda s, h: (F.softmax(s) * h).sum(1)),
    "queries": Attending(lambda q, k, v: (q @ k.mT).softmax(1) @ v),
    "queries, by hand": Attending(lambda q, k, v: by_hand(q @ k.mT / 8**0.5, 1) @ v),
    "queries, in an einsum": Attending(
        lambda q, k, v: torch.einsum("nqk,nkd->nqd", torch.einsum("nqd,nkd->nqk", q, k).softmax(1), v)
    ),
    "heads": Attending(lambda q, k, v: ((split(q) @ split(k).mT).softmax(1) @ split(v)).transpose(1, 2).flatten(2)),
}
RIGHT_DIMENSIONS: dict[str, nn.Module] = {
    "positions": Pooled(lambda s, h: (s.softmax(1) * h).sum(1)),
    "positions, by hand": Pooled(lambda s, h: (by_hand(s, 1) * h).sum(1)),
    "positions, in a product": Pooled(lambda s, h: (s.softmax(1).mT @ h)[:, 0]),
    "gates": Pooled(lambda s, h: (s.sigmoid() * h).sum(1)),
    "keys": Attending(lambda q, k, v: (q @ k.mT).softmax(-1) @ v),
    "keys in front": Attending(lambda q, k, v: (k @ q.mT).softmax(1).mT @ v),
    "keys, in an einsum": Attending(
        lambda q, k, v: torch.einsum("nqk,nkd->nqd", torch.einsum("nqd,nkd->nqk", q, k).softmax(-1), v)
    ),
    "linear attention": Attending(lambda q, k, v: q.softmax(-1) @ (k.softmax(1).mT @ v)),
    "positions shared out among clusters": Attending(lambda q, _, v: q.softmax(-1).mT @ v),
    "one key": Attending(lambda q, k, v: (q @ k.mean(1, keepdim=True).mT).softmax(-1) @ v.mean(1, keepdim=True)),
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("name", WRONG_DIMENSIONS)
def test_softmaxes_over_a_wrong_dimension(name: str) -> None:
    batch = torch.randn(32, 6, 8, generator=torch.Generator().manual_seed(0)), table()[1][:32]
    finding = findings(WRONG_DIMENSIONS[name], LOSS, batch)["wrong-softmax-dimension"]
    assert (finding.severity, finding.layer) == ("severe", "score" if "score" in name or "examples" in name else "qkv")


@pytest.mark.parametrize("name", RIGHT_DIMENSIONS)
def test_softmaxes_over_the_right_dimension(name: str) -> None:
    batch = torch.randn(32, 6, 8, generator=torch.Generator().manual_seed(0)), table()[1][:32]
    assert "wrong-softmax-dimension" not in findings(RIGHT_DIMENSIONS[name], LOSS, batch)


class Extra(nn.Module):
    """A layer next to the stream, and a gate that starts at zero somewhere else."""

    def __init__(self, use: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.extra, self.out = nn.Linear(FEATURES, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.gate, self.use = nn.Parameter(torch.zeros(())), use

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.out(self.use(h, self.extra(h), self.gate) + self.gate * h)


@pytest.mark.parametrize(
    "use",
    [
        lambda h, b, _: h + 0.0 * b,
        lambda h, b, _: h + b.masked_fill(torch.ones(16, dtype=torch.bool), 0.0),
        lambda h, b, _: torch.where(h >= 0, h, b),
        lambda h, b, _: h + b.sign(),
        lambda h, b, _: h + b.clamp(5.0, 6.0),
    ],
)
def test_a_layer_without_effect_is_found_next_to_zeros_that_are_sound(use: Callable[..., Tensor]) -> None:
    finding = findings(Extra(use), LOSS, table())["no-gradient"]
    assert (finding.severity, finding.layer) == ("severe", "extra")
    assert findings(Extra(lambda h, b, gate: h + gate * b), LOSS, table()) == {}


@pytest.mark.parametrize("draw", [nn.init.kaiming_normal_, nn.init.xavier_normal_, nn.init.orthogonal_])
def test_fresh_layers_are_known_by_their_biases(draw: Callable[[Tensor], Tensor]) -> None:
    model = Perceptron(torch.relu, width=64)
    for layer in (model.first, model.second):
        draw(layer.weight)
    hidden = [*model.first.parameters(), *model.second.parameters()]
    groups = [{"params": hidden, "lr": 1e-7}, {"params": model.third.parameters()}]
    slow = findings(model, LOSS, table(), torch.optim.SGD(groups, lr=0.1))["learning-rate-too-low"]
    assert (slow.severity, slow.layer) == ("severe", "first")
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.bias += 0.05 * torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert findings(model, LOSS, table(), torch.optim.SGD(groups, lr=0.1)) == {}
