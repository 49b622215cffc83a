"""Dying and full units against loops over examples and positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import in_state
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, Case, Written, classifier, normal, split

import wellcond as wc
from wellcond.errors import NonFinite, UnknownLayer

RELUS: dict[str, Any] = {
    "module": nn.ReLU(),
    "module_in_place": nn.ReLU(inplace=True),
    "functional": F.relu,
    "functional_in_place": lambda x: F.relu(x, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "method": lambda x: x.relu(),
    "method_in_place": lambda x: x.relu_(),
}


def one_hidden(relu: Any, examples: int = 8) -> Case:
    """Six units, of which biases make the first dead and the second never off."""
    model = lambda: Written(  # noqa: E731
        lambda m, x: m.head(m.relu(m.fc(x))), fc=nn.Linear(4, 6), head=nn.Linear(6, 3), relu=relu
    )
    case = classifier(model, normal(examples, 4), examples)
    case.model.fc.bias.data[0], case.model.fc.bias.data[1] = -100.0, 100.0
    return case


def by_hand(units: Tensor) -> tuple[list[bool], list[bool]]:
    """(examples, units, …) after the ReLU → (dying, full)."""
    dying, full = [], []
    for unit in range(units.shape[1]):
        values = [float(v) for example in units for v in example[unit].detach().reshape(-1)]
        dying.append(all(v == 0 for v in values))
        full.append(all(v > 0 for v in values))
    return dying, full


def assert_is(result: Any, units: Tensor) -> None:
    assert (result.is_dying.tolist(), result.is_full.tolist()) == by_hand(units)


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
def test_every_way_of_writing_a_relu_is_seen(relu: Any) -> None:
    case = one_hidden(relu)
    table = wc.neurons(case.problem())
    assert list(table) == ["fc"]
    assert_is(table["fc"], case.model.fc(case.batch[0]).detach().clamp_min(0))
    assert table["fc"].units == 6
    assert table["fc"].is_dying[0]
    assert table["fc"].is_full[1]
    assert (table["fc"].dying, table["fc"].full) == (int(table["fc"].is_dying.sum()), int(table["fc"].is_full.sum()))


@pytest.mark.parametrize("sizes", [[8], [5, 3], [1] * 8, "shuffled"], ids=str)
def test_a_unit_is_dead_on_every_example_of_every_batch(sizes: Any) -> None:
    case = one_hidden(F.relu)
    case.model.fc.requires_grad_(False)  # counting needs no gradient
    shuffled = DataLoader(TensorDataset(*case.batch), batch_size=3, shuffle=True)  # one pass sees all the same
    table = wc.neurons(case.problem(batches=shuffled if sizes == "shuffled" else split(case.batch, sizes)))
    assert_is(table["fc"], case.model.fc(case.batch[0]).detach().clamp_min(0))
    assert table.examples == 8


@pytest.mark.parametrize("meaning", ["batch", "running"])
def test_a_channel_of_a_convolution_is_a_unit_at_all_positions(meaning: str) -> None:
    case = ARCHITECTURES[f"cnn_{meaning}"]()
    case.model[1].bias.data[:2] = torch.tensor([-50.0, 50.0])
    table = wc.neurons(case.problem())
    model = in_state(case.model, meaning)
    first = model[1](model[0](case.batch[0])).clamp_min(0)
    second = model[4](model[3](first)).clamp_min(0)
    assert list(table) == ["0", "4"]
    assert_is(table["0"], first)
    assert_is(table["4"], second)
    assert (table["0"].dying, table["0"].full) == (1, 1)


def test_tokens_are_positions_of_a_linear_layers_units() -> None:
    case = ARCHITECTURES["encoder_layer"]()
    layer = in_state(case.model, "batch")[0]
    x = case.batch[0]
    h = layer.norm1(x + layer.self_attn(x, x, x)[0])
    table = wc.neurons(case.problem())
    assert (list(table), table.examples) == (["0.linear1"], len(x))
    assert_is(table["0.linear1"], layer.linear1(h).clamp_min(0).transpose(1, 2))


def test_a_second_relu_after_the_same_layer_has_its_own_entry() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.fc(F.relu(x))
        return F.relu(h) - F.relu(-h)

    case = classifier(lambda: Written(forward, fc=nn.Linear(4, 3)), normal(5, 4), 5)
    table = wc.neurons(case.problem(batches=split(case.batch, [3, 2])))
    h = case.model.fc(case.batch[0].clamp_min(0)).detach()
    assert list(table) == ["input", "fc", "fc[1]"]
    assert_is(table["input"], case.batch[0].clamp_min(0))
    assert_is(table["fc"], h.clamp_min(0))
    assert_is(table["fc[1]"], (-h).clamp_min(0))


def test_a_relu_in_the_loss_is_not_a_unit_of_the_model() -> None:
    case = one_hidden(torch.tanh)
    hinge = lambda f, y: F.relu(1 - f.gather(1, y[:, None])).mean()  # noqa: E731
    table = wc.neurons(wc.Problem(case.model, hinge, case.batch))
    assert list(table) == []
    assert str(table) == "no ReLU was called"


def test_rows_and_text_hold_the_counts() -> None:
    table = wc.neurons(one_hidden(F.relu).problem())
    counts = {row.quantity: row.value for row in table.rows(step=2)}
    assert counts == {"dying": table["fc"].dying, "full": table["fc"].full, "units": 6}
    assert {row.step for row in table.rows(step=2)} == {2}
    assert (table.cost.forwards, table.cost.backwards) == (1, 0)
    assert f"on 8 examples; {table.cost}" in str(table)
    with pytest.raises(UnknownLayer, match="'fc'"):
        table["fc1"]


def test_nan_is_said_and_not_counted() -> None:
    case = one_hidden(F.relu)
    case.batch[0][3, 1] = float("nan")
    with pytest.raises(NonFinite, match="inputs of batch 0"):
        wc.neurons(case.problem())


def test_relus_of_another_network_in_a_training_step_do_not_count() -> None:
    critic, generator = (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(2))
    other = nn.Sequential(nn.Linear(4, 9), nn.ReLU())

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean() - model(generator(batch)).mean() + other(batch).mean()

    table = wc.neurons(wc.Problem.from_step(critic, step, [normal(8, 4).float()]))
    assert {name: layer.units for name, layer in table.items()} == {"0": 6}
