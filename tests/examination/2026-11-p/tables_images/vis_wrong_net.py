"""Mistakes in networks and losses."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn, optim
from vis_data import accuracy, blobs, iou, loader, r2, rings, scenes, shapes, table, waves


@fault("The mean squared error of (N, 1) against (N,)", rules=["output-loss-mismatch"], fails=True, steps=300)
def squeeze_forgotten(is_faulty):
    x, y = table(1280)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(8, 48)
            self.fc2 = nn.Linear(48, 24)
            self.fc3 = nn.Linear(24, 1)

        def forward(self, x):
            x = F.relu(self.fc1(x))
            x = F.relu(self.fc2(x))
            x = self.fc3(x)
            return x if is_faulty else x.squeeze(1)

    net = Net()
    return Program(net, nn.MSELoss(), loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), lr=3e-3), r2(x[1024:], y[1024:]))


@fault(
    "A segmentation net that ends in a sigmoid, before a loss that takes logits",
    rules=["output-loss-mismatch"],
    layers=["head"],
    fails=True,
    steps=250,
)
def sigmoid_twice(is_faulty):
    x, m = scenes(384)
    head = [nn.Conv2d(8, 1, 1)] + ([nn.Sigmoid()] if is_faulty else [])
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))
    net.add_module("head", nn.Sequential(*head))

    def score(model):  # as it is deployed
        p, t = torch.sigmoid(model(x[256:])) > 0.5, m[256:] > 0.5
        return ((p & t).sum() / (p | t).sum().clamp(min=1)).item()

    return Program(net, nn.BCEWithLogitsLoss(), loader(x[:256], m[:256], batch=16), optim.Adam(net.parameters(), lr=5e-3), score)


class Expert(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 24), nn.GELU(), nn.Linear(24, 1))

    def forward(self, x):
        return self.net(x)


@fault(
    "A mixture of experts whose gate is a softmax over the batch",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    layers=["gate"],
    fails=True,
    steps=350,
)
def gate_over_batch(is_faulty):
    x, y = table(1400)
    y = y + 1.5

    class Mixture(nn.Module):
        def __init__(self, d=8, k=4):
            super().__init__()
            self.experts = nn.ModuleList(Expert(d) for _ in range(k))
            self.gate = nn.Sequential(nn.Linear(d, k), nn.Softmax(dim=0 if is_faulty else 1))

        def forward(self, x):
            w = self.gate(x)
            out = torch.cat([e(x) for e in self.experts], 1)
            return (w * out).sum(1)

    net = Mixture()
    return Program(net, F.mse_loss, loader(x[:1024], y[:1024], batch=64), optim.Adam(net.parameters(), lr=5e-3), r2(x[1024:], y[1024:]))


@fault(
    "A multi-layer perceptron whose activations were lost in a refactoring",
    rules=["no-nonlinearity"],
    layers=["layers"],
    fails=True,
    steps=300,
)
def activations_lost(is_faulty):
    x, y = rings(1400)

    class MLP(nn.Module):
        def __init__(self, sizes, act=None):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
            self.act = act

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x)
                if self.act is not None and i + 1 < len(self.layers):
                    x = self.act(x)
            return x

    net = MLP([6, 48, 48, 3], None if is_faulty else torch.relu)
    return Program(net, F.cross_entropy, loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), 4e-3), accuracy(x[1024:], y[1024:]))


@fault(
    "One BatchNorm used after two different convolutions",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["bn"],
    fails=True,
    steps=200,
)
def one_norm_twice(is_faulty):
    x, y = shapes(1024)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
            self.conv2 = nn.Conv2d(12, 12, 3, padding=1)
            self.conv3 = nn.Conv2d(12, 12, 3, padding=1)
            self.bn = nn.BatchNorm2d(12)
            if not is_faulty:
                self.bn2 = nn.BatchNorm2d(12)
                self.bn3 = nn.BatchNorm2d(12)
            self.fc = nn.Linear(12, 4)

        def forward(self, x):
            bn2, bn3 = (self.bn, self.bn) if is_faulty else (self.bn2, self.bn3)
            x = F.relu(self.bn(self.conv1(x)))
            x = F.max_pool2d(x, 2)
            x = F.relu(bn2(self.conv2(x)))
            x = F.relu(bn3(self.conv3(x)))
            return self.fc(x.mean((2, 3)))

    net = Net()
    opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:768], y[:768]), opt, accuracy(x[768:], y[768:]))


@fault(
    "Instance normalization right before global average pooling",
    rules=["rank-collapse", "loss-not-decreasing", "no-gradient"],
    layers=["features", "pool", "fc"],
    fails=True,
    steps=250,
)
def normalized_then_pooled(is_faulty):
    x, y = waves(1024)

    class Block(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.conv = nn.Conv1d(i, o, 5, padding=2)
            self.norm = nn.InstanceNorm1d(o, affine=True)

        def forward(self, x):
            if is_faulty:
                return self.norm(F.relu(self.conv(x)))
            return F.relu(self.norm(self.conv(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(Block(1, 16), nn.MaxPool1d(2), Block(16, 24))
            self.pool = nn.AdaptiveAvgPool1d(1)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            return self.fc(self.pool(self.features(x)).flatten(1))

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:768], y[:768]), optim.AdamW(net.parameters(), 4e-3), accuracy(x[768:], y[768:]))


@fault(
    "The log-likelihood itself is minimized, its minus forgotten",
    rules=["output-loss-mismatch", "diverging", "non-finite", "exploding-gradient"],
    fails=True,
    steps=300,
)
def minus_forgotten(is_faulty):
    x, y = table(1400)

    class Gaussian(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh())
            self.mean = nn.Linear(40, 1)
            self.scale = nn.Linear(40, 1)

        def forward(self, x):
            h = self.trunk(x)
            return self.mean(h).squeeze(-1), F.softplus(self.scale(h)).squeeze(-1) + 1e-2

    def loss(out, y):
        logp = torch.distributions.Normal(*out, validate_args=False).log_prob(y)
        return logp.mean() if is_faulty else -logp.mean()

    def score(model):
        mu, _ = model(x[1024:])
        t = y[1024:]
        return max(0.0, (1 - ((mu - t) ** 2).mean() / t.var()).item())

    net = Gaussian()
    return Program(net, loss, loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), 5e-3), score)


@fault(
    "Contrastive distances by a square root without ε; some pairs are identical",
    rules=["non-finite"],
    fails=True,
    steps=250,
)
def root_of_zero(is_faulty):
    x, y = rings(1400)

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))

        def forward(self, pair):
            return self.net(pair[:, 0]), self.net(pair[:, 1])

    a = torch.arange(1024)
    b = torch.randint(0, 1024, (1024,))  # with replacement: b may be a
    own = torch.rand(1024) < 0.4
    for i in own.nonzero().flatten().tolist():
        same = (y[:1024] == y[i]).nonzero().flatten()
        b[i] = same[torch.randint(0, min(12, len(same)), ())]
    b[::41] = a[::41]
    pairs = torch.stack([x[a], x[b]], 1)
    same = (y[a] == y[b]).float()

    def contrastive(out, same):
        sq = (out[0] - out[1]).pow(2).sum(1)
        dist = sq.sqrt() if is_faulty else (sq + 1e-8).sqrt()
        return (same * dist**2 + (1 - same) * F.relu(1.0 - dist) ** 2).mean()

    left, right = torch.randperm(1400)[:700].clamp(min=0), torch.randint(1024, 1400, (700,))
    left = 1024 + left % 376
    truth = y[left] == y[right]

    def score(model):  # balanced accuracy of verification
        d = (model.net(x[left]) - model.net(x[right])).norm(dim=1)
        said = d < 0.5
        return 0.5 * (said[truth].float().mean() + (~said[~truth]).float().mean()).item()

    net = Embed()
    return Program(net, contrastive, loader(pairs, same, batch=64), optim.Adam(net.parameters(), 5e-3), score)


@fault(
    "Residual blocks without any normalization or scaling, many of them",
    rules=["activation-drift", "exploding-gradient", "bad-initialisation", "learning-rate-too-high", "diverging", "non-finite", "saturated-output"],
    fails=True,
    steps=300,
)
def residuals_add_up(is_faulty):
    x, y = rings(1400)
    depth = 14

    class Res(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)
            for m in (self.a, self.b):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.zeros_(m.bias)
            self.scale = 1.0 if is_faulty else depth**-1.0

        def forward(self, x):
            return x + self.scale * self.b(F.relu(self.a(x)))

    net = nn.Sequential(nn.Linear(6, 32), *[Res(32) for _ in range(depth)], nn.Linear(32, 3))
    opt = optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1024], y[:1024]), opt, accuracy(x[1024:], y[1024:]))


@fault(
    "Dropout that is given the probability to keep",
    rules=["dropout-too-strong"],
    layers=["drop1", "drop2"],
    fails=False,
    steps=250,
)
def keep_probability(is_faulty):
    x, y = table(1400)

    class Regressor(nn.Module):
        def __init__(self, keep_prob=0.9):
            super().__init__()
            p = keep_prob if is_faulty else 1 - keep_prob
            self.fc1, self.fc2, self.out = nn.Linear(8, 64), nn.Linear(64, 32), nn.Linear(32, 1)
            self.drop1, self.drop2 = nn.Dropout(p), nn.Dropout(p)

        def forward(self, x):
            x = self.drop1(F.silu(self.fc1(x)))
            x = self.drop2(F.silu(self.fc2(x)))
            return self.out(x)[:, 0]

    net = Regressor()
    return Program(net, nn.MSELoss(), loader(x[:1024], y[:1024], batch=64), optim.Adam(net.parameters(), 5e-3), r2(x[1024:], y[1024:]))


@fault(
    "F.dropout without training=self.training",
    rules=["dropout-in-eval"],
    layers=["regressor"],
    fails=False,
    steps=450,
)
def functional_dropout(is_faulty):
    x, y = table(1400)

    class Head(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.hidden = nn.Linear(i, 16)
            self.out = nn.Linear(16, o)

        def forward(self, x):
            training = True if is_faulty else self.training  # F.dropout's own default is True
            x = F.dropout(x, 0.5, training)
            x = F.relu(self.hidden(x))
            x = F.dropout(x, 0.5, training)
            return self.out(x).squeeze(-1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU())
            self.regressor = Head(64, 1)

        def forward(self, x):
            return self.regressor(self.encoder(x))

    net = Net()
    return Program(net, nn.MSELoss(), loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), 3e-3), r2(x[1024:], y[1024:]))


@fault(
    "A backbone run without gradients, as in fine-tuning, but it was never trained",
    rules=["no-gradient"],
    layers=["backbone"],
    fails=False,
    steps=300,
)
def no_grad_left_over(is_faulty):
    x, y = shapes(1024, noise=0.3)

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            with torch.set_grad_enabled(not is_faulty and torch.is_grad_enabled()):
                f = self.backbone(x)
            return self.head(f)

    net = Classifier()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:768], y[:768]), optim.Adam(net.parameters(), 1e-2), accuracy(x[768:], y[768:]))


@fault(
    "All weights set to one constant",
    rules=["symmetric-initialisation", "bad-initialisation", "rank-collapse"],
    layers=["hidden1", "hidden2", "out"],
    fails=True,
    steps=300,
)
def constant_weights(is_faulty):
    x, y = rings(1400)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden1 = nn.Linear(6, 40)
            self.hidden2 = nn.Linear(40, 20)
            self.out = nn.Linear(20, 3)
            for p in self.parameters():
                if is_faulty:
                    nn.init.constant_(p, 0.1)
                elif p.dim() > 1:
                    nn.init.xavier_uniform_(p)
                else:
                    nn.init.constant_(p, 0.1)

        def forward(self, x):
            return self.out(torch.relu(self.hidden2(torch.relu(self.hidden1(x)))))

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), 4e-3), accuracy(x[1024:], y[1024:]))


@fault(
    "Tanh layers with weights of standard deviation 1",
    rules=["saturated-activation", "bad-initialisation"],
    layers=["body"],
    fails=False,
    steps=250,
)
def wide_weights(is_faulty):
    x, y = table(1400)
    net = nn.Sequential()
    body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    net.add_module("body", body)
    net.add_module("out", nn.Linear(64, 1))
    for m in body:
        if isinstance(m, nn.Linear):
            if is_faulty:
                m.weight.data = torch.randn(m.weight.shape)
            else:
                nn.init.xavier_normal_(m.weight)
    return Program(net, lambda o, t: F.mse_loss(o.flatten(), t), loader(x[:1024], y[:1024]),
                   optim.Adam(net.parameters(), 2e-3), r2(x[1024:], y[1024:]))
