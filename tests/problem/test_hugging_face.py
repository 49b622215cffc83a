"""Hugging Face models, built from a configuration with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from layer_references import layer_gradients, row_moment
from references import assert_same, categorical, dense_ggn, dense_hessian
from torch import Tensor, nn
from zoo import CLASSES, flattened_cross_entropy, integers, normal

import wellcond as wc
from wellcond.errors import InvalidProblem


def gpt2(transformers: Any, kind: str = "GPT2LMHeadModel", **options: Any) -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=4, vocab_size=5, n_positions=4, pad_token_id=0, **options
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, kind)(config).double()


TOKENS, NEXT = integers(5, 3, 4), integers(5, 3, 4, seed=1)


def token_loss(outputs: Any, targets: Tensor) -> Tensor:
    return flattened_cross_entropy(outputs.logits, targets)


@pytest.mark.parametrize("loss", [token_loss, flattened_cross_entropy], ids=["of_the_output_object", "of_the_logits"])
@pytest.mark.slow
def test_a_language_model_takes_a_loss_of_its_output_or_of_its_logits(transformers: Any, loss: Any) -> None:
    model = gpt2(transformers)
    problem = wc.Problem(model, loss, [({"input_ids": TOKENS}, NEXT)])
    v = normal(problem.size)
    batch = ({"input_ids": TOKENS}, NEXT)
    assert_same(wc.Hessian(problem) @ v, dense_hessian(model, flattened_cross_entropy, batch) @ v)
    expected = dense_ggn(model, flattened_cross_entropy, batch) @ v
    assert_same(wc.GGN(problem) @ v, expected)
    assert_same(wc.Fisher(problem) @ v, expected)


def test_a_classifier_takes_a_loss_module(transformers: Any) -> None:
    model = gpt2(transformers, "GPT2ForSequenceClassification", num_labels=CLASSES)
    inputs, targets = {"input_ids": TOKENS.clamp_min(1)}, integers(CLASSES, 3)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(transformers.BatchEncoding(inputs), targets)])
    v = normal(problem.size)
    assert_same(wc.GGN(problem) @ v, dense_ggn(model, nn.CrossEntropyLoss(), (inputs, targets)) @ v)


@pytest.mark.slow
def test_a_loss_computed_inside_the_model_has_a_hessian_but_no_ggn(transformers: Any) -> None:
    model = gpt2(transformers)
    inputs = {"input_ids": TOKENS, "labels": TOKENS}
    problem = wc.Problem(model, lambda outputs, _: outputs.loss, [(inputs, TOKENS)])
    shifted = lambda f, y: F.cross_entropy(f[:, :-1].flatten(0, 1), y[:, 1:].flatten())  # noqa: E731
    v = normal(problem.size)
    expected = dense_hessian(model, shifted, ({"input_ids": TOKENS}, TOKENS)) @ v
    assert_same(wc.Hessian(problem) @ v, expected, 1e-6)  # transformers computes its own loss in float32
    with pytest.raises(InvalidProblem, match="does not use the outputs"):
        wc.GGN(problem) @ v


@pytest.mark.parametrize("labels", ["data", "model"])
def test_factors_of_a_language_models_layers(transformers: Any, labels: Any) -> None:
    model = gpt2(transformers)
    batch = ({"input_ids": TOKENS}, NEXT)
    factors = wc.kronecker_factors(wc.Problem(model, token_loss, [batch]), labels=labels)
    parts = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
    assert list(factors) == ["transformer.wte", "transformer.wpe", *(f"transformer.h.0.{p}" for p in parts), "lm_head"]
    for part in parts:
        name = f"transformer.h.0.{part}"
        x, _, gradients = layer_gradients(model, name, categorical(-1), batch, labels, "batch")
        assert_same(factors[name].x.mean, row_moment(x.detach()))
        assert_same(factors[name].g.mean, sum(p * row_moment(g) for p, g in gradients))
    norms = {"transformer.h.0.ln_1", "transformer.h.0.ln_2", "transformer.ln_f"}
    assert set(factors.not_covered) - norms == ({"transformer.wpe"} if labels == "model" else set())


def test_the_gram_side_of_a_language_model(transformers: Any) -> None:
    model = gpt2(transformers)
    problem = wc.Problem(model, token_loss, [({"input_ids": TOKENS}, NEXT)])
    expected = dense_ggn(model, flattened_cross_entropy, ({"input_ids": TOKENS}, NEXT))
    result = wc.spectrum(wc.Fisher(problem))
    assert result.side == "gram"
    assert_same(result.values, torch.linalg.eigvalsh(expected))
