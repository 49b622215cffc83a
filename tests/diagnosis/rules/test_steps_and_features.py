"""Policies, contrastive steps, features drawn one after another, and noise in evaluation: faults and look-alikes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import behavior

G = torch.Generator().manual_seed(0)
X = torch.randn(32, 8, generator=G)
LABELS = torch.arange(32) % 4
IDS = torch.randint(1, 12, (32, 10), generator=G)


def ill(problem):
    """Rules of severe findings and warnings, without a trial."""
    findings = judged(Evidence(problem, None, inspection=inspect(problem), behavior=behavior(problem)))
    return {each.rule for each in findings if each.severity != "note"}


# features that are drawn one after another


class Masked(nn.Module):
    def __init__(self, order, own, levels=1):
        super().__init__()
        degree = torch.arange(64) % 7
        self.register_buffer("first", (degree[:, None] >= order[None]).float())
        self.register_buffer("last", (order[:, None] >= degree if own else order[:, None] > degree).float())
        self.w = nn.Parameter(torch.randn(64, 8) / 3)
        self.v = nn.Parameter(torch.randn(levels, 8, 64) / 8)

    def forward(self, x):
        outputs = torch.einsum("ldh,nh->ndl", self.v * self.last, torch.tanh(x @ (self.w * self.first).T))
        return outputs.squeeze(-1)


class OneAfterAnother(nn.Module):
    """Each feature has a network of its own."""

    def __init__(self, offset):
        super().__init__()
        self.offset = offset
        self.of = nn.ModuleList(nn.Linear(8, 1) for _ in range(8))

    def forward(self, x):
        place = torch.arange(8)
        return torch.cat([net(x * (place < i + self.offset)) for i, net in enumerate(self.of)], 1)


def autoencoder():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.scale * x


class Running(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift, self.rnn, self.out = shift, nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        x = F.pad(x, (1, 0))[:, :-1] if self.shift else x
        return self.out(self.rnn(x.unsqueeze(-1))[0]).squeeze(-1)


SHUFFLED = torch.tensor([3, 0, 6, 1, 7, 2, 5, 4])


@pytest.mark.parametrize(
    ("model", "is_seen"),
    [
        (lambda: Masked(torch.arange(8), own=True), True),
        (lambda: Masked(SHUFFLED, own=True), True),
        (lambda: OneAfterAnother(1), True),
        (lambda: Running(shift=False), True),
        (lambda: Masked(torch.arange(8), own=False), False),
        (lambda: Masked(SHUFFLED, own=False), False),
        (lambda: OneAfterAnother(0), False),
        (lambda: Running(shift=True), False),
        (autoencoder, False),
        (Scales, False),
    ],
)
def test_features_that_see_themselves(model, is_seen):
    torch.manual_seed(0)
    assert ("future-seen" in ill(wc.Problem(model(), nn.MSELoss(), [(X, X.clone())]))) == is_seen


# factors and tables that start alike


class Factors(nn.Module):
    def __init__(self, start, head=None):
        super().__init__()
        self.a, self.b, self.head = nn.Embedding(12, 6), nn.Embedding(12, 6), head
        start(self.a.weight)
        start(self.b.weight)

    def forward(self, ids):
        both = self.a(ids[:, 0]) * self.b(ids[:, 1])
        return both.sum(1) if self.head is None else self.head(both).squeeze(1)


class Pairs(nn.Module):
    """The same without torch's tables."""

    def __init__(self, start):
        super().__init__()
        self.table = nn.Parameter(torch.empty(12, 6))
        start(self.table)

    def forward(self, ids):
        return torch.einsum("nd,nd->n", self.table[ids[:, 0]], self.table[ids[:, 1]])


def constant(weight):
    nn.init.constant_(weight, 0.1)


@pytest.mark.parametrize(
    ("model", "is_alike"),
    [
        (lambda: Factors(constant), True),
        (lambda: Factors(nn.init.ones_), True),
        (lambda: Pairs(constant), True),
        (lambda: Factors(nn.init.normal_), False),
        (lambda: Factors(constant, nn.Linear(6, 1)), False),  # whose weights tell the factors apart
        (lambda: Pairs(nn.init.normal_), False),
    ],
)
def test_factors_that_start_alike(model, is_alike):
    torch.manual_seed(0)
    problem = wc.Problem(model(), nn.MSELoss(), [(IDS[:, :2], X[:, 0])])
    assert ("symmetric-initialisation" in ill(problem)) == is_alike


# labels of which most are left out


@pytest.mark.parametrize(("is_constant", "ignored"), [(True, -100), (True, -1), (False, -100), (False, -1)])
def test_labels_that_are_constant_where_they_count(is_constant, ignored):
    ids = IDS.repeat(2, 1)
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    labels = torch.where(hidden, torch.zeros_like(ids) if is_constant else ids, ignored)
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))

    def loss(outputs, targets):
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=ignored)

    problem = wc.Problem(model, loss, [(ids.masked_fill(hidden, 0), labels)])
    assert ("constant-target" in ill(problem)) == is_constant


# policies


def policy(last):
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), *last)


def drawn(outputs, **how):
    chosen = torch.distributions.Categorical(**{name: make(outputs) for name, make in how.items()})
    action = chosen.sample()
    reward = (action == LABELS).float()
    return -(chosen.log_prob(action) * (reward - reward.mean())).mean()


def by_hand(outputs):
    log_p = outputs.log_softmax(-1)
    action = torch.multinomial(log_p.exp().detach(), 1)
    return -(log_p.gather(1, action)[:, 0] * (action[:, 0] == LABELS)).mean()


@pytest.mark.parametrize(
    ("last", "loss", "is_wrong"),
    [
        ([nn.Softmax(-1)], lambda o: drawn(o, logits=lambda p: p), True),
        ([], lambda o: drawn(o.softmax(-1), logits=lambda p: p), True),
        ([nn.Softmax(-1)], by_hand, True),
        ([nn.Softmax(-1)], lambda o: drawn(o, probs=lambda p: p), False),
        ([], lambda o: drawn(o, logits=lambda p: p), False),
        ([], by_hand, False),
        ([nn.LogSoftmax(-1)], lambda o: drawn(o, logits=lambda p: p), False),
    ],
)
def test_probabilities_that_are_taken_for_logits(last, loss, is_wrong):
    torch.manual_seed(0)
    problem = wc.Problem.from_step(policy(last), lambda model, x: loss(model(x)), [X])
    assert ("output-loss-mismatch" in ill(problem)) == is_wrong


# contrastive steps


def pairs_with(labels):
    def step(model, x):
        a, b = (F.normalize(model(view), dim=-1) for view in (x, x.flip(1)))
        logits = a @ b.T / 0.2
        return F.cross_entropy(logits, labels(len(x)))

    return step


def by_log_softmax(model, x):
    a, b = model(x), model(x.flip(1))
    return -torch.einsum("nd,md->nm", a, b).log_softmax(1)[:, 0].mean()


def with_queue(model, x):
    a, b = (F.normalize(model(view), dim=-1) for view in (x, x.flip(1)))
    queue = F.normalize(torch.randn(31, 4, generator=torch.Generator().manual_seed(3)), dim=-1)
    logits = torch.cat([(a * b).sum(1, keepdim=True), a @ queue.T], 1) / 0.2
    return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))


def with_next(model, x):
    a, b = model(x), model(x.flip(1))
    return F.cross_entropy(a @ b.T, torch.arange(len(x))) + (a * b.roll(1, 0)).sum(1).mean()


@pytest.mark.parametrize(
    ("step", "is_wrong"),
    [
        (pairs_with(lambda n: torch.zeros(n, dtype=torch.long)), True),
        (by_log_softmax, True),
        (pairs_with(torch.arange), False),
        (with_queue, False),
        (with_next, False),
    ],
)
def test_one_partner_for_all(step, is_wrong):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    assert ("output-loss-mismatch" in ill(wc.Problem.from_step(model, step, [X]))) == is_wrong


# noise in evaluation


class Noisy(nn.Module):
    def __init__(self, change, always, first=None):
        super().__init__()
        self.change, self.always = change, always
        self.net = nn.Sequential(first or nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        out = self.net(self.change(x) if self.always or self.training else x)
        return out.mean(1) if out.dim() == 3 else out


class RandomWeights(nn.Module):
    """A Bayesian layer: its weights are drawn in each pass, by design."""

    def __init__(self):
        super().__init__()
        self.mean, self.size = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.full((4, 8), 0.1))
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        return self.last(x @ (self.mean + self.size * torch.randn(4, 8)).T)


CHANGES = {
    "noise": lambda x: x + 0.3 * torch.randn_like(x),
    "shift": lambda x: x.roll(int(torch.randint(1, 8, ())), 1),
    "order": lambda x: x[:, torch.randperm(8)],
    "words": lambda ids: ids.masked_fill(torch.rand(ids.shape) < 0.3, 0),
}


def noisy(change, always):
    first = nn.Embedding(12, 16) if change == "words" else None
    return Noisy(CHANGES[change], always, first), IDS if change == "words" else X


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("always", [True, False])
def test_inputs_that_change_in_evaluation(change, always):
    torch.manual_seed(0)
    model, x = noisy(change, always)
    assert ("dropout-in-eval" in ill(wc.Problem(model, nn.CrossEntropyLoss(), [(x, LABELS)]))) == always


def test_random_weights_and_denoising_are_meant():
    torch.manual_seed(0)
    assert "dropout-in-eval" not in ill(wc.Problem(RandomWeights(), nn.CrossEntropyLoss(), [(X, LABELS)]))
    denoiser = nn.Sequential(Noisy(CHANGES["noise"], True), nn.Linear(4, 8))
    assert "dropout-in-eval" not in ill(wc.Problem(denoiser, nn.MSELoss(), [(X, X.clone())]))


# graphs


class Graphs(nn.Module):
    def __init__(self, adds_offsets=False, turned=False):
        super().__init__()
        self.adds_offsets, self.turned = adds_offsets, turned
        self.message, self.out = nn.Linear(3, 8), nn.Linear(11, 2)

    def forward(self, x, edges, owner, of_edge):
        begin, end = edges if self.turned else edges.T
        if self.adds_offsets:
            begin, end = begin + 5 * of_edge, end + 5 * of_edge
        met = torch.zeros(len(x), 8).index_add(0, end, torch.tanh(self.message(x[begin])))
        return self.out(torch.zeros(int(owner.max()) + 1, 11).index_add(0, owner, torch.cat([x, met], 1)))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("has_offsets", "adds_offsets", "is_mixed"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_edges_without_offsets(has_offsets, adds_offsets, is_mixed, turned):
    torch.manual_seed(0)
    of_edge = torch.arange(8).repeat_interleave(6)
    edges = torch.randint(5, (48, 2)) + (5 * of_edge[:, None] if has_offsets else 0)
    inputs = {"x": torch.randn(40, 3), "edges": edges.T.contiguous() if turned else edges}
    inputs |= {"owner": torch.arange(8).repeat_interleave(5), "of_edge": of_edge}
    problem = wc.Problem(Graphs(adds_offsets, turned), nn.CrossEntropyLoss(), [(inputs, torch.arange(8) % 2)])
    assert ("mixed-examples" in ill(problem)) == is_mixed


class WordPairs(nn.Module):
    """Word vectors of pairs of words, which compute their own loss."""

    def __init__(self):
        super().__init__()
        self.center, self.context = nn.Embedding(9, 4), nn.Embedding(9, 4)

    def forward(self, center, context):
        return -nn.functional.logsigmoid((self.center(center) * self.context(context)).sum(1)).mean()


def test_a_loss_without_outputs_is_no_graph():
    torch.manual_seed(0)
    pairs = tuple(torch.randint(9, (2, 16)))
    assert behavior(wc.Problem(WordPairs(), None, [pairs])).failures == ()
