import torch
import torch.nn.functional as F
from own_kit import accuracy, blobs, curve, loader, r2, rng
from own_faults_a import Critic, manifold, pairs, TwoTowers
from program import Program, fault
from torch import nn


@fault(
    "autoencoder with SGD: four micro-batches accumulated with reduction='sum', the rate is one for a mean",
    rules=["summed-loss", "learning-rate-too-high", "non-finite"],
    fails=True,
    steps=300,
)
def accumulated_sum_of_squares(is_faulty):
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5), nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 20))
    test = manifold(90, 400)

    def step(model, batch):
        (x,) = batch
        total = 0.0
        for micro in x.chunk(4):
            if is_faulty:
                total = total + F.mse_loss(model(micro), micro, reduction="sum")
            else:
                total = total + F.mse_loss(model(micro), micro) / 4
        return total

    return Program(
        model,
        None,
        loader(manifold(1, 2048)),
        torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        lambda m: r2(m(test), test),
        step=step,
    )


class ScaledBlock(nn.Module):
    """A frozen network in bfloat16; only a vector of scales per layer is tuned (IA3)."""

    def __init__(self, dtype):
        super().__init__()
        self.a, self.b = nn.Linear(12, 64), nn.Linear(64, 4)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=rng(p.numel())) / p.shape[-1] ** 0.5)
        self.to(torch.bfloat16).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(64, dtype=dtype))

    def forward(self, x):
        h = torch.tanh(self.a(x.bfloat16())) * self.scale.to(torch.bfloat16)
        return self.b(h).float()


@fault(
    "the tuned scales (all near 1) are kept in bfloat16, where a step of 1e-3 rounds away",
    rules=["lost-updates", "learning-rate-too-low"],
    layers=["scale"],
    fails=True,
    steps=400,
)
def bf16_scales_near_one(is_faulty):
    model = ScaledBlock(torch.bfloat16 if is_faulty else torch.float32)
    shift = 1 + 0.45 * torch.sign(torch.randn(64, generator=rng(33)))

    def make(seed, n):
        x = 2 * torch.randn(n, 12, generator=rng(seed))
        with torch.no_grad():
            h = torch.tanh(model.a(x.bfloat16())).float()
            return x, h @ (model.b.weight.float() * (shift - 1)).T * 1.0 + model(x)

    tx, ty = make(2, 500)
    with torch.no_grad():
        base = model(tx)
    return Program(
        model,
        F.mse_loss,
        loader(*make(1, 2048)),
        torch.optim.Adam([model.scale], lr=1.5e-3),
        lambda m: r2(m(tx) - base, ty - base),
    )


@fault(
    "autocast to float16: a mean over 16k numbers, weighted 1e-3, divided by 512 accumulation steps, never scaled",
    rules=["gradient-underflow", "no-gradient"],
    fails=True,
    steps=300,
)
def fp16_loss_not_scaled(is_faulty):
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 128))
    x, y = curve(1, 2048, 8, 128)
    tx, ty = curve(2, 300, 8, 128)
    scale = 1.0 if is_faulty else 2.0**18
    weight, accumulate = 1e-3, 512

    def step(model, batch):
        a, b = batch
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(a)
        return weight * F.mse_loss(out.float(), b) / accumulate * scale

    return Program(
        model,
        None,
        loader(x, y, size=128),
        torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-12),
        lambda m: r2(m(tx), ty),
        step=step,
    )


@fault(
    "InfoNCE by hand in float16: exp(similarity / 0.07) is above 65504",
    rules=["half-overflow", "non-finite"],
    fails=True,
    steps=300,
)
def infonce_exp_in_half(is_faulty):
    model = TwoTowers(20, 12)
    ta, tb = pairs(2, 64)

    def step(model, batch):
        a, b = batch
        with torch.autocast("cpu", dtype=torch.float16):
            u, v = model(a, b)
            sim = u.half() @ v.half().T / 0.07
            if not is_faulty:
                sim = sim.float()
            e = torch.exp(sim)
            return -torch.log(e.diag() / e.sum(1)).mean() + 0 * model.logit_scale

    def score(m):
        u, v = m(ta, tb)
        return 0.0 if u.isnan().any() else accuracy(u @ v.T, torch.arange(64))

    return Program(
        model, None, loader(*pairs(1, 1024)), torch.optim.AdamW(model.parameters(), lr=3e-3), score, step=step
    )


class LoRA(nn.Module):
    def __init__(self, base, r, zero):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, r, bias=False)
        self.up = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        if zero:
            nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@fault(
    "LoRA with both matrices at zero: each gets its gradient through the other",
    rules=["bad-initialisation", "no-gradient", "symmetric-initialisation"],
    layers=["0.down", "0.up", "2.down", "2.up"],
    fails=True,
    steps=300,
)
def lora_both_zero(is_faulty):
    x, y = blobs(1, 2048, 4, 16)
    tx, ty = blobs(2, 600, 4, 16)
    base = [nn.Linear(16, 48), nn.Linear(48, 4)]
    for one in base:
        one.requires_grad_(False)
    model = nn.Sequential(LoRA(base[0], 4, is_faulty), nn.GELU(), LoRA(base[1], 4, is_faulty))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x, y),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3, weight_decay=0.0),
        lambda m: accuracy(m(tx), ty),
    )


class Bits(nn.Module):
    def __init__(self, ste):
        super().__init__()
        self.ste = ste
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x):
        h = torch.tanh(self.encoder(x))
        code = torch.sign(h)
        if self.ste:
            code = h + (code - h).detach()
        return self.decoder(code)


def codes(seed, n):
    g = rng(seed)
    z = torch.randint(12, (n,), generator=g)
    return torch.randn(12, 24, generator=rng(6))[z] + 0.15 * torch.randn(n, 24, generator=g)


@fault(
    "binary codes with torch.sign and no straight-through estimator",
    rules=["no-gradient"],
    layers=["encoder"],
    fails=False,
    steps=400,
)
def sign_without_straight_through(is_faulty):
    model = Bits(not is_faulty)
    test = codes(2, 400)
    return Program(
        model,
        None,
        loader(codes(1, 2048)),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: r2(m(test), test),
        step=lambda m, batch: F.mse_loss(m(batch[0]), batch[0]),
    )


@fault(
    "discriminator with BatchNorm: a forward pass on the real batch and another one on the generated batch",
    rules=["batchnorm-mode-gap", "sorted-batches"],
    layers=["body.1"],
    fails=True,
    steps=300,
)
def gan_batchnorm_separate_passes(is_faulty):
    model = Critic(8, norm=True)

    def samples(seed, n, at):
        return torch.randn(n, 8, generator=rng(seed)) * 0.7 + at

    real, fake = samples(3, 500, 0.5), samples(4, 500, -0.5)

    def step(model, batch):
        x, z = batch
        if is_faulty:
            good, bad = model(x), model(z)
        else:
            good, bad = model(torch.cat([x, z])).chunk(2)
        return F.softplus(-good).mean() + F.softplus(bad).mean()

    def score(m):
        return 0.5 * ((m(real) > 0).float().mean() + (m(fake) <= 0).float().mean()).item()

    return Program(
        model,
        None,
        loader(samples(1, 2048, 0.5), samples(2, 2048, -0.5)),
        torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        score,
        step=step,
    )


@fault(
    "Adam with eps=1 (copied from elsewhere), larger than every gradient",
    rules=["optimizer-setting", "learning-rate-too-low"],
    fails=True,
    steps=300,
)
def adam_eps_of_one(is_faulty):
    x, y = curve(1, 2000, 8, 4)
    tx, ty = curve(2, 500, 8, 4)
    model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))

    def nll(out, y):
        mu, s = out.chunk(2, -1)
        return F.gaussian_nll_loss(mu, y, F.softplus(s) + 1e-3)

    return Program(
        model,
        nll,
        loader(x, y),
        torch.optim.Adam(model.parameters(), lr=2e-3, eps=1.0 if is_faulty else 1e-8),
        lambda m: r2(m(tx)[:, :4], ty),
    )


class Siamese(nn.Module):
    def __init__(self, drop=0.0, always=False):
        super().__init__()
        self.drop, self.always = drop, always
        self.fc1, self.fc2 = nn.Linear(16, 64), nn.Linear(64, 8)

    def embed(self, x):
        h = F.relu(self.fc1(x))
        if self.drop:
            h = F.dropout(h, self.drop, training=self.training or self.always)
        return self.fc2(h)

    def forward(self, a, b):
        return F.pairwise_distance(self.embed(a), self.embed(b))


def same_or_not(seed, n):
    x, y = blobs(seed, 4 * n, 5, 16, spread=0.7)
    a, b = x[: 2 * n], x[2 * n :]
    same = (y[: 2 * n] == y[2 * n :]).float()
    yes, no = same.nonzero()[:, 0], (1 - same).nonzero()[:, 0]
    k = min(len(yes), len(no), n // 2)
    pick = torch.cat([yes[:k], no[:k]])
    return a[pick], b[pick], same[pick]


def verification(m):
    a, b, same = same_or_not(70, 1000)
    return (((m(a, b) < 1.0).float() == same).float().mean()).item()


@fault(
    "siamese network: the contrastive loss has lost its term for different pairs, everything falls into one point",
    rules=["rank-collapse"],
    fails=True,
    steps=300,
)
def siamese_without_negatives(is_faulty):
    model = Siamese()

    def step(model, batch):
        a, b, same = batch
        d = model(a, b)
        push = 0.0 if is_faulty else ((1 - same) * F.relu(2.0 - d) ** 2).mean()
        return (same * d**2).mean() + push

    return Program(
        model,
        None,
        loader(*same_or_not(1, 2000)),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        verification,
        step=step,
    )


class Forecaster(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.conv1, self.conv2 = nn.Conv1d(1, 24, 5), nn.Conv1d(24, 1, 5)

    def pad(self, x):
        return F.pad(x, (4, 0) if self.causal else (2, 2))

    def forward(self, x):
        h = torch.tanh(self.conv1(self.pad(x.unsqueeze(1))))
        return self.conv2(self.pad(h)).squeeze(1)


def waves(seed, n):
    g = rng(seed)
    w = 0.4 + 0.8 * torch.rand(n, 1, generator=g)
    p = 6.28 * torch.rand(n, 1, generator=g)
    return torch.sin(w * torch.arange(25) + p)


@fault(
    "next-value forecaster: convolutions padded on both sides, so that each output sees the value it is asked for",
    rules=["future-seen"],
    layers=["conv1", "conv2"],
    fails=False,
    steps=300,
)
def forecaster_padded_both_sides(is_faulty):
    model = Forecaster(not is_faulty)
    test = waves(2, 400)

    def score(m):
        x = test[:, :19]
        for _ in range(6):
            x = torch.cat([x, m(x)[:, -1:]], 1)
        return r2(x[:, 19:], test[:, 19:])

    def step(model, batch):
        (x,) = batch
        return F.mse_loss(model(x[:, :-1]), x[:, 1:])

    return Program(
        model,
        None,
        loader(waves(1, 1024)),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        score,
        step=step,
    )
