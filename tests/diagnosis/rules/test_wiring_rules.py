"""What a gradient reaches, who moves it, what is shared, and what mixes examples."""

from __future__ import annotations

import pytest
import torch
from rule_cases import CLASSES, FEATURES, N, findings, perceptron, severe, table
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

LOSS = nn.CrossEntropyLoss()


class Block(nn.Module):
    def __init__(self, width: int, how: str) -> None:
        super().__init__()
        self.branch, self.how = nn.Linear(width, width), how

    def forward(self, x: Tensor) -> Tensor:
        update = self.branch(x).relu()
        if self.how == "forgotten":
            return x
        return x + (update.detach() if self.how == "detached" else update)


@pytest.mark.parametrize("how", ["forgotten", "detached"])
def test_branches_without_a_gradient(how: str) -> None:
    def model(how: str) -> nn.Sequential:
        return nn.Sequential(nn.Linear(FEATURES, 16), Block(16, how), Block(16, how), nn.Linear(16, CLASSES))

    finding = findings(model(how), LOSS, table())["no-gradient"]
    assert (finding.severity, finding.layer) == ("severe", "2.branch")  # the last one, next to the cut
    assert severe(model("added"), LOSS, table()) == []


def test_a_loss_that_depends_on_nothing() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).detach()

    assert severe(Model(), LOSS, table()) == ["no-gradient"]


def test_layers_in_a_plain_list() -> None:
    class Model(nn.Module):
        def __init__(self, kind: type) -> None:
            super().__init__()
            self.hidden = kind([nn.Linear(FEATURES, 16), nn.Linear(16, 16)])
            self.out = nn.Linear(16, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.hidden:
                x = layer(x).relu()
            return self.out(x)

    assert severe(Model(list), LOSS, table()) == ["no-gradient"]
    assert severe(Model(nn.ModuleList), LOSS, table()) == []


def test_an_optimizer_of_another_model() -> None:
    model = perceptron()
    assert severe(model, LOSS, table(), SGD(perceptron().parameters(), lr=0.1)) == ["no-gradient"]
    assert severe(model, LOSS, table(), SGD(model.parameters(), lr=0.1)) == []


def test_a_layer_that_the_optimizer_does_not_hold() -> None:
    model = perceptron()
    finding = findings(model, LOSS, table(), Adam([*model[0].parameters(), *model[2].parameters()]))["no-gradient"]
    assert (finding.severity, finding.layer) == ("severe", "4")


def test_frozen_layers() -> None:
    def frozen(*layers: int) -> list[str]:
        model = nn.Sequential(*perceptron()[:2], nn.BatchNorm1d(16), *perceptron()[2:])
        for k in layers:
            model[k].requires_grad_(False)
        return severe(model, LOSS, table())

    assert frozen(0, 3, 5) == ["no-gradient"]  # all but the norm
    assert frozen(5) == ["no-gradient"]  # the last one
    assert frozen(0, 3) == []  # a head on a frozen backbone
    assert frozen() == []


def test_a_frozen_judge_behind_a_generator() -> None:
    generator, judge = perceptron(outputs=FEATURES), perceptron(outputs=1, seed=1)
    model = nn.Sequential(generator, judge.requires_grad_(False))
    ones = torch.ones(N, 1)
    assert severe(model, nn.BCEWithLogitsLoss(), (table()[0], ones), Adam(generator.parameters())) == []


def test_one_spare_layer_is_no_more_than_a_warning() -> None:
    class Pooled(nn.Module):
        """Computes a pooled state that nobody asks for, as BERT does."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.pooler = perceptron(width=64), nn.Linear(CLASSES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            self.pooler(x)
            return x

    assert findings(Pooled(), LOSS, table())["no-gradient"].severity == "warning"


def test_shared_weights() -> None:
    model = perceptron(depth=3)
    model[4].weight = model[2].weight
    finding = findings(model, LOSS, table())["shared-weight"]
    assert (finding.severity, finding.layer) == ("severe", "2")
    layer = nn.Linear(FEATURES, FEATURES)
    listed = nn.Sequential(*[layer, nn.ReLU()] * 3, nn.Linear(FEATURES, CLASSES))
    assert "shared-weight" in findings(listed, LOSS, table())
    memory = perceptron(depth=3)
    memory[4].weight.data = memory[2].weight.data
    assert "shared-weight" in findings(memory, LOSS, table())


def test_a_tied_decoder_is_meant_so() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.decoder = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
            self.decoder.weight = self.embedding.weight
            self.hidden = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.hidden(self.embedding(x)).relu())

    x = torch.randint(0, 9, (N,), generator=torch.Generator().manual_seed(0))
    assert severe(Tied(), LOSS, (x, (x + 1) % 9)) == []


def test_linear_layers_with_nothing_between() -> None:
    linear = nn.Sequential(nn.Linear(FEATURES, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES))
    for model, loss in ((linear, LOSS), (nn.Sequential(*linear, nn.LogSoftmax(1)), nn.NLLLoss())):
        assert findings(model, loss, table())["no-nonlinearity"].severity == "warning"  # one look does not tell more
    assert "no-nonlinearity" not in findings(nn.Linear(FEATURES, CLASSES), LOSS, table())


def test_a_product_of_two_signals_is_a_nonlinearity() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(FEATURES, 8), nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.a(x) * self.b(x))

    assert "no-nonlinearity" not in findings(Gated(), LOSS, table())


class LastState(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out = nn.GRU(3, 8, batch_first=batch_first), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def test_a_recurrent_layer_that_takes_examples_for_steps() -> None:
    batch = torch.randn(N, 12, 3, generator=torch.Generator().manual_seed(0)), table()[1]
    finding = findings(LastState(batch_first=False), LOSS, batch)["mixed-examples"]
    assert (finding.severity, finding.layer) == ("severe", "rnn")
    assert severe(LastState(batch_first=True), LOSS, batch) == []


def test_a_product_of_low_rank_is_no_single_layer() -> None:
    x, _ = table()
    narrow = nn.Sequential(nn.Linear(FEATURES, 3), nn.Linear(3, FEATURES))
    assert severe(narrow, nn.MSELoss(), (x, x)) == []


def test_a_rectifier_written_by_hand_is_a_nonlinearity() -> None:
    class ByHand(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * (x > 0)

    model = nn.Sequential(nn.Linear(FEATURES, 16), ByHand(), nn.Linear(16, CLASSES))
    assert "no-nonlinearity" not in findings(model, LOSS, table())


def test_a_step_function_passes_zeros_on() -> None:
    class Sign(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sign()

    by_rule = findings(nn.Sequential(nn.Linear(FEATURES, 16), Sign(), nn.Linear(16, CLASSES)), LOSS, table())
    assert (by_rule["no-gradient"].severity, by_rule["no-gradient"].layer) == ("severe", "0")


def test_what_runs_under_no_grad_is_told_from_what_is_never_called() -> None:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.out = perceptron(outputs=16), nn.Linear(16, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.body(x)
            return self.out(x)

    model = Probe()
    optimizer = SGD(model.parameters(), lr=0.1)
    finding = findings(model, LOSS, table(), optimizer)["no-gradient"]
    assert finding.severity == "severe"  # it is as torch initialized it
    assert "no_grad" in finding.summary
    with torch.no_grad():  # what training leaves is neither even nor zero
        for p in model.body.parameters():
            p += 0.1 * p.std() * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) ** 3
    assert findings(model, LOSS, table(), optimizer)["no-gradient"].severity == "warning"


def test_a_model_that_draws_does_not_mix_its_examples() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x + 0.1 * torch.randn_like(x))

    assert "mixed-examples" not in findings(Noisy(), LOSS, table())


@pytest.mark.parametrize("targets", [(4,), (12,)])
def test_a_forecast_by_a_network_that_takes_the_batch_for_time(targets: tuple[int]) -> None:
    class Forecast(nn.Module):
        def __init__(self, batch_first: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rnn = nn.GRU(1, 16, batch_first=batch_first)
            self.out = nn.Linear(16, *targets)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][:, -1])

    x, y = torch.randn(32, 24, 1), torch.randn(32, *targets)
    assert findings(Forecast(False), nn.L1Loss(), (x, y))["mixed-examples"].layer == "rnn"
    assert "mixed-examples" not in findings(Forecast(True), nn.L1Loss(), (x, y))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out = nn.GRU(3, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


def tag_loss(outputs: Tensor, tags: Tensor) -> Tensor:
    return LOSS(outputs.flatten(0, 1), tags.flatten())


def test_a_target_per_step_may_have_the_steps_in_front_unless_the_loader_counts_examples() -> None:
    x, tags = torch.randn(64, 10, 3), torch.randint(0, CLASSES, (64, 10))
    assert "mixed-examples" not in findings(Tagger(), tag_loss, [(x[:32], tags[:32]), (x[32:], tags[32:])])
    loader = DataLoader(TensorDataset(x, tags), batch_size=32)
    assert findings(Tagger(), tag_loss, loader)["mixed-examples"].layer == "rnn"


def trained(model: nn.Sequential) -> nn.Sequential:
    x, y = table()
    optimizer = Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("is_trained", [False, True])
def test_layers_that_are_fresh_are_not_meant_to_be_kept(is_trained: bool) -> None:
    """Frozen, or at a rate far below the others'."""
    model = perceptron(width=64)
    model = trained(model) if is_trained else model
    groups = [{"params": model[:4].parameters(), "lr": 1e-6}, {"params": model[4:].parameters()}]
    slow = findings(model, LOSS, table(), SGD(groups, lr=0.1)).get("learning-rate-too-low")
    model[:4].requires_grad_(False)
    frozen = findings(model, LOSS, table(), SGD(model[4:].parameters(), lr=0.1)).get("no-gradient")
    if is_trained:
        assert (slow, frozen) == (None, None)
    else:
        assert slow is not None
        assert frozen is not None
        assert (slow.severity, slow.layer) == ("severe", "0")
        assert (frozen.severity, frozen.layer) == (
            "warning",
            "0",
        )  # severe if the trial shows that the rest does not do
