import torch
import torch.nn.functional as F
from program import Program, fault, sound
from ti_data import accuracy, boxes, curve, gen, iou_of, loader, r2, r2_of, shapes, table
from torch import nn


def small_cnn(k=4, c=8):
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * c * 9, k),
    )


@fault("the collate function shuffles the images of a batch for augmentation but leaves the labels in their order",
       rules=["labels-unrelated", "output-loss-mismatch"], fails=True, steps=200)
def collate_shuffles_images(is_faulty):
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    g = gen(4)

    def collate(rows):
        images = torch.stack([r[0] for r in rows])
        labels = torch.stack([r[1] for r in rows])
        order = torch.randperm(len(rows), generator=g)
        images = images[order]
        if not is_faulty:
            labels = labels[order]
        return images, labels

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 64, shuffle=True, collate_fn=collate,
                                       generator=gen(1))
    m = small_cnn()
    return Program(m, nn.CrossEntropyLoss(), data, torch.optim.Adam(m.parameters(), 5e-3), accuracy(xt, yt))


@fault("the gate of a mixture of experts takes its softmax over the batch (dim=0), not over the experts",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["gate"], fails=True, steps=300)
def gate_over_batch(is_faulty):
    class Mixture(nn.Module):
        def __init__(self, d=8, experts=4):
            super().__init__()
            self.gate = nn.Linear(d, experts)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(d, 24), nn.Tanh(), nn.Linear(24, 1)) for _ in range(experts)
            )

        def forward(self, x):
            w = self.gate(x).softmax(0 if is_faulty else 1)
            return sum(w[:, i : i + 1] * e(x) for i, e in enumerate(self.experts)).squeeze(1)

    x, y = curve()
    xt, yt = curve(512, seed=6)
    m = Mixture()
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), r2_of(xt, yt))


@fault("binary codes of an autoencoder by torch.round, through which no gradient passes",
       rules=["no-gradient"], layers=["encoder"], fails=False, steps=400)
def rounded_codes(is_faulty):
    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 5))
            self.decoder = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 32))

        def forward(self, x):
            p = torch.sigmoid(self.encoder(x))
            b = torch.round(p)
            if not is_faulty:
                b = p + (b - p).detach()
            return self.decoder(b)

    g = gen(2)
    centres = torch.randn(12, 32, generator=g)
    which = torch.randint(0, 12, (2560,), generator=g)
    x = centres[which] + 0.3 * torch.randn(2560, 32, generator=g)
    m = Codes()
    return Program(m, nn.MSELoss(), loader(x[:2048], x[:2048]), torch.optim.Adam(m.parameters(), 5e-3),
                   r2_of(x[2048:], x[2048:]))


@fault("BatchNorm momentum of 0.001, so that the running statistics hardly move within the run",
       rules=["batchnorm-mode-gap"], layers=["1", "5"], fails=True, steps=200)
def tiny_batchnorm_momentum(is_faulty):
    mom = 0.001 if is_faulty else 0.1
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    x, xt = 60 * x + 100, 60 * xt + 100
    x, xt = x / 64, xt / 64
    m = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=mom), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16, momentum=mom), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(144, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(xt, yt))


@fault("two tasks whose losses are added, one of them a squared error in units of currency",
       rules=["term-dominates", "unscaled-target"], fails=True, steps=250)
def added_in_dollars(is_faulty):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
            self.kind = nn.Linear(32, 4)
            self.price = nn.Linear(32, 1)

        def forward(self, x):
            h = self.shared(x)
            return self.kind(h), self.price(h).squeeze(1)

    x, y = table()
    xt, yt = table(512, seed=4)
    price = 900 + 400 * (x[:, 5] * x[:, 6]) + 300 * x[:, 4]
    if not is_faulty:
        price = (price - price.mean()) / price.std()
    m = Two()

    def step(model, batch):
        a, b, c = batch
        kind, cost = model(a)
        return F.cross_entropy(kind, b) + F.mse_loss(cost, c)

    def score(model):
        return (model(xt)[0].argmax(1) == yt).float().mean().item()

    return Program(m, None, loader(x, y, price), torch.optim.Adam(m.parameters(), 5e-3), score, step=step)


@fault("PoissonNLLLoss with its log_input=True for a network that ends in Softplus and returns rates",
       rules=["output-loss-mismatch"], layers=["4"], fails=True, steps=300)
def rates_as_log_rates(is_faulty):
    x, y = curve()
    xt, yt = curve(512, seed=6)
    rate, rate_t = torch.exp(0.9 * y - 1.5), torch.exp(0.9 * yt - 1.5)
    n = torch.poisson(rate, generator=gen(3))
    layers = [nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0)]
    if is_faulty:
        layers.append(nn.Softplus())
    m = nn.Sequential(*layers)
    return Program(m, nn.PoissonNLLLoss(log_input=True), loader(x, n), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: r2(model(xt).clamp(max=5), rate_t.log()))
