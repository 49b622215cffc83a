"""Σx and Σ∇h against loops over rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from layer_references import gradient_moment, input_moment, layer_gradients, patch_rows, row_moment
from layer_zoo import CONVOLUTIONS, LAYERS, TOKENS, Sandwich
from loss_zoo import LOSSES
from references import assert_same, dense_fisher, gaussian
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from zoo import ARCHITECTURES, CLASSES, Case, Written, classifier, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem
from wellcond.problem.loss.likelihoods import CrossEntropy

LABELS = ["data", "model"]
every_labels = pytest.mark.parametrize("labels", LABELS)


def expected_factors(case: Case, layer: str, labels: Any) -> tuple[Tensor, Tensor]:
    """Factors of a layer whose features come last."""
    x, _, gradients = layer_gradients(case.model, layer, case.terms, case.batch, labels, case.batchnorm)
    return row_moment(x.detach()), sum(p * row_moment(g) for p, g in gradients)


def assert_factors(case: Case, layer: str, labels: Any, **options: Any) -> None:
    factors = wc.kronecker_factors(case.problem(**options), labels=labels)[layer]
    x, g = expected_factors(case, layer, labels)
    assert_same(factors.x.mean, x)
    assert_same(factors.g.mean, g)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_patches_times_the_weight_are_the_output(name: str) -> None:
    """A test of the reference itself: a convolution multiplies its weight with the patches of its input."""
    build, shape = CONVOLUTIONS[name]
    module: Any = seeded(build)
    x = normal(2, *shape)
    h = module(x)
    groups, bias = module.groups, module.bias
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        g = normal(*h.shape, seed=1)
        expected = torch.autograd.grad(h, module.weight, g)[0]
        total = torch.zeros_like(expected).reshape(groups, expected.shape[0] // groups, -1)
        for n, position, row in patch_rows(module, g, x.shape[2:]):
            at = x[(n, slice(None), *position)].reshape(groups, -1)
            total += at.unsqueeze(2) * row.reshape(groups, 1, -1)
        assert_same(total.reshape(expected.shape), expected)
        return
    for n, position, row in patch_rows(module, x, h.shape[2:]):
        weight = module.weight.reshape(groups, module.out_channels // groups, -1)
        out = (weight @ row.reshape(groups, -1, 1)).reshape(-1) + (bias if bias is not None else 0)
        assert_same(out, h[(n, slice(None), *position)])


@every_labels
@pytest.mark.parametrize("form", ["position", "patch"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_factors_of_a_convolution(name: str, form: Any, labels: Any) -> None:
    case = LAYERS[name]()
    factors = wc.kronecker_factors(case.problem(), convolution=form, labels=labels)["layer"]
    x, h, gradients = layer_gradients(case.model, "layer", case.terms, case.batch, labels, "running")
    module = case.model.layer
    assert_same(factors.x.mean, input_moment(module, x.detach(), h.detach(), form))
    assert_same(factors.g.mean, gradient_moment(module, x, gradients, form))


@every_labels
@pytest.mark.parametrize(
    ("cases", "name", "layer"),
    [
        *((ARCHITECTURES, "mlp_relu", layer) for layer in ("0", "2", "4")),
        *((ARCHITECTURES, "transformer", layer) for layer in ("blocks.0.qkv", "blocks.1.fc", "head")),
        *((ARCHITECTURES, "lstm", layer) for layer in ("cell", "head")),
        (ARCHITECTURES, "multihead_attention", "attention"), (ARCHITECTURES, "encoder_layer", "0.linear1"),
        (LAYERS, "tokens", "0"), (LAYERS, "gru", "cell"), (LAYERS, "rnn", "cell"), (LAYERS, "checkpointed", "fc"),
        # ignored tokens have no gradient of their own
        (LOSSES, "positions_ignored", "blocks.0.proj"), (LOSSES, "tokens_ignored", "blocks.0.proj"),
    ],
)  # fmt: skip
def test_factors_of_rows_of_features(cases: Any, name: str, layer: str, labels: Any) -> None:
    assert_factors(cases[name](), layer, labels)


@pytest.mark.parametrize("name", ["cnn_batch", "resnet_batch"])
def test_batch_statistics_add_the_effect_on_other_examples(name: str) -> None:
    case = ARCHITECTURES[name]()
    layer = "4" if name == "cnn_batch" else "0.conv1"
    factors = wc.kronecker_factors(case.problem())[layer]
    x, h, gradients = layer_gradients(case.model, layer, case.terms, case.batch, "data", "batch")
    module = case.model.get_submodule(layer)
    assert_same(factors.x.mean, input_moment(module, x.detach(), h.detach(), "position"))
    assert_same(factors.g.mean, gradient_moment(module, x, gradients, "position"))


@pytest.mark.parametrize("name", ["embedding", "embedding_padding"])
def test_an_embedding_sees_one_hot_rows_and_none_for_padding(name: str) -> None:
    case = LAYERS[name]()
    factors = wc.kronecker_factors(case.problem())["0"]
    counts = [float((token == TOKENS).sum()) / TOKENS.numel() for token in range(5)]
    if name == "embedding_padding":
        counts[0] = 0.0
    assert_same(factors.x.mean, torch.tensor([counts], dtype=torch.float64))
    assert_same(factors.g.mean, expected_factors_g(case, "0"))


def expected_factors_g(case: Case, layer: str) -> Tensor:
    _, _, ((_, g),) = layer_gradients(case.model, layer, case.terms, case.batch, "data", case.batchnorm)
    return row_moment(g)


@pytest.mark.parametrize("sizes", [[4, 2], [1, 2, 3]], ids=str)
@every_labels
def test_factors_of_several_batches_are_those_of_the_joined_data(sizes: list[int], labels: Any) -> None:
    case = ARCHITECTURES["mlp_relu"]()
    assert_factors(case, "2", labels, batches=split(case.batch, sizes))


def test_sampled_factors_are_those_of_the_labels_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ARCHITECTURES["mlp_relu"]()
    drawn: list[Tensor] = []
    original = CrossEntropy.sample
    monkeypatch.setattr(CrossEntropy, "sample", lambda *args: drawn.append(original(*args)) or drawn[-1])
    factors = wc.kronecker_factors(case.problem(), labels="sample", seed=7)["2"]
    (labels,) = drawn
    assert not torch.equal(labels, case.batch[1])
    assert_same(factors.g.mean, expected_factors_g(replace(case, batch=(case.batch[0], labels)), "2"))


@pytest.mark.slow
def test_sampled_factors_are_unbiased() -> None:
    """z-test of tr Σ∇h over 300 seeds, at the level 1e-4."""
    case = ARCHITECTURES["mlp_relu"]()
    exact = float(expected_factors(case, "2", "model")[1].diagonal(dim1=1, dim2=2).sum())
    problem = case.problem()
    draws = torch.stack([
        wc.kronecker_factors(problem, labels="sample", seed=s)["2"].g.mean.diagonal(dim1=1, dim2=2).sum()
        for s in range(300)
    ])  # fmt: skip
    assert abs(float((draws.mean() - exact) / (draws.std() / 300**0.5))) < 3.9


# the Kronecker product and the layer's Fisher matrix


@pytest.mark.parametrize(
    "layer", [nn.Linear(3, 2, bias=False), nn.Conv2d(2, 3, 2, bias=False), nn.Conv1d(4, 4, 3, groups=2)]
)
def test_the_fisher_of_one_example_and_position_is_the_kronecker_product(layer: nn.Module) -> None:
    shapes = {nn.Linear: (3,), nn.Conv2d: (2, 2, 2), nn.Conv1d: (4, 3)}
    shape = shapes[type(layer)]
    case = classifier(lambda: Sandwich(layer.float(), shape), normal(1, *shape), 1)
    factors = wc.kronecker_factors(case.problem(), convolution="patch", labels="model")["layer"]
    size = case.model.layer.weight.numel()
    whole = dense_fisher(case.model, case.terms, case.batch, "model")[:size, :size]
    blocks = [torch.kron(g, x) for g, x in zip(factors.g.mean, factors.x.mean, strict=True)]
    for i, block in enumerate(blocks):
        rows = slice(i * len(block), (i + 1) * len(block))
        assert_same(block, whole[rows, rows])


def test_the_fisher_of_a_linear_layer_with_mse_is_the_kronecker_product() -> None:
    """E[g gᵀ] does not depend on the example there."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3, bias=False)))
    batch = (normal(6, 4), normal(6, 3))
    factors = wc.kronecker_factors(wc.Problem(model, nn.MSELoss(), batch), labels="model")["0"]
    kronecker = torch.kron(factors.g.mean[0], factors.x.mean[0])
    assert_same(kronecker, dense_fisher(model, gaussian(1 / 3), batch, "model"))


# what is covered


def test_what_has_no_factors_is_listed_with_the_reason() -> None:
    case = LAYERS["own_parameter"]()
    factors = wc.kronecker_factors(case.problem())
    assert list(factors) == ["frozen", "head"]
    assert "not called" in factors.not_covered["unused"]
    assert "no gradient" in factors.not_covered["frozen"]
    assert factors["frozen"].g.mean is None
    assert "OwnParameter" in factors.not_covered[""]
    norms = wc.kronecker_factors(ARCHITECTURES["transformer"]().problem()).not_covered
    assert list(norms) == [f"blocks.{i}.norm{j}" for i in (0, 1) for j in (1, 2)]
    assert all("LayerNorm" in reason for reason in norms.values())
    in_order = wc.kronecker_factors(ARCHITECTURES["resnet_batch"]().problem())
    assert list(in_order) == ["0.conv1", "0.shortcut", "0.conv2", "2"]
    frozen_at_the_end = ARCHITECTURES["mlp_tanh"]()  # after trainable layers it has both factors
    frozen_at_the_end.model[2].requires_grad_(False)
    assert_factors(frozen_at_the_end, "2", "data")


def test_a_layer_called_twice_counts_both_calls() -> None:
    case = LAYERS["called_twice"]()
    factors = wc.kronecker_factors(case.problem())["fc"]
    fc, x = case.model.fc, case.batch[0]
    assert_same(factors.x.mean, (row_moment(x) + row_moment(fc(x).tanh().detach())) / 2)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        total = torch.zeros(len(x), 3, dtype=x.dtype)
        output, _ = self.cell(packed)
        padded = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0]
        return self.head(total + padded.sum(1))


def test_a_packed_sequence_counts_its_real_steps() -> None:
    model, x, lengths = seeded(Packed), normal(3, 4, 2), torch.tensor([2, 4, 1])
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [((x, lengths), integers(CLASSES, 3))])
    factors = wc.kronecker_factors(problem)["cell"]
    real = torch.cat([x[n, :length] for n, length in enumerate(lengths)])
    assert factors.x.count == 7
    assert_same(factors.x.mean, row_moment(real))
    assert factors.g.count == 7


def test_keyword_arguments_reach_the_layer_as_its_input() -> None:
    model = lambda: Written(  # noqa: E731
        lambda m, x: m.head(input=m.attention(key=2 * x, value=3 * x, query=x)[0].mean(1)),
        attention=nn.MultiheadAttention(4, 2, batch_first=True),
        head=nn.Linear(4, CLASSES),
    )
    x = normal(3, 2, 4)
    factors = wc.kronecker_factors(wc.Problem(seeded(model), nn.CrossEntropyLoss(), (x, integers(3, 3))))
    assert_same(factors["attention"].x.mean, row_moment(x))


def test_labels_that_cannot_be_had_are_refused() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    with pytest.raises(InvalidProblem, match='batchnorm="running"'):  # batch statistics couple the examples
        wc.kronecker_factors(case.problem(), labels="model")
    with pytest.raises(ValueError, match='"data", "sample" or "model"'):
        wc.kronecker_factors(case.problem(), labels="truth")
