"""Each remedy against what its docstring says: the treated network, its loss and its training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from setups import (
    CLASSES,
    RATE,
    SETUPS,
    STEPS,
    Loss,
    Recurrent,
    binary,
    log_loss,
    network,
    normalized_network,
    sequences,
    setup,
    start_of_arm,
    table,
    treated,
)  # fmt: skip
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from zoo import ARCHITECTURES, Case

import wellcond as wc
from wellcond.errors import Unsupported, WellcondError
from wellcond.remedies import REMEDIES, Setup, lines_for
from wellcond.remedies.rewired import own_name
from wellcond.training.copy_trainer import CopyTrainer

REMEDIES_FOLDER = Path(wc.__file__).parent / "remedies"


def losses(of: Setup) -> list[float]:
    """Losses of a run of an arm."""
    run = CopyTrainer(of.problem, of.optimizer, before_training=of.before_training).start(RATE)
    run.run(STEPS)
    return list(run.losses)


def losses_by_hand(model: nn.Module, optimizer: Optimizer, batches: Any, loss: Loss) -> list[float]:
    values = []
    for step in range(STEPS):
        x, y = batches[step % len(batches)]
        value = loss(model.train()(x), y)
        values.append(float(value.detach()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return values


def assert_close(values: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(values), torch.tensor(expected), rtol=1e-9, atol=1e-12)


def test_every_remedy_has_a_file_of_its_name_and_says_why() -> None:
    for name, remedy in REMEDIES.items():
        assert remedy.apply.__module__ == f"wellcond.remedies.{name.replace('-', '_')}"
        assert remedy.why.splitlines()[0].endswith((".", ":")) or "\n" in remedy.why
    texts = {path.stem: path.read_text(encoding="utf-8") for path in REMEDIES_FOLDER.glob("*.py")}
    registered = {name for name, text in texts.items() if "\n@remedy(" in text}
    assert registered == {name.replace("-", "_") for name in REMEDIES}


def test_common_findings_have_a_remedy() -> None:
    findings = {
        "learning-rate-too-high", "learning-rate-too-low", "unscaled-input", "unscaled-target", "output-loss-mismatch",
        "saturated-activation", "symmetric-initialisation", "bad-initialisation", "no-gradient", "exploding-gradient",
        "vanishing-gradient", "weight-decay-dominates", "dropout-too-strong", "small-batch-batchnorm", "non-finite",
        "ill-conditioned-input", "last-layer-drift", "dying-neurons", "attention-saturation", "diverging",
    }  # fmt: skip
    assert findings <= {rule for remedy in REMEDIES.values() for rule in remedy.rules}


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


def test_standardized_inputs_stay() -> None:
    assert REMEDIES["scale-inputs"].apply(setup(network(), table(0.8, 0.1))) is None


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss], ids=["squared", "absolute"])
def test_scaled_targets_report_the_loss_in_original_units(loss: Loss) -> None:
    batches = table(targets="numbers")
    model = network(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    y = torch.cat([each for _, each in batches])
    mean, std = y.mean(), y.std(correction=0)
    scaled = [(x, (y - mean) / std) for x, y in batches]
    own = copy.deepcopy(model)
    expected = losses_by_hand(own, SGD(own.parameters(), RATE), scaled, loss)
    power = 2 if loss is F.mse_loss else 1
    values = losses(treated("scale-targets", setup(model, batches, loss)))
    assert_close(values, [float(std) ** power * each for each in expected])


def test_losses_that_are_not_of_differences_keep_their_targets() -> None:
    shares = [(x, y[:, None].double() / 10 + 0.7) for x, y in table()]
    model = network(nn.Linear(4, 1))
    for untreated in (setup(network()), setup(model, shares, F.binary_cross_entropy_with_logits)):
        assert REMEDIES["scale-targets"].apply(untreated) is None


def test_targets_get_the_shape_of_the_outputs() -> None:
    batches = [(x, y.squeeze(1)) for x, y in table(targets="numbers")]
    model = network(nn.Linear(4, 1))
    own = copy.deepcopy(model)
    expected = losses_by_hand(own, SGD(own.parameters(), RATE), batches, lambda h, y: F.mse_loss(h.squeeze(1), y))
    assert_close(losses(treated("match-shapes", setup(model, batches, lambda h, y: (h - y).square().mean()))), expected)


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


def outputs(of: Setup) -> Tensor:
    result: Tensor = copy.deepcopy(of.problem.model).eval()(of.inputs)
    return result


def test_functions_in_code_are_replaced_too() -> None:
    model = Functional().double()
    x = table()[0][0]
    expected = model.last(model.second(model.first(x).sigmoid()).sigmoid())
    torch.testing.assert_close(outputs(treated("logits", setup(model))), expected)
    expected = model.last(model.second(model.first(x).relu()).relu()).softmax(-1)
    torch.testing.assert_close(outputs(treated("relu", setup(model))), expected)
    model.dim = 0
    sums = outputs(treated("class-dimension", setup(model))).sum(-1)
    torch.testing.assert_close(sums, torch.ones(8, dtype=torch.float64))


def test_the_last_sigmoid_stays_where_hidden_ones_become_relus() -> None:
    model = network(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 1), nn.Sigmoid())
    values = outputs(treated("relu", setup(model, [(x, y[:, None] / 2) for x, y in table()], F.mse_loss)))
    torch.testing.assert_close(values, model[2](model[0](table()[0][0]).relu()).sigmoid())


def test_a_module_that_is_called_twice_is_not_replaced_as_a_whole() -> None:
    squash = nn.Sigmoid()
    model = network(nn.Linear(4, 1), squash, nn.Linear(1, 1), squash)
    values = outputs(treated("relu", setup(model, [(x, y[:, None] / 2) for x, y in table()], F.mse_loss)))
    torch.testing.assert_close(values, model[2](model[0](table()[0][0]).relu()).sigmoid())


@pytest.mark.parametrize("is_module", [True, False], ids=["a module", "code"])
def test_dropout_is_lowered_wherever_it_is(is_module: bool) -> None:
    class InCode(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.8, training=self.training)

    dropout = nn.Dropout(0.8) if is_module else InCode().eval()
    model = nn.Sequential(nn.Linear(4, 5000), dropout)
    nn.init.ones_(model[0].bias)
    nn.init.zeros_(model[0].weight)
    batches = [(torch.ones(2, 4), torch.tensor([0, 1]))]
    lowered = treated("less-dropout", setup(model, batches)).problem.model
    torch.manual_seed(0)
    dropped, before = (float((each.train()(batches[0][0]) == 0).double().mean()) for each in (lowered, model))
    assert dropped == pytest.approx(0.1, abs=0.02)
    assert before == pytest.approx(0.8, abs=0.02)
    assert REMEDIES["less-dropout"].apply(setup(network())) is None


def test_dropout_inside_attention_and_recurrent_layers_is_lowered() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.7, batch_first=True)
    x = torch.randn(2, 3, 4)
    lowered: Any = treated("less-dropout", setup(layer, [(x, x)], F.mse_loss)).problem.model
    assert (lowered.self_attn.dropout, lowered.dropout1.p) == (0.1, 0.1)


def test_a_loss_of_probabilities_gets_a_sigmoid_and_keeps_one() -> None:
    ends_in_relu = network(nn.Linear(4, 1), nn.ReLU())
    values = outputs(treated("sigmoid-output", setup(ends_in_relu, binary(), F.binary_cross_entropy)))
    torch.testing.assert_close(values, ends_in_relu[0](binary()[0][0]).sigmoid())
    right = network(nn.Linear(4, 1), nn.Sigmoid())
    for name in ("sigmoid-output", "logits"):
        assert REMEDIES[name].apply(setup(right, binary(), F.binary_cross_entropy)) is None


def test_a_softmax_over_one_unit_becomes_a_sigmoid() -> None:
    model = network(nn.Linear(4, 1), nn.Softmax(-1))
    values = outputs(treated("sigmoid-output", setup(model, binary(), F.binary_cross_entropy)))
    torch.testing.assert_close(values, model[0](binary()[0][0]).sigmoid())


@pytest.mark.parametrize(
    ("end", "loss", "expected"),
    [
        ([nn.ReLU(), nn.Softmax(-1)], F.cross_entropy, lambda x: x),
        ([nn.ReLU(), nn.LogSoftmax(-1)], F.nll_loss, lambda x: x.log_softmax(-1)),
        ([nn.Tanh(), nn.Unflatten(1, (1, CLASSES)), nn.Flatten()], F.cross_entropy, lambda x: x),
    ],
    ids=["softmax of ReLUs", "log-softmax of ReLUs", "tanh in another shape"],
)
def test_all_activations_at_the_end_go_but_the_one_that_the_loss_needs(
    end: list[nn.Module], loss: Loss, expected: Callable[[Tensor], Tensor]
) -> None:
    model = network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES), *end)
    values = outputs(treated("logits", setup(model, loss=loss)))
    torch.testing.assert_close(values, expected(model[:3](table()[0][0])))


def test_a_right_end_stays() -> None:
    assert REMEDIES["logits"].apply(setup(network())) is None
    model = network(nn.Linear(4, CLASSES), nn.LogSoftmax(-1))
    assert REMEDIES["logits"].apply(setup(model, loss=F.nll_loss)) is None


def test_the_logarithm_of_probabilities_becomes_a_cross_entropy() -> None:
    untreated = setup(network(nn.Linear(4, CLASSES), nn.Softmax(-1)), loss=log_loss)
    assert_close(losses(treated("cross-entropy", untreated)), losses(untreated))  # the same while nothing is zero
    assert REMEDIES["cross-entropy"].apply(setup(network())) is None


def test_dead_relus_come_back() -> None:
    model = network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    nn.init.constant_(model[0].bias, -100.0)
    alive, _ = start_of_arm(treated("leaky-relu", setup(model)), RATE)
    for each in (model, alive):
        F.cross_entropy(each(table()[0][0]), table()[0][1]).backward()
    assert not next(model.parameters()).grad.any()  # type: ignore[union-attr]
    assert next(alive.parameters()).grad.abs().min() > 0  # type: ignore[union-attr]


# weights


@pytest.mark.parametrize(("name", "variance"), [("he-init", 2.0), ("lecun-init", 1.0)])
def test_weights_are_drawn_with_the_variance_of_the_name(name: str, variance: float) -> None:
    """Of 4,600 and more weights the sample variance has a standard deviation of 2 %."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.ConvTranspose2d(64, 8, 3), nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(2, 3, 9, 9)
    model(x)
    own = Setup.of(wc.Problem(model, F.cross_entropy, (x, torch.tensor([0, 1]))))
    script = {"model": copy.deepcopy(model), "nn": nn}
    exec(lines_for(name, own), script)
    for drawn in (treated(name, own).problem.model, script["model"]):
        assert float(drawn[0].weight.detach().var() * 3 * 25) == pytest.approx(variance, rel=0.05)
        assert float(drawn[2].weight.detach().var() * 64 * 9) == pytest.approx(variance, rel=0.05)
        assert not drawn[0].bias.any()


@pytest.mark.parametrize("name", ["he-init", "orthogonal-init", "zero-last"])
def test_what_is_frozen_keeps_what_was_learned_before(name: str) -> None:
    own = setup(model := network())
    model[2].requires_grad_(False)
    lines = lines_for(name, own)
    assert '"2"' not in lines
    assert (lines == "") is (name == "zero-last")
    script = {"model": copy.deepcopy(model), "torch": torch, "nn": nn}
    exec(lines, script)
    assert torch.equal(script["model"][2].weight, model[2].weight)


def test_a_layer_that_is_listed_twice_becomes_two() -> None:
    shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = treated("own-layers", setup(network(shared, shared, nn.Linear(4, CLASSES)))).problem.model
    assert len(list(model.parameters())) == 6
    tied = network(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES))
    tied[1].weight = tied[0].weight
    assert "set_submodule" in lines_for("own-layers", setup(tied))
    assert lines_for("own-layers", setup(network())) == ""


def test_an_embedding_and_its_decoder_stay_one() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    model[1].weight = model[0].weight
    tokens = torch.arange(5)
    assert lines_for("own-layers", setup(model, [(tokens, tokens)])) == ""


def test_whitened_features_have_one_variance_and_no_correlation() -> None:
    model: Any = treated("decorrelate-inputs", setup(network(), batches := table(50.0, 7.0))).problem.model
    x = model[0](torch.cat([x for x, _ in batches]))
    torch.testing.assert_close(x.T @ x / len(x), torch.eye(4, dtype=x.dtype))


def test_orthogonal_weights_are_and_seeds_draw_others() -> None:
    of = treated("orthogonal-init", setup(network()))
    weights = [next(start_of_arm(of, RATE, seed)[0].parameters()) for seed in (0, 1, 0)]
    for weight in weights:  # (6, 4): columns
        torch.testing.assert_close(weight.T @ weight, 2 * torch.eye(4, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gates_stay_open_for_as_long_as_the_inputs_are(kind: type[nn.LSTM | nn.GRU]) -> None:
    model: Any = treated("open-gates", setup(Recurrent(kind), sequences())).problem.model
    bias = model.rnn.bias_ih_l0
    gates = bias[5:10]
    assert bool(((gates >= 0) & (gates <= torch.tensor(19.0).log())).all())
    assert torch.equal(bias[:5], -gates) is (kind is nn.LSTM)
    assert REMEDIES["open-gates"].apply(setup(network())) is None


def test_ordinary_biases_stay() -> None:
    assert REMEDIES["zero-biases"].apply(setup(network())) is None


# norms


def test_norms_follow_every_hidden_layer_and_are_trained() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(8, 1, 6, 6)
    of = treated("batchnorm", setup(model, [(x, torch.arange(8) % 3)]))
    norms = [m for m in of.problem.model.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert [type(norm) for norm in norms] == [nn.BatchNorm2d, nn.BatchNorm1d]
    assert of.optimizer is not None
    held = {p for group in of.optimizer.param_groups for p in group["params"]}
    assert held == set(of.problem.model.parameters())
    assert REMEDIES["layernorm"].apply(of) is None
    with pytest.raises(Unsupported, match="has norms already"):
        wc.nn.with_norms(of.problem.model, x)
    with pytest.raises(Unsupported, match="no hidden"):
        wc.nn.with_norms(nn.Linear(3, 2), torch.zeros(1, 3))


def test_group_norms_have_the_scales_of_the_norms_they_replace() -> None:
    model = normalized_network()
    nn.init.constant_(model[1].weight, 3.0)
    of: Any = treated("group-norm", setup(model)).problem.model
    assert (of[1].num_groups, of[1].weight.tolist()) == (1, [3.0] * 6)
    values = of[1](torch.randn(5, 6, dtype=torch.float64))
    torch.testing.assert_close(
        values.std(1, correction=0), torch.full((5,), 3.0, dtype=torch.float64), rtol=1e-3, atol=0
    )


def test_post_norm_becomes_pre_norm() -> None:
    own = SETUPS["pre-norm"]()
    expected: Any = copy.deepcopy(own.problem.model)
    expected.norm_first = True
    torch.testing.assert_close(outputs(treated("pre-norm", own)), expected.eval()(own.inputs))
    assert REMEDIES["pre-norm"].apply(treated("pre-norm", own)) is None


# steps


def test_gradients_are_clipped_at_the_ninetieth_percentile() -> None:
    own = setup(network())
    norms = []
    for x, y in own.problem.batches:
        own.problem.model.zero_grad()
        F.cross_entropy(own.problem.model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(own.problem.model.parameters(), 1e9)))
        own.problem.model.zero_grad()
    limit = float(f"{torch.tensor(norms).quantile(0.9):.3g}")
    model = copy.deepcopy(own.problem.model)
    optimizer = SGD(model.parameters(), RATE)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), limit) and None)
    expected = losses_by_hand(model, optimizer, own.problem.batches, F.cross_entropy)
    assert_close(losses(treated("clip", own)), expected)


def test_the_rate_rises_over_a_tenth_of_the_steps() -> None:
    _, optimizer = start_of_arm(treated("warm-up", setup(network())), 1.0)
    rates = []
    for _ in range(6):
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "strong", "usual"), [(SGD, 0.1, 5e-4), (AdamW, 0.5, 1e-2), (Adam, 0.1, 1e-4), (SGD, 1e-4, 0.0)]
)
def test_weight_decay_returns_to_its_usual_value(make: Any, strong: float, usual: float) -> None:
    of = treated("less-weight-decay", setup(network(), make=make, weight_decay=strong))
    assert of.optimizer is not None
    assert of.optimizer.param_groups[0]["weight_decay"] == usual
    assert REMEDIES["less-weight-decay"].apply(setup(network())) is None


def test_norms_and_biases_are_not_decayed() -> None:
    of = treated("no-decay-of-norms", setup(normalized_network(), make=AdamW, weight_decay=0.5))
    assert of.optimizer is not None
    decays = {p.dim(): group["weight_decay"] for group in of.optimizer.param_groups for p in group["params"]}
    assert decays == {2: 0.5, 1: 0.0}
    assert REMEDIES["no-decay-of-norms"].apply(setup(network(), make=AdamW, weight_decay=0.5)) is None


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"eps": 0.1}, {"eps": 1e-8}),
        ({"betas": (0.95, 0.5)}, {"betas": (0.9, 0.999)}),
        ({"maximize": True}, {"maximize": False}),
    ],
)
def test_unusual_settings_return_to_usual_ones(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    of = treated("usual-settings", setup(network(), make=Adam, **settings))
    assert of.optimizer is not None
    usual = Adam(network().parameters(), RATE).param_groups[0] | changes
    assert {key: of.optimizer.param_groups[0][key] for key in usual if key != "params"} == {
        key: value for key, value in usual.items() if key != "params"
    }
    assert REMEDIES["usual-settings"].apply(setup(network(), make=Adam)) is None


def test_unfrozen_parameters_are_held() -> None:
    of = treated("unfreeze", SETUPS["unfreeze"]())
    assert of.optimizer is not None
    assert {p for group in of.optimizer.param_groups for p in group["params"]} == set(of.problem.model.parameters())
    assert all(p.requires_grad for p in of.problem.model.parameters())
    assert REMEDIES["unfreeze"].apply(setup(network())) is None


# any network


@pytest.mark.slow
@pytest.mark.parametrize("case", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_every_architecture_is_treated_or_refused_in_words(case: Callable[[], Case]) -> None:
    problem = case().problem()
    own = copy.deepcopy(problem.model.state_dict())
    applied, refused = [], {}
    for name, remedy in REMEDIES.items():
        untreated = Setup.of(problem, SGD(problem.params.values(), lr=1e-3), steps=20)
        try:
            result = remedy.apply(untreated)
            if result is not None:
                trainer = CopyTrainer(result.problem, result.optimizer, before_training=result.before_training)
                assert len(trainer.start(1e-3).run(2).losses) == 2
                names = {"model": copy.deepcopy(problem.model), "loss": problem.loss, "loader": problem.batches}
                names |= {"optimizer": SGD(names["model"].parameters(), 0.1), "torch": torch, "nn": nn, "wc": wc}
                exec(result.code.replace("{lr}", "0.1").partition("# in the training loop")[0], names)
                assert set(names["model"].state_dict()) == set(map(own_name, result.problem.model.state_dict()))
                applied.append(name)
        except WellcondError as error:
            refused[name] = str(error)
    assert all(refused.values())
    assert set(applied) >= {"rate", "adam", "clip", "bnp"}
    assert all(torch.equal(value, own[key]) for key, value in problem.model.state_dict().items())


def test_the_guide_names_every_remedy() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "fixing.md").read_text(encoding="utf-8")
    assert [name for name in REMEDIES if f"`{name}`" not in guide] == []
