"""Mistakes in data: datasets, transforms, samplers, collate functions."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset
from vis_data import accuracy, blobs, iou, loader, r2, scenes, shapes, table, waves


def small_cnn(classes=4, c=8):
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * c * 9, classes))  # fmt: skip


class Pictures(Dataset):
    """Stored as bytes, like files."""

    def __init__(self, x, y, transform):
        self.x = ((x.clamp(-0.5, 1.5) + 0.5) * 127.5).to(torch.uint8)
        self.y, self.transform = y, transform

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]


def whole(dataset):
    return torch.stack([dataset[i][0] for i in range(len(dataset))]), dataset.y


@fault("Pictures of 0 to 255", rules=["unscaled-input", "learning-rate-too-high", "exploding-gradient", "saturated-output"], fails=True, steps=250)
def bytes_as_floats(is_faulty):
    x, y = shapes(1024, noise=0.2)
    transform = (lambda img: img.float()) if is_faulty else (lambda img: img.float() / 127.5 - 1)
    train, test = Pictures(x[:768], y[:768], transform), Pictures(x[768:], y[768:], transform)
    net = small_cnn()
    opt = optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), DataLoader(train, 32, shuffle=True), opt, accuracy(*whole(test)))


@fault(
    "Pictures scaled to 0 to 1 and then put back into integers",
    rules=["constant-feature", "labels-unrelated", "rank-collapse", "loss-not-decreasing"],
    fails=True,
    steps=250,
)
def truncated_to_zero(is_faulty):
    x, y = shapes(1024, noise=0.2)

    def transform(img):
        scaled = img / 255.0
        if is_faulty:
            scaled = scaled.to(img.dtype)
        return scaled.float()

    train, test = Pictures(x[:768] * 0.9, y[:768], transform), Pictures(x[768:] * 0.9, y[768:], transform)
    net = small_cnn()
    opt = optim.Adam(net.parameters(), 3e-3)
    return Program(net, F.cross_entropy, DataLoader(train, 32, shuffle=True), opt, accuracy(*whole(test)))


@fault(
    "A dataset in the order of its classes, not shuffled",
    rules=["sorted-batches"],
    fails=True,
    steps=240,
)
def not_shuffled(is_faulty):
    x, y = waves(1024, noise=0.3)
    order = y[:768].argsort()  # as ImageFolder lists them

    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))  # fmt: skip
    opt = optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    batches = DataLoader(TensorDataset(x[:768][order], y[:768][order]), batch_size=32, shuffle=not is_faulty)
    return Program(net, nn.CrossEntropyLoss(), batches, opt, accuracy(x[768:], y[768:]))


@fault(
    "Flips drawn apart for picture and mask",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def flipped_apart(is_faulty):
    x, m = scenes(384)

    class Flipped(Dataset):
        def __len__(self):
            return 256

        def __getitem__(self, i):
            img, mask = x[i], m[i]
            for axis in (1, 2):
                flip_img = torch.rand(()) < 0.5
                flip_mask = torch.rand(()) < 0.5 if is_faulty else flip_img
                img = img.flip(axis) if flip_img else img
                mask = mask.flip(axis) if flip_mask else mask
            return img, mask

    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1))  # fmt: skip
    return Program(net, nn.BCEWithLogitsLoss(), DataLoader(Flipped(), 16, shuffle=True),
                   optim.Adam(net.parameters(), 3e-3), iou(x[256:], m[256:]))


@fault(
    "Rates between 0 and 1, cast to integers in the collate function",
    rules=["constant-target"],
    fails=True,
    steps=250,
)
def rates_as_integers(is_faulty):
    x, y = table(1400)
    rate = torch.sigmoid(2 * y)

    def collate(rows):
        xs = torch.stack([r[0] for r in rows])
        ys = torch.tensor([r[1].item() for r in rows], dtype=torch.long if is_faulty else torch.float32)
        return xs, ys.float().unsqueeze(1)

    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Sigmoid())
    batches = DataLoader(TensorDataset(x[:1024], rate[:1024]), 32, shuffle=True, collate_fn=collate)
    return Program(net, nn.MSELoss(), batches, optim.Adam(net.parameters(), 3e-3), r2(x[1024:], rate[1024:]))


@fault(
    "Sensor records flattened over the batch axis",
    rules=["mixed-examples"],
    fails=True,
    steps=250,
)
def flattened_over_batch(is_faulty):
    n, t, c = 1400, 6, 4
    x = torch.randn(n, t, c)
    y = (x[:, :, 0].sum(1) > 0).long() + 2 * (x[:, 0] .sum(1) > 0).long()

    class Sensors(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(c, 8)
            self.fc = nn.Sequential(nn.Linear(8 * t, 48), nn.ReLU(), nn.Linear(48, 4))

        def forward(self, x):
            h = self.mix(x.transpose(0, 1))  # time first
            h = torch.tanh(h)
            if not is_faulty:
                h = h.transpose(0, 1)
            return self.fc(h.reshape(x.shape[0], -1))

    net = Sensors()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1024], y[:1024]), optim.Adam(net.parameters(), 5e-3), accuracy(x[1024:], y[1024:]))
