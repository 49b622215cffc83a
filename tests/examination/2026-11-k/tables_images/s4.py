import math
import torch
import torch.nn.functional as F
from program import Program, sound
from tidata import *
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@sound("one-hot columns, some of them rare, and indicators of missing values", steps=300, least=0.65)
def one_hot_and_missing():
    x, y, xt, yt = table(seed=67, d=6)
    g = gen(5)

    def widen(a):
        cat = (a[:, 0] * 3 + 8).round().clamp(0, 15).long()
        miss = (torch.rand(a.shape, generator=g) < 0.03).float()
        return torch.cat([F.one_hot(cat, 16).float(), a * (1 - miss), miss], 1)

    model = mlp(28, 64, 64, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(widen(x), y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(widen(xt), yt))


@sound("log-softmax in the network, with the loss that takes it", steps=200, least=0.75)
def log_softmax_and_nll():
    x, y, xt, yt = images(seed=68)
    model = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 4), nn.LogSoftmax(dim=1))
    return Program(model, nn.NLLLoss(), loader(x, y), torch.optim.RMSprop(model.parameters(), 1e-3), accuracy(xt, yt))


@sound("half trained: a classifier of rows in the middle of its run", trained=150, steps=300, least=0.75)
def rows_half_way():
    x, y, xt, yt = table(seed=69)
    model = nn.Sequential(nn.Linear(10, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 3))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(xt, yt))


@sound("half trained: BatchNorm and a falling rate", trained=120, steps=240, least=0.75)
def pictures_half_way():
    x, y, xt, yt = images(seed=70)
    model = nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 80, 0.5)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt), scheduler=sched)


@sound("a rate of 1, which is Adadelta's own", steps=400, least=0.7)
def rate_of_one():
    x, y, xt, yt = table(seed=71)
    model = mlp(10, 64, 64, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adadelta(model.parameters(), lr=1.0), accuracy(xt, yt))


@sound("a sigmoid at the end: pixels lie between 0 and 1", trained=100, steps=400, least=0.6)
def pixels_from_a_sigmoid():
    x, xt = factors(seed=72, noise=0.05, q=3)
    x, xt = torch.sigmoid(2 * x), torch.sigmoid(2 * xt)
    model = nn.Sequential(*mlp(24, 64, 5, 64, 24), nn.Sigmoid())
    return Program(model, nn.BCELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 5e-3), fit(xt, xt))
