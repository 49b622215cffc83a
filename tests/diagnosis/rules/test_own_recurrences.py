"""Rules about recurrent layers of one's own, class tokens in front of a sequence, and masks in the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rule_cases import findings
from torch import Tensor, nn

import wellcond as wc

CE = nn.CrossEntropyLoss()
STEPS = 12


class Elman(nn.Module):
    """h ← tanh(x + W h), with W as a layer, a parameter or in an einsum."""

    def __init__(self, how: str, size: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.embed, self.out = how, nn.Embedding(8, 24), nn.Linear(24, 4)
        self.w = nn.Linear(24, 24, bias=False) if how == "layer" else nn.Parameter(torch.empty(24, 24))
        nn.init.normal_(self.w.weight if isinstance(self.w, nn.Linear) else self.w, std=size / 24**0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 24)
        for token in self.embed(x).unbind(1):
            if self.how == "layer":
                carried = self.w(h)
            else:
                carried = h @ self.w if self.how == "product" else torch.einsum("nd,de->ne", h, self.w)
            h = torch.tanh(0.3 * token + carried)
        return self.out(h)


def first_findings(model: nn.Module, asked: int) -> Any:
    x = torch.randint(8, (1024, STEPS), generator=torch.Generator().manual_seed(0))
    batches = [*zip(x.split(64), (x[:, asked] % 4).split(64), strict=True)]
    return wc.diagnose(wc.Problem(model, CE, batches), torch.optim.Adam(model.parameters(), 1e-3)).findings


@pytest.mark.slow
@pytest.mark.parametrize("how", ["layer", "product", "einsum"])
def test_a_state_that_is_forgotten_at_once(how: str) -> None:
    first = first_findings(Elman(how, 0.08), 0)[0]
    assert (first.rule, first.severity) == ("vanishing-gradient", "severe")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "asked"), [(1.0, 0), (0.08, STEPS - 1)])
def test_a_state_that_is_kept_or_not_needed(size: float, asked: int) -> None:
    assert "vanishing-gradient" not in {f.rule for f in first_findings(Elman("layer", size), asked)}


class Gated(nn.Module):
    """A gated recurrent layer by hand."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.gate, self.state = (nn.Parameter(scale * torch.randn(16 + 64, 64)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 64)
        for step in x.unbind(1):
            f = torch.sigmoid(torch.cat([step, h], 1) @ self.gate)
            h = (1 - f) * h + f * torch.tanh(torch.cat([step, f * h], 1) @ self.state)
        return h


class Cell(nn.Module):
    """One step of an LSTM by hand; the tanh of its state is never flat."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.w = nn.Parameter(scale * torch.randn(16 + 64, 4 * 64))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = (torch.cat([x, h], 1) @ self.w).split(64, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Celled(nn.Module):
    """A cell in a loop."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.cell = Cell(scale)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 64)
        for step in x.unbind(1):
            h, c = self.cell(step, h, c)
        return h


class Einsum(nn.Module):
    """A plain recurrent layer, by an einsum."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.w = nn.Parameter(scale * torch.randn(64, 16 + 64))

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 64)
        for step in x.unbind(1):
            h = torch.einsum("od,nd->no", self.w, torch.cat([step, h], 1)).tanh()
        return h


class Between(nn.Module):
    """A layer of one's own between two linear ones."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.inp, self.rnn, self.out = nn.Linear(1, 16), own, nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.inp(x)))


def waves() -> tuple[Tensor, Tensor]:
    phase = torch.rand(64, 1, generator=torch.Generator().manual_seed(0))
    x = torch.sin(torch.arange(24) / 3 + 6 * phase)
    return x[:, :20, None], x[:, 20:]


@pytest.mark.parametrize("kind", [Gated, Celled, Einsum])
def test_matrices_of_ones_own_that_flatten_what_follows(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    large = findings(Between(kind(2.0)), nn.MSELoss(), waves())
    assert large["bad-initialisation"].layer == ("rnn.cell" if kind is Celled else "rnn")
    sound = findings(Between(kind(1 / 8)), nn.MSELoss(), waves())
    assert "bad-initialisation" not in sound
    assert "no-nonlinearity" not in sound
    assert "no-nonlinearity" not in large


class Codes(nn.Module):
    """Learned vectors of any size, to which what is seen is compared."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.codes, self.out = nn.Linear(1, 32), nn.Parameter(torch.randn(32, 32)), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        near = (self.body(x[:, -1]).unsqueeze(1) - self.codes).square().mean(2).neg().softmax(1)
        return self.out(near @ self.codes)


def test_codes_may_have_any_size() -> None:
    assert "bad-initialisation" not in findings(Codes(), nn.MSELoss(), waves())


def padded_tokens() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 12, (48, 1), generator=draw)
    return torch.randint(1, 9, (48, 12), generator=draw) * (torch.arange(12) < lengths), torch.arange(48) % 3


class WithClassToken(nn.Module):
    """A class token before or after the words, as a token or as a learned vector."""

    def __init__(self, how: str, *, inverted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.inverted, self.embed = how, inverted, nn.Embedding(10, 16)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        nine = torch.full_like(x[:, :1], 9)
        tokens = torch.cat([x, nine] if self.how == "last" else [nine, x], 1)
        h = self.embed(tokens)
        if self.how == "vector":
            h = torch.cat([self.token.expand(len(x), 1, 16), self.embed(x)], 1)
        hidden = tokens == 0
        h = self.block(h, src_key_padding_mask=~hidden if self.inverted else hidden)
        return self.out(h[:, -1 if self.how == "last" else 0])


@pytest.mark.parametrize("how", ["first", "last", "vector"])
def test_inverted_masks_of_sequences_with_a_class_token(how: str) -> None:
    finding = findings(WithClassToken(how, inverted=True), CE, padded_tokens())["wrong-mask"]
    assert (finding.severity, finding.layer) == ("severe", "block.self_attn")
    assert "wrong-mask" not in findings(WithClassToken(how, inverted=False), CE, padded_tokens())


class Latch(nn.Module):
    """An answer for each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.rnn, self.out = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(x))[0])


def counted(outputs: Tensor, targets: Any) -> Tensor:
    return F.cross_entropy(outputs.mT, targets[0])


def by_mask(outputs: Tensor, targets: Any) -> Tensor:
    each = F.cross_entropy(outputs.mT, targets[0], reduction="none")
    return (each * targets[1]).sum() / targets[1].sum()


def by_length(outputs: Tensor, targets: Any) -> Tensor:
    return by_mask(outputs, (targets[0], (torch.arange(12) < targets[1][:, None]).float()))


def events(*, masks: str) -> tuple[Tensor, Any]:
    """Events among zeros, padded with zeros; the mask is 1 for what is real, or True for padding, or lengths."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 9, (48,), generator=draw)
    real = torch.arange(12) < lengths[:, None]
    x = torch.randint(9, (48, 12), generator=draw) * (torch.rand(48, 12, generator=draw) < 0.3) * real
    return x, (x.cummax(1).values * real, {"real": real.float(), "padded": ~real, "lengths": lengths}[masks])


@pytest.mark.parametrize("masks", ["real", "padded", "lengths"])
def test_padding_that_a_mask_tells_of(masks: str) -> None:
    assert findings(Latch(), counted, events(masks=masks))["padding-in-loss"].severity == "severe"


def test_masks_that_are_used() -> None:
    assert "padding-in-loss" not in findings(Latch(), by_mask, events(masks="real"))
    assert "padding-in-loss" not in findings(Latch(), by_length, events(masks="lengths"))
    x, (y, _) = events(masks="real")
    assert "padding-in-loss" not in findings(Latch(), counted, (x, (y, torch.arange(48) % 9)))  # these are no lengths


class Pooled(nn.Module):
    """Attention pooling by a query that is a parameter."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.key, self.query, self.out, self.dim = nn.Linear(1, 8), nn.Parameter(torch.randn(8)), nn.Linear(8, 4), dim

    def forward(self, x: Tensor) -> Tensor:
        h = self.key(x).tanh()
        return self.out(((h @ self.query.unsqueeze(1)).softmax(self.dim) * h).sum(1))


def test_a_query_that_is_a_parameter_is_no_second_signal() -> None:
    assert findings(Pooled(-1), nn.MSELoss(), waves())["wrong-softmax-dimension"].severity == "severe"
    assert "wrong-softmax-dimension" not in findings(Pooled(1), nn.MSELoss(), waves())
