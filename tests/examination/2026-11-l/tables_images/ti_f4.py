import torch
import torch.nn.functional as F
from program import Program, fault, sound
from ti_data import accuracy, boxes, curve, gen, iou_of, loader, r2, r2_of, shapes, table
from ti_f1 import small_cnn
from torch import nn


@fault("batches of three rows for a network with BatchNorm",
       rules=["small-batch-batchnorm", "batchnorm-mode-gap", "mixed-examples"], layers=["1", "4"], fails=False, steps=300)
def few_rows_in_batchnorm(is_faulty):
    x, y = curve()
    xt, yt = curve(512, seed=6)
    m = nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 32), nn.BatchNorm1d(32), nn.ReLU(),
                      nn.Linear(32, 1), nn.Flatten(0))
    return Program(m, nn.MSELoss(), loader(x, y, batch=3 if is_faulty else 64), torch.optim.Adam(m.parameters(), 5e-3),
                   r2_of(xt, yt))


@fault("feature maps are transposed to (C, N, ...) before they are flattened to N rows: rows mix examples",
       rules=["mixed-examples"], fails=True, steps=200)
def flattened_across(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
            self.fc = nn.Linear(16 * 9, 4)

        def forward(self, x):
            n = len(x)
            h = F.relu(self.conv2(F.max_pool2d(F.relu(self.conv1(x)), 2)))
            if is_faulty:
                h = h.permute(1, 0, 2, 3)
            return self.fc(h.reshape(n, -1))

    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(xt, yt))


@fault("the whole network is put into bfloat16, weights and all, and trained with a small rate",
       rules=["lost-updates"], fails=False, steps=400)
def all_bfloat16(is_faulty):
    kind = torch.bfloat16 if is_faulty else torch.float32
    x, y = shapes()
    xt, yt = shapes(512, seed=8)
    m = small_cnn(c=12).to(kind)
    return Program(m, lambda o, t: F.cross_entropy(o.float(), t), loader(x.to(kind), y),
                   torch.optim.Adam(m.parameters(), 2e-4), accuracy(xt.to(kind), yt))
