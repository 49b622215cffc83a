import torch
import torch.nn.functional as F
from program import Program, fault, sound
from ti_data import accuracy, boxes, curve, gen, iou_of, loader, r2, r2_of, shapes, table
from ti_f1 import small_cnn
from torch import nn


@fault("a decay meant for each epoch is applied after every batch",
       rules=["learning-rate-too-low"], fails=True, steps=250)
def decay_every_batch(is_faulty):
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = small_cnn()
    opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=2 if is_faulty else 48, gamma=0.3)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt), scheduler=sched)


@fault("one BatchNorm is used after both branches, whose features differ in scale and offset",
       rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn", "bn_b"], fails=False, steps=250)
def one_batchnorm_two_branches(is_faulty):
    class Fusion(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 24))
            self.row = nn.Linear(6, 24)
            self.bn = nn.BatchNorm1d(24)
            self.bn_b = self.bn if is_faulty else nn.BatchNorm1d(24)
            self.out = nn.Sequential(nn.ReLU(), nn.Linear(48, 4))

        def forward(self, image, row):
            return self.out(torch.cat([self.bn(self.image(image)), self.bn_b(self.row(row))], 1))

    def rows(n, seed):
        return 4 + 3 * torch.randn(n, 6, generator=gen(seed))

    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    r, rt = rows(len(x), 1), rows(512, 2)
    y, yt = 2 * (y >= 2) + (r[:, 0] > 4).long(), 2 * (yt >= 2) + (rt[:, 0] > 4).long()
    m = Fusion()
    return Program(m, None, loader(x, r, y), torch.optim.Adam(m.parameters(), 4e-3),
                   lambda k: (k(xt, rt).argmax(1) == yt).float().mean().item(),
                   step=lambda k, b: F.cross_entropy(k(b[0], b[1]), b[2]))


@fault("Dropout(0.9) by somebody who means to keep nine tenths",
       rules=["dropout-too-strong"], layers=["drop1", "drop2"], fails=True, steps=300)
def keep_probability(is_faulty):
    class Net(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(8, 40), nn.Linear(40, 40), nn.Linear(40, 1)
            self.drop1, self.drop2 = nn.Dropout(p), nn.Dropout(p)

        def forward(self, x):
            x = self.drop1(torch.relu(self.fc1(x)))
            return self.fc3(self.drop2(torch.relu(self.fc2(x))))[:, 0]

    x, y = curve()
    xt, yt = curve(512, seed=6)
    m = Net(0.9 if is_faulty else 0.02)
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), r2_of(xt, yt))


@fault("F.dropout without training=self.training",
       rules=["dropout-in-eval"], fails=False, steps=300)
def functional_dropout(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 10, 3)
            self.fc1, self.fc2 = nn.Linear(250, 32), nn.Linear(32, 4)

        def forward(self, x):
            on = True if is_faulty else self.training
            x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
            x = F.dropout(x, training=on)
            x = F.dropout(F.relu(self.fc1(x)), training=on)
            return F.log_softmax(self.fc2(x), 1)

    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = Net()
    return Program(m, F.nll_loss, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(xt, yt))


@fault("a segmentation loss summed over all pixels of the batch, with a rate for the mean",
       rules=["summed-loss", "learning-rate-too-high"], fails=True, steps=200)
def pixels_summed(is_faulty):
    x, mask, _ = boxes()
    xt, mt, _ = boxes(512, seed=10)
    m = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                      nn.Conv2d(8, 1, 1))
    return Program(m, nn.BCEWithLogitsLoss(reduction="sum" if is_faulty else "mean"), loader(x, mask, batch=32),
                   torch.optim.SGD(m.parameters(), 0.2, momentum=0.9), iou_of(xt, mt))
