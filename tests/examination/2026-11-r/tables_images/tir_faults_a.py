import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn, optim
from torch.optim import lr_scheduler as sched
from torch.utils.data import DataLoader, Dataset

import tir_common as c


@fault("Softmax before CrossEntropyLoss", rules=["output-loss-mismatch"], fails=False, steps=120)
def tir_digits_probabilities(is_faulty):
    xa, ya, xb, yb = c.digits()
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)]
    if is_faulty:
        layers.append(nn.Softmax(dim=1))
    model = nn.Sequential(*layers)
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                   c.acc(xb, yb))


@fault("Targets (N,) against outputs (N, 1) in MSELoss", rules=["output-loss-mismatch"], fails=True, steps=300)
def tir_surface_broadcast(is_faulty):
    x, y = c.surface(1200, 6, 1)
    xb, yb = c.surface(400, 6, 2)
    model = nn.Sequential(nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    t = y if is_faulty else y[:, None]
    return Program(model, nn.MSELoss(), c.load(x, t, size=40), optim.Adam(model.parameters(), lr=4e-3), c.r2(xb, yb))


@fault("Wine without a scaler", rules=["unscaled-input", "ill-conditioned-input"], fails=False, steps=250)
def tir_wine_raw(is_faulty):
    xa, ya, xb, yb = c.table("wine", scale=not is_faulty)
    sc, scb = c.table("wine", scale=False), c.table("wine")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))

        def forward(self, x):
            return self.body(x)

    model = Net()
    shown = "raw" if is_faulty else "scaled"
    model.shown = shown
    both = {"raw": sc[2], "scaled": scb[2]}
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, size=16), optim.SGD(model.parameters(), lr=0.02),
                   lambda m: (m(both[m.shown]).argmax(1) == yb).float().mean().item())


def _pretrained_digits():
    """A backbone trained on the digits 0 to 4."""
    state = torch.get_rng_state()
    torch.manual_seed(99)
    xa, ya, _, _ = c.digits(image=True)
    keep = ya < 5
    body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1),
                         nn.ReLU(), nn.Flatten(), nn.Linear(24 * 16, 32), nn.ReLU())
    head = nn.Linear(32, 5)
    opt = optim.Adam([*body.parameters(), *head.parameters()], lr=2e-3)
    for i in range(150):
        at = torch.randint(0, int(keep.sum()), (32,))
        opt.zero_grad()
        F.cross_entropy(head(body(xa[keep][at])), ya[keep][at]).backward()
        opt.step()
    torch.set_rng_state(state)
    return body


@fault("The head is replaced after the optimizer was made; the backbone is frozen but for its biases",
       rules=["no-gradient"], layers=["fc"], fails=True, steps=300)
def tir_transfer_new_head(is_faulty):
    xa, ya, xb, yb = c.digits(image=True)
    keep, keepb = ya >= 5, yb >= 5
    body = _pretrained_digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = body
            self.fc = nn.Linear(32, 1000)

        def forward(self, x):
            return self.fc(self.features(x))

    model = Net()
    for p in model.features.parameters():
        p.requires_grad_(False)
    for name, p in model.features.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    if is_faulty:
        opt = optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
        model.fc = nn.Linear(32, 5)
    else:
        model.fc = nn.Linear(32, 5)
        opt = optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    return Program(model, nn.CrossEntropyLoss(), c.load(xa[keep], ya[keep] - 5, size=16), opt, c.acc(xb[keepb], yb[keepb] - 5))


def _graph(n, seed, k=3):
    """Nodes of k communities with weak features of their own; a dense adjacency."""
    g = c.gen(seed)
    y = torch.randint(0, k, (n,), generator=g)
    same = (y[:, None] == y[None]).float()
    p = 0.12 * same + 0.015 * (1 - same)
    a = (torch.rand(n, n, generator=g) < p).float().triu(1)
    a = a + a.T
    x = torch.randn(n, 8, generator=g)
    x[:, :k] += 0.9 * F.one_hot(y, k)
    return x, a, y


class _GraphStack(nn.Module):
    def __init__(self, a, depth, width, residual):
        super().__init__()
        self.register_buffer("a", a)
        self.enter = nn.Linear(8, width)
        self.convs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 3)
        self.residual = residual

    def forward(self, x):
        h = F.relu(self.enter(x))
        for conv in self.convs:
            new = F.relu(conv(self.a @ h))
            h = h + new if self.residual else new
        return self.out(h)


@fault("A graph network that sums over neighbours without normalising the adjacency",
       rules=["activation-drift", "exploding-gradient", "learning-rate-too-high", "bad-initialisation", "diverging"],
       fails=True, steps=200)
def tir_graph_sum(is_faulty):
    x, a, y = _graph(240, 3)
    train = torch.rand(240, generator=c.gen(5)) < 0.4
    a = a + torch.eye(240)
    if not is_faulty:
        a = a / a.sum(1, keepdim=True)
    model = _GraphStack(a, 5, 24, True)
    return Program(model, lambda out, t: F.cross_entropy(out[train], t[train]), [(x, y)],
                   optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
                   lambda m: (m(x).argmax(1) == y)[~train].float().mean().item())


@fault("A deep graph network without residual connections smooths all nodes to one point",
       rules=["rank-collapse", "vanishing-gradient"], fails=False, steps=200)
def tir_graph_smooth(is_faulty):
    x, a, y = _graph(240, 4)
    train = torch.rand(240, generator=c.gen(6)) < 0.4
    a = a + torch.eye(240)
    d = a.sum(1).rsqrt()
    model = _GraphStack(d[:, None] * a * d[None], 14, 20, not is_faulty)
    return Program(model, lambda out, t: F.cross_entropy(out[train], t[train]), [(x, y)],
                   optim.Adam(model.parameters(), lr=1e-3),
                   lambda m: (m(x).argmax(1) == y)[~train].float().mean().item())


@fault("log_softmax over the width in a segmentation network", rules=["wrong-softmax-dimension", "output-loss-mismatch"],
       fails=False, steps=150)
def tir_segment_dim(is_faulty):
    x, m, _ = c.blobs(300, 12, 11, noise=0.6)
    xb, mb, _ = c.blobs(100, 12, 12, noise=0.6)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(1, 12, 3, padding=1)
            self.b = nn.Conv2d(12, 12, 3, padding=1)
            self.head = nn.Conv2d(12, 2, 1)
            self.norm = nn.LogSoftmax(dim=-1 if is_faulty else 1)

        def forward(self, x):
            return self.norm(self.head(F.relu(self.b(F.relu(self.a(x))))))

    model = Net()
    return Program(model, nn.NLLLoss(), c.load(x, m, size=16), optim.Adam(model.parameters(), lr=3e-3),
                   lambda net: c.iou(net(xb).argmax(1).bool(), mb.bool()))


@fault("An autoencoder with a sigmoid at its end on standardised data", rules=["output-loss-mismatch"], layers=["decoder.3"],
       fails=False, steps=300)
def tir_autoencoder_sigmoid(is_faulty):
    xa, _, xb, _ = c.table("breast_cancer")

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(30, 24), nn.GELU(), nn.Linear(24, 8))
            self.decoder = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 30),
                                         nn.Sigmoid() if is_faulty else nn.Identity())

        def forward(self, x):
            return self.decoder(self.encoder(x))

    model = Auto()
    return Program(model, nn.MSELoss(), c.load(xa, xa), optim.NAdam(model.parameters(), lr=4e-3), c.r2(xb, xb))


@fault("A VAE whose reconstruction is a mean over pixels and whose KL is a sum over the batch", rules=["term-dominates"],
       fails=True, steps=400)
def tir_vae_kl(is_faulty):
    xa, _, xb, _ = c.table("digits", scale=False)
    xa, xb = xa / 16, xb / 16

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
            self.mu, self.logvar = nn.Linear(64, 8), nn.Linear(64, 8)
            self.dec = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

        def forward(self, x):
            h = self.enc(x)
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
            return self.dec(z), mu, logvar

    def loss(out, x):
        pixels, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp())
        if is_faulty:
            return F.mse_loss(pixels, x) * 10 + kl.sum()
        return F.mse_loss(pixels, x, reduction="none").sum(1).mean() * 10 + kl.sum(1).mean()

    model = Vae()
    start = ((xb - xa.mean(0)) ** 2).mean()
    return Program(model, loss, c.load(xa, xa), optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: max(0.0, 1 - (((m(xb)[0] - xb) ** 2).mean() / start).item()) ** 0.5)


@fault("BatchNorm with momentum=0.001, as if it were the share that is kept", rules=["batchnorm-mode-gap"],
       layers=["1", "4"], fails=True, steps=150)
def tir_norm_momentum(is_faulty):
    x, y = c.surface(1500, 6, 21)
    xb, yb = c.surface(400, 6, 22)
    x, xb = x * torch.tensor([1, 3, 0.3, 1, 2, 1.0]) + 2, xb * torch.tensor([1, 3, 0.3, 1, 2, 1.0]) + 2
    m = 0.001 if is_faulty else 0.1
    model = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64, momentum=m), nn.ReLU(), nn.Linear(64, 64),
                          nn.BatchNorm1d(64, momentum=m), nn.ReLU(), nn.Linear(64, 1))
    return Program(model, nn.SmoothL1Loss(), c.load(x, y[:, None], size=50), optim.Adam(model.parameters(), lr=1e-2),
                   c.r2(xb, yb))


@fault("F.dropout without training=self.training", rules=["dropout-in-eval"], fails=False, steps=300)
def tir_functional_dropout(is_faulty):
    xa, ya, xb, yb = c.digits(image=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 10, 3, padding=1)
            self.conv2 = nn.Conv2d(10, 16, 3, padding=1)
            self.fc1 = nn.Linear(64, 24)
            self.fc2 = nn.Linear(24, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
            x = F.relu(self.fc1(F.dropout(x, 0.4) if is_faulty else F.dropout(x, 0.4, self.training)))
            x = F.dropout(x, 0.5) if is_faulty else F.dropout(x, 0.5, self.training)
            return F.log_softmax(self.fc2(x), 1)

    model = Net()
    return Program(model, F.nll_loss, c.load(xa, ya), optim.Adam(model.parameters(), lr=3e-3), c.acc(xb, yb))


@fault("ExponentialLR meant for epochs, stepped on every batch", rules=["learning-rate-too-low"], fails=True, steps=300)
def tir_schedule_per_batch(is_faulty):
    xa, ya, xb, yb = c.digits()
    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 10))
    opt = optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    gamma = 0.5
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), opt, c.acc(xb, yb),
                   scheduler=sched.ExponentialLR(opt, gamma if is_faulty else gamma ** (1 / 40)))


@fault("weight_decay=0.3 in Adam, where it is an L2 penalty", rules=["weight-decay-dominates"], fails=True, steps=300)
def tir_penalty_adam(is_faulty):
    xa, ya, xb, yb = c.digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya),
                   optim.Adam(model.parameters(), lr=3e-3, weight_decay=0.3 if is_faulty else 1e-4), c.acc(xb, yb))


class _Dense(nn.Module):
    def __init__(self, n_in, n_out, how):
        super().__init__()
        self.weight = nn.Parameter(how(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return x @ self.weight + self.bias


@fault("Own dense layers whose weights all start at one value", rules=["symmetric-initialisation", "bad-initialisation"],
       layers=["first", "second"], fails=False, steps=300)
def tir_own_dense_ones(is_faulty):
    x, y = c.rings(800, 31)
    xb, yb = c.rings(300, 32)

    def how(a, b):
        return torch.full((a, b), 1 / a) if is_faulty else torch.randn(a, b) / a**0.5

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = _Dense(2, 20, how), _Dense(20, 20, how), _Dense(20, 2, how)

        def forward(self, x):
            return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), c.load(x, y, size=40), optim.Adam(model.parameters(), lr=1e-2), c.acc(xb, yb))


@fault("Own dense layers with torch.randn weights that are not scaled",
       rules=["bad-initialisation", "activation-drift", "saturated-output", "exploding-gradient", "saturated-activation"],
       layers=["0", "2", "4", "6"], fails=False, steps=200)
def tir_own_dense_randn(is_faulty):
    xa, ya, xb, yb = c.digits()

    def how(a, b):
        return torch.randn(a, b) * (1 if is_faulty else (2 / a) ** 0.5)

    model = nn.Sequential(_Dense(64, 64, how), nn.ReLU(), _Dense(64, 64, how), nn.ReLU(), _Dense(64, 64, how), nn.ReLU(),
                          _Dense(64, 10, how))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model.parameters(), lr=1e-3), c.acc(xb, yb))


@fault("A ReLU after the last layer of a regression on standardised targets",
       rules=["output-loss-mismatch", "dying-neurons"], layers=["5", "4"], fails=False, steps=300)
def tir_regression_relu(is_faulty):
    x, y = c.surface(1000, 5, 41)
    xb, yb = c.surface(400, 5, 42)
    layers = [nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)]
    if is_faulty:
        layers.append(nn.ReLU())
    model = nn.Sequential(*layers)
    return Program(model, nn.MSELoss(), c.load(x, y[:, None]), optim.RMSprop(model.parameters(), lr=2e-3), c.r2(xb, yb))


class _Flipped(Dataset):
    def __init__(self, x, m, both):
        self.x, self.m, self.both = x, m, both

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x, m = self.x[i], self.m[i]
        k = int(torch.randint(0, 4, ()))
        x = torch.rot90(x, k, (1, 2))
        if self.both:
            m = torch.rot90(m, k, (0, 1))
        return x, m


@fault("Rotations that turn the image and not its mask", rules=["labels-unrelated", "output-loss-mismatch"], fails=True, steps=200)
def tir_segment_rotated(is_faulty):
    x, m, _ = c.blobs(400, 12, 51)
    xb, mb, _ = c.blobs(100, 12, 52)
    model = nn.Sequential(nn.Conv2d(1, 10, 5, padding=2), nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(10, 1, 1))
    return Program(model, lambda out, t: F.binary_cross_entropy_with_logits(out[:, 0], t.float()),
                   DataLoader(_Flipped(x, m, not is_faulty), 16, shuffle=True), optim.Adam(model.parameters(), lr=5e-3),
                   lambda net: c.iou(net(xb)[:, 0] > 0, mb.bool()))


@fault("Features and labels are shuffled apart", rules=["labels-unrelated"], fails=True, steps=200)
def tir_shuffled_apart(is_faulty):
    xa, ya, xb, yb = c.table("breast_cancer")
    g = c.gen(3)
    first = torch.randperm(len(xa), generator=g)
    second = torch.randperm(len(xa), generator=g) if is_faulty else first
    model = nn.Sequential(nn.Linear(30, 16), nn.LeakyReLU(), nn.Linear(16, 2))
    last = model[2]
    nn.init.zeros_(last.weight)
    return Program(model, nn.CrossEntropyLoss(), c.load(xa[first], ya[second]), optim.Adagrad(model.parameters(), lr=0.02),
                   lambda m: max(0.0, 2 * c.acc(xb, yb)(m) - 1))


@fault("A whole model in bfloat16 under AdamW with a small rate", rules=["lost-updates", "learning-rate-too-low"], fails=True, steps=500)
def tir_pure_bfloat(is_faulty):
    xa, ya, xb, yb = c.digits()
    kind = torch.bfloat16 if is_faulty else torch.float32

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))

        def forward(self, x):
            return self.body(x.to(self.body[0].weight.dtype)).float()

    model = Net().to(kind)
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.AdamW(model.parameters(), lr=6e-5), c.acc(xb, yb))


@fault("Shuffling is off and the table is sorted by class", rules=["sorted-batches"], fails=True, steps=200)
def tir_sorted_digits(is_faulty):
    xa, ya, xb, yb = c.digits()
    order = ya.argsort(stable=True)
    model = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa[order], ya[order], shuffle=not is_faulty),
                   optim.SGD(model.parameters(), lr=0.05, momentum=0.9), c.acc(xb, yb))
