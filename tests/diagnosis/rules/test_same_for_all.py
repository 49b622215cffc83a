"""What gives every example the same: masks that show padding, empty tables, norms before a mean; and sound forms."""

from __future__ import annotations

import pytest
import torch
from rule_cases import findings
from torch import Tensor, nn
from torch.optim import Adam

import wellcond as wc

N, PLACES, WIDTH = 64, 8, 16
LOSS = nn.CrossEntropyLoss()
DRAW = torch.Generator().manual_seed(0)
LENGTHS = torch.randint(3, 7, (N,), generator=DRAW)
REAL = torch.arange(PLACES) < LENGTHS[:, None]
SIGNALS = torch.randn(N, PLACES, 4, generator=DRAW) * REAL[..., None]
KINDS = torch.randint(0, 2, (N,), generator=DRAW)


class Reader(nn.Module):
    """Reads a record by one query; what fills it has values of its own at every place."""

    def __init__(self, *, is_inverted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Linear(4, WIDTH), nn.Parameter(torch.randn(PLACES, WIDTH))
        self.first, self.out = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Linear(WIDTH, 2)
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.is_inverted = is_inverted

    def forward(self, signals: Tensor, lengths: Tensor) -> Tensor:
        h = self.embed(signals) + self.places
        is_real = torch.arange(PLACES) < lengths[:, None]
        hidden = is_real if self.is_inverted else ~is_real
        return self.out(self.attend(self.first.expand(len(h), 1, WIDTH), h, h, key_padding_mask=hidden)[0][:, 0])


@pytest.mark.parametrize("is_inverted", [True, False])
def test_a_mask_that_shows_one_value_at_each_place(is_inverted: bool) -> None:
    batch = ({"signals": SIGNALS, "lengths": LENGTHS}, KINDS)
    by_rule = findings(Reader(is_inverted=is_inverted), LOSS, batch)
    assert ("wrong-mask" in by_rule) is is_inverted
    if is_inverted:
        assert (by_rule["wrong-mask"].layer, by_rule["wrong-mask"].severity) == ("attend", "severe")


@pytest.mark.parametrize(
    ("fill", "is_trained", "expected"), [(0.0, False, True), (0.0, True, False), (1.0, False, False)]
)
def test_a_table_of_zeros_that_is_not_trained(fill: float, is_trained: bool, expected: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 2))
    with torch.no_grad():
        model[0].weight.mul_(fill)
    model[0].weight.requires_grad_(is_trained)
    words = torch.randint(0, 20, (N, 5), generator=torch.Generator().manual_seed(1))
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    by_rule = findings(model, LOSS, (words, KINDS), optimizer)
    assert ("rank-collapse" in by_rule and by_rule["rank-collapse"].layer == "0") is expected


def test_a_norm_and_a_mean_that_leave_nothing() -> None:
    torch.manual_seed(0)

    def model(*middle: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 6, 3), *middle, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))

    images = torch.randn(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    by_rule = findings(model(nn.InstanceNorm2d(6)), LOSS, (images, KINDS))
    assert (by_rule["rank-collapse"].layer, by_rule["rank-collapse"].severity) == ("4", "severe")
    assert "rank-collapse" not in findings(model(nn.InstanceNorm2d(6), nn.ReLU()), LOSS, (images, KINDS))


class Steps(nn.Module):
    """A block three times: it makes what is given more like its own mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
        self.blocks, self.out = nn.ModuleList([block] * 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


@pytest.mark.slow
def test_a_block_that_is_fed_its_own_outputs_may_be_shared_on_purpose() -> None:
    x = torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = Steps()
    batches = list(zip(x.split(32), y.split(32), strict=True))
    diagnosis = wc.diagnose(wc.Problem(model, LOSS, batches), Adam(model.parameters(), 1e-2), select=["shared-weight"])
    assert [each.severity for each in diagnosis.findings] == ["warning"]


@pytest.mark.parametrize("is_reward", [True, False])
def test_a_score_of_maps_of_probabilities_that_is_minimized(is_reward: bool) -> None:
    torch.manual_seed(0)

    def score(odds: Tensor, mask: Tensor) -> Tensor:
        both = (odds * mask).sum((1, 2, 3))
        dice = ((2 * both + 1) / (odds.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()
        return dice if is_reward else 1 - dice

    images = torch.randn(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1), nn.Sigmoid())
    by_rule = findings(model, score, (images, (images > 0.5).float()))
    assert ("output-loss-mismatch" in by_rule) is is_reward
