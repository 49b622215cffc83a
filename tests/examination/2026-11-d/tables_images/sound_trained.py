"""Sound programs for tables and pictures, looked at half trained or trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, classes, digits, loader, r2, table
from images import convnet
from tables import mlp


@sound(
    "Trained to the end: the training loss is nearly zero, and so are the gradients.", trained=350, steps=400, least=0.9
)
def cnn_at_the_end():
    x, y, tx, ty = digits()
    net = convnet()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@sound(
    "Halfway: a third of the ReLUs has gone off for good, and the rest does the work.",
    trained=150,
    steps=400,
    least=0.8,
)
def some_dead_units():
    x, y, tx, ty = table()
    net = mlp(10, 96, 96, 1)
    with torch.no_grad():
        net[0].bias[:24] = -6.0
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), r2(tx, ty))


@sound("Converged regression: the loss is that of the noise.", trained=500, steps=550, least=0.85)
def converged_regression():
    x, y, tx, ty = table()
    net = mlp(10, 64, 64, 1)
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), r2(tx, ty))


@sound(
    "BatchNorm halfway: its running statistics lag behind those of the batches a little.",
    trained=60,
    steps=250,
    least=0.9,
)
def batchnorm_halfway():
    x, y, tx, ty = digits()
    net = convnet(norm=nn.BatchNorm2d)
    return Program(
        net, F.cross_entropy, loader(x, y), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), accuracy(tx, ty)
    )


@sound(
    "Fine-tuning: BatchNorm of a pretrained body stays in evaluation mode, with its own statistics.",
    steps=200,
    least=0.85,
)
def frozen_batchnorm():
    x, y, tx, ty = digits()
    net = convnet(norm=nn.BatchNorm2d)
    Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty)).train(150)
    net[-1] = nn.Linear(96, 2)

    class Tuned(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def train(self, mode=True):
            super().train(mode)
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
            return self

        def forward(self, x):
            return self.net(x)

    tuned = Tuned().train()
    opt = torch.optim.AdamW(
        [{"params": net[:-1].parameters(), "lr": 1e-4}, {"params": net[-1].parameters(), "lr": 5e-3}], weight_decay=0.01
    )
    return Program(tuned, F.cross_entropy, loader(x, y % 2), opt, accuracy(tx, ty % 2))


@sound(
    "Distillation: a frozen teacher in evaluation mode stands inside the model, and its scores are the targets.",
    steps=300,
    least=0.85,
)
def distillation():
    x, y, tx, ty = digits()
    teacher = convnet()
    Program(
        teacher, F.cross_entropy, loader(x, y), torch.optim.Adam(teacher.parameters(), 5e-3), accuracy(tx, ty)
    ).train(150)
    teacher.eval().requires_grad_(False)
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def step(student, batch):
        with torch.no_grad():
            want = F.log_softmax(teacher(batch[0]) / 2, dim=1)
        got = F.log_softmax(student(batch[0]) / 2, dim=1)
        return 4 * F.kl_div(got, want, log_target=True, reduction="batchmean")

    return Program(
        student, None, loader(x, y), torch.optim.Adam(student.parameters(), 3e-3), accuracy(tx, ty), step=step
    )


@sound("A graph network halfway.", trained=60, steps=300, least=0.85)
def graph_halfway():
    from graphs import GCN, graph_program

    return graph_program(GCN(residual=True))


@sound("The end of a schedule: the rate has fallen to a thousandth.", trained=380, steps=400, least=0.75)
def end_of_schedule():
    x, y, tx, ty = classes()
    net = mlp(8, 64, 64, 4)
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    plan = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=400, power=2.0)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty), scheduler=plan)


@sound("Trained with large weights: logits of twenty and more, nearly all right.", trained=400, steps=450, least=0.85)
def sure_classifier():
    x, y, tx, ty = digits()
    net = mlp(64, 96, 10)
    net.insert(0, nn.Flatten())
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))
