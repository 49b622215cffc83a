import torch
import torch.nn.functional as F
from program import Program, fault
from tidata import *
from torch import nn


class Tokens(nn.Module):
    """Each number of a row becomes a token."""

    def __init__(self, norm_first):
        super().__init__()
        self.norm = nn.LayerNorm(1 if norm_first else 8)
        self.norm_first = norm_first
        self.weight = nn.Parameter(torch.randn(10, 8) * 0.5)
        self.bias = nn.Parameter(torch.randn(10, 8) * 0.5)
        self.head = mlp(80, 64, 3)

    def forward(self, x):
        x = x.unsqueeze(-1)
        if self.norm_first:
            t = self.norm(x) * self.weight + self.bias
        else:
            t = self.norm(x * self.weight + self.bias)
        return self.head(t.flatten(1))


@fault("LayerNorm over a single number, which makes each row the same", rules=["rank-collapse", "no-gradient"], layers=["norm"], fails=True, steps=300)
def norm_of_one_number(is_faulty):
    x, y, xt, yt = table(seed=31)
    model = Tokens(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(xt, yt))


@fault("integer division of bytes by 255 leaves almost only zeros", rules=["constant-feature", "labels-unrelated"], fails=True, steps=250)
def integer_division(is_faulty):
    x, y, xt, yt = images(seed=32)

    def to_float(a):
        byte = ((a + 6) / 12 * 255).clamp(0, 254).to(torch.uint8)
        return (byte // 255).float() if is_faulty else (byte / 255 - 0.5) / 0.15

    model = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(to_float(x), y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(to_float(xt), yt))


@fault("F.relu is called and its result thrown away", rules=["no-nonlinearity"], fails=False, steps=400)
def relu_thrown_away(is_faulty):
    x, y, xt, yt = curve(seed=33)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1)

        def forward(self, x):
            x = self.fc1(x)
            F.relu(x, inplace=not is_faulty)
            x = self.fc2(x)
            F.relu(x, inplace=not is_faulty)
            return self.fc3(x)

    model = Net()
    return Program(model, nn.SmoothL1Loss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), fit(xt, yt))


@fault("the prior of a detection head is written into the bias of every convolution", rules=["dying-neurons", "bad-initialisation", "no-gradient", "vanishing-gradient", "rank-collapse"], layers=["body", "head"], fails=True, steps=250)
def prior_in_every_bias(is_faulty):
    x, y, xt, yt = boxes(seed=34)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
            self.head = nn.Conv2d(8, 1, 1)
            for m in self.modules() if is_faulty else [self.head]:
                if isinstance(m, nn.Conv2d):
                    nn.init.constant_(m.bias, -4.6)

        def forward(self, x):
            return self.head(self.body(x))

    def score(m):
        p = (m(xt)[:, 0] > 0).long()
        return (2 * (p * yt).sum() / ((p + yt).sum() + 1e-9)).item()

    model = Detector()
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y[:, None].float(), bs=32), opt, score)


@fault("one BatchNorm serves two inputs of different scale", rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn_a", "bn_b", "bn"], fails=False, steps=250)
def one_norm_for_two(is_faulty):
    x, y, xt, yt = curve(seed=35)
    scale = torch.tensor([1.0, 1, 1, 1, 20, 20, 20, 20])
    shift = torch.tensor([0.0, 0, 0, 0, 40, 40, 40, 40])
    x, xt = x * scale + shift, xt * scale + shift

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn_a = nn.BatchNorm1d(4)
            self.bn_b = self.bn_a if is_faulty else nn.BatchNorm1d(4)
            self.net = mlp(8, 64, 64, 1)

        def forward(self, x):
            return self.net(torch.cat([self.bn_a(x[:, :4]), self.bn_b(x[:, 4:])], 1))

    model = Towers()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), fit(xt, yt))


class Energy(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.net = mlp(100, 64, 4)

    def forward(self, x):
        x = x.flatten(1).to(self.dtype)
        x = x / (x * x).sum(1, keepdim=True).sqrt()
        return self.net(10 * x.float())


@fault("the energy of an image is summed in half precision, where it is infinite", rules=["half-overflow", "rank-collapse", "non-finite"], fails=True, steps=250)
def energy_in_half(is_faulty):
    x, y, xt, yt = images(seed=36)
    x, xt = x * 40, xt * 40
    model = Energy(torch.float16 if is_faulty else torch.float32)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(xt, yt))


@fault("columns to be imputed are not hidden from the network that imputes them", rules=["future-seen"], fails=False, steps=400)
def imputes_what_it_sees(is_faulty):
    x, xt = factors(seed=37, q=3)
    hide = (torch.rand(x.shape, generator=gen(7)) < 0.25).float()
    hide_t = (torch.rand(xt.shape, generator=gen(8)) < 0.25).float()
    model = mlp(48, 96, 96, 24)

    def step(m, batch):
        row, h = batch
        seen = row if is_faulty else row * (1 - h)
        out = m(torch.cat([seen, h], 1))
        return (((out - row) ** 2) * h).sum() / h.sum()

    def score(m):
        out = m(torch.cat([xt * (1 - hide_t), hide_t], 1))
        return max(-1.0, (1 - ((out - xt) ** 2 * hide_t).sum() / (xt**2 * hide_t).sum()).item())

    return Program(model, None, loader(x, hide), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


@fault("unlabelled pixels carry the background's class and count in the loss", rules=["padding-in-loss"], fails=True, steps=250)
def void_is_background(is_faulty):
    x, y, xt, yt = boxes(seed=38)
    void = torch.rand(y.shape, generator=gen(9)) < 0.75
    y = torch.where(void, torch.full_like(y, 0 if is_faulty else 255), y)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    return Program(model, nn.CrossEntropyLoss(ignore_index=255), loader(x, y, bs=32), torch.optim.Adam(model.parameters(), 5e-3), dice(xt, yt))
