"""Surgery on whatever a model is wrapped in or made of: compiled, distributed, from Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from surgery_references import assert_same_function, merged_without_rest, outputs, used
from torch import nn
from zoo import integers, normal

from wellcond.nn.ghost import GhostBatchNorm2d
from wellcond.nn.last_batchnorm import NormalizedLinear, with_last_batchnorm
from wellcond.nn.merge import merge_batchnorm
from wellcond.nn.replace import replace_norm
from wellcond_papers.models import mlp


def cnn() -> nn.Module:
    convolutions = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(4, 2))


SURGERY: dict[str, Callable[[nn.Module], nn.Module]] = {
    "with_last_batchnorm": with_last_batchnorm,
    "replace_norm": lambda model: replace_norm(model, GhostBatchNorm2d),
    "merge_batchnorm": merge_batchnorm,
}
every_surgery = pytest.mark.parametrize("operate", SURGERY.values(), ids=SURGERY)


def assert_comes_back_plain(operate: Callable[[nn.Module], nn.Module], wrapped: nn.Module, model: nn.Module) -> None:
    result, expected = operate(wrapped), operate(model)
    assert type(result) is type(model)
    assert result.state_dict().keys() == expected.state_dict().keys()
    x = normal(4, 3, 8, 8)
    assert torch.equal(outputs(result, x), outputs(expected, x))


@pytest.mark.usefixtures("process_group")
@every_surgery
def test_a_distributed_model_comes_back_plain(operate: Callable[[nn.Module], nn.Module]) -> None:
    model = used(cnn(), normal(4, 3, 8, 8))
    assert_comes_back_plain(operate, nn.parallel.DistributedDataParallel(model), model)


@pytest.mark.slow
@every_surgery
def test_a_compiled_model_comes_back_plain_and_compiles_again(operate: Callable[[nn.Module], nn.Module]) -> None:
    x = normal(4, 3, 8, 8)
    model = used(cnn(), x).eval()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(x)
    assert_comes_back_plain(operate, compiled, model)
    new = operate(compiled)
    again = torch.compile(new, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(again(x), new(x), rtol=1e-12, atol=1e-12)


@every_surgery
def test_surgery_under_inference_mode_gives_a_model_that_trains(operate: Callable[[nn.Module], nn.Module]) -> None:
    x = normal(4, 3, 8, 8)
    model = used(cnn(), x)
    with torch.inference_mode():
        new = operate(model)
    assert torch.equal(outputs(new, x), outputs(operate(model), x))
    new.train()(x).sum().backward()


def test_inputs_made_under_inference_mode_will_do() -> None:
    model = used(cnn(), normal(4, 3, 8, 8))
    with torch.inference_mode():
        x = normal(4, 3, 8, 8)
    merged_without_rest(model, x)
    with_last_batchnorm(model, x)


@pytest.mark.slow
def test_compiled_parts_are_merged_inside() -> None:
    x = normal(4, 3, 8, 8)
    model = used(nn.Sequential(cnn()[:2], cnn()[2:]), x)
    expected = outputs(model, x)
    model[0] = torch.compile(model[0], backend="aot_eager")
    torch.testing.assert_close(merged_without_rest(model).eval()(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_model_compiled_in_place_is_copied_without_its_compilation() -> None:
    x = normal(4, 3, 8, 8)
    model = used(cnn(), x)
    model.compile(backend="aot_eager")
    model.eval()(x)
    assert_same_function(model, merged_without_rest(model), x)


# Hugging Face, from configurations with random weights


def hugging_face_resnet(transformers: Any, layer_type: str = "basic") -> nn.Module:
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 2], "num_labels": 3}
    config = transformers.ResNetConfig(layer_type=layer_type, **sizes)
    return used(transformers.ResNetForImageClassification(config), normal(3, 3, 32, 32))


def vit(transformers: Any) -> nn.Module:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **sizes)
    return transformers.ViTForImageClassification(config).double()


def gpt2(transformers: Any, kind: str) -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=4, vocab_size=5, n_positions=4, pad_token_id=0, num_labels=3
    )
    return getattr(transformers, kind)(config).double()


@pytest.mark.slow
@pytest.mark.parametrize("layer_type", ["basic", "bottleneck"])
def test_a_hugging_face_resnet_is_merged(transformers: Any, layer_type: str) -> None:
    model = hugging_face_resnet(transformers, layer_type)
    assert_same_function(model, merged_without_rest(model), normal(3, 3, 32, 32))


@pytest.mark.slow
def test_a_hugging_face_resnet_gets_other_norms(transformers: Any) -> None:
    model = hugging_face_resnet(transformers)
    assert_same_function(model, replace_norm(model, GhostBatchNorm2d), normal(3, 3, 32, 32))


def test_a_vision_transformer_has_nothing_to_merge_without_a_batchnorm(transformers: Any) -> None:
    x = normal(6, 1, 8, 8)
    model = used(with_last_batchnorm(vit(transformers)), x)
    assert isinstance(model.classifier, NormalizedLinear)
    assert_same_function(model, merged_without_rest(model), x)


def test_the_last_layers_of_hugging_face_models(transformers: Any) -> None:
    models = {
        "classifier.1": hugging_face_resnet(transformers),
        "classifier": vit(transformers),
        "lm_head": gpt2(transformers, "GPT2LMHeadModel"),
        "score": gpt2(transformers, "GPT2ForSequenceClassification"),
        "h.0.mlp.c_proj": gpt2(transformers, "GPT2Model"),
    }
    for name, model in models.items():
        new = with_last_batchnorm(model)
        assert [n for n, m in new.named_modules() if isinstance(m, NormalizedLinear)] == [name]


@pytest.mark.parametrize("training", [True, False])
def test_a_language_models_head_normalizes_every_token(transformers: Any, training: bool) -> None:
    model = gpt2(transformers, "GPT2LMHeadModel").eval()
    tokens = integers(5, 3, 4)
    new = with_last_batchnorm(model, {"input_ids": tokens})
    assert new.lm_head.linear.weight is new.transformer.wte.weight  # tied, as before
    new.lm_head.train(training)
    h = model.transformer(tokens).last_hidden_state
    rows = h.flatten(0, 1)
    mean, var = (rows.mean(0), rows.var(0, correction=0)) if training else (0.0, torch.ones(4).double())
    expected = (h - mean) / (var + 1e-5).sqrt() @ model.lm_head.weight.T
    torch.testing.assert_close(new(input_ids=tokens).logits, expected, rtol=1e-12, atol=1e-12)


def test_a_head_that_shares_its_weight_with_the_embedding_keeps_its_norm(transformers: Any) -> None:
    model = used(with_last_batchnorm(gpt2(transformers, "GPT2LMHeadModel")), integers(5, 3, 4))
    with pytest.warns(UserWarning, match=r"a parameter of 'lm_head.linear' is used elsewhere too"):
        merged = merge_batchnorm(model)
    assert torch.equal(outputs(merged, integers(5, 3, 4)), outputs(model, integers(5, 3, 4)))


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)])
def test_norms_beside_gpt2s_own_linear_layer_are_merged(transformers: Any, shape: tuple[int, ...]) -> None:
    conv1d = transformers.pytorch_utils.Conv1D
    rows = [nn.Flatten(0, 1)] if len(shape) == 3 else []
    layers = [conv1d(6, 4), *rows, nn.BatchNorm1d(6), nn.GELU(), nn.BatchNorm1d(6), conv1d(2, 6)]
    model = used(nn.Sequential(*layers), normal(*shape))
    assert_same_function(model, merged_without_rest(model, normal(*shape)), normal(*shape))


def test_an_in_place_activation_behind_gpt2s_linear_layer_does_not_hide_it(transformers: Any) -> None:
    """It returns a view, and autograd writes the history of a changed view anew."""
    conv1d = transformers.pytorch_utils.Conv1D
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), conv1d(3, 6), nn.ReLU(inplace=True))
    assert isinstance(with_last_batchnorm(model)[2], NormalizedLinear)
    assert isinstance(with_last_batchnorm(mlp([4, 3]))[1], NormalizedLinear)
