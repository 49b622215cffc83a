"""Sound: optimizers, precision, adapters, layers made by hand."""

import torch
import torch.nn.functional as F
from own_common import accuracy, blobs, fit, loader, r2, rings, wavy
from own_faults_c import Lora
from program import Program, sound
from torch import nn


class Pair(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher.requires_grad_(False).eval()
        self.student = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x):
        return self.student(x)


@sound("distillation at temperature 4, times 16; the teacher is a frozen part of the model", steps=250, least=0.75)
def distil_temperature():
    x, y = blobs(1600, 5, 10, 161, 1.5)
    centres = torch.stack([x[:1280][y[:1280] == i].mean(0) for i in range(5)])
    teacher = nn.Linear(10, 5)
    with torch.no_grad():
        teacher.weight.copy_(4 * centres)
        teacher.bias.copy_(-2 * centres.square().sum(1))
    m = Pair(teacher)

    def step(model, batch):
        xb, yb = batch
        out = model(xb)
        with torch.no_grad():
            soft = F.softmax(model.teacher(xb) / 4, 1)
        return 0.7 * 16 * F.kl_div(F.log_softmax(out / 4, 1), soft, reduction="batchmean") + 0.3 * F.cross_entropy(out, yb)

    return Program(m, None, loader(x[:1280], y[:1280]), torch.optim.Adam(m.student.parameters(), 2e-3), accuracy(x[1280:], y[1280:]), step=step)


@sound("low-rank adapters with B at zero: A has no gradient at the first step", steps=250, least=0.75)
def lora_b_zero():
    x, y = blobs(1600, 5, 12, 162, 1.2)
    parts = [Lora(nn.Linear(12, 48), 4, False), Lora(nn.Linear(48, 48), 4, False)]
    m = nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), nn.Linear(48, 5))
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 5e-3)
    return Program(m, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), opt, accuracy(x[1280:], y[1280:]))


@sound("AdamW with weight decay 0.3 on matrices only, another rate for the head", steps=250, least=0.6)
def groups_with_decay():
    x, y = wavy(1600, 6, 163)
    m = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    body = [p for layer in m[:-1] for p in layer.parameters()]
    groups = [
        {"params": [p for p in body if p.ndim > 1], "weight_decay": 0.3},
        {"params": [p for p in body if p.ndim == 1], "weight_decay": 0.0},
        {"params": m[-1].parameters(), "lr": 1e-2, "weight_decay": 0.0},
    ]
    return Program(m, nn.MSELoss(), loader(x[:1280], y[:1280]), torch.optim.AdamW(groups, lr=3e-3), fit(x[1280:], y[1280:]))


@sound("autocast in bfloat16, weights in float32, gradients clipped to norm 1 at every step", steps=250, least=0.6)
def autocast_and_clipping():
    x, y = wavy(1600, 6, 164)
    m = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def step(net, batch):
        xb, yb = batch
        with torch.autocast("cpu", torch.bfloat16):
            out = net(xb)
        return F.mse_loss(out.float(), yb)

    opt = torch.optim.Adam(m.parameters(), 4e-3)
    opt.register_step_pre_hook(lambda *_: [nn.utils.clip_grad_norm_(m.parameters(), 1.0), None][1])
    return Program(m, None, loader(x[:1280], y[:1280]), opt, fit(x[1280:], y[1280:]), step=step)


@sound("a warm-up from a thousandth of the rate, then a decay", steps=300, least=0.8)
def long_warmup():
    x, y = rings(1600, 166)
    m = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.Adam(m.parameters(), lr=6e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: max(1e-3, min(k / 60, (310 - k) / 250)))
    return Program(m, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), opt, accuracy(x[1280:], y[1280:]), scheduler=rate)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


class Binary(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x):
        return Sign.apply(self.lin(x))


@sound("binary activations with a gradient of their own", steps=300, least=0.75)
def binary_activations():
    x, y = blobs(1600, 5, 12, 168, 1.2)
    m = nn.Sequential(Binary(12, 64), Binary(64, 64), nn.Linear(64, 5))
    return Program(m, nn.CrossEntropyLoss(), loader(x[:1280], y[:1280]), torch.optim.Adam(m.parameters(), 3e-3), accuracy(x[1280:], y[1280:]))


@sound("two optimizers: the step itself moves the second part, the loop the first", steps=250, least=0.6)
def second_optimizer_in_step():
    x, y = wavy(1600, 6, 171)
    m = nn.ModuleDict({"body": nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()), "head": nn.Linear(64, 1)})
    head_opt = torch.optim.Adam(m["head"].parameters(), 3e-3)

    def step(model, batch):
        xb, yb = batch
        h = model["body"](xb)
        head_opt.zero_grad()
        F.mse_loss(model["head"](h.detach()), yb).backward()
        head_opt.step()
        head_opt.zero_grad()
        return F.mse_loss(model["head"](h), yb)

    return Program(m, None, loader(x[:1280], y[:1280]), torch.optim.Adam(m["body"].parameters(), 3e-3), lambda m: r2(m["head"](m["body"](x[1280:])), y[1280:]), step=step)
