"""Sound: ordinary scripts, and steps of their own."""
import torch
import torch.nn.functional as F
from faults_a import VAE
from own_common import acc, clusters, gen, loader, r2, smooth
from program import Program, sound
from torch import nn


def mlp(*sizes, act=nn.ReLU):
    out = []
    for i, o in zip(sizes, sizes[1:]):
        out += [nn.Linear(i, o), act()]
    return nn.Sequential(*out[:-1])


@sound("An ordinary VAE with a small weight of the KL", steps=400, least=0.6)
def vae_plain():
    g = gen(101)
    x = torch.tanh(torch.randn(1200, 2, generator=g) @ torch.randn(2, 24, generator=g)) + 0.1 * torch.randn(1200, 24, generator=g)

    def step(m, b):
        rec, mu, lv = m(b[0])
        return F.mse_loss(rec, b[0], reduction="none").sum(1).mean() + 0.3 * (-0.5 * (1 + lv - mu**2 - lv.exp())).sum(1).mean()

    m = VAE()
    return Program(m, None, loader(x[:1000]), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2(m(x[1000:])[0], x[1000:]), step=step)


@sound("Ordinary classification with AdamW, no decay for biases, one-cycle rate", steps=300, least=0.7)
def groups_one_cycle():
    x, y = clusters(102, 1800, 20, 4, sep=0.9)
    m = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
    decay = [p for p in m.parameters() if p.ndim > 1]
    rest = [p for p in m.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], 3e-3)
    return Program(m, nn.CrossEntropyLoss(), loader(x[:1400], y[:1400]), opt, lambda m: acc(m(x[1400:]), y[1400:]),
                   scheduler=torch.optim.lr_scheduler.OneCycleLR(opt, 5e-3, total_steps=2000))


@sound("Ordinary distillation with temperature 4 and hard labels", steps=300, least=0.7)
def distil_temperature():
    x, t = smooth(103, 1800, 8, 4)
    y = t.argmax(1)
    m = mlp(8, 64, 64, 4)

    def step(m, b):
        xb, tb, yb = b
        out = m(xb)
        kd = F.kl_div(F.log_softmax(out / 4, 1), F.softmax(3 * tb / 4, 1), reduction="batchmean") * 16
        return 0.7 * kd + 0.3 * F.cross_entropy(out, yb)

    return Program(m, None, loader(x[:1400], t[:1400], y[:1400]), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda m: acc(m(x[1400:]), y[1400:]), step=step)


@sound("Ordinary graph convolution on one full batch, always the same", steps=200, least=0.7)
def gcn_full_batch():
    g = gen(104)
    y = torch.randint(0, 4, (160,), generator=g)
    a = torch.triu((torch.rand(160, 160, generator=g) < torch.where(y[:, None] == y[None], 0.3, 0.05)).float(), 1)
    a = a + a.T + torch.eye(160)
    a = a / a.sum(1, keepdim=True)
    x = 0.6 * torch.randn(4, 16, generator=g)[y] + torch.randn(160, 16, generator=g)
    test = torch.arange(160) % 2 == 1

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1, self.l2, self.drop = nn.Linear(16, 32), nn.Linear(32, 4), nn.Dropout(0.5)

        def forward(self, h):
            return a @ self.l2(self.drop(F.relu(a @ self.l1(h))))

    def step(m, b):
        return F.cross_entropy(m(b[0])[~test], b[1][~test])

    m = GCN()
    return Program(m, None, [(x, y)], torch.optim.Adam(m.parameters(), 1e-2, weight_decay=5e-4), lambda m: acc(m(x)[test], y[test]), step=step)


@sound("Ordinary contrastive training with a fixed temperature, half trained", trained=100, steps=300, least=0.6)
def info_nce():
    g = gen(105)
    z = torch.randn(1600, 5, generator=g)
    a = torch.tanh(z @ torch.randn(5, 20, generator=g)) + 0.1 * torch.randn(1600, 20, generator=g)
    b = z @ torch.randn(5, 12, generator=g) / 2 + 0.1 * torch.randn(1600, 12, generator=g)
    m = nn.ModuleDict({"a": mlp(20, 64, 16), "b": mlp(12, 64, 16)})

    def logits(m, x, y):
        return F.normalize(m["a"](x), dim=1) @ F.normalize(m["b"](y), dim=1).T / 0.1

    def step(m, batch):
        return F.cross_entropy(logits(m, *batch), torch.arange(len(batch[0])))

    def score(m):
        return sum(acc(logits(m, a[i:i + 32], b[i:i + 32]), torch.arange(32)) for i in range(1280, 1600, 32)) / 10

    return Program(m, None, loader(a[:1280], b[:1280]), torch.optim.Adam(m.parameters(), 3e-3), score, step=step)


@sound("Ordinary regression with a residual network and SGD with momentum", steps=300, least=0.7)
def residual_sgd():
    x, y = smooth(106, 1800, 5)

    class Res(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = nn.Linear(5, 48), nn.Linear(48, 1)
            self.blocks = nn.ModuleList(mlp(48, 48, 48) for _ in range(2))

        def forward(self, x):
            h = self.inp(x)
            for b in self.blocks:
                h = h + b(F.relu(h))
            return self.out(F.relu(h))

    m = Res()
    return Program(m, nn.MSELoss(), loader(x[:1400], y[:1400], bs=32), torch.optim.SGD(m.parameters(), 0.03, momentum=0.9),
                   lambda m: r2(m(x[1400:]), y[1400:]))


@sound("Ordinary discriminator: BCE on logits, real and generated together, Adam with beta1 = 0.5", steps=300, least=0.8)
def discriminator_plain():
    g = gen(107)
    x = torch.randn(2000, 12, generator=g)
    x[1000:] = torch.tanh(2 * x[1000:]) * 1.1 + 0.8
    x = x[(p := torch.randperm(2000, generator=g))]
    y = (p < 1000).float()
    m = mlp(12, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    return Program(m, lambda o, t: F.binary_cross_entropy_with_logits(o.squeeze(1), t), loader(x[:1600], y[:1600]),
                   torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.999)),
                   lambda m: float(((m(x[1600:]).squeeze(1) > 0) == (y[1600:] > 0)).float().mean()))
