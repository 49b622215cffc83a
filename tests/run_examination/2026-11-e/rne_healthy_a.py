import math

import torch
import torch.nn.functional as F
from program import healthy
from rne_data import digits, teacher
from torch import nn


@healthy("targets are mostly noise: the loss stays near its floor and jumps from batch to batch", steps=1500)
def noisy_targets(record):
    torch.manual_seed(601)
    f = teacher(8, 1, seed=21)
    model = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, 1500)
    loss_fn = nn.MSELoss()
    g = torch.Generator().manual_seed(9)
    xv = torch.randn(500, 8, generator=g)
    yv = f(xv) + 0.9 * torch.randn(500, 1, generator=g)
    rec = record(model, opt, loss_fn)
    for step in range(1500):
        x = torch.randn(16, 8)
        y = f(x) + 0.9 * torch.randn(16, 1)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        rec.step(loss.item(), (x, y))
        if step % 75 == 74:
            with torch.no_grad():
                rec.validation(loss_fn(model(xv), yv).item())


@healthy("warm restarts: the rate, and a little the loss, go up every 300 steps", steps=1500)
def warm_restarts(record):
    torch.manual_seed(602)
    xtr, ytr, _, _ = digits()
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 300, eta_min=1e-4)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for _ in range(1500):
        i = torch.randint(0, 1400, (32,))
        x, y = xtr[i] + 0.9 * torch.randn(32, 64), ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        rec.step(loss.item(), (x, y))


@healthy("the critic of a GAN: its loss rises to about log 2 while the generator learns", steps=1500)
def gan_critic(record):
    torch.manual_seed(603)
    gen = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
    dis = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    og = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.99))
    od = torch.optim.Adam(dis.parameters(), lr=1e-3, betas=(0.5, 0.99))
    loss_fn = nn.BCEWithLogitsLoss()
    rec = record(dis, od, loss_fn)
    for _ in range(1500):
        a = torch.rand(32) * 2 * math.pi
        real = torch.stack([1.5 * a.cos(), 0.8 * a.sin()], 1) + 0.1 * torch.randn(32, 2)
        fake = gen(torch.randn(32, 4))
        x = torch.cat([real, fake.detach()])
        y = torch.cat([torch.full((32, 1), 0.95), torch.zeros(32, 1)])
        loss = loss_fn(dis(x), y)
        od.zero_grad()
        loss.backward()
        od.step()
        rec.step(loss.item(), (x, y))
        og.zero_grad()
        loss_fn(dis(fake), torch.ones(32, 1)).backward()
        og.step()
    gan_critic.generator = gen


def _policy_loss(out, target):
    action, advantage = target[:, 0].long(), target[:, 1]
    logp = F.log_softmax(out, 1)
    entropy = -(logp.exp() * logp).sum(1).mean()
    return -(advantage * logp.gather(1, action[:, None]).squeeze(1)).mean() - 0.01 * entropy


@healthy("REINFORCE on a contextual bandit: the loss has either sign and does not fall, while the reward rises",
         steps=1500)
def bandit_policy(record):
    torch.manual_seed(604)
    f = teacher(6, 4, seed=24)
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 4))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    rec = record(model, opt, _policy_loss)
    baseline, bandit_policy.rewards = 0.0, []
    for _ in range(1500):
        x = torch.randn(48, 6)
        with torch.no_grad():
            a = torch.multinomial(torch.softmax(model(x), 1), 1)
        r = f(x).gather(1, a).squeeze(1) + 0.3 * torch.randn(48)
        baseline += 0.05 * (r.mean().item() - baseline)
        target = torch.stack([a.squeeze(1).float(), r - baseline], 1)
        loss = _policy_loss(model(x), target)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        rec.step(loss.item(), (x, target))
        bandit_policy.rewards.append(r.mean().item())


@healthy("strong dropout: the training loss stays far above the validation loss", steps=1500)
def strong_dropout(record):
    torch.manual_seed(605)
    xtr, ytr, xva, yva = digits()
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 128),
                          nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for step in range(1500):
        i = torch.randint(0, 1400, (32,))
        x, y = xtr[i], ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))
        if step % 60 == 59:
            model.eval()
            with torch.no_grad():
                rec.validation(loss_fn(model(xva), yva).item())
            model.train()


@healthy("a curriculum: the noise on the inputs grows slowly, so that the loss rises in the second half", steps=1600)
def curriculum(record):
    torch.manual_seed(606)
    xtr, ytr, xva, yva = digits()
    model = nn.Sequential(nn.Linear(64, 96), nn.SiLU(), nn.LayerNorm(96), nn.Linear(96, 64), nn.SiLU(), nn.Linear(64, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.02)
    loss_fn = nn.CrossEntropyLoss()
    g = torch.Generator().manual_seed(66)
    xv = xva + 1.2 * torch.randn(xva.shape, generator=g)
    rec = record(model, opt, loss_fn)
    for step in range(1600):
        i = torch.randint(0, 1400, (32,))
        x = xtr[i] + (0.2 + 1.2 * step / 1600) * torch.randn(32, 64)
        y = ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))
        if step % 80 == 79:
            with torch.no_grad():
                rec.validation(loss_fn(model(xv), yva).item())


@healthy("a positive class of 3 %: batches without any of it, and a loss that jumps when some are there", steps=1500)
def rare_class(record):
    torch.manual_seed(607)
    f = teacher(10, 1, seed=27)
    cut = f(torch.randn(20000, 10)).quantile(0.97)
    model = nn.Sequential(nn.Linear(10, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    rec = record(model, opt, loss_fn)
    for _ in range(1500):
        x = torch.randn(64, 10)
        y = (f(x) > cut).float()
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


@healthy("fine-tuning: the lower layers are frozen from the start and stay so", steps=1200)
def frozen_from_start(record):
    torch.manual_seed(608)
    xtr, ytr, xva, yva = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lower = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
            self.upper = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))

        def forward(self, x):
            return self.upper(self.lower(x))

    model = Net()
    old_head = nn.Linear(64, 4)
    pre = torch.optim.Adam([*model.lower.parameters(), *old_head.parameters()], lr=2e-3)
    for _ in range(100):
        i = torch.randint(0, 1400, (64,))
        pre.zero_grad()
        F.cross_entropy(old_head(model.lower(xtr[i])), ytr[i] // 3).backward()
        pre.step()
    pre.zero_grad()
    model.lower.requires_grad_(False)
    opt = torch.optim.AdamW(model.upper.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for step in range(1200):
        i = torch.randint(0, 1400, (32,))
        x, y = xtr[i] + 0.4 * torch.randn(32, 64), ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))
        if step % 60 == 59:
            with torch.no_grad():
                rec.validation(loss_fn(model(xva), yva).item())
