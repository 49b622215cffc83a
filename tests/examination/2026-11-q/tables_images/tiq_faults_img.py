"""Faults in programs on images and graphs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault
from tiq_common import accuracy, community, digits, friedman, loader, molecules, r2, shapes


def cnn(width=8, classes=10):
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(8 * width, classes))


def quick_backbone(x, y, body, width, steps=150):
    """Train a body a little on another task, as one that is downloaded has been."""
    head = nn.Linear(width, int(y.max()) + 1)
    opt = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(steps):
        i = torch.randint(len(x), (48,))
        opt.zero_grad()
        F.cross_entropy(head(body(x[i])), y[i]).backward()
        opt.step()
    return body


@fault("the optimizer was made before the head was replaced", rules=["no-gradient"], layers=["fc"], fails=True, steps=200)
def tiq_new_head(is_faulty):
    x, y, xt, yt = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten())
            self.fc = nn.Linear(256, 2)

        def forward(self, x):
            return self.fc(self.features(x))

    model = Net()
    quick_backbone(x, y % 2, model.features, 256)
    model.features.requires_grad_(False)
    if is_faulty:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model.fc = nn.Linear(256, 10)
    else:
        model.fc = nn.Linear(256, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), optimizer, accuracy(xt, yt))


@fault("images divided by 255 twice", rules=["unscaled-input"], fails=True, steps=200)
def tiq_twice_scaled(is_faulty):
    x, y, xt, yt = digits()
    if is_faulty:
        x, xt = x / 255, xt / 255
    model = cnn()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(xt, yt))


@fault("uint8 images divided as integers", rules=["constant-feature"], fails=True, steps=200)
def tiq_integer_division(is_faulty):
    x, y, xt, yt = digits(scale=1.0)

    def prepare(x):
        x = (x * 15).to(torch.uint8)
        return (torch.div(x, 255, rounding_mode="floor") if is_faulty else x / 255).float()

    model = cnn()
    return Program(model, nn.CrossEntropyLoss(), loader(prepare(x), y, 32), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(prepare(xt), yt))


@fault("batches in the order of the folder, one class after the other", rules=["sorted-batches"], fails=True, steps=260)
def tiq_folders(is_faulty):
    x, y, xt, yt = digits()
    order = y.argsort(stable=True)
    model = cnn()
    return Program(model, nn.CrossEntropyLoss(), loader(x[order], y[order], 32, shuffle=not is_faulty),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(xt, yt))


@fault("autoencoder whose sigmoid cannot return standardised pixels", rules=["output-loss-mismatch"], layers=["decoder"], fails=False, steps=500)
def tiq_sigmoid_decoder(is_faulty):
    x, y, xt, yt = digits(flat=True)
    mean, std = x.mean(), x.std()
    x, xt = (x - mean) / std, (xt - mean) / std

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16))
            self.decoder = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid() if is_faulty else nn.Identity())

        def forward(self, x):
            return self.decoder(self.encoder(x))

    model = Auto()
    return Program(model, nn.MSELoss(), loader(x, x, 64), torch.optim.Adam(model.parameters(), lr=5e-3), r2(xt, xt))


@fault("the code is detached before it is decoded", rules=["no-gradient"], layers=["encoder"], fails=False, steps=400)
def tiq_detached_code(is_faulty):
    x, y, xt, yt = digits()

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12))
            self.decoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8)))

        def forward(self, x):
            z = self.encoder(x)
            z = z + 0.05 * torch.randn_like(z) if self.training else z
            return self.decoder(z.detach() if is_faulty else z)

    model = Auto()
    return Program(model, nn.MSELoss(), loader(x, x, 32), torch.optim.Adam(model.parameters(), lr=4e-3), r2(xt, xt))


@fault("log-softmax over the width instead of the classes", rules=["wrong-softmax-dimension", "output-loss-mismatch"], fails=False, steps=300)
def tiq_segment_softmax(is_faulty):
    x, m, _, _ = shapes(500)
    m = m.clamp(max=1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1, stride=2), nn.ReLU(),
                                      nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())
            self.up = nn.ConvTranspose2d(12, 12, 2, stride=2)
            self.out = nn.Conv2d(13, 2, 1)

        def forward(self, x):
            h = self.out(torch.cat([F.relu(self.up(self.down(x))), x], 1))
            return F.log_softmax(h, dim=-1 if is_faulty else 1)

    def miou(model):
        p, t = model(x[400:]).argmax(1), m[400:]
        ratio = [((p == c) & (t == c)).sum() / ((p == c) | (t == c)).sum().clamp(min=1) for c in (0, 1)]
        return float(sum(ratio) / 2)

    model = Net()
    return Program(model, nn.NLLLoss(), loader(x[:400], m[:400], 16), torch.optim.Adam(model.parameters(), lr=6e-3), miou)


@fault("Keras' habit: BatchNorm momentum of the other convention", rules=["batchnorm-mode-gap"], layers=["1", "4"], fails=False, steps=200)
def tiq_bn_momentum(is_faulty):
    x, y, xt, yt = digits(scale=1.0)
    x, xt = 16 - x, 16 - xt
    momentum = 0.001 if is_faulty else 0.1
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(),
                          nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16, momentum=momentum), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(xt, yt))


@fault("BatchNorm over two images", rules=["small-batch-batchnorm", "batchnorm-mode-gap"], fails=False, steps=500)
def tiq_bn_two(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()

    def norm(c):
        return nn.BatchNorm1d(c) if is_faulty else nn.LayerNorm(c)

    model = nn.Sequential(nn.Linear(8, 48), norm(48), nn.ReLU(), nn.Linear(48, 48), norm(48), nn.ReLU(), nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), loader(x, ((y - mean) / std)[:, None], 2), torch.optim.Adam(model.parameters(), lr=1e-3),
                   r2(xt, (yt - mean) / std))


@fault("boxes in pixels of the original pictures next to a classification loss", rules=["term-dominates", "unscaled-target"], fails=True, steps=300)
def tiq_detect_terms(is_faulty):
    x, _, c, b = shapes(900)
    b, unit = 10 * b, 1.0 if is_faulty else 160.0

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 16, 3, padding=1), nn.ReLU(),
                                       nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU())
            self.kind, self.box = nn.Linear(32, 3), nn.Linear(32, 3)

        def forward(self, x):
            h = self.trunk(x)
            return self.kind(h), self.box(h)

    def step(model, batch):
        image, kind, box = batch
        logits, boxes = model(image)
        return F.cross_entropy(logits, kind) + F.mse_loss(boxes, box / unit)

    model = Net()
    train = DataLoader(TensorDataset(x[:700], c[:700], b[:700]), batch_size=32, shuffle=True)
    return Program(model, None, train, torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(x[700:], c[700:], lambda o: o[0].argmax(1)), step=step)


@fault("F.dropout without the module's mode", rules=["dropout-in-eval"], fails=False, steps=300)
def tiq_functional_dropout(is_faulty):
    x, y, xt, yt = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, stride=2, padding=1)
            self.fc1, self.fc2 = nn.Linear(192, 32), nn.Linear(32, 10)

        def forward(self, x):
            x = F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1)
            x = F.dropout(x, 0.5) if is_faulty else F.dropout(x, 0.5, self.training)
            x = F.relu(self.fc1(x))
            x = F.dropout(x, 0.6) if is_faulty else F.dropout(x, 0.6, self.training)
            return self.fc2(x)

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(xt, yt))


@fault("one BatchNorm after two convolutions", rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn"], fails=False, steps=250)
def tiq_one_bn(is_faulty):
    x, y, xt, yt = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2, self.conv3 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
            self.bn = nn.BatchNorm2d(12)
            if not is_faulty:
                self.bn2, self.bn3 = nn.BatchNorm2d(12), nn.BatchNorm2d(12)
            self.fc = nn.Linear(12 * 4, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
            x = F.relu((self.bn if is_faulty else self.bn2)(self.conv2(x)))
            x = F.relu((self.bn if is_faulty else self.bn3)(self.conv3(x)))
            return self.fc(F.max_pool2d(x, 2).flatten(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(xt, yt))


@fault("weights of convolutions drawn with a deviation of one", rules=["bad-initialisation", "activation-drift", "saturated-output"], layers=["0", "3", "7"], fails=True, steps=200)
def tiq_normal_init(is_faulty):
    x, y, xt, yt = digits()
    model = cnn(12)
    for m in model:
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(m.weight, 0, 1.0) if is_faulty else nn.init.kaiming_normal_(m.weight)
            nn.init.zeros_(m.bias)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=1e-3), accuracy(xt, yt))


@fault("patches are put together across the batch", rules=["mixed-examples"], fails=True, steps=300)
def tiq_patch_mix(is_faulty):
    x, y, xt, yt = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(1, 24, 2, stride=2)
            self.mlp = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
            self.head = nn.Linear(16 * 24, 10)

        def forward(self, x):
            h = self.embed(x).flatten(2).permute(2, 0, 1)
            h = h + self.mlp(h)
            if not is_faulty:
                h = h.transpose(0, 1)
            return self.head(h.reshape(len(x), -1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 25), torch.optim.AdamW(model.parameters(), lr=2e-3),
                   lambda m: sum(accuracy(xt[i:i + 25], yt[i:i + 25])(m) for i in range(0, 400, 25)) / 16)


@fault("distances of pixels overflow in float16", rules=["half-overflow", "non-finite"], fails=True, steps=200)
def tiq_half_distance(is_faulty):
    x, y, xt, yt = digits(scale=1.0)
    x, xt = x * 15, xt * 15

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
            self.centres = nn.Parameter(torch.randn(10, 32))
            self.scale = 1.0 if is_faulty else 255.0

        def forward(self, x):
            with torch.autocast("cpu", torch.float16, enabled=True):
                h = self.body(x / self.scale)
            d = (h[:, None].half() - self.centres.half()).square().sum(2)
            return -d.float()

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=4e-3), accuracy(xt, yt))


@fault("soft Dice coefficient is minimised", rules=["output-loss-mismatch", "saturated-output"], fails=True, steps=250)
def tiq_dice_sign(is_faulty):
    x, m, _, _ = shapes(500)
    m = (m > 0).float()[:, None]

    def dice(logits, mask):
        p = logits.sigmoid()
        value = (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return value.mean() if is_faulty else 1 - value.mean()

    def iou(model):
        p = model(x[400:]) > 0
        t = m[400:] > 0
        return float((p & t).sum() / (p | t).sum())

    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    return Program(model, dice, loader(x[:400], m[:400], 16), torch.optim.Adam(model.parameters(), lr=5e-3), iou)


@fault("a threshold without a straight-through gradient", rules=["no-gradient"], layers=["encode"], fails=False, steps=400)
def tiq_binary_code(is_faulty):
    x, y, xt, yt = digits(flat=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10), nn.BatchNorm1d(10))
            self.decode = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 10))

        def forward(self, x):
            h = self.encode(x)
            hard = (h > 0).float()
            if not is_faulty:
                soft = h.sigmoid()
                hard = soft + (hard - soft).detach()
            return self.decode(hard)

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 64), torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(xt, yt))


@fault("tiny gradients in float16 with no scaling of the loss", rules=["gradient-underflow"], fails=True, steps=300)
def tiq_underflow(is_faulty):
    x, y, xt, yt = digits(flat=True)
    scale = 1.0 if is_faulty else 2.0**14

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def forward(self, x):
            with torch.autocast("cpu", torch.float16):
                return self.net(x).float()

    def loss(out, target):
        return 1e-6 * scale * F.cross_entropy(out, target)

    model = Half()
    return Program(model, loss, loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-15), accuracy(xt, yt))


@fault("neighbours are summed with no normalisation, over and over", rules=["activation-drift", "unscaled-input", "exploding-gradient", "saturated-output", "bad-initialisation"], fails=True, steps=200)
def tiq_gcn_sum(is_faulty):
    x, a, y = community(inside=0.25, outside=0.03)
    a = a + torch.eye(len(a))
    if not is_faulty:
        d = a.sum(1).rsqrt()
        a = d[:, None] * a * d
    a.requires_grad_(False)

    class Gcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 4)])
            self.register_buffer("a", a)

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = F.relu(layer(self.a @ x))
            return self.layers[-1](x)

    known = torch.arange(len(y)) % 3 == 0
    model = Gcn()
    return Program(model, nn.CrossEntropyLoss(ignore_index=-100), [(x, torch.where(known, y, -100))], torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4),
                   lambda m: float((m(x).argmax(1) == y)[~known].float().mean()))


@fault("twenty rounds of averaging make all nodes alike", rules=["rank-collapse", "vanishing-gradient"], fails=True, steps=120)
def tiq_gcn_smooth(is_faulty):
    x, a, y = community(inside=0.2, outside=0.04)
    a = a + torch.eye(len(a))
    a = a / a.sum(1, keepdim=True)

    class Net(nn.Module):
        def __init__(self, rounds):
            super().__init__()
            self.first, self.out = nn.Linear(12, 24), nn.Linear(24, 4)
            self.rounds = nn.ModuleList(nn.Linear(24, 24) for _ in range(8))
            self.keep = rounds
            self.register_buffer("a", a)

        def forward(self, x):
            h = first = F.relu(self.first(x))
            for layer in self.rounds:
                h = F.relu(layer(self.a @ h)) if is_faulty else 0.5 * first + 0.5 * F.relu(layer(self.a @ h))
            return self.out(h)

    known = torch.arange(len(y)) % 3 == 0
    model = Net(8)
    return Program(model, nn.CrossEntropyLoss(), [(x, torch.where(known, y, -100))], torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: float((m(x).argmax(1) == y)[~known].float().mean()))


class _Graphs(nn.Module):
    def __init__(self, readout):
        super().__init__()
        self.one, self.self_one = nn.Linear(4, 24), nn.Linear(4, 24)
        self.two, self.self_two = nn.Linear(24, 24), nn.Linear(24, 24)
        self.gate, self.out = nn.Linear(24, 1), nn.Linear(24, 2)
        self.readout = readout

    def forward(self, x, a, mask):
        h = F.relu(self.self_one(x) + self.one(a @ x))
        h = F.relu(self.self_two(h) + self.two(a @ h / 4))
        score = self.gate(h).squeeze(-1)
        return self.out(self.readout(h, score, mask))


def _collated(x, a, m, y, extra=0.0):
    def collate(rows):
        nodes, adjacency, mask, label = (torch.stack(r) for r in zip(*rows))
        return {"x": nodes, "a": adjacency, "mask": mask}, label

    return DataLoader(TensorDataset(x, a, m, y), batch_size=32, shuffle=True, collate_fn=collate)


@fault("padded nodes get the attention of the readout, the real ones none", rules=["wrong-mask"], fails=True, steps=400)
def tiq_graph_mask(is_faulty):
    x, a, m, y = molecules(700)

    def readout(h, score, mask):
        hidden = mask.bool() if is_faulty else ~mask.bool()
        weight = score.masked_fill(hidden, -1e9).softmax(1)
        return (weight[..., None] * h).sum(1)

    model = _Graphs(readout)
    t = {"x": x[500:], "a": a[500:], "mask": m[500:]}
    return Program(model, nn.CrossEntropyLoss(), _collated(x[:500], a[:500], m[:500], y[:500]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda model: float((model(**t).argmax(1) == y[500:]).float().mean()))


@fault("the readout's softmax runs over the graphs of the batch", rules=["wrong-softmax-dimension", "mixed-examples"], fails=False, steps=400)
def tiq_graph_softmax(is_faulty):
    x, a, m, y = molecules(700)

    def readout(h, score, mask):
        weight = score.masked_fill(mask == 0, -1e9).softmax(0 if is_faulty else 1)
        return (weight[..., None] * h * mask[..., None]).sum(1)

    model = _Graphs(readout)
    t = {"x": x[500:], "a": a[500:], "mask": m[500:]}
    return Program(model, nn.CrossEntropyLoss(), _collated(x[:500], a[:500], m[:500], y[:500]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda model: float((model(**t).argmax(1) == y[500:]).float().mean()))


@fault("labels start at one", rules=["model-fails", "output-loss-mismatch"], fails=True, steps=200)
def tiq_labels_from_one(is_faulty):
    x, m, c, _ = shapes(600)
    y = c + 1 if is_faulty else c
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 3))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:450], y[:450], 32), torch.optim.Adam(model.parameters(), lr=6e-3), accuracy(x[450:], c[450:]))
