"""Rules about what steps of a sequence may see, by programs with the fault and by sound ones that look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rule_cases import findings, seen
from sequence_programs import (
    Autoencoder,
    Convolution,
    Loop,
    Own,
    OwnLoss,
    Recurrent,
    Torchs,
    Translator,
    by_token,
    padded_text,
    text,
)
from torch import Tensor, nn

import wellcond as wc

CE = nn.CrossEntropyLoss()
RULES = ("future-seen", "label-shift", "wrong-mask", "padding-in-loss", "order-lost", "no-gradient")
Program = tuple[nn.Module, Callable[..., Any] | None, Any]


def next_tokens() -> tuple[Tensor, Tensor]:
    tokens = text()
    return tokens[:, :-1], tokens[:, 1:]


def severe(*program: Any) -> dict[str, str]:
    """Rules of this file that are more than a note, each with its layer."""
    return {r: f.layer for r, f in findings(*program).items() if r in RULES and f.severity != "note"}


def of_state(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return by_token(outputs[0], targets)


def turned(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.T.contiguous() for t in tensors)


FUTURE: dict[str, tuple[Callable[[], Program], str]] = {
    "torch's encoder without a mask": (lambda: (Torchs("none"), by_token, next_tokens()), "encoder.layers.0.self_attn"),
    "einsum without a mask": (lambda: (Own("einsum", "all"), by_token, next_tokens()), "out"),
    "a mask that is one step off": (lambda: (Own("matmul", "one ahead"), by_token, next_tokens()), "out"),
    "a mask turned round, outputs (N, V, T)": (lambda: (Own("kernel", "future", "NVT"), CE, next_tokens()), "out"),
    "flat outputs and targets": (
        lambda: (Own("einsum", "all", "flat"), lambda f, y: F.cross_entropy(f, y.reshape(-1)), next_tokens()),
        "out",
    ),
    "both directions": (lambda: (Recurrent("LSTM", both=True), by_token, next_tokens()), "rnn"),
    "both directions, steps first": (
        lambda: (Recurrent("GRU", both=True, steps_first=True), by_token, turned(*next_tokens())),
        "rnn",
    ),
    "both directions, with the state": (
        lambda: (Recurrent("GRU", both=True, read="with state"), of_state, next_tokens()),
        "rnn",
    ),
    "one example": (
        lambda: (Recurrent(both=True), by_token, (text(n=1, t=60)[:, :-1], text(n=1, t=60)[:, 1:])),
        "rnn",
    ),
    "convolutions padded on both sides": (lambda: (Convolution(left=False), CE, next_tokens()), "first"),
    "a model that returns its loss": (lambda: (OwnLoss("all"), None, next_tokens()), "network.out"),
}


@pytest.mark.parametrize("name", FUTURE)
def test_outputs_that_see_what_they_are_asked_for(name: str) -> None:
    program, layer = FUTURE[name]
    finding = findings(*program())["future-seen"]
    assert (finding.severity, finding.layer) == ("severe", layer)


def prefixed() -> tuple[Tensor, Tensor]:
    x, y = next_tokens()
    y = y.clone()
    y[:, :4] = -100
    return x, y


def masked() -> tuple[Tensor, Tensor]:
    tokens = text(begin=1)
    chosen = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    return tokens.masked_fill(chosen, 0), tokens.masked_fill(~chosen, -100)


def forecast(how: str) -> Program:
    series = torch.randn(24, 11, 3, generator=torch.Generator().manual_seed(0)).cumsum(1)
    x = series[:, :-1]
    if how == "next":
        return Series(), nn.MSELoss(), (x, series[:, 1:])
    if how == "one of three":
        return Series(1), nn.MSELoss(), (x, series[:, 1:, :1])
    return nn.Sequential(nn.Flatten(), nn.Linear(30, 3)), nn.MSELoss(), (x, series[:, -1])


class Series(nn.Module):
    def __init__(self, outputs: int = 3, *, both: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.GRU(3, 16, batch_first=True, bidirectional=both)
        self.head = nn.Linear(16 * (1 + both), outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0])
        return out


SOUND: dict[str, Callable[[], Program]] = {
    "a causal encoder": lambda: (Torchs("causal"), by_token, next_tokens()),
    "einsum with a mask": lambda: (Own("einsum"), by_token, next_tokens()),
    "the kernel with a mask": lambda: (Own("kernel", form="NVT"), CE, next_tokens()),
    "one direction": lambda: (Recurrent("LSTM"), by_token, next_tokens()),
    "one direction, steps first": lambda: (Recurrent(steps_first=True), by_token, turned(*next_tokens())),
    "one direction, with the state": lambda: (Recurrent(read="with state"), of_state, next_tokens()),
    "one example": lambda: (Recurrent(), by_token, (text(n=1, t=60)[:, :-1], text(n=1, t=60)[:, 1:])),
    "convolutions padded on the left": lambda: (Convolution(left=True), CE, next_tokens()),
    "a model that returns its loss": lambda: (OwnLoss(), None, next_tokens()),
    "a model that shifts by itself": lambda: (OwnLoss(shifts=True), None, (text(), text())),
    "a loss that shifts by itself": lambda: (
        Own("einsum"), lambda f, y: by_token(f[:, :-1], y[:, 1:]), (text(), text())
    ),
    "a prefix that sees itself": lambda: (Own("matmul", "prefix"), by_token, prefixed()),
    "a masked language model": lambda: (Torchs("none"), by_token, masked()),
    "a tagger in both directions": lambda: (Recurrent(both=True), by_token, (text(), text() % 3)),
    "a tagger by attention": lambda: (Own("einsum", "all"), by_token, (text(), text().roll(1, 1) % 3)),
    "an autoencoder": lambda: (Autoencoder(), by_token, (text(), text())),
    "attention that copies": lambda: (Own("einsum", "all"), by_token, (text(), text())),
    "teacher forcing": lambda: (Translator(), by_token, ((text().flip(1), next_tokens()[0]), next_tokens()[1])),
    "translation into itself": lambda: (Translator(), by_token, ((text(), next_tokens()[0]), next_tokens()[1])),
    "an echo": lambda: (Recurrent(), by_token, (text(begin=1), F.pad(text(begin=1)[:, :-1], (1, 0)))),
    "the next of a series": lambda: forecast("next"),
    "the next of one of three series": lambda: forecast("one of three"),
    "one forecast": lambda: forecast("one"),
    "a convolution with a BatchNorm": lambda: (Normalized(), nn.MSELoss(), (walk()[:, :, :-1], walk()[:, :, 1:])),
    "pictures": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        CE,
        (torch.randn(24, 1, 8, 8), torch.arange(24) % 3),
    ),
    "columns with embeddings of their own": lambda: (Columns(), CE, (columns(), torch.arange(24) % 3)),
}  # fmt: skip


def walk() -> Tensor:
    return torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(0)).cumsum(2)


class Normalized(nn.Module):
    """Sees no later step, but statistics of the batch that contain them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.Conv1d(8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(F.pad(torch.relu(self.norm(self.first(F.pad(x, (2, 0))))), (2, 0)))
        return out


def columns() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.stack([torch.randint(0, size, (24,), generator=draw) for size in (30, 3, 5, 9)], 1)


class Columns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in (30, 3, 5, 9))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([t(c) for t, c in zip(self.tables, x.unbind(1), strict=True)], 1))
        return out


@pytest.mark.parametrize("name", SOUND)
def test_sound_programs_over_sequences(name: str) -> None:
    assert severe(*SOUND[name]()) == {}


def test_the_next_of_a_series_is_not_seen_either() -> None:
    _, loss, batch = forecast("next")
    assert severe(Series(both=True), loss, batch) == {"future-seen": "rnn"}


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0])
        return out


SHIFTED: dict[str, tuple[Callable[[], Program], str]] = {
    "copies, by recurrence": (lambda: (Recurrent(), by_token, (text(), text())), "severe"),
    "copies, by attention": (lambda: (Own("einsum", form="NVT"), CE, (text(), text())), "severe"),
    "copies, steps first": (lambda: (Recurrent(steps_first=True), by_token, turned(text(), text())), "severe"),
    "copies, from codes": (lambda: (OneHot(), by_token, (F.one_hot(text(), 12).float(), text())), "severe"),
    "copies, with its own loss": (lambda: (OwnLoss(), None, (text(), text())), "severe"),
    "the wrong way": (lambda: (Own("kernel"), by_token, next_tokens()[::-1]), "severe"),
    "twice, by the model too": (lambda: (OwnLoss(shifts=True), None, next_tokens()), "severe"),
    "twice, by the loss too": (
        lambda: (Recurrent(), lambda f, y: by_token(f[:, :-1], y[:, 1:]), next_tokens()), "severe"
    ),
    "twice, in the data": (lambda: (Torchs("causal"), by_token, (text()[:, :-2], text()[:, 2:])), "warning"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHIFTED)
def test_labels_that_are_not_the_next_token(name: str) -> None:
    program, severity = SHIFTED[name]
    assert findings(*program())["label-shift"].severity == severity


class FromTheEnd(nn.Module):
    """A language model that reads the text from its end, so that the token before is the one it has not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Recurrent()

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.reader(tokens.flip(1)).flip(1)
        return out


def test_the_token_before_is_a_fair_question_to_a_network_that_reads_from_the_end() -> None:
    assert "label-shift" not in findings(FromTheEnd(), by_token, next_tokens()[::-1])
    assert findings(Recurrent(), by_token, next_tokens()[::-1])["label-shift"].severity == "severe"


def classes() -> Tensor:
    return torch.arange(24) % 3


def real_ones(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0)


def tags() -> tuple[Tensor, Tensor]:
    tokens, is_real = padded_text()
    return tokens, (tokens % 3 + 1) * is_real


def labeled(*, in_front: bool = False) -> tuple[Tensor, Tensor]:
    tokens = padded_text()[0]
    return tokens.flip(1) if in_front else tokens, classes()


ATTENTION = "encoder.layers.0.self_attn"
INVERTED: dict[str, tuple[Callable[[], Program], str]] = {
    "torch's encoder, mean": (lambda: (Torchs("inverted", "mean"), CE, labeled()), ATTENTION),
    "torch's encoder, first": (lambda: (Torchs("inverted", "first"), CE, labeled()), ATTENTION),
    "torch's encoder, each": (lambda: (Torchs("inverted"), real_ones, tags()), ATTENTION),
    "a mask that is passed": (lambda: (Torchs("inverted", "mean"), CE, (padded_text(), classes())), ATTENTION),
    "padding in front": (lambda: (Torchs("inverted", "mean"), CE, labeled(in_front=True)), ATTENTION),
    "filled scores": (lambda: (Own("matmul", "padding"), real_ones, tags()), "out"),
    "the kernel": (lambda: (Own("kernel", "padding"), real_ones, tags()), "out"),
}


@pytest.mark.parametrize("name", INVERTED)
def test_masks_that_hide_what_is_real(name: str) -> None:
    program, layer = INVERTED[name]
    finding = findings(*program())["wrong-mask"]
    assert (finding.severity, finding.layer) == ("severe", layer)
    assert "inverted" in finding.summary


def test_rows_in_which_everything_is_masked_are_why_there_is_nan() -> None:
    tokens = text(begin=1)  # without padding
    (root,) = (f for f in seen(Own("einsum", "padding"), by_token, (tokens, tokens % 3))[1] if f.severity == "severe")
    assert (root.rule, root.layer) == ("wrong-mask", "v")
    assert "non-finite" in {each.rule for each in root.consequences}
    even = findings(Own("matmul", "padding"), by_token, (tokens, tokens % 3))["wrong-mask"]
    assert (even.severity, even.evidence["share of rows"]) == ("severe", 1.0)


@pytest.mark.parametrize(
    ("program", "severity"),
    [
        (lambda: (Torchs("none", "mean"), CE, (padded_text(), classes())), "warning"),  # a mask that is not used
        (lambda: (Torchs("none", "mean"), CE, labeled()), "note"),
        (lambda: (Recurrent(read="last"), CE, labeled()), "note"),
    ],
)
def test_padding_that_is_seen(program: Callable[[], Program], severity: str) -> None:
    assert findings(*program())["wrong-mask"].severity == severity


MASKED: dict[str, Callable[[], Program]] = {
    "torch's encoder, mean": lambda: (Torchs("right", "mean"), CE, labeled()),
    "torch's encoder, first": lambda: (Torchs("right", "first"), CE, (padded_text(), classes())),
    "torch's encoder, each": lambda: (Torchs("right"), real_ones, tags()),
    "filled scores": lambda: (Own("matmul", "real"), real_ones, tags()),
    "the kernel": lambda: (Own("kernel", "real"), real_ones, tags()),
    "packed": lambda: (Recurrent(read="packed"), CE, labeled()),
    "packed, with lengths": lambda: (
        Recurrent(read="packed"), CE, ((padded_text()[0], padded_text()[1].sum(1)), classes())
    ),
    "the last real step": lambda: (Recurrent(read="last real"), CE, labeled()),
    "a recurrent tagger": lambda: (Recurrent(), real_ones, tags()),
    "a language model": lambda: (Own("einsum"), real_ones, (padded_text()[0], F.pad(padded_text()[0][:, 1:], (0, 1)))),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_padding_that_is_masked(name: str) -> None:
    every = findings(*MASKED[name]())
    assert not {"wrong-mask", "padding-in-loss", "future-seen", "label-shift", "no-gradient"} & every.keys()


@pytest.mark.parametrize(
    "program",
    [
        lambda: (Recurrent(), by_token, tags()),
        lambda: (Own("matmul", "real", "NVT"), CE, tags()),
        lambda: (Own("matmul", "real", "flat"), lambda f, y: F.cross_entropy(f, y.reshape(-1)), tags()),
        lambda: (Own("einsum"), by_token, (padded_text()[0], F.pad(padded_text()[0][:, 1:], (0, 1)))),
        lambda: (Translator(), by_token, ((text(t=10), padded_text()[0]), F.pad(padded_text()[0][:, 1:], (0, 1)))),
    ],
)
def test_padding_that_counts_in_the_loss(program: Callable[[], Program]) -> None:
    finding = findings(*program())["padding-in-loss"]
    share = float((~padded_text()[1]).double().mean())
    assert finding.evidence["share in the loss"] == pytest.approx(share, abs=0.1)
    assert finding.severity == ("severe" if share > 0.5 else "warning")


def test_a_target_that_only_padding_has_can_be_ignored() -> None:
    program = Own("matmul", "real", "NVT"), CE, tags()
    assert findings(*program)["padding-in-loss"].remedy == "loss = nn.CrossEntropyLoss(ignore_index=0)"
    tokens, is_real = padded_text()
    shared = findings(Own("matmul", "real", "NVT"), CE, (tokens, tokens % 3 * is_real))["padding-in-loss"]
    assert "-100" in shared.advice


def noise(*, steps: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(24, steps, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4


@pytest.mark.parametrize("kind", ["GRUCell", "RNNCell", "GRU", "by hand", "tokens"])
@pytest.mark.parametrize("cut", ["detach", "data", "list", "no_grad"])
def test_a_state_that_is_cut_off_at_every_step(kind: str, cut: str) -> None:
    batch = (text(t=6), noise()[1]) if kind == "tokens" else noise()
    finding = findings(Loop(kind, cut), CE, batch)["no-gradient"]
    assert (finding.severity, finding.layer) == ("severe", "turn" if kind == "by hand" else "cell")
    assert finding.evidence["reached"] == 1.0


def test_a_state_that_is_cut_off_with_an_answer_for_each_step() -> None:
    targets = torch.arange(24 * 6).view(24, 6) % 4
    assert severe(Loop("by hand", "detach", read="each"), CE, (noise()[0], targets)) == {"no-gradient": "turn"}
    assert severe(Loop("by hand", read="each"), CE, (noise()[0], targets)) == {}


def test_a_state_that_is_cut_off_now_and_then_is_a_warning() -> None:
    finding = findings(Loop("GRUCell", "detach", every=4), CE, noise(steps=8))["no-gradient"]
    assert (finding.severity, finding.evidence["reached"]) == ("warning", 4.0)


class Kept(nn.Module):
    """Keeps its state for the next batch, as truncated backpropagation does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 4)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.rnn(x, self.state)
        self.state = last.detach()
        out: Tensor = self.head(states[:, -1])
        return out


class Window(nn.Module):
    """Looks at the last three steps, or at the largest values."""

    def __init__(self, read: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.read = nn.Conv1d(4, 16, 3), nn.Linear(16, 4), read

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.conv(x.transpose(1, 2)))
        out: Tensor = self.head(h[:, :, -1] if self.read == "last" else h.amax(2))
        return out


@pytest.mark.parametrize(
    "model", [Kept(), Window("last"), Window("largest"), *(Loop(k) for k in ("GRUCell", "RNNCell", "GRU", "by hand"))]
)
def test_states_that_are_not_cut_off(model: nn.Module) -> None:
    assert "no-gradient" not in findings(model, CE, noise())


def labels(how: str) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, 13, (512, 8), generator=torch.Generator().manual_seed(0))
    by_order = {"first": tokens[:, 0] % 3, "rising": (tokens[:, :-1] < tokens[:, 1:]).sum(1).clamp(2, 5) - 2}
    return tokens, by_order[how] if how in by_order else (tokens == 3).sum(1).clamp(max=2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["first", "rising"])
def test_an_order_that_is_needed_and_not_seen(how: str) -> None:
    finding = findings(Torchs("right", "mean", with_positions=False), CE, labels(how))["order-lost"]
    assert finding.severity == "warning"  # no run has shown that it does not train
    assert "order-lost" not in findings(Torchs("right", "mean"), CE, labels(how))


@pytest.mark.slow
def test_sets_need_no_order() -> None:
    assert "order-lost" not in findings(Torchs("right", "mean", with_positions=False), CE, labels("count"))


@pytest.mark.slow
@pytest.mark.parametrize(("read", "severity"), [("last", "severe"), ("last real", None)])
def test_a_state_that_runs_over_padding_forgets(read: str, severity: str | None) -> None:
    tokens, labels = padded_text()[0].repeat(8, 1), padded_text()[0][:, 0].repeat(8) % 3
    x = F.pad(tokens, (0, 30))
    model = Recurrent("LSTM", read=read)
    problem = wc.Problem(model, CE, [*zip(x.split(32), labels.split(32), strict=True)])
    every = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 3e-3)).findings
    assert next((f.severity for f in every if f.rule == "wrong-mask"), None) == severity


@pytest.mark.slow
def test_an_order_that_is_needed_and_not_seen_is_not_learned() -> None:
    x, y = labels("rising")
    model = Torchs("right", "mean", with_positions=False)
    problem = wc.Problem(model, CE, [*zip(x.split(64), y.split(64), strict=True)])
    first = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 3e-3)).findings[0]
    assert first.rule == "order-lost"
    assert first.severity != "note"
