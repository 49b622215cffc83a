import torch
import torch.nn.functional as F
from own_faults_c import LoRA, ScaledBlock
from own_faults_a import manifold
from own_kit import accuracy, blobs, curve, loader, r2, rng
from program import Program, sound
from torch import nn


@sound("physics-informed: no targets at all, inputs of one feature, second derivatives", steps=400, least=0.8)
def pinn_oscillator():
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    test = torch.linspace(0, 2, 100)[:, None]

    def step(model, batch):
        (x,) = batch
        x = x.clone().requires_grad_(True)
        u = 1 + x**2 * model(x)  # u(0) = 1, u'(0) = 0
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        return (ddu + 4 * u).pow(2).mean()

    return Program(
        model, None, loader(2 * torch.rand(640, 1, generator=rng(1))), torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: r2(1 + test**2 * m(test), torch.cos(2 * test)), step=step,
    )  # fmt: skip


@sound("LoRA: the up matrices are zero, so that the down matrices get no gradient at the first step", steps=300, least=0.8)
def lora_up_at_zero():
    x, y = blobs(1, 2048, 4, 16)
    tx, ty = blobs(2, 600, 4, 16)
    base = [nn.Linear(16, 48).requires_grad_(False), nn.Linear(48, 4).requires_grad_(False)]
    model = nn.Sequential(LoRA(base[0], 4, False), nn.GELU(), LoRA(base[1], 4, False))
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3, weight_decay=0.0),
        lambda m: accuracy(m(tx), ty),
    )  # fmt: skip


@sound("AdamW with decay on matrices only, a warmup from nearly 0 and a cosine", steps=300, least=0.8)
def groups_warmup_cosine():
    x, y = curve(1, 2048, 8, 3)
    tx, ty = curve(2, 500, 8, 3)
    model = nn.Sequential(
        nn.Linear(8, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 3)
    )
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=4e-3, betas=(0.9, 0.95)
    )
    warm = torch.optim.lr_scheduler.LinearLR(opt, 1e-3, 1.0, 40)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 260)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cosine], [40])
    return Program(model, nn.MSELoss(), loader(x, y), opt, lambda m: r2(m(tx), ty), scheduler=sched)


@sound("only a vector of scales is tuned, in float32, on a frozen bfloat16 network", steps=400, least=0.7)
def ia3_scales_in_float32():
    model = ScaledBlock(torch.float32)
    shift = 0.45 * torch.sign(torch.randn(64, generator=rng(34)))

    def make(seed, n):
        x = 2 * torch.randn(n, 12, generator=rng(seed))
        with torch.no_grad():
            h = torch.tanh(model.a(x.bfloat16())).float()
            return x, h @ (model.b.weight.float() * shift).T + model(x)

    tx, ty = make(2, 500)
    with torch.no_grad():
        base = model(tx)
    return Program(
        model, F.mse_loss, loader(*make(1, 2048)), torch.optim.Adam([model.scale], lr=2e-3),
        lambda m: r2(m(tx) - base, ty - base),
    )  # fmt: skip


@sound("a loss summed over batch and features, with a rate of 1e-4 that was chosen for it", steps=400, least=0.8)
def summed_on_purpose():
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5), nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 20))
    test = manifold(90, 400)
    return Program(
        model, None, loader(manifold(1, 2048)), torch.optim.SGD(model.parameters(), lr=2e-4, momentum=0.9),
        lambda m: r2(m(test), test), step=lambda m, b: F.mse_loss(m(b[0]), b[0], reduction="sum"),
    )  # fmt: skip
