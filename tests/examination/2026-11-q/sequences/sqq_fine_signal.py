import math

import torch
import torch.nn.functional as F
from program import Program, sound
from sqq_setup import RowGRU, digit_rows
from sqq_signal import Forecaster, Recogniser, ctc, ctc_score, ear
from sqq_tools import accuracy, first, loader, r2, rng, speech, tones, topics, waves
from torch import nn

CE = nn.CrossEntropyLoss()


@sound("GRU over the rows of digits", steps=300, least=0.85)
def sqq_ok_digit_rows():
    x, y, hx, hy = digit_rows()
    model = RowGRU()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))


@sound("LSTM forecaster", steps=300, least=0.85)
def sqq_ok_forecaster():
    x, y = waves(2000, 24, 201)
    hx, hy = waves(400, 24, 202)
    model = Forecaster()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), r2(hx, hy))


@sound("convolutions with BatchNorm on tones", steps=200, least=0.9)
def sqq_ok_ear():
    x, y = tones(1500, 64, 203)
    hx, hy = tones(400, 64, 204)
    model = ear(nn.BatchNorm1d)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@sound("loads of thousands, normalised per window inside the model and back", steps=300, least=0.85)
def sqq_ok_window_norm():
    def made(n, seed):
        x, y = waves(n, 24, seed)
        level = 2000 + 6000 * torch.rand(n, generator=rng(seed + 50))
        return x.squeeze(-1) * 300 + level[:, None], y * 300 + level

    (x, y), (hx, hy) = made(2000, 205), made(400, 206)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 1))

        def forward(self, x):
            m, s = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
            return (self.net((x - m) / s) * s + m).squeeze(-1)

    model = Net()

    def score(m):
        return 1 - ((m(hx) - hy) ** 2).mean().item() / (hy - hx.mean(1)).var().item()

    return Program(model, lambda out, t: F.mse_loss(out / 300, t / 300), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("echo state network: a fixed recurrence and a trained read-out", steps=400, least=0.7)
def sqq_ok_reservoir():
    x, y = waves(2000, 24, 207)
    hx, hy = waves(400, 24, 208)

    class Echo(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(1, 60, batch_first=True)
            nn.init.normal_(self.rnn.weight_hh_l0, std=0.9 / math.sqrt(60))
            nn.init.uniform_(self.rnn.weight_ih_l0, -0.4, 0.4)
            self.rnn.requires_grad_(False)
            self.read = nn.Linear(60, 1)

        def forward(self, x):
            return self.read(self.rnn(x)[0][:, -1]).squeeze(-1)

    model = Echo()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.read.parameters(), 2e-2), r2(hx, hy))


@sound("CTC", steps=250, least=0.85)
def sqq_ok_ctc():
    x, y = speech(1200, 15, 209)
    hx, hy = speech(200, 15, 210)
    model = Recogniser(False)
    return Program(model, ctc, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), ctc_score(hx, hy))


@sound("Gaussian likelihood, whose loss becomes negative", steps=400, least=0.85)
def sqq_ok_gaussian():
    x, y = waves(2000, 20, 211, noise=0.05)
    hx, hy = waves(400, 20, 212, noise=0.05)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv1d(1, 16, 5), nn.SiLU(), nn.Conv1d(16, 16, 5, dilation=2), nn.SiLU(), nn.Flatten())
            self.mean, self.logvar = nn.Linear(16 * 8, 1), nn.Linear(16 * 8, 1)

        def forward(self, x):
            h = self.conv(x.transpose(1, 2))
            return torch.cat([self.mean(h), self.logvar(h)], 1)

    def nll(out, t):
        return 0.5 * (out[:, 1] + (t - out[:, 0]) ** 2 * (-out[:, 1]).exp()).mean()

    model = Net()
    return Program(model, nll, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(hx, hy)(lambda a: m(a)[:, 0]))


@sound("three quantiles from one network", steps=400, least=0.8)
def sqq_ok_quantiles():
    x, y = waves(2000, 20, 213, noise=0.2)
    hx, hy = waves(400, 20, 214, noise=0.2)
    levels = torch.tensor([0.1, 0.5, 0.9])
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def pinball(out, t):
        e = t[:, None] - out
        return torch.maximum(levels * e, (levels - 1) * e).mean()

    return Program(model, pinball, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(hx, hy)(lambda a: m(a)[:, 1]))


@sound("counts of events with a Poisson loss on the log of the rate", steps=400, least=0.7)
def sqq_ok_poisson():
    def made(n, seed):
        g = rng(seed)
        x = torch.randn(n, 10, 3, generator=g)
        rate = (1.5 + 0.3 * x[..., 0].sum(1) - 0.5 * x[:, -1, 1]).clamp(max=4).exp()
        return x, torch.poisson(rate, generator=g), rate

    (x, y, _), (hx, _, hr) = made(2500, 215), made(400, 216)

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, 24, batch_first=True)
            self.out = nn.Linear(24, 1)

        def forward(self, x):
            return self.out(self.gru(x)[0][:, -1]).squeeze(-1)

    model = Counts()
    return Program(model, nn.PoissonNLLLoss(log_input=True), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), r2(hx, hr.log()))


@sound("dilated causal convolutions that forecast at every step", steps=300, least=0.75)
def sqq_ok_wavenet():
    x, held = waves(1500, 40, 217)[0].squeeze(-1), waves(300, 40, 218)[0].squeeze(-1)

    class Wave(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Conv1d(1, 16, 1)
            self.filters = nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=2**k) for k in range(4))
            self.gates = nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=2**k) for k in range(4))
            self.end = nn.Conv1d(16, 1, 1)

        def forward(self, x):
            h = self.start(x.unsqueeze(1))
            for k, (f, g) in enumerate(zip(self.filters, self.gates)):
                p = F.pad(h, (2**k, 0))
                h = h + f(p).tanh() * g(p).sigmoid()
            return self.end(h).squeeze(1)

    model = Wave()
    return Program(model, nn.MSELoss(), loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: 1 - ((m(held[:, :-1])[:, 15:] - held[:, 16:]) ** 2).mean().item() / held.var().item())


class LogDecay(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.log_rate = nn.Parameter(torch.linspace(math.log(0.001), math.log(0.3), dim))
        self.b = nn.Linear(5, dim, bias=False)
        self.out = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x):
        steps = torch.arange(x.shape[1] - 1, -1, -1.0)
        kernel = torch.exp(-self.log_rate.exp()[None] * steps[:, None])
        return self.out((self.b(x) * kernel).sum(1))


@sound("state-space layer with decays held by logarithms far below zero", steps=300, least=0.85)
def sqq_ok_log_decay():
    x, y = first(2000, 60, 219)
    hx, hy = first(400, 60, 220)
    model = LogDecay()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@sound("ReLU recurrence that starts as the identity", steps=300, least=0.85)
def sqq_ok_identity_rnn():
    x, y = first(2000, 40, 221)
    hx, hy = first(400, 40, 222)

    class IRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(5, 40, nonlinearity="relu", batch_first=True)
            nn.init.eye_(self.rnn.weight_hh_l0)
            nn.init.normal_(self.rnn.weight_ih_l0, std=0.1)
            nn.init.zeros_(self.rnn.bias_hh_l0)
            nn.init.zeros_(self.rnn.bias_ih_l0)
            self.out = nn.Linear(40, 4)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1])

    model = IRNN()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 1e-3), accuracy(hx, hy))


@sound("contrastive learning of recordings: the loss compares the examples of a batch", steps=300, least=0.7)
def sqq_ok_contrastive():
    g = rng(223)
    shapes = torch.randn(200, 24, generator=g)

    def views(rows):
        return rows + 0.6 * torch.randn(rows.shape, generator=g)

    held_a, held_b = views(shapes[160:]), views(shapes[160:])

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 24, 24))

        def forward(self, x):
            return F.normalize(self.net(x.unsqueeze(1)), dim=-1)

    class Pairs:
        def __iter__(self):
            for _ in range(10):
                rows = shapes[torch.randperm(160)[:32]]
                yield torch.cat([rows + 0.6 * torch.randn_like(rows), rows + 0.6 * torch.randn_like(rows)]), torch.arange(32)

        def __len__(self):
            return 10

    def info(out, t):
        a, b = out.chunk(2)
        return F.cross_entropy(a @ b.T / 0.07, t)

    model = Tower()
    return Program(model, info, Pairs(), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: ((m(held_a) @ m(held_b).T).argmax(1) == torch.arange(40)).float().mean().item())


@sound("batches of texts of like length, as lists", steps=300, least=0.8)
def sqq_ok_buckets():
    x, y = topics(1600, 32, 225, short=4, strength=0.6)
    hx, hy = topics(400, 32, 226, short=4, strength=0.6)
    lengths = x.ne(0).sum(1)
    batches = []
    for rows in lengths.argsort(stable=True).split(16):
        batches.append((x[rows, : lengths[rows].max()], y[rows]))
    order = torch.randperm(len(batches), generator=rng(1)).tolist()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 16, padding_idx=0)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            h = self.gru(self.embed(x))[0]
            real = x.ne(0).unsqueeze(-1)
            return self.out(h.masked_fill(~real, -1e4).amax(1))

    model = Net()
    return Program(model, CE, [batches[i] for i in order], torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))


@sound("REINFORCE: an agent that repeats a cue after a wait; its loss says nothing", steps=500, least=0.8)
def sqq_ok_reinforce():
    hx, hy = first(300, 8, 228, classes=3)

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(4, 24, batch_first=True)
            self.policy = nn.Linear(24, 3)
            self.value = nn.Linear(24, 1)

        def forward(self, x):
            h = self.gru(x)[1][0]
            return self.policy(h), self.value(h).squeeze(-1)

    def step(m, batch):
        x, cue = batch
        logits, value = m(x)
        choice = torch.distributions.Categorical(logits=logits)
        action = choice.sample()
        reward = (action == cue).float()
        advantage = reward - value.detach()
        return -(choice.log_prob(action) * advantage).mean() + 0.5 * F.mse_loss(value, reward) - 0.01 * choice.entropy().mean()

    x, y = first(2000, 8, 227, classes=3)
    model = Agent()
    return Program(model, None, loader(x, y, size=64), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: (m(hx)[0].argmax(-1) == hy).float().mean().item(), step=step)


@sound("rare events with a focal loss and a prior on the last bias", steps=400, least=0.7)
def sqq_ok_focal():
    def made(n, seed):
        g = rng(seed)
        x = torch.randn(n, 1, 40, generator=g) * 0.4
        y = (torch.rand(n, 40, generator=g) < 0.04).float()
        bump = torch.tensor([[[0.5, 1.5, 2.5, 1.5, 0.5]]])
        return x + F.conv1d(y.unsqueeze(1), bump, padding=2), y

    (x, y), (hx, hy) = made(1500, 229), made(300, 230)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(1, 16, 7, padding=3), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 1, 1))
            nn.init.constant_(self.net[-1].bias, -3.2)

        def forward(self, x):
            return self.net(x).squeeze(1)

    def focal(out, t):
        p = out.sigmoid()
        right = p * t + (1 - p) * (1 - t)
        return ((1 - right) ** 2 * F.binary_cross_entropy_with_logits(out, t, reduction="none")).sum() / t.sum().clamp(min=1)

    def score(m):
        found, real = m(hx) > 0, hy > 0
        return 2 * (found & real).sum().item() / max(1, found.sum().item() + real.sum().item())

    model = Net()
    return Program(model, focal, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("small batches with LayerNorm, SGD with momentum and one cycle", steps=400, least=0.85)
def sqq_ok_four_per_batch():
    x, y = tones(1600, 48, 231)
    hx, hy = tones(400, 48, 232)
    model = nn.Sequential(nn.Conv1d(1, 24, 11, stride=2), nn.ReLU(), nn.GroupNorm(1, 24), nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(48, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.002, momentum=0.9, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=1000)
    return Program(model, CE, loader(x, y, size=4), optimizer, accuracy(hx, hy), scheduler=cycle)


@sound("discriminator with a hinge loss on real and made series", steps=300, least=0.8)
def sqq_ok_critic():
    def made(n, seed):
        real = waves(n, 32, seed)[0].squeeze(-1)
        fake = real[:, torch.randperm(32, generator=rng(3))].roll(1, 0)
        label = (torch.rand(n, generator=rng(seed + 9)) < 0.5)
        return torch.where(label[:, None], real, fake), label.float() * 2 - 1

    (x, y), (hx, hy) = made(2000, 233), made(400, 234)
    sn = nn.utils.parametrizations.spectral_norm

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = sn(nn.Conv1d(1, 16, 5, 2)), sn(nn.Conv1d(16, 32, 5, 2))
            self.out = sn(nn.Linear(32 * 5, 1))

        def forward(self, x):
            h = F.leaky_relu(self.a(x.unsqueeze(1)), 0.2)
            return self.out(F.leaky_relu(self.b(h), 0.2).flatten(1)).squeeze(-1)

    model = Critic()
    return Program(model, lambda out, t: F.relu(1 - t * out).mean(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.999)),
                   lambda m: ((m(hx) > 0) == (hy > 0)).float().mean().item())


@sound("squared errors summed over a window, with a rate that fits", steps=400, least=0.75)
def sqq_ok_summed_window():
    x, _ = waves(2000, 32, 235)
    hx, _ = waves(400, 32, 236)
    x, hx = x.squeeze(-1), hx.squeeze(-1)

    class Ahead(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 8))

        def forward(self, x):
            return self.net(x)

    model = Ahead()
    return Program(model, lambda out, t: ((out - t) ** 2).sum() / 2, loader(x[:, :24], x[:, 24:]), torch.optim.SGD(model.parameters(), 1e-3, momentum=0.8),
                   r2(hx[:, :24], hx[:, 24:]))


@sound("trained recogniser of tones with residual branches that began at zero", trained=250, steps=350, least=0.9)
def sqq_ok_trained_residual():
    x, y = tones(1500, 48, 237, noise=0.8)
    hx, hy = tones(400, 48, 238, noise=0.8)

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2))
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.gate * self.body(x)

    model = nn.Sequential(nn.Conv1d(1, 24, 9, stride=2), Branch(), Branch(), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 4))
    return Program(model, CE, loader(x, y), torch.optim.AdamW(model.parameters(), 3e-3), accuracy(hx, hy))


@sound("soft targets from a table, with a KL divergence at a temperature of 2", steps=300, least=0.7)
def sqq_ok_distilled():
    x, y = tones(1500, 64, 239)
    hx, hy = tones(400, 64, 240)
    frozen = torch.exp(-torch.arange(4.0)[None] * 0)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = ear()
            self.register_buffer("table", torch.full((4, 4), -1.0) + 4 * torch.eye(4) * frozen)

        def forward(self, x):
            return self.student(x)

    model = Both()

    def loss(out, t):
        soft = (model.table[t] / 2).softmax(-1)
        return 4 * F.kl_div((out / 2).log_softmax(-1), soft, reduction="batchmean")

    return Program(model, loss, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))
