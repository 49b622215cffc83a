import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from faults_a import gen, r2, two_views
from program import Program, sound

G = gen(900)
X = torch.randn(1500, 10, generator=G)
W = torch.randn(10, 4, generator=G)
Y = (X @ W).argmax(1)
T = torch.tanh(X @ W / 2)
acc = lambda m: (m(X[1200:]).argmax(1) == Y[1200:]).float().mean().item()
fit = lambda m: r2(m(X[1200:]), T[1200:])
load = lambda y: DataLoader(TensorDataset(X[:1200], y[:1200]), 50, shuffle=True)
net = lambda: nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4))


@sound("nothing: an ordinary classifier", steps=200, least=0.8)
def plain_classifier():
    m = net()
    return Program(m, nn.CrossEntropyLoss(), load(Y), torch.optim.Adam(m.parameters(), 3e-3), acc)


@sound("nothing: an ordinary regression, half trained", trained=100, steps=200, least=0.8)
def plain_regression_half_trained():
    m = net()
    return Program(m, nn.MSELoss(), load(T), torch.optim.Adam(m.parameters(), 3e-3), fit)


@sound("bfloat16 autocast over float32 weights", steps=200, least=0.8)
def bfloat16_autocast():
    m = net()

    def step(m, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(m(b[0]).float(), b[1])

    return Program(m, None, load(Y), torch.optim.AdamW(m.parameters(), 3e-3), acc, step=step)


@sound("all labels are zero, rightly: the positive stands in column 0", steps=300, least=0.7)
def positives_in_first_column():
    a, b = two_views(2048, gen(1))
    ta, tb = two_views(200, gen(2))
    m = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 32))

    def step(m, batch):
        q, k = F.normalize(m(batch[0]), dim=1), F.normalize(m(batch[1]), dim=1)
        near = (q * k).sum(1, keepdim=True)
        far = (q @ k.T)[~torch.eye(len(q), dtype=torch.bool)].view(len(q), -1)
        return F.cross_entropy(torch.cat([near, far], 1) / 0.1, torch.zeros(len(q), dtype=torch.long))

    def score(m):
        s = F.normalize(m(ta), dim=1) @ F.normalize(m(tb), dim=1).T
        return sum((s[i : i + 20, i : i + 20].argmax(1) == torch.arange(20)).float().mean().item() for i in range(0, 200, 20)) / 10

    return Program(m, None, DataLoader(TensorDataset(a, b), 64, shuffle=True, drop_last=True), torch.optim.Adam(m.parameters(), 2e-3), score, step=step)


@sound("a policy gradient whose loss stays near zero", trained=60, steps=300, least=0.75)
def policy_gradient_with_baseline():
    m = net()

    def step(m, b):
        d = torch.distributions.Categorical(logits=m(b[0]))
        a = d.sample()
        r = (a == b[1]).float()
        return -(d.log_prob(a) * (r - r.mean())).mean()

    return Program(m, None, load(Y), torch.optim.Adam(m.parameters(), 5e-3), acc, step=step)


@sound("a Gaussian likelihood whose loss falls below zero", steps=300, least=0.8)
def negative_likelihood():
    m = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 8))

    def step(m, b):
        mu, s = m(b[0]).chunk(2, 1)
        return F.gaussian_nll_loss(mu, b[1], F.softplus(s) + 1e-3)

    return Program(m, None, load(T), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(X[1200:])[:, :4], T[1200:]), step=step)


@sound("a sum over the batch, with a rate made for it", steps=300, least=0.8)
def summed_with_small_rate():
    m = net()
    return Program(m, None, load(T), torch.optim.SGD(m.parameters(), 1e-3, momentum=0.9), fit, step=lambda m, b: ((m(b[0]) - b[1]) ** 2).sum())
