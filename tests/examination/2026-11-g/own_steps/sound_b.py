import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from faults_a import VAE, factors, gen, r2
from faults_b import LoRA, communities
from sound_a import T, W, X, Y, acc, fit, load, net
from program import Program, sound

adam = lambda m, lr=3e-3: torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr)


@sound("nothing: an ordinary VAE", steps=300, least=0.8)
def plain_vae():
    x, xt = factors(1500, 20, 3, gen(31)), factors(300, 20, 3, gen(32))
    m = VAE(20, 4)

    def step(m, b):
        out, mu, lv = m(b[0])
        return ((out - b[0]) ** 2).sum(1).mean() - 0.1 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()

    return Program(m, None, DataLoader(TensorDataset(x), 64, shuffle=True), adam(m), lambda m: r2(m(xt)[0], xt), step=step)


@sound("nothing: distillation at temperature 4 with hard labels", steps=250, least=0.8)
def plain_distillation():
    m = net()

    def step(m, b):
        t, o = b[0] @ W, m(b[0])
        return 16 * F.kl_div((o / 4).log_softmax(1), (t / 4).softmax(1), reduction="batchmean") + F.cross_entropy(o, b[1])

    return Program(m, None, load(Y), adam(m), acc, step=step)


@sound("nothing: two graph convolutions on the whole graph", steps=150, least=0.8)
def plain_graph():
    a, x, y, train = communities(160, gen(1))
    a = (a + torch.eye(160)) / (a.sum(1, keepdim=True) + 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(12, 32), nn.Linear(32, 4)

        def forward(self, x):
            return self.b(a @ torch.relu(self.a(a @ x)))

    m = Net()
    return Program(m, None, [(x, y)], adam(m, 1e-2), lambda m: (m(x).argmax(1) == y)[~train].float().mean().item(), step=lambda m, b: F.cross_entropy(m(b[0])[train], b[1][train]))


@sound("adapters whose second factor is zero on a frozen layer", steps=300, least=0.75)
def adapters_on_random_base():
    m = nn.Sequential(LoRA(nn.Linear(10, 64), 4, False), nn.ReLU(), nn.Linear(64, 4))
    return Program(m, None, load(Y), adam(m, 5e-3), acc, step=lambda m, b: F.cross_entropy(m(b[0]), b[1]))


@sound("a frozen random backbone whose BatchNorm is in evaluation mode", steps=250, least=0.75)
def frozen_backbone_probe():
    back = nn.Sequential(nn.Linear(10, 128), nn.BatchNorm1d(128), nn.ReLU()).requires_grad_(False)
    m = nn.Sequential(back, nn.Linear(128, 4))
    back.eval()
    return Program(m, nn.CrossEntropyLoss(), load(Y), adam(m, 1e-2), acc)


@sound("float16 with a constant loss scale of 1024, which Adam undoes", steps=200, least=0.8)
def float16_static_scale():
    m = net()

    def step(m, b):
        with torch.autocast("cpu", dtype=torch.float16):
            o = m(b[0])
        return 1024 * F.mse_loss(o.float(), b[1])

    return Program(m, None, load(T), adam(m), fit, step=step)


@sound("residual branches behind gates that start at zero", steps=250, least=0.75)
def zero_gates():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.i, self.o = nn.Linear(10, 32), nn.Linear(32, 4)
            self.f = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(6))
            self.g = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            x = self.i(x)
            for g, f in zip(self.g, self.f):
                x = x + g * f(x)
            return self.o(x)

    m = Net()
    return Program(m, None, load(T), adam(m), fit, step=lambda m, b: F.smooth_l1_loss(m(b[0]), b[1]))


@sound("an equation instead of targets: u' = -u, u(0) = 1", steps=300, least=0.8)
def decay_equation():
    m = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    t = torch.rand(1000, 1, generator=gen(3)) * 2
    tt = torch.linspace(0, 2, 50)[:, None]

    def step(m, b):
        x = b[0].clone().requires_grad_(True)
        u = m(x)
        (d,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return ((d + u) ** 2).mean() + ((m(torch.zeros(1, 1)) - 1) ** 2).mean()

    return Program(m, None, DataLoader(TensorDataset(t), 50, shuffle=True), adam(m, 1e-2), lambda m: r2(m(tt), (-tt).exp()), step=step)


@sound("an autoencoder whose decoder is the transposed encoder", trained=100, steps=300, least=0.8)
def tied_autoencoder():
    x, xt = factors(1500, 20, 3, gen(33)), factors(300, 20, 3, gen(34))

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(20, 6)

        def forward(self, x):
            return F.linear(self.enc(x), self.enc.weight.T)

    m = Tied()
    return Program(m, None, DataLoader(TensorDataset(x), 64, shuffle=True), adam(m, 1e-2), lambda m: r2(m(xt), xt), step=lambda m, b: F.mse_loss(m(b[0]), b[0]))


@sound("a slow copy of the network without gradients, for consistency", steps=250, least=0.8)
def mean_teacher():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.fast = net()
            self.slow = copy.deepcopy(self.fast).requires_grad_(False)

        def forward(self, x):
            return self.fast(x)

    def step(m, b):
        with torch.no_grad():
            for s, f in zip(m.slow.parameters(), m.fast.parameters()):
                s.lerp_(f, 0.1)
            goal = m.slow(b[0]).softmax(1)
        o = m(b[0] + 0.1 * torch.randn_like(b[0]))
        return F.cross_entropy(o, b[1]) + 0.5 * F.mse_loss(o.softmax(1), goal)

    m = Both()
    return Program(m, None, load(Y), adam(m), acc, step=step)


@sound("a hinge loss that is zero for most examples once half trained", trained=150, steps=300, least=0.8)
def hinge_half_trained():
    m = net()
    return Program(m, None, load(Y), adam(m), acc, step=lambda m, b: F.multi_margin_loss(m(b[0]), b[1], margin=0.5))


@sound("nothing: AdamW with a cosine schedule", trained=50, steps=200, least=0.8)
def plain_cosine():
    m = net()
    o = torch.optim.AdamW(m.parameters(), 5e-3)
    return Program(m, nn.CrossEntropyLoss(label_smoothing=0.1), load(Y), o, acc, scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(o, 200))
