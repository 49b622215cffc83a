"""Where NaN in a recorded run comes from: the layer that returns it whatever the weights are, or none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.recording.probes import not_finite
from wellcond.recording.probes.not_finite import source_of_nan
from wellcond.results import quantities as q

BAD = 40
"""The step with an example that a layer cannot take."""


class MeanOfWords(nn.Module):
    """The mean over words that are not padding: 0/0 for an empty text."""

    def forward(self, h: Tensor) -> Tensor:
        is_word = (h[..., :1] != 0).to(h)
        return (h * is_word).sum(1) / is_word.sum(1)


class Spread(nn.Module):
    """A standard deviation, whose root has no slope at 0."""

    def forward(self, h: Tensor) -> Tensor:
        return h.var(1).sqrt()


class Texts(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8, bias=False))
        self.block = nn.Sequential()
        self.block.add_module("pool", pool)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.encoder(x)))


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 6, 4, generator=torch.Generator().manual_seed(step))
    x[3] *= step != BAD
    return x, x.mean((1, 2))[:, None]


@pytest.mark.filterwarnings("ignore::wellcond.recording.logbook.FindingWarning")
@pytest.mark.parametrize(("pool", "what"), [(MeanOfWords(), "outputs"), (Spread(), "gradient")])
def test_the_layer_is_named_although_all_weights_are_lost(pool: nn.Module, what: str) -> None:
    net = Texts(pool)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with wc.Recorder(net, optimizer, nn.MSELoss()) as rec:
        for step in range(1, 80):
            x, y = batch_of(step)
            optimizer.zero_grad()
            value = nn.functional.mse_loss(net(x), y)
            value.backward()
            optimizer.step()
            before = torch.get_rng_state()
            rec.step(value, (x, y))
            assert torch.equal(torch.get_rng_state(), before)
    assert not any(bool(p.isfinite().all()) for p in net.encoder.parameters())
    assert rec.problems == []
    (finding,) = [each for each in rec.findings if each.rule == "non-finite"]
    assert (finding.layer, finding.evidence["first"]) == ("block.pool", what)
    assert finding.step == pytest.approx(BAD, abs=1)


def test_steps_that_were_too_long_have_no_layer() -> None:
    net = Texts(nn.Flatten(1, 1))
    net.head = nn.Linear(8, 1)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(torch.nan)
    assert source_of_nan(net, lambda z, y: nn.functional.mse_loss(z.mean(1), y), [batch_of(1)], 1) == []
    assert all(bool(p.isnan().all()) for p in net.parameters())


def test_a_network_too_large_to_copy_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = [batch_of(BAD)]
    assert len(source_of_nan(Texts(MeanOfWords()), nn.MSELoss(), empty, 1)) == 1
    monkeypatch.setattr(not_finite, "MOST_WEIGHTS", 10)
    assert source_of_nan(Texts(MeanOfWords()), nn.MSELoss(), empty, 1) == []


def test_data_that_are_not_finite_are_no_layers_fault() -> None:
    x, y = batch_of(1)
    (row,) = source_of_nan(Texts(Spread()), nn.MSELoss(), [(x / 0, y)], 1)
    assert (row.layer, row.quantity, row.value) == ("", q.NOT_FINITE_VALUES, x.numel())
    missing = x.clone()
    missing[0] = torch.nan  # as in every batch: the model is made for it
    assert source_of_nan(Texts(Spread()), nn.MSELoss(), [(missing, y), (missing.clone(), y)], 1) == []


@pytest.mark.filterwarnings("ignore::wellcond.recording.logbook.FindingWarning")
def test_a_batch_that_holds_nan_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    with wc.Recorder(net, optimizer, nn.MSELoss()) as rec:
        for step in range(1, 61):
            x, y = torch.randn(8, 4), torch.randn(8, 1)
            x[0, 0] = torch.nan if step == BAD else 0.0
            optimizer.zero_grad()
            value = nn.functional.mse_loss(net(x), y)
            value.backward()
            optimizer.step()
            rec.step(value, (x, y))
    (finding,) = rec.findings
    assert (finding.rule, finding.layer, finding.step) == ("non-finite", "", BAD)
    assert f"the batch of step {BAD} holds 1 value that is so" in finding.summary
    assert "drop or fill in" in finding.remedy


def test_finite_weights_stay_as_they_are() -> None:
    """A logarithm of what these weights make negative: other weights would not."""

    class Log(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.mean(1).log()

    net = Texts(Log())
    with torch.no_grad():
        net.encoder[0].weight.fill_(-1.0)
    x, y = batch_of(1)
    (row,) = source_of_nan(net, nn.MSELoss(), [(x.abs() + 0.1, y)], 7)
    assert (row.step, row.layer, row.quantity, row.value) == (7, "block.pool", q.NOT_FINITE_SHARE, 1.0)
