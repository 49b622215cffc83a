import torch
import torch.nn.functional as F
from parts import acc, blobs, curved, factors, gen, loader, mlp, r2
from program import Program, fault
from torch import nn


class LoRA(nn.Module):
    def __init__(self, base, rank, bad):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        if bad:
            nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@fault("both factors of each LoRA adapter start at zero",
       rules=["no-gradient", "bad-initialisation", "symmetric-initialisation"],
       layers=["0", "2"], fails=True, steps=300)
def lora_both_zero(bad):
    x, y = blobs(noise=0.6)
    model = nn.Sequential(LoRA(nn.Linear(12, 48), 8, bad), nn.ReLU(), LoRA(nn.Linear(48, 5), 4, bad))
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), opt, lambda m: acc(m(x[1200:]), y[1200:]))


@fault("warm-up of 100000 steps, copied from a recipe for a far longer run",
       rules=["learning-rate-too-low"], fails=True, steps=300)
def warmup_never_ends(bad):
    x, y = curved(d=5)
    model = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    n = 100_000 if bad else 20
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / n))
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), opt, lambda m: r2(m(x[1200:]), y[1200:]), sched)


@fault("weight decay of 0.5 in SGD", rules=["weight-decay-dominates"], fails=True, steps=300)
def student_decayed_away(bad):
    x, y = blobs(k=6, noise=0.7)
    soft = (-(torch.cdist(x, blobs(k=6, noise=0.0)[0][:200].unique(dim=0)) ** 2) / 3).softmax(1)
    hard = soft.argmax(1)
    model = mlp(12, 48, 6)
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.5 if bad else 5e-4)

    def step(model, batch):
        v, t = batch
        return F.kl_div(model(v).log_softmax(1), t, reduction="batchmean")

    return Program(model, None, loader(x[:1200], soft[:1200]), opt, lambda m: acc(m(x[1200:]), hard[1200:]), step=step)


@fault("the denoiser is asked for fresh noise, not for the noise that was added",
       rules=["labels-unrelated", "loss-not-decreasing", "output-loss-mismatch"], fails=True, steps=350)
def denoiser_fresh_noise(bad):
    g = gen(11)
    x0 = torch.randn(1500, 2, generator=g) @ torch.randn(2, 8, generator=g) * 0.5
    model = mlp(9, 96, 8)
    t_ = 0.3 + 0.6 * torch.rand(300, 1, generator=g)
    e_ = torch.randn(300, 8, generator=g)

    def step(model, batch):
        (x,) = batch
        t = 0.3 + 0.6 * torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        xt = (1 - t).sqrt() * x + t.sqrt() * noise
        return F.mse_loss(model(torch.cat([xt, t], 1)), torch.randn_like(x) if bad else noise)

    def score(m):
        xt = (1 - t_).sqrt() * x0[1200:] + t_.sqrt() * e_
        return r2(m(torch.cat([xt, t_], 1)), e_)

    return Program(model, None, loader(x0[:1200], size=64), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


class GCN(nn.Module):
    def __init__(self, adj, depth):
        super().__init__()
        self.register_buffer("adj", adj)
        self.embed = nn.Linear(5, 32)
        self.convs = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        h = self.embed(x)
        for conv in self.convs:
            h = F.relu(conv(self.adj @ h))
        return self.head(h)


@fault("graph network of 16 averaging layers: all nodes get the same features",
       rules=["rank-collapse", "vanishing-gradient", "activation-drift"], layers=["convs"], fails=True, steps=250)
def gcn_oversmoothed(bad):
    g = gen(13)
    adj = (torch.rand(20, 20, generator=g) < 0.25).float()
    adj = ((adj + adj.T) > 0).float() + 3 * torch.eye(20)
    adj = adj / adj.sum(1, keepdim=True)
    x = torch.randn(600, 20, 5, generator=g)
    y = (adj @ x)[..., :3].argmax(-1)
    model = GCN(adj, 16 if bad else 2)
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   loader(x[:500], y[:500], size=16), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: acc(m(x[500:]), y[500:]))
