import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.optim.lr_scheduler import StepLR
from tos_kit import acc, dl, r2, rn, table


@sound("ordinary: several outputs by mean squared error, half trained", trained=100, steps=250, least=0.8)
def tos_plain_outputs():
    x = rn(1200, 9)
    y = torch.tanh(x @ rn(9, 4, s=1) / 3) + 0.05 * rn(1200, 4, s=2)
    model = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 4))
    return Program(model, nn.MSELoss(), dl(x[200:], y[200:], bs=50), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(x[:200]), y[:200]))


@sound("ordinary: digits, Nesterov momentum, LayerNorm, steps in the rate", steps=250, least=0.85)
def tos_plain_nesterov():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 48), nn.LayerNorm(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return Program(model, F.cross_entropy, dl(x, y), opt, lambda m: acc(m(vx), vy), scheduler=StepLR(opt, 100, 0.3))


@sound("ordinary: autoencoder of digits with a step of its own, trained", trained=350, steps=400, least=0.6)
def tos_plain_autoencoder():
    x, y, vx, vy = table("digits")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12), nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64))

    def step(m, batch):
        return F.mse_loss(m(batch[0]), batch[0])

    return Program(model, None, dl(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(vx), vx), step=step)


@sound("ordinary: breast cancer with a residual block and plain SGD", steps=200, least=0.9)
def tos_plain_residual():
    x, y, vx, vy = table("breast_cancer")

    class TosResidual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(30, 24)
            self.block = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
            self.out = nn.Linear(24, 2)

        def forward(self, b):
            h = self.inp(b)
            return self.out(h + self.block(h))

    model = TosResidual()
    return Program(model, nn.CrossEntropyLoss(), dl(x, y, bs=32), torch.optim.SGD(model.parameters(), 0.05), lambda m: acc(m(vx), vy))
