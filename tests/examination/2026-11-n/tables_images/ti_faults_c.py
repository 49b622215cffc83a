import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, gen, loader, r2, shapes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BasketModel(nn.Module):
    """Rates a customer by the items of a basket: dict inputs `items` (B, 10, 6) and `is_item` (B, 10)."""

    def __init__(self, is_faulty, d=24):
        super().__init__()
        self.item = nn.Sequential(nn.Linear(6, d), nn.ReLU(), nn.Linear(d, d))
        self.query = nn.Parameter(0.3 * torch.randn(d))
        self.out = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 1))
        self.is_faulty = is_faulty

    def forward(self, items, is_item):
        h = self.item(items)
        hidden = is_item if self.is_faulty else ~is_item
        weights = (h @ self.query).masked_fill(hidden, float("-inf")).softmax(1)
        return self.out((weights.unsqueeze(-1) * h).sum(1)).squeeze(-1)


@fault(
    "The collate function gives True where there is an item, and the attention hides what is True: only padding is "
    "seen.",
    rules=["wrong-mask", "labels-unrelated", "rank-collapse"], fails=True, steps=500,
)
def items_hidden(is_faulty):
    w = torch.randn(6, generator=gen(141))

    def baskets(n, seed):
        g = gen(seed)
        out = []
        for _ in range(n):
            items = torch.randn(int(torch.randint(1, 8, (1,), generator=g)), 6, generator=g)
            out.append((items, torch.relu(items @ w).mean()))
        return out

    def collate(rows):
        items, is_item = torch.zeros(len(rows), 10, 6), torch.zeros(len(rows), 10, dtype=torch.bool)
        for i, (basket, _) in enumerate(rows):
            items[i, : len(basket)], is_item[i, : len(basket)] = basket, True
        return {"items": items, "is_item": is_item}, torch.stack([y for _, y in rows])

    xt, yt = collate(baskets(300, 143))
    model = BasketModel(is_faulty)
    train = DataLoader(baskets(1000, 142), batch_size=32, shuffle=True, collate_fn=collate)
    return Program(model, nn.SmoothL1Loss(), train, torch.optim.Adam(model.parameters(), 3e-3),
                   lambda model: r2(None, yt)(lambda _: model(**xt)))


def boxes(n, seed):
    g = gen(seed)
    size = torch.randint(5, 11, (n, 2), generator=g)
    corner = (torch.rand(n, 2, generator=g) * (20 - size)).long()
    x = 0.2 * torch.randn(n, 1, 20, 20, generator=g)
    for image, (w, h), (left, top) in zip(x, size.tolist(), corner.tolist()):
        image[0, top : top + h, left : left + w] += 1
    return x, torch.cat([corner, corner + size], 1).float()


def iou(a, b):
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    area = [(c[:, 2:] - c[:, :2]).clamp(min=0).prod(1) for c in (a, b)]
    return inner / (area[0] + area[1] - inner).clamp(min=1e-6)


@fault(
    "The box head ends in a sigmoid, made for corners as shares of the picture, and the annotations are in pixels.",
    rules=["output-loss-mismatch", "unscaled-target", "saturated-output"], fails=True, steps=500,
)
def boxes_in_pixels(is_faulty):
    x, box = boxes(1200, 151)
    if not is_faulty:
        box = box / 20
    xt, boxt = boxes(300, 152)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 4), nn.Sigmoid(),
    )
    return Program(model, nn.SmoothL1Loss(), loader(x, box), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda model: iou(model(xt) * 20, boxt).mean().item())


class Churn(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 48), nn.Linear(48, 24), nn.Linear(24, 1)
        self.is_faulty = is_faulty

    def forward(self, x):
        x = self.fc1(x)
        if self.is_faulty:
            F.relu(x)
        else:
            x = F.relu(x)
        x = self.fc2(x)
        if self.is_faulty:
            F.relu(x)
        else:
            x = F.relu(x)
        return self.fc3(x).squeeze(-1)


@fault(
    "F.relu(x) is called as if it worked in place, and what it returns is thrown away.",
    rules=["no-nonlinearity"], fails=True, steps=500,
)
def relu_thrown_away(is_faulty):
    def table(n, seed):
        x = torch.randn(n, 8, generator=gen(seed))
        return x, ((x[:, 0] * x[:, 1] + 0.7 * (x[:, 2].abs() - 0.8)) > 0).float()

    xt, yt = table(500, 162)
    model = Churn(is_faulty)
    return Program(model, nn.BCEWithLogitsLoss(), loader(*table(2000, 161), batch_size=64),
                   torch.optim.Adam(model.parameters(), 4e-3),
                   lambda model: ((model(xt) > 0) == (yt > 0.5)).float().mean().item())


class MeanAndVariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.mean = nn.Linear(48, 1)
        self.log_var = nn.Linear(48, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.mean(h).squeeze(-1), self.log_var(h).squeeze(-1)


@fault(
    "A Gaussian likelihood by hand multiplies the squared error with exp(log_var) instead of exp(-log_var): the "
    "variance runs to 0 and takes the error with it.",
    rules=["output-loss-mismatch", "term-dominates"], layers=["log_var", "mean", "trunk"],
    fails=True, steps=500,
)
def precision_upside_down(is_faulty):
    sign = 1 if is_faulty else -1

    def loss(outputs, y):
        mean, log_var = outputs
        return 0.5 * (log_var + (y - mean).pow(2) * torch.exp(sign * log_var)).mean()

    def table(n, seed):
        g = gen(seed)
        x = torch.randn(n, 5, generator=g)
        clean = torch.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
        return x, clean + 0.3 * x[:, 3].abs() * torch.randn(n, generator=g), clean

    x, y, _ = table(1500, 171)
    xt, _, clean = table(400, 172)
    model = MeanAndVariance()
    return Program(model, loss, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   r2(xt, clean, lambda out: out[0]))


class Ratings(nn.Module):
    """Users and films as vectors; a rating is the agreement of their sum with a fixed direction."""

    def __init__(self, users, films, d):
        super().__init__()
        self.users, self.films = nn.Embedding(users, d), nn.Embedding(films, d)
        self.register_buffer("direction", torch.ones(d) / d**0.5)

    def forward(self, pairs):
        return ((self.users(pairs[:, 0]) + self.films(pairs[:, 1])) @ self.direction).float()


@fault(
    "To save memory the vectors of a recommender are kept in bfloat16, where a step of 0.001 on an entry near 1 is "
    "rounded away.",
    rules=["lost-updates", "learning-rate-too-low"], layers=["users", "films"], fails=True, steps=600,
)
def vectors_in_bfloat16(is_faulty):
    g = gen(181)
    u, v = torch.randn(50, generator=g), torch.randn(40, generator=g)
    pairs = torch.cartesian_prod(torch.arange(50), torch.arange(40))[torch.randperm(2000, generator=g)]
    y = u[pairs[:, 0]] + v[pairs[:, 1]] + 0.3 * torch.randn(2000, generator=g)
    model = Ratings(50, 40, 32)
    if is_faulty:
        model = model.to(torch.bfloat16)
    return Program(model, nn.MSELoss(), loader(pairs[:1600], y[:1600], batch_size=100),
                   torch.optim.Adam(model.parameters(), lr=1e-3), r2(pairs[1600:], y[1600:]))


class ByFolder(torch.utils.data.Sampler):
    """Batches from one folder after the other, which the disk likes."""

    def __init__(self, labels, batch_size, is_faulty):
        self.labels, self.batch_size, self.is_faulty = labels, batch_size, is_faulty

    def __len__(self):
        return len(self.labels) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.labels))
        if self.is_faulty:
            order = order[self.labels[order].argsort(stable=True)]
        for part in order.split(self.batch_size)[: len(self)]:
            yield part.tolist()


@fault(
    "A batch sampler shuffles within the folders of the classes only, and goes through one folder after the other.",
    rules=["sorted-batches"], fails=True, steps=400,
)
def folder_after_folder(is_faulty):
    x, y = shapes(800, 191)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, 4),
    )
    batches = DataLoader(TensorDataset(x, y), batch_sampler=ByFolder(y, 32, is_faulty))
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.SGD(model.parameters(), 0.02, momentum=0.9),
                   accuracy(*shapes(400, 192)))
