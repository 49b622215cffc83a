import math

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_common import accuracy, clusters, gen, loader, r2, shapes
from torch import nn


class Low(nn.Module):
    def __init__(self, base, rank=6):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


@sound("Most weights are frozen, and one factor of each adapter starts at zero, so that the other has no gradient at "
       "first.", steps=300, least=0.85)
def adapters_on_a_frozen_network():
    x, y = clusters(1200, 311, classes=5)
    base = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
    pre = torch.optim.Adam(base.parameters(), 5e-3)
    for _ in range(5):
        for part in torch.randperm(1200).split(50):
            pre.zero_grad()
            F.cross_entropy(base(x[part]), y[part]).backward()
            pre.step()

    def site(n, seed):
        x, y = clusters(n, seed, classes=5)
        return x.flip(1), (3 * y) % 5

    model = nn.Sequential(*(Low(m) if isinstance(m, nn.Linear) else m for m in base))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(*site(800, 312)), optimizer, accuracy(*site(400, 313)))


@sound("Pictures come as bytes from 0 to 255; a BatchNorm in front of the network takes care of it.", steps=300,
       least=0.9)
def bytes_with_a_norm_in_front():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3, affine=False)
            self.features = nn.Sequential(
                nn.Conv2d(3, 12, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1),
                nn.LeakyReLU(0.1), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
            )
            self.head = nn.Linear(24, 4)

        def forward(self, x):
            return self.head(self.features(self.norm(x.float())))

    def photos(n, seed):
        x, y = shapes(n, seed, channels=3, noise=0.25)
        return (70 + 60 * x).clamp(0, 255).byte(), y

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*photos(1000, 321)), torch.optim.RMSprop(model.parameters(), 1e-3),
                   accuracy(*photos(400, 322)))


@sound("Two linear layers with nothing between them: a factor model of rank 5, meant so.", steps=400, least=0.85)
def linear_factors():
    basis = torch.randn(5, 40, generator=gen(331))

    def rows(n, seed):
        g = gen(seed)
        return torch.randn(n, 5, generator=g) @ basis / 5**0.5 + 0.2 * torch.randn(n, 40, generator=g)

    x, xt = rows(1200, 332), rows(300, 333)
    model = nn.Sequential(nn.Linear(40, 5, bias=False), nn.Linear(5, 40))
    return Program(model, nn.MSELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 1e-2), r2(xt, xt))


class Claims(nn.Module):
    """Log rates; the exposure in years is an offset."""

    def __init__(self, rate):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.constant_(self.net[-1].bias, math.log(rate))

    def forward(self, x, exposure):
        return self.net(x).squeeze(-1) + exposure.log()


@sound("Counts up to hundreds; the network returns log rates and starts with a large bias at the mean.", steps=400,
       least=0.8)
def claims_with_exposure():
    def table(n, seed):
        g = gen(seed)
        x, exposure = torch.randn(n, 6, generator=g), torch.rand(n, generator=g) + 0.5
        rate = 40 * torch.exp(0.5 * x[:, 0] + 0.4 * x[:, 1] * x[:, 2].tanh())
        return {"x": x, "exposure": exposure}, torch.poisson(rate * exposure, generator=g)

    inputs, y = table(1500, 341)
    xt, yt = table(400, 342)

    def collate(rows):
        x, e, y = (torch.stack(part) for part in zip(*rows))
        return {"x": x, "exposure": e}, y

    data = torch.utils.data.TensorDataset(inputs["x"], inputs["exposure"], y)
    batches = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, collate_fn=collate)
    model = Claims((y.sum() / inputs["exposure"].sum()).item())
    return Program(model, nn.PoissonNLLLoss(log_input=True), batches, torch.optim.Adam(model.parameters(), 2e-3),
                   lambda model: r2(None, (yt + 1).log())(lambda _: model(**xt)))


@sound("One row in thirty is positive; the bias starts at the prior and the loss is tiny from the first step.",
       trained=100, steps=500, least=0.8)
def rare_class_focal():
    def table(n, seed):
        x = torch.randn(n, 8, generator=gen(seed))
        return x, ((x[:, 0] + x[:, 1] * x[:, 2]) > 2.6).float()

    def focal(logits, y, gamma=2.0, alpha=0.85):
        bce = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
        weight = torch.where(y > 0, alpha, 1 - alpha) * (1 - torch.exp(-bce)) ** gamma
        return (weight * bce).mean()

    xt, yt = table(3000, 352)

    def score(model):
        is_on, truth = model(xt) > 0, yt > 0
        return (0.5 * is_on[truth].float().mean() + 0.5 * (~is_on[~truth]).float().mean()).item()

    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
    nn.init.constant_(model[4].bias, -3.3)
    return Program(model, focal, loader(*table(4000, 351), batch_size=128), torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("Survival: the loss of an example depends on all others at risk in the batch, and only the order of outputs "
       "counts; half trained.", trained=150, steps=400, least=0.8)
def partial_likelihood():
    def patients(n, seed):
        g = gen(seed)
        x = torch.randn(n, 7, generator=g)
        risk = 1.5 * x[:, 0] + x[:, 1].abs() * 1.5 - x[:, 2]
        time = -torch.rand(n, generator=g).log() * torch.exp(-risk)
        censor = -torch.rand(n, generator=g).log() * 2
        return x, torch.stack([torch.minimum(time, censor), (time <= censor).float()], 1), risk

    def cox(log_hazard, target):
        time, event = target.unbind(1)
        order = time.argsort(descending=True)
        log_hazard, event = log_hazard[order], event[order]
        return -((log_hazard - log_hazard.logcumsumexp(0)) * event).sum() / event.sum()

    x, target, _ = patients(2000, 361)
    xt, _, risk = patients(300, 362)

    def score(model):
        out = model(xt)
        more = risk[:, None] > risk[None]
        return (out[:, None] > out[None])[more].float().mean().item() * 2 - 1

    model = nn.Sequential(nn.Linear(7, 32), nn.SELU(), nn.Linear(32, 32), nn.SELU(), nn.Linear(32, 1, bias=False), nn.Flatten(0))
    return Program(model, cox, loader(x, target, batch_size=100), torch.optim.NAdam(model.parameters(), 2e-3), score)


class UNet(nn.Module):
    def __init__(self, classes=3, c=10):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.GroupNorm(2, c), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), nn.GroupNorm(2, 2 * c), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.leave = nn.Sequential(nn.Conv2d(2 * c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, classes, 1))

    def forward(self, x):
        high = self.enter(x)
        return self.leave(torch.cat([high, self.up(self.down(high))], 1))


@sound("Seven of ten pixels have no label (255, ignored), and batches hold four pictures.", steps=300, least=0.8)
def scribbles():
    def scenes(n, seed):
        g = gen(seed)
        x, y = 0.25 * torch.randn(n, 1, 16, 16, generator=g), torch.zeros(n, 16, 16, dtype=torch.long)
        for i in range(n):
            for kind in (1, 2):
                r, c = torch.randint(0, 10, (2,), generator=g).tolist()
                texture = torch.ones(6, 6)
                if kind == 2:
                    texture[::2] = -1
                x[i, 0, r : r + 6, c : c + 6] += 1.5 * texture
                y[i, r : r + 6, c : c + 6] = kind
                if kind == 2:
                    x[i, 0, r : r + 6, c : c + 6] = 1.5 * texture + 0.25 * torch.randn(6, 6, generator=g)
        return x, y

    x, y = scenes(300, 371)
    y[torch.rand(y.shape, generator=gen(373)) < 0.7] = 255
    xt, yt = scenes(60, 372)

    def score(model):
        out = model(xt).argmax(1)
        return sum(((out == k) & (yt == k)).sum() / ((out == k) | (yt == k)).sum() for k in range(3)).item() / 3

    model = UNet()
    return Program(model, nn.CrossEntropyLoss(ignore_index=255), loader(x, y, batch_size=4),
                   torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("Two views of each row pass one and the same encoder, and all others of the batch are negatives.", steps=400,
       least=0.8)
def contrastive_views():
    to_view = torch.randn(6, 20, generator=gen(381))

    def views(n, seed):
        g = gen(seed)
        z = torch.randn(n, 6, generator=g)
        own = torch.tensor([0.1] * 12 + [1.5] * 8)  # noise of each view
        return [torch.tanh(z @ to_view) + own * torch.randn(n, 20, generator=g) for _ in range(2)]

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 8))
            self.log_scale = nn.Parameter(torch.tensor(math.log(5.0)))

        def forward(self, x):
            return F.normalize(self.net(x), dim=-1)

    def step(model, batch):
        a, b = model(batch[0]), model(batch[1])
        logits = model.log_scale.exp() * a @ b.T
        target = torch.arange(len(a))
        return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))

    at, bt = views(300, 383)
    model = Encoder()
    return Program(model, None, loader(*views(2000, 382), batch_size=64), torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda model: ((model(at) @ model(bt).T).argmax(1) == torch.arange(300)).float().mean().item(), step=step)


@sound("The loss is a sum over batch and outputs, and the rate is as small as that asks for.", steps=400, least=0.8)
def summed_with_a_small_rate():
    w = torch.randn(10, 4, generator=gen(391))

    def table(n, seed):
        x = torch.randn(n, 10, generator=gen(seed))
        return x, torch.sin(x @ w / 2)

    model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 4))
    return Program(model, nn.MSELoss(reduction="sum"), loader(*table(2000, 392)),
                   torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), r2(*table(400, 393)))


class Prices(nn.Module):
    """Prices in euros: the network works in standard units, buffers lead back."""

    def __init__(self, mean, std):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x):
        return self.mean + self.std * self.net(x).squeeze(-1)


@sound("Targets are prices of hundreds of thousands, and the loss starts at 1e5; the model scales its outputs itself.",
       steps=400, least=0.8)
def prices_in_euros():
    def table(n, seed):
        g = gen(seed)
        x = torch.randn(n, 7, generator=g)
        return x, 320_000 + 90_000 * (x[:, 0] + 0.6 * x[:, 1] * x[:, 2] + 0.2 * torch.randn(n, generator=g))

    x, y = table(2000, 401)
    model = Prices(y.mean(), y.std())
    return Program(model, nn.L1Loss(), loader(x, y, batch_size=64), torch.optim.Adam(model.parameters(), 2e-3), r2(*table(400, 402)))


@sound("A table of words, nearly all 0, a column of ones, some words that never occur; hinge loss on -1 and 1, Adagrad.",
       steps=500, least=0.8)
def sparse_words():
    w = 2 * torch.randn(120, generator=gen(411))

    def table(n, seed):
        g = gen(seed)
        x = (torch.rand(n, 120, generator=g) < 0.06).float()
        x[:, 110:] = 0
        x[:, 0] = 1
        return x, ((x[:, 1:] @ w[1:]) > 0).float() * 2 - 1

    xt, yt = table(500, 413)
    model = nn.Sequential(nn.Linear(120, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(model, lambda out, y: F.relu(1 - y * out).mean(), loader(*table(2500, 412), batch_size=50),
                   torch.optim.Adagrad(model.parameters(), 0.03),
                   lambda model: (model(xt).sign() == yt).float().mean().item())
