import torch
import torch.nn.functional as F
from program import Program, fault, sound
from ti_data import accuracy, boxes, curve, gen, iou_of, loader, r2, r2_of, shapes, table
from ti_f1 import small_cnn
from torch import nn


@sound("a summed loss with a rate that was chosen for the sum", steps=250, least=0.65)
def sum_with_its_rate():
    x, mask, _ = boxes()
    xt, mt, _ = boxes(512, seed=10)
    m = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                      nn.Conv2d(8, 1, 1))
    return Program(m, nn.BCEWithLogitsLoss(reduction="sum"), loader(x, mask, batch=32),
                   torch.optim.Adam(m.parameters(), 5e-3), iou_of(xt, mt))


@sound("one positive in fifteen, drawn evenly by a weighted sampler", steps=250, least=0.65)
def weighted_sampler():
    def rare(x):
        return ((x[:, 0] > 0.8) & (x[:, 1] > 0.5)).long()

    x, xt = table(4096)[0], table(2048, seed=4)[0]
    y, yt = rare(x), rare(xt)
    g = gen(1)
    w = 1.0 / torch.bincount(y).float()[y]
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), 64,
        sampler=torch.utils.data.WeightedRandomSampler(w, len(x), generator=g))
    m = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))

    def score(k):
        p = k(xt).argmax(1)
        return max(0.0, (p[yt == 1].float().mean() + (1 - p[yt == 0].float()).mean() - 1).item())

    return Program(m, nn.CrossEntropyLoss(), data, torch.optim.Adam(m.parameters(), 5e-3), score)


@sound("a quarter of the labels are wrong: the loss stays high, and the network learns all the same", steps=250, least=0.7)
def noisy_labels():
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    g = gen(6)
    flip = torch.rand(len(y), generator=g) < 0.25
    y = torch.where(flip, torch.randint(0, 4, y.shape, generator=g), y)
    m = small_cnn()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3, weight_decay=1e-4),
                   accuracy(xt, yt))


@sound("mixup in the training step: inputs and soft targets of two examples are mixed", steps=300, least=0.7)
def mixup_step():
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = small_cnn()

    def step(model, batch):
        a, b = batch
        lam = 0.8 + 0.2 * torch.rand(())
        order = torch.randperm(len(a))
        out = model(lam * a + (1 - lam) * a[order])
        return lam * F.cross_entropy(out, b) + (1 - lam) * F.cross_entropy(out, b[order])

    return Program(m, None, loader(x, y), torch.optim.Adam(m.parameters(), 4e-3), accuracy(xt, yt), step=step)


@sound("an autoencoder whose decoder uses the encoder's weight, transposed", steps=300, least=0.65)
def tied_decoder():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 40) * 0.15)
            self.hidden = nn.Parameter(torch.zeros(6))
            self.visible = nn.Parameter(torch.zeros(40))

        def forward(self, x):
            return F.linear(F.linear(x, self.weight, self.hidden), self.weight.t(), self.visible)

    g = gen(12)
    x = torch.randn(2560, 6, generator=g) @ torch.randn(6, 40, generator=g) / 2.4
    x = x + 0.2 * torch.randn(x.shape, generator=g)
    m = Tied()
    return Program(m, nn.MSELoss(), loader(x[:2048], x[:2048]), torch.optim.Adam(m.parameters(), 1e-2),
                   r2_of(x[2048:], x[2048:]))


@sound("categories as one-hot columns: most cells are zero and some columns are rare", steps=250, least=0.7)
def one_hot_columns():
    g = gen(13)
    cats = torch.stack([(torch.rand(3072, generator=g) ** 2 * k).long() for k in (6, 9, 14)], 1)
    hot = torch.cat([F.one_hot(cats[:, i], k) for i, k in enumerate((6, 9, 14))], 1).float()
    effect = torch.randn(29, 3, generator=g)
    y = (hot @ effect + 0.8 * hot[:, :1] * (hot @ torch.randn(29, 3, generator=g))).argmax(1)
    m = nn.Sequential(nn.Linear(29, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(m, nn.CrossEntropyLoss(), loader(hot[:2560], y[:2560]), torch.optim.Adam(m.parameters(), 1e-2),
                   accuracy(hot[2560:], y[2560:]))


@sound("fine-tuning with BatchNorm kept in eval mode, a low rate for the body and a high one for the head",
       trained=60, steps=250, least=0.75)
def batchnorm_kept_in_eval():
    def net(k):
        body = nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Conv2d(12, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
        return nn.Sequential(body, nn.Linear(144, k))

    x, y = shapes(seed=31)
    m = net(4)
    pre = torch.optim.Adam(m.parameters(), 3e-3)
    for i in range(0, 1536, 32):
        pre.zero_grad()
        F.cross_entropy(m(x[i : i + 32]), y[i : i + 32]).backward()
        pre.step()
    pre.zero_grad()
    m[1] = nn.Linear(144, 4)
    for mod in m.modules():
        if isinstance(mod, nn.BatchNorm2d):
            mod.eval()
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    opt = torch.optim.Adam([{"params": m[0].parameters(), "lr": 2e-4}, {"params": m[1].parameters(), "lr": 5e-3}])
    return Program(m, nn.CrossEntropyLoss(), loader(x, (y + 1) % 4), opt, accuracy(xt, (yt + 1) % 4))


@sound("two tasks, the squared error of the one in large units and weighted down for it", steps=300, least=0.65)
def weighted_tasks():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.kind, self.amount = nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, x):
            h = self.shared(x)
            return {"kind": self.kind(h), "amount": 20 * self.amount(h).squeeze(1)}

    x, y = table()
    xt, yt = table(512, seed=4)
    a, at = 20 * x[:, 4] + 10 * x[:, 5].abs(), 20 * xt[:, 4] + 10 * xt[:, 5].abs()
    m = Two()

    def step(model, batch):
        out = model(batch[0])
        return F.cross_entropy(out["kind"], batch[1]) + 0.002 * F.mse_loss(out["amount"], batch[2])

    def score(k):
        out = k(xt)
        return 0.5 * (out["kind"].argmax(1) == yt).float().mean().item() + 0.5 * r2(out["amount"], at)

    return Program(m, None, loader(x, y, a), torch.optim.Adam(m.parameters(), 4e-3), score, step=step)


@sound("prices in hundreds of thousands that the network scales inside itself, with a relative loss", steps=300, least=0.7)
def scaled_inside():
    class Price(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("centre", torch.tensor(250_000.0))
            self.register_buffer("spread", torch.tensor(60_000.0))
            self.f = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, x):
            return self.centre + self.spread * self.f(x).squeeze(1)

    x, y = curve()
    xt, yt = curve(512, seed=6)
    y, yt = 250_000 + 60_000 * y, 250_000 + 60_000 * yt
    m = Price()
    return Program(m, lambda o, t: ((o - t) / 60_000).pow(2).mean(), loader(x, y),
                   torch.optim.Adam(m.parameters(), 4e-3), r2_of(xt, yt))


@sound("boxes as fractions from a sigmoid, and only images that hold an object count in the box loss",
       steps=350, least=0.6)
def boxes_where_present():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.back = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                      nn.Linear(432, 64), nn.ReLU())
            self.there, self.where = nn.Linear(64, 1), nn.Linear(64, 4)

        def forward(self, x):
            h = self.back(x)
            return self.there(h).squeeze(1), self.where(h).sigmoid()

    def data(n, seed):
        x, mask, box = boxes(n, seed=seed)
        there = torch.rand(n, generator=gen(seed + 50)) < 0.6
        x = x - mask * (~there).float()[:, None, None, None]
        return x, there.float(), torch.where(there[:, None], box, torch.zeros(()))

    x, t, b = data(1536, 9)
    xt, tt, bt = data(512, 10)
    m = Detector()

    def step(model, batch):
        there, where = model(batch[0])
        on = batch[1] > 0
        return F.binary_cross_entropy_with_logits(there, batch[1]) + 10 * F.smooth_l1_loss(where[on], batch[2][on])

    return Program(m, None, loader(x, t, b), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda k: r2(k(xt)[1][tt > 0], bt[tt > 0]), step=step)
