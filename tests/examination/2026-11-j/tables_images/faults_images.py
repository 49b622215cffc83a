import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ti_data import acc, gen, miou, r2, scenes, shapes


@fault(
    "Logits (B, K, H, W) are flattened with view(-1, K), without moving the channels last, against masks.view(-1)",
    rules=("output-loss-mismatch", "labels-unrelated"), fails=True, steps=200)
def segmentation_view_without_permute(bad):
    x, m = scenes(600, seed=1)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))

    def loss(out, mask):
        k = out.shape[1]
        flat = out.contiguous().view(-1, k) if bad else out.permute(0, 2, 3, 1).reshape(-1, k)
        return F.cross_entropy(flat, mask.view(-1))

    return Program(net, loss, DataLoader(TensorDataset(x[:480], m[:480]), 16, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: miou(n(x[480:]), m[480:]))


class MaskFolder(Dataset):
    """Pictures and masks as stored in files: bytes."""

    def __init__(self, x, m, scale_masks):
        self.x, self.m, self.scale_masks = x, m.to(torch.uint8), scale_masks

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        mask = self.m[i]
        if self.scale_masks:
            mask = mask.float() / 255  # what ToTensor does
        return self.x[i], mask.long()


@fault("Masks of class numbers go through the transform of the pictures (divided by 255), so that long() makes all of them 0",
       rules=("constant-target", "labels-unrelated"), fails=True, steps=200)
def mask_through_to_tensor(bad):
    x, m = scenes(500, seed=2)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(MaskFolder(x[:400], m[:400], bad), 16, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: miou(n(x[400:]), m[400:], first=1))


@fault("Pictures that already lie in [0, 1] are divided by 255 once more",
       rules=("unscaled-input",), fails=True, steps=150)
def pictures_divided_twice(bad):
    x, y = shapes(800, seed=3)
    x = x / 255 if bad else x
    net = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 4))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:640], y[:640]), 32, shuffle=True),
                   torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), lambda n: acc(n(x[640:]), y[640:]))


@fault("A collate function shuffles the pictures within a batch (left over from a mixup) and leaves the labels in place",
       rules=("labels-unrelated", "output-loss-mismatch"), fails=True, steps=200)
def collate_shuffles_pictures_only(bad):
    x, y = shapes(800, seed=4)

    def collate(items):
        xs, ys = torch.stack([i[0] for i in items]), torch.stack([i[1] for i in items])
        order = torch.randperm(len(xs))
        return (xs[order], ys) if bad else (xs[order], ys[order])

    net = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9, 4))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:640], y[:640]), 32, shuffle=True, collate_fn=collate),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: acc(n(x[640:]), y[640:]))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten())
        self.fc = nn.Linear(96, 1000)

    def forward(self, x):
        return self.fc(self.body(x))


@fault("The head for the new classes is put in after the optimizer was made; the body is frozen but for its bias",
       rules=("no-gradient",), layers=("fc",), fails=True, steps=250)
def head_replaced_after_optimizer(bad):
    x, y = shapes(800, seed=5)
    net = Backbone()
    net.body[0].weight.requires_grad_(False)
    if not bad:
        net.fc = nn.Linear(96, 4)
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 3e-3)
    if bad:
        net.fc = nn.Linear(96, 4)
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:640], y[:640]), 32, shuffle=True), opt,
                   lambda n: acc(n(x[640:]), y[640:]))


@fault("Files are read folder by folder and the loader does not shuffle: each batch is of one class",
       rules=("sorted-batches",), fails=True, steps=200)
def folder_order(bad):
    x, y = shapes(960, seed=6)
    xt, yt = x[:800], y[:800]
    order = yt.argsort(stable=True)
    xt, yt = xt[order], yt[order]
    net = nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9, 4))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(xt, yt), 20, shuffle=not bad),
                   torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), lambda n: acc(n(x[800:]), y[800:]))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 24), nn.ReLU())
        self.cls, self.box = nn.Linear(24, 4), nn.Linear(24, 2)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls(h), self.box(h)


@fault("The corner of the box is asked for in pixels of the original (up to 480) with a squared error, next to the cross entropy of the class",
       rules=("term-dominates", "unscaled-target"), fails=True, steps=300)
def box_in_pixels(bad):
    x, y = shapes(900, seed=7)
    w = (x[:, 0] > 0.4).float()
    r = torch.arange(12.0)
    corner = torch.stack([(w.sum(2) * r).sum(1), (w.sum(1) * r).sum(1)], 1) / w.sum((1, 2))[:, None]
    box = corner * 40 if bad else (corner - 5) / 2
    net = Detector()

    def step(net, batch):
        img, label, b = batch
        c, p = net(img)
        return F.cross_entropy(c, label) + F.mse_loss(p, b)

    def score(n):
        c, p = n(x[720:])
        return 0.5 * acc(c, y[720:]) + 0.5 * r2(p[:, 0], box[720:, 0])

    return Program(net, None, DataLoader(TensorDataset(x[:720], y[:720], box[:720]), 32, shuffle=True),
                   torch.optim.Adam(net.parameters(), 2e-3), score, step=step)


class PatchPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.embed = nn.Sequential(nn.Linear(9, 32), nn.ReLU())
        self.query = nn.Linear(32, 1)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        h = self.embed(x)
        a = torch.softmax(4 * self.query(h), dim=self.dim)
        return self.head((a * h).sum(1))


@fault("Attention over the patches of a picture takes its softmax over the batch (dim=0)",
       rules=("wrong-softmax-dimension", "mixed-examples"), fails=True, steps=300)
def patch_pooling_over_batch(bad):
    g = gen(8)
    protos = torch.randn(3, 9, generator=g)
    y = torch.randint(0, 3, (1200,), generator=g)
    x = 0.7 * torch.randn(1200, 16, 9, generator=g)
    x[torch.arange(1200), torch.randint(0, 16, (1200,), generator=g)] += 1.6 * protos[y]
    net = PatchPool(0 if bad else 1)

    def score(n):
        return sum(acc(n(x[i:i + 1]), y[i:i + 1]) for i in range(1000, 1200)) / 200

    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1000], y[:1000]), 40, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), score)
