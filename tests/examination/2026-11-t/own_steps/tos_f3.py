import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from tos_kit import acc, dl, r2, rn, ru, table


@fault("batches of two with BatchNorm", rules=["small-batch-batchnorm"], fails=False, steps=350)
def tos_batchnorm_pairs(bad):
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
    return Program(model, F.cross_entropy, dl(x, y, bs=2 if bad else 32, drop_last=True), torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(vx), vy))


@fault("pixels are divided by 16 and then cast back to bytes", rules=["constant-feature", "loss-not-decreasing", "labels-unrelated"], fails=True, steps=200)
def tos_bytes_lost(bad):
    x, y, vx, vy = table("digits", scale=False)

    def pre(b):
        b = b / 17
        return b.to(torch.uint8).float() if bad else b

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), dl(pre(x), y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(pre(vx)), vy))


@fault("learning rate of 0.3 in AdamW", rules=["learning-rate-too-high"], fails=True, steps=250)
def tos_adamw_rate(bad):
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def step(m, batch):
        b, t = batch
        keep = torch.rand(len(b)).sort()[1]
        lam = 0.8
        out = m(lam * b + (1 - lam) * b[keep])
        return lam * F.cross_entropy(out, t) + (1 - lam) * F.cross_entropy(out, t[keep])

    return Program(model, None, dl(x, y), torch.optim.AdamW(model.parameters(), 0.3 if bad else 3e-3), lambda m: acc(m(vx), vy), step=step)


@fault("square root of distances of an example to itself has an infinite slope", rules=["non-finite"], fails=True, steps=250)
def tos_root_of_zero(bad):
    x, y, vx, vy = table("wine")
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 4))

    def step(m, batch):
        b, t = batch
        z = m(b)
        d2 = ((z[:, None] - z[None]) ** 2).sum(-1)
        d = d2.sqrt() if bad else (d2 + 1e-8).sqrt()
        same = t[:, None] == t[None]
        return torch.where(same, d2, F.relu(3 - d) ** 2).mean()

    def score(m):
        z, v = m(x), m(vx)
        centre = torch.stack([z[y == k].mean(0) for k in range(3)])
        return acc(-torch.cdist(v, centre), vy) if bool(torch.isfinite(v).all()) else 0.0

    return Program(model, None, dl(x, y, bs=32), torch.optim.Adam(model.parameters(), 2e-3), lambda m: max(0.0, (score(m) - 0.8) / 0.2), step=step)


class TosWorldModel(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.c1, self.c2 = nn.Conv1d(2, 32, 5), nn.Conv1d(32, 2, 3)

    def forward(self, o):
        a, b = (4, 2) if self.causal else (2, 1)
        h = torch.relu(self.c1(F.pad(o, (a, 4 - a))))
        return self.c2(F.pad(h, (b, 2 - b)))


@fault("a convolutional world model is padded on both sides and sees the observation it predicts", rules=["future-seen"], layers=["c1", "c2"], fails=False, steps=300)
def tos_world_model(bad):
    n = 400
    t = torch.arange(24.0)
    phase, freq = ru(n, 1, s=1) * 6.28, 0.5 + ru(n, 1, s=2)
    o = torch.stack([torch.sin(freq * t + phase), torch.cos(freq * t + phase)], 1)
    model = TosWorldModel(not bad)

    def step(m, batch):
        (b,) = batch
        return F.mse_loss(m(b)[:, :, :-1], b[:, :, 1:])

    def score(m):
        v = o[:80]
        return r2(torch.stack([m(v[:, :, :k])[:, :, -1] for k in range(12, 20)], 2), v[:, :, 12:20])

    return Program(model, None, dl(o[80:], bs=32), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


@fault("padding of trajectories counts in the behaviour cloning loss", rules=["padding-in-loss"], fails=False, steps=250)
def tos_padded_trajectories(bad):
    n, length = 800, 16
    size = (ru(n, s=1) * 4).long() + 1
    mask = torch.arange(length)[None] < size[:, None]
    s = rn(n, length, 5, s=2) * mask[..., None]
    a = (s @ rn(5, 4, s=3) + 0.1).argmax(-1)
    a = torch.where(mask, a, torch.zeros_like(a))
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 4))

    def step(m, batch):
        state, action, real = batch
        ce = F.cross_entropy(m(state).flatten(0, 1), action.flatten(), reduction="none")
        real = real.flatten().float()
        return ce.mean() if bad else (ce * real).sum() / real.sum()

    vm = mask[:150]
    return Program(model, None, dl(s[150:], a[150:], mask[150:]), torch.optim.SGD(model.parameters(), 0.2),
                   lambda m: acc(m(s[:150])[vm], a[:150][vm]), step=step)


@fault("momentum of 0.999 in SGD", rules=["optimizer-setting", "learning-rate-too-high"], fails=True, steps=300)
def tos_sgd_momentum(bad):
    x = rn(1200, 8)
    y = torch.tanh(x @ rn(8, 2, s=3) / 2)
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 2))
    return Program(model, nn.MSELoss(), dl(x[200:], y[200:]), torch.optim.SGD(model.parameters(), 0.1, momentum=0.999 if bad else 0.9),
                   lambda m: r2(m(x[:200]), y[:200]))


@fault("value targets of a TD learner are rewards in the thousands", rules=["unscaled-target"], fails=True, steps=350)
def tos_value_thousands(bad):
    s = ru(2000, 2, s=1) * 2 - 1
    nxt = s * 0.5
    unit = 3000.0 if bad else 1.0
    r = (torch.cos(2 * s[:, 0]) + s[:, 1]) * unit
    true = sum(0.5**k * (torch.cos(2 * s[:, 0] * 0.5**k) + s[:, 1] * 0.5**k) for k in range(12))
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))

    def step(m, batch):
        state, reward, after = batch
        with torch.no_grad():
            aim = reward + 0.5 * m(after)
        return F.huber_loss(m(state), aim)

    return Program(model, None, dl(s[300:], r[300:], nxt[300:], bs=128), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(s[:300]) / unit, true[:300]), step=step)
