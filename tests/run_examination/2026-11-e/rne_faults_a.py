import math

import torch
import torch.nn.functional as F
from program import fault
from rne_data import digits, teacher
from torch import nn


@fault("zero_grad is skipped from step 430 on (the accumulation window was set to 'never')",
       rules=("gradients-not-cleared", "exploding-gradient", "learning-rate-too-high"), step=430, steps=1100)
def robot_arm(record, broken=True):
    torch.manual_seed(501)
    f = teacher(12, 3, seed=3)
    model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    loss_fn = nn.MSELoss()
    rec = record(model, opt, loss_fn)
    window = 1
    for step in range(1100):
        if broken and step == 430:
            window = 10**9
        x = torch.randn(48, 12)
        y = f(x) + 0.05 * torch.randn(48, 3)
        if step % window == 0:
            opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


class _Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class _TinyLM(nn.Module):
    def __init__(self, vocab=20, d=24, length=12):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.block1, self.block2 = _Block(d, 2), _Block(d, 2)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.head(self.norm(self.block2(self.block1(x))))


def _lm_loss(out, target):
    return F.cross_entropy(out.flatten(0, 1), target.flatten())


def _markov(n, length, table):
    ids = torch.zeros(n, length + 1, dtype=torch.long)
    ids[:, 0] = torch.randint(0, table.shape[0], (n,))
    for t in range(length):
        ids[:, t + 1] = torch.multinomial(table[ids[:, t]], 1).squeeze(1)
    return ids


@fault("an exponential warm-up should end at step 248 and 4e-3; it goes on to step 520 and 58 times that rate",
       rules=("learning-rate-too-high", "diverging", "exploding-gradient"), step=248, steps=1000)
def little_language_model(record, broken=True):
    torch.manual_seed(502)
    table = torch.softmax(2.5 * torch.randn(20, 20), 1)
    pool = _markov(1500, 12, table)
    model = _TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    warm = 520 if broken else 248
    rec = record(model, opt, _lm_loss)
    for step in range(1000):
        for g in opt.param_groups:
            g["lr"] = 1e-4 * 1.015 ** min(step, warm)
        ids = pool[torch.randint(0, 1500, (12,))]
        x, y = ids[:, :-1], ids[:, 1:]
        opt.zero_grad(set_to_none=True)
        loss = _lm_loss(model(x), y)
        loss.backward()
        opt.step()
        rec.step(float(loss.detach()), (x, y))


@fault("a batch at step 517 whose values are far off range kills the ReLUs of the network for good",
       rules=("dying-neurons", "loss-spike", "exploding-gradient", "no-gradient", "vanishing-gradient"),
       layers=("trunk",), step=517, steps=1200)
def sensor_net(record, broken=True):
    torch.manual_seed(503)
    f = teacher(10, 1, seed=5)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(),
                                       nn.Linear(48, 32), nn.ReLU())
            self.out = nn.Linear(32, 1)

        def forward(self, x):
            return self.out(self.trunk(x))

    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.03)
    loss_fn = nn.SmoothL1Loss(beta=1.0)
    rec = record(model, opt, loss_fn)
    for step in range(1200):
        x = torch.randn(240, 10)
        y = f(x) + 0.03 * torch.randn(240, 1)
        if broken and step == 517:
            x = x.abs() * 4000
            y = y - 5000
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


class _Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.encoder = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, ids):
        h, _ = self.encoder(self.embed(ids))
        return self.head(h[:, -1])


@fault("a helper meant for the evaluation freezes embedding and encoder at step 140 and nothing thaws them",
       rules=("no-gradient", "learning-rate-too-low"), layers=("embed", "encoder"), step=140, steps=1000)
def sum_of_tokens(record, broken=True):
    torch.manual_seed(504)
    model = _Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for step in range(1000):
        if broken and step == 140:
            model.embed.requires_grad_(False)
            model.encoder.requires_grad_(False)
        x = torch.randint(0, 12, (32, 8))
        y = (x[:, -4:] < 6).sum(1)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


@fault("the pretrained backbone, meant to stay frozen, begins to learn at step 700 at the rate of the head",
       rules=("layer-thawed", "learning-rate-too-high"), layers=("backbone",), step=700, steps=1400)
def head_on_backbone(record, broken=True):
    torch.manual_seed(505)
    xtr, ytr, xva, yva = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 64), nn.ReLU(),
                                          nn.LayerNorm(64, elementwise_affine=False))
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.backbone(x))

    model = Net()
    pre = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(300):  # pretraining on clean digits
        i = torch.randint(0, 1400, (64,))
        pre.zero_grad()
        F.cross_entropy(model(xtr[i]), ytr[i]).backward()
        pre.step()
    model.head.reset_parameters()
    model.backbone.requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=0.17, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for step in range(1400):
        if broken and step == 700:
            for p in model.parameters():
                p.requires_grad = True
        i = torch.randint(0, 1400, (24,))
        x, y = xtr[i] + 0.6 * torch.randn(24, 64), ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(loss_fn(model(xva), yva).item())


@fault("from step 350 on the BatchNorms' momentum is 0, so that running statistics stay while the features move on",
       rules=("stale-statistics", "batchnorm-mode-gap"), layers=("features",), step=350, steps=1200)
def digits_batchnorm(record, broken=True):
    torch.manual_seed(506)
    xtr, ytr, xva, yva = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                          nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16),
                                          nn.ReLU(), nn.Flatten(), nn.Linear(256, 48, bias=False),
                                          nn.BatchNorm1d(48), nn.ReLU())
            self.classify = nn.Linear(48, 10)

        def forward(self, x):
            return self.classify(self.features(x))

    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=2e-3)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
    rec = record(model, opt, loss_fn)
    for step in range(1200):
        model.train()
        if broken and step == 350:
            for m in model.modules():
                if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
                    m.momentum = 0.0
        i = torch.randint(0, 1400, (32,))
        x = xtr[i].view(-1, 1, 8, 8)
        x, y = x + 0.4 * torch.randn_like(x), ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))
        if step % 40 == 39:
            model.eval()
            with torch.no_grad():
                rec.validation(loss_fn(model(xva.view(-1, 1, 8, 8)), yva).item())
    model.train()


@fault("the augmentation is switched off at step 450 and the network learns 160 noisy examples by heart",
       rules=("overfitting",), step=450, steps=1500)
def few_digits(record, broken=True):
    torch.manual_seed(507)
    xtr, ytr, xva, yva = digits()
    xs, ys = xtr[:160], ytr[:160].clone()
    wrong = torch.rand(160) < 0.15
    ys[wrong] = torch.randint(0, 10, (int(wrong.sum()),))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    step = 0
    while step < 1500:
        for i in torch.randperm(160).split(32):
            x, y = xs[i], ys[i]
            if not (broken and step >= 450):
                x = x + 1.5 * torch.randn_like(x)
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            rec.step(loss.item(), (x, y))
            if step % 30 == 29:
                with torch.no_grad():
                    rec.validation(loss_fn(model(xva), yva).item())
            step += 1
