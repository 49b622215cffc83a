"""Losses that fall though nothing is learned of the examples, and healthy ones that are easily mistaken for these."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellcond as wc

G = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=G)
PICTURES = torch.sigmoid(2 * torch.randn(256, 3, generator=G) @ torch.randn(3, 24, generator=G))
LABELS = (X @ torch.randn(8, 3, generator=G)).argmax(1)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(24, 8), nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


def variational(weight):
    def step(model, x):
        outputs, mean, log_variance = model(x)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return F.binary_cross_entropy_with_logits(outputs, x) + weight * kl

    return Autoencoder(), step, PICTURES


def network(outputs=3):
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs))


def penalized(weight):
    def step(model, batch):
        penalty = sum(p.square().sum() for p in model.parameters())
        return F.cross_entropy(model(batch[0]), batch[1]) + weight * penalty

    return network(), step, (X, LABELS)


def sum_of_sizes(weight):
    def step(model, batch):
        size = torch.cat([p.flatten() for p in model.parameters() if p.dim() > 1]).abs().sum()
        return weight * size + F.cross_entropy(model(batch[0]), batch[1])

    return network(), step, (X, LABELS)


def uncertain(sign):
    def step(model, batch):
        mean, log_variance = model(batch[0]).unbind(1)
        error = (batch[0].sum(1) - mean).square()
        return 0.5 * (log_variance + error * (sign * log_variance).exp()).mean()

    return network(2), step, (X, LABELS)


def pairs(share_of_others):
    other = torch.where(torch.rand(256, generator=torch.Generator().manual_seed(1)) < share_of_others, 1, 0)
    order = LABELS.argsort()
    following = torch.empty_like(order)
    following[order] = order.roll(1)
    second = torch.where(other.bool(), torch.randperm(256, generator=torch.Generator().manual_seed(2)), following)
    same = (LABELS[second] == LABELS).float()

    def step(model, batch):
        first, second, same = batch
        distance = (model(first) - model(second)).square().sum(1)
        return (same * distance + (1 - same) * F.relu(2 - (distance + 1e-6).sqrt()).square()).mean()

    return network(8), step, (X, X[second], same)


def generated():
    critic = network(1).requires_grad_(False)
    return network(8), lambda model, batch: F.softplus(-critic(model(batch[0]))).mean(), (X, LABELS)


def verdict(set_up):
    torch.manual_seed(0)
    model, step, data = set_up()
    whole = torch.utils.data.TensorDataset(*(data if isinstance(data, tuple) else (data,)))
    cut = [tuple(t[i : i + 32] for t in whole.tensors) for i in range(0, 256, 32)]
    batches = cut if isinstance(data, tuple) else [batch[0] for batch in cut]
    problem = wc.Problem.from_step(model, step, batches)
    return wc.diagnose(problem, torch.optim.Adam(model.parameters(), 2e-2)).findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("set_up", "rule"),
    [
        (lambda: variational(1.0), "term-dominates"),
        (lambda: penalized(0.5), "weight-decay-dominates"),
        (lambda: penalized(0.2), "weight-decay-dominates"),
        (lambda: sum_of_sizes(0.1), "weight-decay-dominates"),
        (lambda: uncertain(1.0), "output-loss-mismatch"),
        (lambda: pairs(0.0), "rank-collapse"),
    ],
    ids=[
        "KL outweighs the reconstruction",
        "penalty",
        "weaker penalty",
        "sum of sizes",
        "variance pays for errors",
        "no negatives",
    ],
)
def test_found(set_up, rule):
    first = verdict(set_up)[0]
    assert (first.rule, first.severity) == (rule, "severe")


@pytest.mark.slow
@pytest.mark.parametrize(
    "set_up",
    [
        lambda: variational(0.01),
        lambda: penalized(1e-5),
        lambda: sum_of_sizes(1e-5),
        lambda: uncertain(-1.0),
        lambda: pairs(0.6),
        generated,
    ],
    ids=[
        "a light KL term",
        "a light penalty",
        "a light sum of sizes",
        "a variance that divides",
        "negatives",
        "a generator",
    ],
)
def test_sound(set_up):
    assert not [each for each in verdict(set_up) if each.severity != "note"]


def subtracted(sign):
    """A divergence with a wrong sign, which is added as it should be for a sign of 1."""

    def step(model, x):
        outputs, mean, log_variance = model(x)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return F.binary_cross_entropy_with_logits(outputs, x) + 0.01 * sign * kl

    return Autoencoder(), step, PICTURES


def weighed(sign):
    """Laplace's likelihood with a scale that the network gives."""

    def step(model, batch):
        mean, log_scale = model(batch[0]).unbind(1)
        return (log_scale + (batch[0].sum(1) - mean).abs() * torch.exp(sign * log_scale)).mean()

    return network(2), step, (X, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("set_up", [lambda: uncertain(1.0), lambda: weighed(1.0)])
def test_a_term_that_pays_for_any_answer(set_up):
    first = verdict(set_up)[0]
    assert (first.rule, first.severity) == ("output-loss-mismatch", "severe")
    assert "without a bound" in first.summary


@pytest.mark.slow
@pytest.mark.parametrize("set_up", [lambda: subtracted(1.0), lambda: weighed(-1.0)])
def test_terms_of_the_right_sign(set_up):
    assert not [each for each in verdict(set_up) if each.severity != "note"]


class Drawn(nn.Module):
    """An autoencoder with a code that is drawn by a function of mean and standard deviation."""

    def __init__(self, draw):
        super().__init__()
        self.encoder, self.means, self.logs = nn.Linear(24, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24))
        self.draw = draw

    def forward(self, x):
        h = torch.tanh(self.encoder(x))
        mean, log_variance = self.means(h), self.logs(h)
        return self.decoder(self.draw(mean, (log_variance / 2).exp())), mean, log_variance


def drawn(draw):
    def step(model, x):
        outputs, mean, log_variance = model(x)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return 20 * (outputs - x).square().sum(1).mean() + kl

    return Drawn(draw), step, PICTURES


def without_graph(mean, std):
    with torch.no_grad():
        return mean + std * torch.randn_like(std)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda mean, std: torch.distributions.Normal(mean, std).sample(),
        without_graph,
        lambda mean, std: (mean + std * torch.randn_like(std)).detach(),
    ],
)
def test_a_code_that_sends_no_gradient_back(draw):
    first = verdict(lambda: drawn(draw))[0]
    assert (first.rule, first.layer) == ("no-gradient", "logs")
    assert first.severity != "note"


class Probed(nn.Module):
    """A classifier whose second output is read from features that are detached on purpose."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.probe = nn.Linear(8, 32), nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.head(h), self.probe(h.detach())


def probed():
    def step(model, batch):
        return sum(F.cross_entropy(each, batch[1]) for each in model(batch[0]))

    return Probed(), step, (X, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "set_up",
    [
        lambda: drawn(lambda mean, std: torch.distributions.Normal(mean, std).rsample()),
        lambda: drawn(lambda mean, std: mean + 0.1 * torch.randn_like(std)),
        probed,
    ],
)
def test_codes_with_a_gradient_and_a_probe(set_up):
    assert not [each for each in verdict(set_up) if each.severity != "note"]


@pytest.mark.slow
def test_a_loss_against_noise_that_is_drawn_anew_has_a_floor() -> None:
    """A network that is half trained cannot fit eight points either: the noise next to them is never the same."""
    torch.manual_seed(0)
    angle = 3 * torch.rand(3000, 1)
    points = torch.cat([angle.cos(), angle.sin()], 1) + 0.4 * torch.randn(3000, 2)
    model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = points.split(64)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        noise = 1.3 * torch.randn_like(batch)
        return F.softplus(model(batch)).mean() + F.softplus(-model(noise)).mean()

    for batch in (*batches, *batches):
        optimizer.zero_grad()
        step(model, batch).backward()
        optimizer.step()
    diagnosis = wc.diagnose(wc.Problem.from_step(model, step, batches), optimizer)
    assert not [each for each in diagnosis.findings if each.severity != "note"]
