"""Remedies that choose weights by what they do: scores of attention, recurrences, signals of a batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from script import Script
from setups import CLASSES, Recurrent, network, sequences, setup, table, treated
from torch import Tensor, nn

import wellcond as wc
from wellcond.remedies import REMEDIES, lines_for
from wellcond.remedies.setup import Setup


class Attention(nn.Module):
    """Attention by hand, with queries and keys of their own layers or of one, and by different functions."""

    def __init__(self, how: str, loud: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.head = how, nn.Linear(8, CLASSES)
        if how == "apart":
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
            louder = [self.q.weight, self.k.weight]
        else:
            self.qkv = nn.Linear(8, 24)
            louder = [self.qkv.weight[:16]]
        with torch.no_grad():
            for weight in louder:
                weight *= loud
        self.double()

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.q(x), self.k(x), self.v(x)) if self.how == "apart" else self.qkv(x).chunk(3, -1)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.scores(x)
        if self.how == "function":
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.einsum("bij,bjd->bid", (torch.einsum("bid,bjd->bij", q, k) / 8**0.5).softmax(-1), v)
        outputs: Tensor = self.head(mixed.mean(1))
        return outputs


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(1)).double(), torch.arange(6) % CLASSES)]


@pytest.mark.parametrize("how", ["apart", "fused", "function"])
def test_scores_of_any_attention_get_a_standard_deviation_of_one_and_values_stay(how: str) -> None:
    own = setup(Attention(how, 20.0), batches())
    script = Script(own)
    model, (x, _) = script.names["model"], batches()[0]
    values = model.scores(x)[2]
    script.paste(lines_for("softer-attention", own))
    q, k, v = model.scores(x)
    assert float((q @ k.mT / 8**0.5).detach().std(-1, correction=0).square().mean().sqrt()) == pytest.approx(
        1, rel=0.15
    )
    assert torch.equal(v, values)


@pytest.mark.parametrize("how", ["apart", "fused", "function"])
def test_ordinary_scores_stay(how: str) -> None:
    assert lines_for("softer-attention", setup(Attention(how, 1.0), batches())) == ""


def test_every_gate_of_a_recurrent_layer_is_orthogonal() -> None:
    own = setup(Recurrent(), sequences())
    script = Script(own)
    script.paste(lines_for("orthogonal-recurrence", own))
    for gate in script.names["model"].rnn.weight_hh_l0.split(5):
        torch.testing.assert_close(gate @ gate.mT, torch.eye(5).double())


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.recurrent, self.head = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 5)
        for step in x.unbind(1):
            state = torch.tanh(self.inward(step) + self.recurrent(state))
        outputs: Tensor = self.head(state)
        return outputs


def test_a_layer_in_a_loop_is_a_recurrence() -> None:
    own = setup(Loop(), sequences())
    script = Script(own)
    script.paste(lines_for("orthogonal-recurrence", own))
    weight = script.names["model"].recurrent.weight
    torch.testing.assert_close(weight @ weight.mT, torch.eye(5).double())
    assert torch.equal(script.names["model"].inward.weight, own.problem.model.get_parameter("inward.weight"))


def test_nothing_recurs_in_a_perceptron() -> None:
    assert lines_for("orthogonal-recurrence", setup(network())) == ""


class Residual(nn.Module):
    """Forty blocks whose weights double what they pass on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList([nn.Linear(4, 4) for _ in range(40)]), nn.Linear(4, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        outputs: Tensor = self.head(x)
        return outputs


def test_signals_of_residual_blocks_are_ordinary_on_any_inputs() -> None:
    own = setup(Residual(), table(1000.0, 300.0))
    script = Script(own)
    script.paste(lines_for("unit-signals", own))
    x = script.names["loader"][0][0]
    assert float(script.names["model"](x).std()) == pytest.approx(1)
    assert not any(module._forward_hooks for module in script.names["model"].modules())
    fan_in = Script(own)
    fan_in.paste(lines_for("he-init", own))
    assert float(fan_in.names["model"](x).std()) > 1000


class WithOneNumber(nn.Module):
    """Its second layer makes one number, whatever the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.head = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        outputs: Tensor = self.head(h * self.scale(h.mean(0)))
        return outputs


@pytest.mark.filterwarnings("error")
def test_a_layer_that_makes_one_number_is_drawn_and_not_divided_by_its_spread() -> None:
    own = setup(WithOneNumber())
    script = Script(own)
    script.paste(lines_for("unit-signals", own))
    for model in (treated("unit-signals", own).problem.model, script.names["model"]):
        assert all(bool(p.isfinite().all()) for p in model.parameters())
        assert 0.01 < float(model.scale.weight.detach().std()) < 3


def test_frozen_layers_keep_their_weights() -> None:
    model = network()
    model[0].requires_grad_(False)
    own = setup(model)
    script = Script(own)
    script.paste(lines_for("unit-signals", own))
    assert torch.equal(script.names["model"][0].weight, model[0].weight)
    assert not torch.equal(script.names["model"][2].weight, model[2].weight)


@pytest.mark.parametrize(("lr", "is_raced"), [(1e-4, True), (0.05, False)])
def test_a_rate_that_was_lowered_for_large_inputs_is_raced_again(lr: float, is_raced: bool) -> None:
    own = setup(network(), table(100.0))
    assert own.optimizer is not None
    own.optimizer.param_groups[0]["lr"] = lr
    assert ("wc.suggest_lr" in lines_for("scale-inputs", own)) is is_raced


def test_a_last_layer_that_shares_its_weight_with_an_embedding_is_not_set_to_zero() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.words(x))

    words = torch.arange(9).repeat(4)
    for is_tied in (True, False):
        model = Tied()
        if is_tied:
            model.head.weight = model.words.weight
        setup = Setup.of(wc.Problem(model, nn.CrossEntropyLoss(), (words, words)), None)
        assert (REMEDIES["zero-last"].apply(setup) is None) is is_tied
