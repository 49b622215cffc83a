import torch
import torch.nn.functional as F
from program import Program, fault, sound
from ti_data import accuracy, boxes, curve, gen, iou_of, loader, r2, r2_of, shapes, table
from ti_f1 import small_cnn
from torch import nn


@fault("the second output is used as the scale of a Normal as it is, negative for many rows",
       rules=["model-fails", "output-loss-mismatch"], fails=True, steps=300)
def scale_not_positive(is_faulty):
    x, y = curve()
    xt, yt = curve(512, seed=6)
    m = nn.Sequential(nn.Linear(8, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 2))

    def nll(out, t):
        scale = out[:, 1] if is_faulty else F.softplus(out[:, 1]) + 1e-3
        return -torch.distributions.Normal(out[:, 0], scale).log_prob(t).mean()

    return Program(m, nll, loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), lambda k: r2(k(xt)[:, 0], yt))


@fault("the overlap of boxes is returned as the loss, not one minus it",
       rules=["output-loss-mismatch"], fails=True, steps=400)
def overlap_minimised(is_faulty):
    x, _, box = boxes()
    xt, _, bt = boxes(512, seed=10)

    def edges(b):
        return b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2

    def overlap(p, t):
        p0, p1 = edges(p)
        t0, t1 = edges(t)
        inter = (torch.minimum(p1, t1) - torch.maximum(p0, t0)).clamp(min=0).prod(1)
        iou = inter / (p[:, 2:].prod(1) + t[:, 2:].prod(1) - inter + 1e-6)
        return iou

    def loss(p, t):
        iou = overlap(p, t).mean()
        return iou if is_faulty else 1 - iou

    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(12 * 36, 64), nn.ReLU(), nn.Linear(64, 4), nn.Sigmoid())
    return Program(m, loss, loader(x, box), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda k: overlap(k(xt), bt).mean().item())


@fault("a folder of images read class by class, without shuffle",
       rules=["sorted-batches"], fails=True, steps=240)
def folder_order(is_faulty):
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    order = y.argsort(stable=True)
    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(),
                      nn.Linear(192, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x[order], y[order], batch=32, shuffle=not is_faulty),
                   torch.optim.SGD(m.parameters(), 0.05, momentum=0.9), accuracy(xt, yt))


@fault("a column of income in currency units next to standardised ones: the scaler was fitted to a subset of columns",
       rules=["unscaled-input", "ill-conditioned-input"], fails=True, steps=250)
def income_left_raw(is_faulty):
    x, y = table()
    xt, yt = table(512, seed=4)
    if is_faulty:
        x, xt = x.clone(), xt.clone()
        for t in (x, xt):
            t[:, 7] = 42000 + 15000 * t[:, 7]
            t[:, 8] = 300 + 100 * t[:, 8]
    m = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(xt, yt))


@fault("images already in 0..1 are cast to uint8 by the transform, which leaves zeros",
       rules=["constant-feature", "labels-unrelated", "loss-not-decreasing"], fails=True, steps=200)
def cast_to_bytes(is_faulty):
    def transform(img):
        img = img.clamp(0, 1) * 0.99
        if is_faulty:
            img = img.to(torch.uint8)
        return img.float()

    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    x, xt = transform(x), transform(xt)
    m = small_cnn()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(xt, yt))


@fault("a label column compared with 'yes' where the table says 'Yes': every target is 0",
       rules=["constant-target"], fails=True, steps=200)
def label_never_matches(is_faulty):
    x, y = table()
    xt, yt = table(512, seed=4)
    column = ["Yes" if v >= 2 else "No" for v in y.tolist()]
    word = "yes" if is_faulty else "Yes"
    t = torch.tensor([float(c == word) for c in column])
    m = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))

    def score(model):
        p, truth = model(xt) > 0, yt >= 2
        return max(0.0, ((p & truth).sum() / truth.sum() + (~p & ~truth).sum() / (~truth).sum() - 1).item())

    return Program(m, nn.BCEWithLogitsLoss(), loader(x, t), torch.optim.Adam(m.parameters(), 1e-2), score)


@fault("Adam with the weight decay that was meant for a decoupled optimizer's schedule, 0.5 as L2",
       rules=["weight-decay-dominates"], fails=True, steps=250)
def l2_half(is_faulty):
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = small_cnn()
    return Program(m, nn.CrossEntropyLoss(label_smoothing=0.05), loader(x, y),
                   torch.optim.Adam(m.parameters(), 4e-3, weight_decay=0.5 if is_faulty else 1e-4), accuracy(xt, yt))
