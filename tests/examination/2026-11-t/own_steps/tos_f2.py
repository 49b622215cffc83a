import torch
import torch.nn.functional as F
from program import Program, fault
from sklearn import datasets
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader, TensorDataset
from tos_kit import acc, dl, r2, rn, ru, table


class TosTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))
        self.right = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T * 10


class TosPairs:
    """Batches of pairs out of two loaders."""

    def __init__(self, a, b, joint):
        self.loaders = [dl(a, b)] if joint else [dl(a), dl(b)]

    def __len__(self):
        return len(self.loaders[0])

    def __iter__(self):
        if len(self.loaders) == 1:
            yield from self.loaders[0]
        else:
            for (a,), (b,) in zip(*self.loaders, strict=True):
                yield a, b


@fault("both sides of the pairs are shuffled on their own", rules=["labels-unrelated"], fails=True, steps=350)
def tos_pairs_shuffled(bad):
    z = rn(1500, 5)
    a, b = torch.tanh(z @ rn(5, 12, s=2)), torch.tanh(z @ rn(5, 20, s=3))
    model = TosTower()

    def step(m, batch):
        s = m(*batch)
        y = torch.arange(len(s))
        return (F.cross_entropy(s, y) + F.cross_entropy(s.T, y)) / 2

    return Program(model, None, TosPairs(a[128:], b[128:], not bad), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: acc(m(a[:64], b[:64]), torch.arange(64)), step=step)


@fault("pinball loss subtracts (B, 1) from (B,)", rules=["output-loss-mismatch", "mixed-examples"], fails=True, steps=300)
def tos_pinball_broadcast(bad):
    x, y, vx, vy = rn(1000, 6), None, rn(200, 6, s=9), None
    w = rn(6, 1, s=2)
    y, vy = [(torch.sin(b @ w / 2) + 0.1 * rn(len(b), 1, s=3)) for b in (x, vx)]
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))

    def pinball(out, t):
        e = t - (out if bad else out.squeeze(1))
        return torch.maximum(0.5 * e, -0.5 * e).mean()

    return Program(model, pinball, dl(x, y[:, 0]), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(vx), vy))


class TosQ(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(2, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, 3))

    def forward(self, s):
        return self.q(s)


@fault("Q-network has no activations", rules=["no-nonlinearity"], layers=["q"], fails=True, steps=400)
def tos_linear_q(bad):
    s = rn(2000, 2)
    gains = torch.stack([s[:, 0] * s[:, 1], (s**2).sum(1) / 2 - 1, torch.sin(2 * s[:, 0])], 1)
    a = (ru(2000, s=4) * 3).long()
    r = gains.gather(1, a[:, None])[:, 0] + 0.05 * rn(2000, s=5)
    model = TosQ(nn.Identity if bad else nn.ReLU)

    def step(m, batch):
        state, action, reward = batch
        return F.smooth_l1_loss(m(state).gather(1, action[:, None])[:, 0], reward)

    return Program(model, None, dl(s[400:], a[400:], r[400:], bs=128), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(s[:400]), gains[:400]), step=step)


@fault("every weight of a cloned policy starts at 0.1", rules=["symmetric-initialisation", "bad-initialisation"], fails=False, steps=300)
def tos_policy_constant(bad):
    s = rn(1500, 6)
    a = (torch.tanh(s @ rn(6, 12, s=1)) @ rn(12, 5, s=2)).argmax(1)
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 5))
    for p in model.parameters():
        if p.ndim == 1:
            nn.init.zeros_(p)
        else:
            nn.init.constant_(p, 0.1) if bad else nn.init.xavier_uniform_(p)

    def step(m, batch):
        state, action = batch
        return -Categorical(logits=m(state)).log_prob(action).mean()

    return Program(model, None, dl(s[300:], a[300:]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: acc(m(s[:300]), a[:300]), step=step)


@fault("biases of a critic's hidden layer start at -6", rules=["dying-neurons", "bad-initialisation"], layers=["hidden", "relu"], fails=True, steps=300)
def tos_critic_dead(bad):
    s = rn(1200, 4)
    ret = torch.sin(s @ rn(4, 1, s=3))[:, 0] * 2
    class TosCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.relu, self.value = nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1)
            nn.init.constant_(self.hidden.bias, -6.0 if bad else 0.0)

        def forward(self, x):
            return self.value(self.relu(self.hidden(x)))[:, 0]

    model = TosCritic()
    return Program(model, nn.SmoothL1Loss(), dl(s[200:], ret[200:]), torch.optim.RMSprop(model.parameters(), 4e-3),
                   lambda m: r2(m(s[:200]), ret[:200]))


@fault("ε of Adam is 1", rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=250)
def tos_adam_epsilon(bad):
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def step(m, batch):
        b, _ = batch
        noisy = (b + 0.2 * torch.randn_like(b)).clamp(0, 1)
        return F.mse_loss(m(noisy), b)

    return Program(model, None, dl(x, y), torch.optim.Adam(model.parameters(), 5e-3, eps=1.0 if bad else 1e-8),
                   lambda m: r2(m(vx), vx), step=step)


@fault("weight decay of 0.3 in SGD", rules=["weight-decay-dominates"], fails=True, steps=300)
def tos_ranker_decay(bad):
    x = rn(1200, 10)
    rel = torch.tanh(x @ rn(10, 1, s=2))[:, 0]
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def step(m, batch):
        b, r = batch
        s = m(b)[:, 0]
        better = r[:, None] > r[None, :] + 0.2
        return F.softplus(-(s[:, None] - s[None, :]))[better].mean()

    def score(m):
        s = m(x[:200])[:, 0]
        pairs = rel[:200, None] > rel[None, :200]
        return float((s[:, None] > s[None, :])[pairs].float().mean())

    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.3 if bad else 1e-4)
    return Program(model, None, dl(x[200:], rel[200:]), opt, score, step=step)


class TosFunctionalDrop(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always
        self.enc, self.head = nn.Linear(13, 40), nn.Linear(40, 6)

    def forward(self, x):
        h = torch.relu(self.enc(x))
        h = F.dropout(h, 0.8, training=self.always or self.training)
        return self.head(h)


@fault("F.dropout without training=self.training", rules=["dropout-in-eval"], fails=False, steps=250)
def tos_functional_dropout(bad):
    n = 1000
    x = rn(n, 13)
    y = (x @ rn(13, 6, s=2)).argmax(1)
    model = TosFunctionalDrop(bad)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), dl(x[200:], y[200:]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: acc(m(x[:200]), y[:200]))


@fault("rows sorted by class and no shuffling", rules=["sorted-batches"], fails=True, steps=280)
def tos_sorted_digits(bad):
    x, y, vx, vy = table("digits")
    order = y.argsort()
    data = TensorDataset(x[order], y[order])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(model, F.cross_entropy, DataLoader(data, batch_size=32, shuffle=not bad), torch.optim.SGD(model.parameters(), 0.2, momentum=0.5),
                   lambda m: acc(m(vx), vy))


@fault("momentum of BatchNorm is 0.001", rules=["batchnorm-mode-gap"], layers=["1"], fails=True, steps=200)
def tos_bn_momentum(bad):
    x, y, vx, vy = table("wine")
    x, vx = x * 4 + 9, vx * 4 + 9
    model = nn.Sequential(nn.Linear(13, 24), nn.BatchNorm1d(24, momentum=0.001 if bad else 0.1), nn.ReLU(), nn.Linear(24, 3))
    return Program(model, F.cross_entropy, dl(x, y, bs=45), torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(vx), vy))


@fault("the head is replaced after the optimizer was made, the body is frozen", rules=["no-gradient"], layers=["head"], fails=True, steps=250)
def tos_head_replaced(bad):
    x, y, vx, vy = table("digits")
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Linear(64, 128), nn.ReLU()))
    model.add_module("head", nn.Linear(128, 1000))
    model.body.requires_grad_(False)
    if not bad:
        model.head = nn.Linear(128, 10)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    if bad:
        model.head = nn.Linear(128, 10)
    return Program(model, F.cross_entropy, dl(x, y), opt, lambda m: acc(m(vx), vy))


@fault("exponential decay meant for epochs is stepped per batch", rules=["learning-rate-too-low"], fails=True, steps=300)
def tos_decay_per_batch(bad):
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return Program(model, F.cross_entropy, dl(x, y), opt, lambda m: acc(m(vx), vy),
                   scheduler=torch.optim.lr_scheduler.ExponentialLR(opt, 0.5 if bad else 0.995))


@fault("class scores of a focal loss are summed over the batch under plain SGD", rules=["summed-loss", "learning-rate-too-high"], fails=True, steps=200)
def tos_focal_sum(bad):
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def focal(out, t):
        ce = F.cross_entropy(out, t, reduction="none")
        value = (1 - torch.exp(-ce)) ** 2 * ce
        return value.sum() if bad else value.mean()

    return Program(model, focal, dl(x, y, bs=128), torch.optim.SGD(model.parameters(), 0.3, momentum=0.9), lambda m: acc(m(vx), vy))


@fault("columns of the wine table are not standardised", rules=["unscaled-input", "saturated-activation"], fails=True, steps=300)
def tos_wine_raw(bad):
    x, y, vx, vy = table("wine", scale=not bad)
    hx = vx
    model = nn.Sequential(nn.Linear(13, 32), nn.Tanh(), nn.Linear(32, 3))

    def step(m, batch):
        b, t = batch
        return F.multi_margin_loss(m(b), t)

    return Program(model, None, dl(x, y, bs=16), torch.optim.SGD(model.parameters(), 0.02), lambda m: acc(m(hx), vy), step=step)


@fault("hidden tanhs of a SIREN-like field start with weights of scale 8", rules=["saturated-activation", "bad-initialisation"], fails=False, steps=300)
def tos_tanh_saturated(bad):
    x = ru(1200, 2) * 2 - 1
    y = (torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:]))
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    if bad:
        for m in model:
            if isinstance(m, nn.Linear) and m.out_features > 1:
                nn.init.normal_(m.weight, std=8.0)
    return Program(model, F.mse_loss, dl(x[200:], y[200:]), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(x[:200]), y[:200]))


@fault("seven sigmoid layers under SGD", rules=["vanishing-gradient", "saturated-activation", "bad-initialisation", "rank-collapse", "activation-drift"], fails=True, steps=300)
def tos_sigmoid_tower(bad):
    x, y, vx, vy = table("breast_cancer")
    act = nn.Sigmoid if bad else nn.ReLU
    layers, d = [], 30
    for _ in range(7):
        layers += [nn.Linear(d, 32), act()]
        d = 32
    model = nn.Sequential(*layers, nn.Linear(32, 1), nn.Flatten(0))
    return Program(model, lambda o, t: F.binary_cross_entropy_with_logits(o, t.float()), dl(x, y, bs=32),
                   torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), lambda m: max(0.0, r2((m(vx) > 0).float(), vy.float())))


@fault("targets in [0, 1) are cast to integers", rules=["constant-target"], fails=True, steps=250)
def tos_targets_to_int(bad):
    x = rn(1000, 8)
    p = torch.sigmoid(2 * torch.sin(x @ rn(8, 1, s=2)))[:, 0]
    vy = p[:200]
    y = p[200:].long() if bad else p[200:]
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))

    def step(m, batch):
        b, t = batch
        return F.binary_cross_entropy_with_logits(m(b), t.float())

    return Program(model, None, dl(x[200:], y), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(x[:200]).sigmoid(), vy), step=step)


@fault("entropy bonus of 5 in a policy gradient", rules=["term-dominates"], fails=True, steps=300)
def tos_entropy_bonus(bad):
    s = rn(1700, 6)
    best = (s @ rn(6, 5, s=1)).argmax(1)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 5))

    def step(m, batch):
        state, good = batch
        pi = Categorical(logits=m(state))
        gain = (pi.probs * (F.one_hot(good, 5).float())).sum(1).mean()
        return -gain - (5.0 if bad else 0.01) * pi.entropy().mean()

    def score(m):
        return float(m(s[:200]).softmax(1).gather(1, best[:200, None]).mean())

    return Program(model, None, dl(s[200:], best[200:]), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


class TosSet(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.masked = masked
        self.embed = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32))
        self.score, self.out = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x, mask):
        h = self.embed(x)
        s = self.score(h).squeeze(-1)
        s = s.masked_fill(mask if self.masked == "wrong" else ~mask, -1e9)
        return self.out((s.softmax(1)[..., None] * h).sum(1)).squeeze(-1)


@fault("mask of an attention pool is inverted: it looks at the padding", rules=["wrong-mask"], fails=True, steps=350)
def tos_pool_mask(bad):
    n = 1200
    size = (ru(n, s=1) * 6).long() + 3
    mask = torch.arange(12)[None] < size[:, None]
    x = rn(n, 12, 3) + rn(n, 1, 3, s=5)
    x = x * mask[..., None]
    y = torch.tanh((x * mask[..., None]).sum(1) / size[:, None])[:, :2].sum(1)
    model = TosSet("wrong" if bad else "right")
    data = TensorDataset(x[200:], mask[200:], y[200:])

    def collate(rows):
        a, b, c = (torch.stack(t) for t in zip(*rows))
        return {"x": a, "mask": b}, c

    return Program(model, nn.MSELoss(), DataLoader(data, 64, shuffle=True, collate_fn=collate), torch.optim.AdamW(model.parameters(), 5e-3),
                   lambda m: r2(m(x[:200], mask[:200]), y[:200]))
