import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn, optim
from torch.optim import lr_scheduler as sched
from torch.utils.data import DataLoader

import tir_common as c


@fault("BatchNorm with batches of two", rules=["small-batch-batchnorm", "batchnorm-mode-gap"], fails=False, steps=400)
def tir_pairs_batchnorm(is_faulty):
    xa, ya, xb, yb = c.digits(image=True)

    def norm(k):
        return nn.BatchNorm1d(k) if is_faulty else nn.LayerNorm(k)

    model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32), norm(32), nn.ReLU(),
                          nn.Linear(32, 32), norm(32), nn.ReLU(), nn.Linear(32, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, size=2, drop_last=True), optim.Adam(model.parameters(), lr=2e-3),
                   c.acc(xb, yb))


@fault("One BatchNorm for two branches whose inputs differ", rules=["shared-weight", "batchnorm-mode-gap"], layers=["norm"],
       fails=True, steps=250)
def tir_branches_one_norm(is_faulty):
    def data(n, seed):
        x, y = c.surface(n, 8, seed)
        return torch.cat([x[:, :4], 12 + 5 * x[:, 4:], ], 1), y + 0.8 * x[:, 5] * x[:, 6]

    x, y = data(1500, 61)
    xb, yb = data(400, 62)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 32), nn.Linear(4, 32)
            self.norm = nn.BatchNorm1d(32)
            self.norm2 = self.norm if is_faulty else nn.BatchNorm1d(32)
            self.top = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            a = F.relu(self.norm(self.left(x[:, :4])))
            b = F.relu(self.norm2(self.right(x[:, 4:])))
            return self.top(torch.cat([a, b], 1)).squeeze(1)

    model = Net()
    return Program(model, nn.MSELoss(), c.load(x, y), optim.Adam(model.parameters(), lr=5e-3), c.r2(xb, yb))


@fault("A deep network of sigmoids", rules=["vanishing-gradient", "rank-collapse", "saturated-activation"], fails=True, steps=300)
def tir_deep_sigmoid(is_faulty):
    xa, ya, xb, yb = c.table("wine")
    act = nn.Sigmoid if is_faulty else nn.ReLU
    layers = [nn.Linear(13, 24), act()]
    for _ in range(7):
        layers += [nn.Linear(24, 24), act()]
    model = nn.Sequential(*layers, nn.Linear(24, 3))
    for m in model:
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            nn.init.zeros_(m.bias)
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, size=16), optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True),
                   c.acc(xb, yb))


@fault("Biases of hidden layers start at -3", rules=["dying-neurons", "bad-initialisation"], layers=["net.0", "net.2"], fails=True, steps=250)
def tir_negative_bias(is_faulty):
    xa, ya, xb, yb = c.digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
            for m in self.net:
                if isinstance(m, nn.Linear) and m.out_features == 48:
                    nn.init.constant_(m.bias, -3.0 if is_faulty else 0.0)

        def forward(self, x):
            return self.net(x)

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.SGD(model.parameters(), lr=0.05), c.acc(xb, yb))


def _labels(n, seed):
    """Ten features, eight labels that are each on in a quarter of the rows."""
    g = c.gen(seed)
    w = torch.randn(10, 8, generator=c.gen(77))
    x = torch.randn(n, 10, generator=g)
    z = x @ w / w.norm(dim=0) + 0.5 * (x[:, :8] * x[:, 1:9] - 0.3)
    return x, (z > 0.7).float()


def _f1(x, y, at=0.0):
    def score(m):
        hit = m(x) > at
        both = (hit & (y > 0)).sum()
        return (2 * both / (hit.sum() + y.sum()).clamp(min=1)).item()

    return score


@fault("CrossEntropyLoss on multi-hot targets", rules=["output-loss-mismatch"], fails=False, steps=300)
def tir_multilabel_cross_entropy(is_faulty):
    x, y = _labels(1000, 1)
    xb, yb = _labels(300, 2)
    model = nn.Sequential(nn.Linear(10, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 8))
    loss = nn.CrossEntropyLoss() if is_faulty else nn.BCEWithLogitsLoss()
    return Program(model, loss, c.load(x, y), optim.AdamW(model.parameters(), lr=3e-3), _f1(xb, yb))


@fault("A softmax over labels that are independent, before BCELoss", rules=["output-loss-mismatch"], layers=["act"], fails=False, steps=300)
def tir_multilabel_softmax(is_faulty):
    x, y = _labels(1000, 3)
    xb, yb = _labels(300, 4)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.tags = nn.Linear(64, 8)
            self.act = nn.Softmax(dim=1) if is_faulty else nn.Sigmoid()

        def forward(self, x):
            return self.act(self.tags(self.trunk(x)))

    model = Tagger()
    return Program(model, nn.BCELoss(), c.load(x, y), optim.Adamax(model.parameters(), lr=6e-3), _f1(xb, yb, 0.5))


@fault("A sigmoid in the model and BCEWithLogitsLoss", rules=["output-loss-mismatch"], fails=True, steps=300)
def tir_sigmoid_twice(is_faulty):
    x, y = _labels(1000, 5)
    xb, yb = _labels(300, 6)
    end = [nn.Sigmoid()]
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8), *end)
    loss = nn.BCEWithLogitsLoss() if is_faulty else nn.BCELoss()
    return Program(model, loss, c.load(x, y), optim.Adam(model.parameters(), lr=3e-3), _f1(xb, yb, 0.5))


@fault("Segmentation logits are flattened with view, labels by pixel: channels and pixels change places",
       rules=["output-loss-mismatch", "labels-unrelated"], fails=True, steps=200)
def tir_segment_view(is_faulty):
    x, m, _ = c.blobs(300, 12, 13)
    xb, mb, _ = c.blobs(100, 12, 14)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(12, 3, 1))
    m2 = m + m * (x[:, 0] > 1.5)
    m2b = mb + mb * (xb[:, 0] > 1.5)

    def loss(out, t):
        flat = out.view(-1, 3) if is_faulty else out.permute(0, 2, 3, 1).reshape(-1, 3)
        return F.cross_entropy(flat, t.view(-1))

    return Program(model, loss, c.load(x, m2, size=16), optim.Adam(model.parameters(), lr=5e-3),
                   lambda net: c.iou(net(xb).argmax(1) == 2, m2b == 2))


@fault("MSELoss(reduction='sum') with the rate for a mean", rules=["summed-loss", "learning-rate-too-high", "diverging"], fails=True, steps=300)
def tir_sum_reduction(is_faulty):
    x, y = c.surface(1024, 6, 71)
    xb, yb = c.surface(400, 6, 72)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    opt = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Program(model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), c.load(x, y, size=64), opt, c.r2(xb, yb))


@fault("Targets in their own unit, which is hundreds", rules=["unscaled-target"], fails=True, steps=300)
def tir_diabetes_units(is_faulty):
    xa, ya, xb, yb = c.table("diabetes")
    noiseless = torch.linalg.lstsq(xa, (ya - ya.mean())[:, None]).solution[:, 0]
    ya, yb = 150 + 60 * torch.tanh(xa @ noiseless / 40), 150 + 60 * torch.tanh(xb @ noiseless / 40)
    mean, std = (0.0, 1.0) if is_faulty else (ya.mean().item(), ya.std().item())
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    model.unit = (mean, std)
    return Program(model, nn.MSELoss(), c.load(xa, ((ya - mean) / std)[:, None]), optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: c.r2_of(m(xb) * m.unit[1] + m.unit[0], yb))


def _corners(n, seed):
    """Images of four patches; whether the two marked patches lie on a diagonal."""
    g = c.gen(seed)
    kind = torch.randint(0, 4, (n,), generator=g)
    x = 0.4 * torch.randn(n, 4, 9, generator=g)
    mark = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1, 1])
    places = torch.tensor([[0, 3], [1, 2], [0, 1], [2, 3]])[kind]
    for k in range(2):
        x[torch.arange(n), places[:, k]] += 1.2 * mark
    return x, kind


@fault("Patches of an image without an encoding of their places", rules=["order-lost"], fails=True, steps=300)
def tir_patches_unplaced(is_faulty):
    x, y = _corners(1000, 1)
    xb, yb = _corners(300, 2)

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(9, 24)
            self.block = nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True, norm_first=True)
            self.head = nn.Linear(24, 4)
            self.place = None if is_faulty else nn.Parameter(0.3 * torch.randn(4, 24))

        def forward(self, x):
            h = self.embed(x)
            if self.place is not None:
                h = h + self.place
            return self.head(self.block(h).mean(1))

    model = Patches()
    return Program(model, nn.CrossEntropyLoss(), c.load(x, y), optim.AdamW(model.parameters(), lr=4e-3), c.acc(xb, yb))


@fault("Attention over tokens of features without batch_first, so that it runs over the batch", rules=["mixed-examples"],
       layers=["attend"], fails=True, steps=450)
def tir_tokens_batch_second(is_faulty):
    x, y = c.surface(1200, 5, 81)
    xb, yb = c.surface(400, 5, 82)

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(5, 16))
            self.shift = nn.Parameter(torch.randn(5, 16))
            self.cls = nn.Parameter(torch.randn(16))
            self.attend = nn.MultiheadAttention(16, 2, batch_first=not is_faulty)
            self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))

        def forward(self, x):
            h = x[:, :, None] * self.scale + self.shift
            h = torch.cat([self.cls.expand(len(x), 1, 16), h], 1)
            h = h + self.attend(h, h, h, need_weights=False)[0]
            return self.mlp(h[:, 0]).squeeze(1)

    model = Tokens()
    return Program(model, nn.MSELoss(), c.load(x, y), optim.Adam(model.parameters(), lr=5e-3), c.r2(xb, yb))


@fault("The encoder runs under no_grad, though it is to be trained", rules=["no-gradient"], layers=["encoder"], fails=False, steps=300)
def tir_encoder_no_grad(is_faulty):
    x, y = c.surface(1200, 6, 91)
    xb, yb = c.surface(400, 6, 92)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU())
            self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, x):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not is_faulty):
                h = self.encoder(x)
            return self.head(h)[:, 0]

    model = Net()
    opt = optim.Adam([{"params": model.encoder.parameters(), "lr": 4e-3}, {"params": model.head.parameters(), "lr": 8e-3}])
    return Program(model, nn.HuberLoss(), c.load(x, y), opt, c.r2(xb, yb))


@fault("InstanceNorm right before global average pooling: every channel's mean is 0",
       rules=["rank-collapse", "constant-feature", "no-gradient", "loss-not-decreasing"], layers=["7", "8"], fails=True, steps=200)
def tir_instance_norm_pool(is_faulty):
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.InstanceNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1),
                          nn.InstanceNorm2d(32) if is_faulty else nn.BatchNorm2d(32),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model.parameters(), lr=5e-3), c.acc(xb, yb))


@fault("No activations between the linear layers", rules=["no-nonlinearity"], fails=True, steps=300)
def tir_rings_linear(is_faulty):
    x, y = c.rings(800, 33)
    xb, yb = c.rings(300, 34)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 1)
            self.drop = nn.Dropout(0.05)

        def forward(self, x):
            if is_faulty:
                return self.fc3(self.drop(self.fc2(self.fc1(x))))
            return self.fc3(self.drop(F.relu(self.fc2(F.relu(self.fc1(x))))))

    model = Net()
    return Program(model, nn.BCEWithLogitsLoss(), c.load(x, y.float()[:, None]), optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: max(0.0, 2 * c.binary(xb, yb)(m) - 1))


@fault("Adam with eps=1, copied from another library's RMSprop", rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=300)
def tir_adam_epsilon(is_faulty):
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model.parameters(), lr=1e-3, eps=1.0 if is_faulty else 1e-8),
                   c.acc(xb, yb))


@fault("Dropout(0.95), where 0.95 was to be kept", rules=["dropout-too-strong"], layers=["2", "5"], fails=True, steps=250)
def tir_keep_probability(is_faulty):
    xa, ya, xb, yb = c.digits()
    p = 0.95 if is_faulty else 0.05
    model = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Dropout(p), nn.Linear(40, 40), nn.ReLU(), nn.Dropout(p), nn.Linear(40, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.AdamW(model.parameters(), lr=2e-3), c.acc(xb, yb))


@fault("Pixels in 0 to 1 are cast to integers on the way", rules=["constant-feature"], fails=True, steps=250)
def tir_pixels_integer(is_faulty):
    xa, ya, xb, yb = c.table("digits", scale=False)

    def prepare(x):
        return (x / 17).long() if is_faulty else x / 17

    def collate(rows):
        return torch.stack([prepare(r[0]).float() for r in rows]), torch.stack([r[1] for r in rows])

    held = prepare(xb).float()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model.held = held
    loader = DataLoader(list(zip(xa, ya, strict=True)), 32, shuffle=True, collate_fn=collate)
    return Program(model, nn.CrossEntropyLoss(), loader, optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: (m(m.held).argmax(1) == yb).float().mean().item())


@fault("Boxes are divided by the image size as integers: all targets are 0", rules=["constant-target"], fails=True, steps=250)
def tir_boxes_floor(is_faulty):
    x, _, b = c.blobs(500, 12, 15)
    xb, _, bb = c.blobs(150, 12, 16)
    t = (b // 13 if is_faulty else b / 13)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
                          nn.Linear(288, 4))
    return Program(model, nn.SmoothL1Loss(beta=0.05), c.load(x, t), optim.Adam(model.parameters(), lr=3e-3), c.r2(xb, bb / 13))


@fault("The hidden biases start at 10: every ReLU is on", rules=["full-neurons", "bad-initialisation", "no-nonlinearity"], layers=["0", "2"],
       fails=True, steps=250)
def tir_positive_bias(is_faulty):
    x, y = c.rings(800, 35)
    xb, yb = c.rings(300, 36)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))
    for m in (model[0], model[2]):
        nn.init.constant_(m.bias, 10.0 if is_faulty else 0.1)
    return Program(model, nn.CrossEntropyLoss(), c.load(x, y), optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: max(0.0, 2 * c.acc(xb, yb)(m) - 1))


@fault("Measurements around 20 that are not centred", rules=["unscaled-input", "ill-conditioned-input", "saturated-activation"], fails=True, steps=300)
def tir_uncentred(is_faulty):
    def data(n, seed):
        x, y = c.surface(n, 6, seed)
        return x, y + 0.8 * x[:, 4]

    x, y = data(1000, 101)
    xb, yb = data(400, 102)
    shift = 20.0 if is_faulty else 0.0
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1))
    model.shift = shift
    return Program(model, nn.MSELoss(), c.load(x + shift, y[:, None]), optim.SGD(model.parameters(), lr=0.03, momentum=0.9),
                   lambda m: c.r2_of(m(xb + m.shift), yb))


@fault("Classes are numbered from 1 for a head of three", rules=["output-loss-mismatch", "model-fails"], fails=True, steps=150)
def tir_classes_from_one(is_faulty):
    xa, ya, xb, yb = c.table("iris")
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya + 1 if is_faulty else ya, size=16), optim.SGD(model.parameters(), lr=0.1), c.acc(xb, yb))


@fault("A table with missing values", rules=["non-finite"], fails=True, steps=200)
def tir_missing_values(is_faulty):
    xa, ya, xb, yb = c.table("breast_cancer")
    xa = xa.clone()
    holes = torch.rand(xa.shape, generator=c.gen(9)) < 0.003
    xa[holes] = float("nan") if is_faulty else 0.0
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 2))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.RAdam(model.parameters(), lr=5e-3), 
                   lambda m: max(0.0, 2 * c.acc(xb, yb)(m) - 1))


@fault("A layer of distances takes the square root at 0", rules=["non-finite"], layers=["distances", "embed"], fails=True, steps=250)
def tir_distance_root(is_faulty):
    def data(n, seed):
        g = c.gen(seed)
        x = torch.randn(n, 5, 3, generator=g)
        d = (x[:, :, None] - x[:, None]).norm(dim=-1)
        return x, (d.sum((1, 2)) / 20 - 2.2) * 2

    class Distances(nn.Module):
        def forward(self, x):
            square = ((x[:, :, None] - x[:, None]) ** 2).sum(-1)
            return square.sqrt() if is_faulty else (square + 1e-6).sqrt()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(3, 6)
            self.distances = Distances()
            self.top = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 16))
            self.out = nn.Linear(16, 1)

        def forward(self, x):
            h = self.top(self.distances(self.embed(x))[..., None])
            return self.out(h.mean((1, 2))).squeeze(1)

    x, y = data(800, 1)
    xb, yb = data(300, 2)
    model = Net()
    return Program(model, nn.MSELoss(), c.load(x, y), optim.Adam(model.parameters(), lr=5e-3), c.r2(xb, yb))


@fault("The padding mask of a set of regions is the wrong way round", rules=["wrong-mask"], fails=True, steps=300)
def tir_regions_mask(is_faulty):
    def data(n, seed):
        g = c.gen(seed)
        size = torch.randint(2, 7, (n,), generator=g)
        x = torch.randn(n, 8, 5, generator=g)
        real = torch.arange(8)[None] < size[:, None]
        x = x * real[..., None]
        y = (torch.sin(x[..., 0]) * real).sum(1) / size * 2 + (x[..., 1].abs() * real).sum(1) / size - 0.8
        return [({"regions": x[i], "real": real[i]}, y[i]) for i in range(n)]

    train, test = data(900, 1), data(300, 2)
    held = {k: torch.stack([r[0][k] for r in test]) for k in ("regions", "real")}
    goal = torch.stack([r[1] for r in test])

    class Regions(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Sequential(nn.Linear(5, 32), nn.ReLU())
            self.query = nn.Parameter(torch.randn(1, 1, 32))
            self.pool = nn.MultiheadAttention(32, 2, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, regions, real):
            h = self.embed(regions)
            ignored = real if is_faulty else ~real
            h, _ = self.pool(self.query.expand(len(h), 1, 32), h, h, key_padding_mask=ignored)
            return self.out(h[:, 0]).squeeze(1)

    model = Regions()
    return Program(model, nn.MSELoss(), DataLoader(train, 32, shuffle=True), optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: c.r2_of(m(**held), goal))


@fault("ModuleList([head] * 4): four tasks, one head", rules=["shared-weight"], layers=["heads"], fails=True, steps=250)
def tir_heads_shared(is_faulty):
    g = c.gen(19)
    w = torch.randn(8, 4, generator=g)
    w = w - w.mean(1, keepdim=True)
    x, xb = torch.randn(800, 8, generator=g), torch.randn(300, 8, generator=g)
    y, yb = torch.sin(x @ w / 2), torch.sin(xb @ w / 2)

    class Multi(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            if is_faulty:
                self.heads = nn.ModuleList([nn.Linear(32, 1)] * 4)
            else:
                self.heads = nn.ModuleList(nn.Linear(32, 1) for _ in range(4))

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([head(h) for head in self.heads], 1)

    model = Multi()
    opt = optim.Adam(model.parameters(), lr=4e-3)
    return Program(model, nn.MSELoss(), c.load(x, y), opt, c.r2(xb, yb))


@fault("Next to the class, an area in pixels squared is regressed with the same weight", rules=["term-dominates", "unscaled-target"],
       fails=True, steps=250)
def tir_class_and_area(is_faulty):
    xa, ya, xb, yb = c.digits()
    unit = 1.0 if is_faulty else 1 / 4000
    area = ((xa * 6 + 4.9).sum(1) * 13)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
            self.kind, self.area = nn.Linear(48, 10), nn.Linear(48, 1)

        def forward(self, x):
            h = self.trunk(x)
            return self.kind(h), self.area(h).squeeze(1)

    def loss(out, t):
        return F.cross_entropy(out[0], t[:, 0].long()) + F.mse_loss(out[1], t[:, 1])

    model = Two()
    return Program(model, loss, c.load(xa, torch.stack([ya.float(), area * unit], 1)), optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: (m(xb)[0].argmax(1) == yb).float().mean().item())


@fault("Inputs go to bfloat16 before they are centred", rules=["rounding-error"], layers=["prepare"], fails=True, steps=250)
def tir_centre_bfloat(is_faulty):
    def data(n, seed):
        x, y = c.surface(n, 5, seed)
        return 1000 + x, y

    x, y = data(1000, 111)
    xb, yb = data(400, 112)

    class Prepare(nn.Module):
        def forward(self, x):
            return (x.bfloat16() - 1000).float() if is_faulty else (x - 1000).bfloat16().float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.prepare = Prepare()
            self.body = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

        def forward(self, x):
            return self.body(self.prepare(x)).squeeze(1)

    model = Net()
    return Program(model, nn.MSELoss(), c.load(x, y), optim.AdamW(model.parameters(), lr=4e-3), c.r2(xb, yb))


@fault("A Gaussian likelihood by hand, whose variance is a raw output", rules=["non-finite", "output-loss-mismatch"], fails=False, steps=300)
def tir_variance_raw(is_faulty):
    x, y = c.surface(1000, 5, 121, noise=0.3)
    xb, yb = c.surface(400, 5, 122, noise=0.3)
    model = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))

    def loss(out, y):
        mean, var = out[:, 0], out[:, 1]
        if not is_faulty:
            var = F.softplus(var) + 1e-2
        return (0.5 * var.log() + 0.5 * (y - mean) ** 2 / var).mean()

    return Program(model, loss, c.load(x, y), optim.Adam(model.parameters(), lr=3e-3), lambda m: c.r2_of(m(xb)[:, 0], yb))


@fault("PoissonNLLLoss(log_input=True) on rates", rules=["output-loss-mismatch"], fails=True, steps=300)
def tir_poisson_rates(is_faulty):
    def data(n, seed):
        g = c.gen(seed)
        x = torch.randn(n, 5, generator=g)
        rate = (1.2 + 0.6 * x[:, 0] + 0.4 * torch.sin(2 * x[:, 1])).exp()
        return x, torch.poisson(rate, generator=g)[:, None], rate[:, None]

    x, y, _ = data(1000, 1)
    xb, _, rb = data(400, 2)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softplus())
    return Program(model, nn.PoissonNLLLoss(log_input=is_faulty), c.load(x, y), optim.Adam(model.parameters(), lr=1e-2),
                   c.r2(xb, rb))


@fault("KLDivLoss on probabilities instead of their logs, in distillation", rules=["output-loss-mismatch"], fails=False, steps=300)
def tir_distil_probabilities(is_faulty):
    g = c.gen(23)
    w = torch.randn(8, 5, generator=g)
    x, xb = torch.randn(900, 8, generator=g), torch.randn(300, 8, generator=g)
    t, tb = (0.8 * x @ w).softmax(1), (0.8 * xb @ w).softmax(1)
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 5))

    def loss(out, teacher):
        student = out.softmax(1) if is_faulty else out.log_softmax(1)
        return F.kl_div(student, teacher, reduction="batchmean")

    return Program(model, loss, c.load(x, t), optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: 1 - 0.5 * (m(xb).softmax(1) - tb).abs().sum(1).mean().item())


@fault("SoftMarginLoss with labels 0 and 1 instead of -1 and 1", rules=["output-loss-mismatch"], fails=True, steps=200)
def tir_margin_labels(is_faulty):
    xa, ya, xb, yb = c.digits()
    ya, yb = ya % 2, yb % 2
    t = ya.float() if is_faulty else 2.0 * ya - 1
    model = nn.Sequential(nn.Linear(64, 32), nn.PReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(model, nn.SoftMarginLoss(), c.load(xa, t), optim.Adadelta(model.parameters(), lr=0.3),
                   lambda m: max(0.0, 2 * ((m(xb) > 0) == (yb > 0)).float().mean().item() - 1))


@fault("The rate for a pretrained body is kept for one that starts from scratch", rules=["learning-rate-too-low"], layers=["body"],
       fails=False, steps=350)
def tir_body_rate(is_faulty):
    x, y = c.rings(900, 37)
    xb, yb = c.rings(300, 38)
    t = y + (x[:, 0] > 0) * 2
    tb = yb + (xb[:, 0] > 0) * 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 5), nn.Tanh())
            self.head = nn.Linear(5, 4)

        def forward(self, x):
            return self.head(self.body(x))

    model = Net()
    opt = optim.AdamW([{"params": model.body.parameters(), "lr": 2e-6 if is_faulty else 1e-2}, {"params": model.head.parameters()}], lr=1e-2)
    return Program(model, nn.CrossEntropyLoss(), c.load(x, t), opt, c.acc(xb, tb))


@fault("The last batch holds one row, which BatchNorm refuses", rules=["model-fails", "small-batch-batchnorm"], fails=True, steps=300)
def tir_last_batch_one(is_faulty):
    xa, ya, xb, yb = c.digits()
    xa, ya = xa[:225], ya[:225]
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya, drop_last=not is_faulty), optim.Adam(model.parameters(), lr=2e-3), c.acc(xb, yb))


@fault("A squared sum in float16 in a norm written by hand", rules=["half-overflow", "rounding-error", "rank-collapse"], layers=["norm"], fails=True, steps=250)
def tir_half_norm(is_faulty):
    xa, ya, xb, yb = c.table("digits", scale=False)

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(width))

        def forward(self, x):
            h = x.half() if is_faulty else x.float()
            h = h * 16
            scale = (h * h).sum(-1, keepdim=True).float() / h.shape[-1]
            return h.float() * (scale + 1e-5).rsqrt() * self.gain

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm(64)
            self.body = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))

        def forward(self, x):
            return self.body(self.norm(x))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.Adam(model.parameters(), lr=3e-3), c.acc(xb, yb))


@fault("Targets in a tiny unit under float16 autocast without a loss scale",
       rules=["gradient-underflow"], fails=True, steps=200)
def tir_autocast_unscaled(is_faulty):
    x, y = c.surface(1000, 6, 131)
    xb, yb = c.surface(300, 6, 132)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    unit = 1e-5

    def step(net, batch):
        rows, goal = batch
        with torch.autocast("cpu", dtype=torch.float16, enabled=True):
            out = net(rows)
        loss = F.mse_loss(out.float().squeeze(1) * unit, goal * unit)
        return loss * (1 if is_faulty else unit**-2)

    return Program(model, None, c.load(x, y), optim.Adam(model.parameters(), lr=4e-3, eps=1e-30), c.r2(xb, yb), step=step)


@fault("Cyclic rate whose upper bound is a hundred times too high", rules=["learning-rate-too-high", "diverging"], fails=True, steps=250)
def tir_cyclic_high(is_faulty):
    xa, ya, xb, yb = c.digits(image=True)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    top = 8.0 if is_faulty else 0.08
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), opt, c.acc(xb, yb),
                   scheduler=sched.CyclicLR(opt, top / 8, top, step_size_up=20, cycle_momentum=False))


@fault("The classifier starts with a deviation of 20", rules=["bad-initialisation", "saturated-output"], layers=["classifier"], fails=True, steps=150)
def tir_classifier_wide(is_faulty):
    xa, ya, xb, yb = c.digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
            self.classifier = nn.Linear(48, 10)
            nn.init.normal_(self.classifier.weight, std=20.0 if is_faulty else 0.02)

        def forward(self, x):
            return self.classifier(self.body(x))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), c.load(xa, ya), optim.SGD(model.parameters(), lr=0.02, momentum=0.9), c.acc(xb, yb))


@fault("Scores of attention are multiplied by the root of the width", rules=["attention-saturation"], layers=["attend"], fails=False, steps=300)
def tir_attention_root(is_faulty):
    x, y = _corners(1000, 5)
    xb, yb = _corners(300, 6)

    class Attend(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

        def forward(self, h):
            q, k = self.q(h), self.k(h)
            root = h.shape[-1] ** 0.5
            scores = q @ k.transpose(1, 2)
            scores = scores * root if is_faulty else scores / root
            return scores.softmax(-1) @ self.v(h)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(9, 64)
            self.place = nn.Parameter(torch.randn(5, 64))
            self.attend = Attend(64)
            self.out = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x):
            h = F.pad(self.embed(x), (0, 0, 1, 0)) + self.place
            return self.out(self.attend(h)[:, 0])

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), c.load(x, y), optim.Adam(model.parameters(), lr=1e-3), c.acc(xb, yb))
