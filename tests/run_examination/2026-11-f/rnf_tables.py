"""Loops over vectors and tables."""

import copy
import itertools

import torch
from program import fault, healthy
from rnf_data import cancer, digits
from torch import nn
from torch.nn import functional as F


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def blobs(n, d, classes, generator, centres, noise=1.0):
    y = torch.randint(0, classes, (n,), generator=generator)
    return centres[y] + noise * torch.randn(n, d, generator=generator), y


@fault(
    "A bump of the rate by 300 for 7 steps at step 420 (a wrong entry of a table) throws most ReLUs off for good.",
    rules=("dying-neurons", "learning-rate-too-high"),
    layers=("0", "1", "2", "3", "4", "5"),
    step=420,
    steps=1300,
)
def rate_table(record, bad=True):
    torch.manual_seed(121)
    g = torch.Generator().manual_seed(1)
    teacher = mlp(16, 24, 6, act=nn.Tanh)
    model = mlp(16, 96, 96, 96, 6)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    table = {420: 0.3, 427: 1e-3} if bad else {}
    for step in range(1300):
        if step in table:
            opt.param_groups[0]["lr"] = table[step]
        xb = torch.randn(128, 16, generator=g)
        with torch.no_grad():
            yb = teacher(3 * xb).argmax(1)
        opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@fault(
    "One batch, at step 933, comes in raw units: its targets are 40 times as large.",
    rules=("loss-spike",),
    step=933,
    steps=1500,
)
def raw_units(record, bad=True):
    torch.manual_seed(122)
    g = torch.Generator().manual_seed(2)
    model = mlp(8, 128, 128, 2, act=nn.SiLU)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    recorder = record(model, opt, F.mse_loss)
    mix = torch.randn(8, 2, generator=g)
    for step in range(1500):
        xb = torch.randn(64, 8, generator=g)
        yb = torch.sin(xb @ mix) + 0.2 * xb[:, :2] ** 2 + 0.1 * torch.randn(64, 2, generator=g)
        if step == 933 and bad:
            yb = 40 * yb
        opt.zero_grad()
        loss = F.mse_loss(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@fault(
    "From step 613 on the weight decay is multiplied by 1.05 every step, up to 0.4, instead of the rate by 0.999.",
    rules=("weight-decay-dominates",),
    step=613,
    steps=1500,
)
def growing_decay(record, bad=True):
    torch.manual_seed(123)
    x, y, _, _ = digits()
    x = x.flatten(1)
    g = torch.Generator().manual_seed(3)
    model = mlp(64, 128, 128, 10, act=nn.Tanh)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    recorder = record(model, opt, F.cross_entropy)
    for step in range(1500):
        if step >= 613:
            group = opt.param_groups[0]
            if bad:
                group["weight_decay"] = min(0.4, group["weight_decay"] * 1.05)
            else:
                group["lr"] *= 0.999
        index = torch.randint(0, len(x), (32,), generator=g)
        xb = x[index] + 0.3 * torch.randn(32, 64, generator=g)
        yb = y[index]
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@fault(
    "From step 577 on the loader's buffer is not refilled: the same three batches come again and again.",
    rules=("repeated-batches", "overfitting"),
    step=577,
    steps=1400,
)
def stuck_buffer(record, bad=True):
    torch.manual_seed(124)
    g = torch.Generator().manual_seed(4)
    centres = torch.randn(6, 20, generator=g)
    vx, vy = blobs(600, 20, 6, torch.Generator().manual_seed(44), centres, 2.2)
    model = mlp(20, 128, 128, 6)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, opt, F.cross_entropy)
    buffer = []
    for step in range(1400):
        fresh = blobs(32, 20, 6, g, centres, 2.2)
        if step < 577 or not bad:
            buffer = [*buffer[-2:], fresh]
            xb, yb = fresh
        else:
            xb, yb = buffer[step % 3]
        opt.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        if step % 40 == 39:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(vx), vy).item())


# ------------------------------------------------------------------ healthy


@healthy("Discriminator of a GAN: its loss goes towards ln 2 and swings.", steps=1800)
def gan(record):
    torch.manual_seed(221)
    generator = mlp(4, 32, 32, 2, act=nn.LeakyReLU)
    model = mlp(2, 32, 32, 1, act=nn.LeakyReLU)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999))
    gen_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    loss_fn = nn.BCEWithLogitsLoss()
    recorder = record(model, opt, loss_fn)
    for step in range(1800):
        real = torch.tensor([1.5, -0.5]) + torch.randn(24, 2) @ torch.tensor([[0.8, 0.3], [0.0, 0.4]])
        fake = generator(torch.randn(24, 4))
        xb = torch.cat([real, fake.detach()])
        yb = torch.cat([torch.ones(24, 1), torch.zeros(24, 1)])
        opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
        gen_opt.zero_grad()
        loss_fn(model(fake), torch.ones(24, 1)).backward()
        gen_opt.step()
    gan.check = (generator(torch.randn(2000, 4)).mean(0) - torch.tensor([1.5, -0.5])).norm().item()


@healthy("Policy gradient on a contextual bandit: the loss is signed and noisy and says little.", steps=2000)
def policy(record):
    torch.manual_seed(222)
    model = mlp(6, 32, 4, act=nn.Tanh)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_fn(logits, targets):
        logp = F.log_softmax(logits, 1).gather(1, targets[:, :1].long()).squeeze(1)
        return -(logp * targets[:, 1]).mean()

    recorder = record(model, opt, loss_fn)
    best = torch.randn(6, 4)
    baseline, rewards = 0.0, []
    for step in range(2000):
        xb = torch.randn(32, 6)
        logits = model(xb)
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=logits).sample()
            reward = (action == (xb @ best).argmax(1)).float() + 0.1 * torch.randn(32)
        yb = torch.stack([action.float(), reward - baseline], 1)
        baseline = 0.95 * baseline + 0.05 * reward.mean().item()
        rewards.append(reward.mean().item())
        opt.zero_grad()
        loss = loss_fn(logits, yb)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))
    policy.check = (sum(rewards[:100]) / 100, sum(rewards[-100:]) / 100)


@healthy("Values learned from a target network that is renewed every 200 steps: the loss jumps at each.", steps=1800)
def target_network(record):
    torch.manual_seed(223)
    model = mlp(4, 48, 48, 1)
    target = copy.deepcopy(model)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, opt, F.smooth_l1_loss)
    states = torch.randn(1000, 4)
    following = 0.8 * states.roll(1, 1) + 0.3 * torch.randn(1000, 4)
    gain = states[:, :1].tanh() + 0.5 * states[:, 1:2]
    for step in range(1800):
        if step % 200 == 0:
            target.load_state_dict(model.state_dict())
        index = torch.randint(0, 1000, (48,))
        xb = states[index]
        with torch.no_grad():
            yb = gain[index] + 0.7 * target(following[index])
        loss = F.smooth_l1_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("Batches of 2: the loss of a step tells almost nothing.", steps=2000)
def pairs_only(record):
    torch.manual_seed(224)
    x, y, vx, vy = digits()
    x, vx = x.flatten(1), vx.flatten(1)
    model = mlp(64, 160, 160, 10)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, opt, loss_fn)
    for step in range(2000):
        index = torch.randint(0, len(x), (2,))
        loss = loss_fn(model(x[index]), y[index])
        opt.zero_grad()
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (x[index], y[index]))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(loss_fn(model(vx), vy).item())


@healthy("One class in forty, with weights: rare large losses.", steps=1800)
def rare_class(record):
    torch.manual_seed(225)
    model = mlp(10, 48, 2)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 8.0]))
    recorder = record(model, opt, loss_fn)
    direction = 1.2 * torch.randn(10)
    for step in range(1800):
        yb = (torch.rand(40) < 0.025).long()
        xb = torch.randn(40, 10) + yb[:, None] * direction
        loss = loss_fn(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("Parity of three of sixteen signs: a long plateau before anything is learned.", steps=2000)
def parity(record):
    torch.manual_seed(226)
    model = mlp(16, 256, 1)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    recorder = record(model, opt, loss_fn)
    for step in range(2000):
        xb = torch.randint(0, 2, (96, 16)).float() * 2 - 1
        yb = (xb[:, [1, 5, 9]].prod(1, keepdim=True) + 1) / 2
        loss = loss_fn(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (xb, yb))


@healthy("The whole training set in each step, always the same batch; validation agrees.", steps=1500)
def whole_set(record):
    torch.manual_seed(227)
    x, y, vx, vy = cancer()
    y, vy = y[:, None], vy[:, None]
    model = mlp(30, 8, 1, act=nn.Tanh)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.05)
    loss_fn = nn.BCEWithLogitsLoss()
    recorder = record(model, opt, loss_fn)
    for step in range(1500):
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        recorder.step(loss.item(), (x, y))
        if step % 50 == 49:
            with torch.no_grad():
                recorder.validation(loss_fn(model(vx), vy).item())
