import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn, optim
from uig_data import uig_accuracy, uig_digits, uig_explained, uig_loader, uig_shapes
from uig_faults_a import uig_retrieval, uig_views


@fault("fourteen residual blocks with He weights and no normalisation", rules=["activation-drift", "exploding-gradient", "bad-initialisation", "non-finite", "learning-rate-too-high"], layers=["blocks"], fails=True, steps=250)
def uig_unnormalised_residuals(is_faulty):
    x, y, t, ty = uig_digits()

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)
            for m in (self.a, self.b):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.zeros_(m.bias)
            if not is_faulty:
                nn.init.zeros_(self.b.weight)

        def forward(self, x):
            return x + self.b(F.relu(self.a(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(64, 48)
            self.blocks = nn.Sequential(*[Block(48) for _ in range(14)])
            self.head = nn.Linear(48, 10)

        def forward(self, x):
            return self.head(self.blocks(self.stem(x.flatten(1))))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optim.SGD(model.parameters(), 0.02, momentum=0.9), uig_accuracy(t, ty))


@fault("masks that went through ToTensor, so that class numbers became 0 as integers", rules=["constant-target"], fails=True, steps=150)
def uig_mask_through_to_tensor(is_faulty):
    def scene(n, seed):
        x, m, *_ = uig_shapes(n, seed=seed)
        bright = (x * m).sum((1, 2, 3)) / m.sum((1, 2, 3)) > 0.9
        return x, (m[:, 0] * (1 + bright[:, None, None])).to(torch.uint8)

    x, ids = scene(800, 0)
    tx, truth = scene(150, 1)
    truth = truth.long()

    class Segment(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2, dilation=1), nn.ReLU(), nn.Conv2d(12, 4, 3, padding=1))

        def forward(self, x):
            return self.layers(x)

    def labels(u8):
        return (u8.float() / 255).long() if is_faulty else u8.long()

    def score(net):
        p = net(tx).argmax(1)
        return ((p == truth) & (truth > 0)).sum().item() / ((p > 0) | (truth > 0)).sum().item()

    model = Segment()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, labels(ids), batch=16), optim.Adam(model.parameters(), 5e-3), score)


@fault("a Charbonnier loss without its epsilon, and pixels that are exactly right", rules=["non-finite"], fails=True, steps=300)
def uig_charbonnier(is_faulty):
    x, _, t, _ = uig_digits()
    low, tlow = (F.avg_pool2d(v, 2) for v in (x, t))

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
            self.tail = nn.Conv2d(16, 4, 3, padding=1)
            nn.init.zeros_(self.tail.weight)
            nn.init.zeros_(self.tail.bias)

        def forward(self, low):
            return F.interpolate(low, scale_factor=2) + F.pixel_shuffle(self.tail(self.body(low)), 2)

    def charbonnier(o, y):
        return torch.sqrt((o - y) ** 2 + (0.0 if is_faulty else 1e-6)).mean()

    model = Residual()
    return Program(model, charbonnier, uig_loader(low, x), optim.Adam(model.parameters(), 3e-3), lambda n: uig_explained(n(tlow), t))


@fault("weights kept in bfloat16, with steps too small for them", rules=["lost-updates", "rounding-error", "learning-rate-too-low"], fails=False, steps=600)
def uig_bfloat16_weights(is_faulty):
    x, y, t, ty = uig_digits()
    kind = torch.bfloat16 if is_faulty else torch.float32

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x):
            x = x.flatten(1).to(self.a.weight.dtype)
            return self.c(F.relu(self.b(F.relu(self.a(x))))).float()

    model = Net().to(kind)
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y, batch=64), optim.Adam(model.parameters(), 1e-4), uig_accuracy(t, ty))


class UigMasked(nn.Conv2d):
    def __init__(self, kind, *args, **options):
        super().__init__(*args, **options)
        k = self.kernel_size[0]
        mask = torch.ones(k, k)
        mask[k // 2, k // 2 + (kind == "B") :] = 0
        mask[k // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


@fault("a PixelCNN whose first layer has mask B, and so sees the pixel it predicts", rules=["future-seen"], fails=True, steps=250)
def uig_pixelcnn_first_mask(is_faulty):
    def stripes(n, seed):
        g = torch.Generator().manual_seed(seed)
        ys, xs = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
        slope = torch.randint(-1, 2, (n, 1, 1), generator=g)
        phase = torch.randint(0, 4, (n, 1, 1), generator=g)
        image = ((xs[None] + slope * ys[None] + phase) % 4 < 2).float()
        flip = torch.rand(image.shape, generator=g) < 0.03
        return torch.where(flip, 1 - image, image)[:, None]

    x, t = stripes(1000, 1), stripes(200, 2)

    class PixelCNN(nn.Module):
        def __init__(self, w=12):
            super().__init__()
            self.first = UigMasked("B" if is_faulty else "A", 1, w, 5, padding=2)
            self.second = UigMasked("B", w, w, 3, padding=1)
            self.third = UigMasked("B", w, w, 3, padding=1)
            self.last = nn.Conv2d(w, 1, 1)

        def forward(self, x):
            return self.last(F.relu(self.third(F.relu(self.second(F.relu(self.first(x)))))))

    def score(net):
        right = []
        for row, column in ((2, 3), (4, 5), (5, 2), (6, 6), (7, 4)):
            known = t.clone()
            known[:, :, row, column:] = 0
            known[:, :, row + 1 :] = 0
            right.append(((net(known)[:, 0, row, column] > 0).float() == t[:, 0, row, column]).float().mean())
        return torch.stack(right).mean().item()

    model = PixelCNN()
    return Program(model, nn.BCEWithLogitsLoss(), uig_loader(x, x), optim.Adam(model.parameters(), 5e-3), score)


@fault("similarities multiplied by the temperature instead of divided by it", rules=["output-loss-mismatch", "learning-rate-too-low", "loss-not-decreasing"], fails=False, steps=500)
def uig_temperature_product(is_faulty):
    x = uig_digits()[0]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 48))
    tau = 0.1

    def step(net, batch):
        a, b = (F.normalize(net(uig_views(batch[0])), dim=1) for _ in range(2))
        logits = a @ b.T * tau if is_faulty else a @ b.T / tau
        at = torch.arange(len(a))
        return (F.cross_entropy(logits, at) + F.cross_entropy(logits.T, at)) / 2

    return Program(model, None, uig_loader(x, batch=64), optim.SGD(model.parameters(), 0.1), uig_retrieval, step=step)


@fault("boxes as centre and size given to an IoU loss of corners", rules=["output-loss-mismatch", "no-gradient", "loss-not-decreasing"], fails=True, steps=300)
def uig_box_format(is_faulty):
    def boxes(n, seed):
        x, _, _, p, r = uig_shapes(n, seed=seed)
        r = r / 16
        return x, torch.stack([p[:, 0] - r, p[:, 1] - r, p[:, 0] + r, p[:, 1] + r], 1)

    x, box = boxes(1000, 0)
    tx, tbox = boxes(300, 1)

    def to_corners(b):
        return torch.cat([b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2], 1)

    def iou(a, b):
        wide = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
        inter = wide[:, 0] * wide[:, 1]
        area = lambda c: ((c[:, 2:] - c[:, :2]).clamp(min=0)).prod(1)  # noqa: E731
        return inter / (area(a) + area(b) - inter + 1e-6)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU())
            self.box = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4), nn.Sigmoid())

        def forward(self, x):
            return self.box(self.trunk(x))

    model = Detector()

    def loss(out, target):
        return (1 - iou(out if is_faulty else to_corners(out), target)).mean()

    return Program(model, loss, uig_loader(x, box), optim.Adam(model.parameters(), 3e-3), lambda n: iou(to_corners(n(tx)), tbox).mean().item())
