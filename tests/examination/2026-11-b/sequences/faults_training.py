import math

import torch
import torch.nn.functional as F
from torch import nn

from data import accuracy, flagged, gen, loader, next_score, ordered, r2, recall, second_order, seed, sentiment, tagged, waves
from program import Program, fault


@fault(
    "Fine-tuning: the optimizer is made from the old model's head, then the head is replaced; the new one is in no optimizer.",
    rules=["no-gradient"],
    layers=["head"],
    fails=True,
    steps=300,
)
def head_replaced_after_optimizer(is_faulty):
    seed(41)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.EmbeddingBag(20, 32, mode="mean", padding_idx=0)
            self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.head = nn.Linear(32, 3)

        def forward(self, x):
            return self.head(self.body(self.emb(x)))

    x, _, y = sentiment(1600, s=41)
    tx, _, ty = sentiment(400, s=42)
    model = Net()
    pre = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(3):  # pre-training on the same language
        for a, b in loader(x, y):
            pre.zero_grad()
            F.cross_entropy(model(a), b).backward()
            pre.step()
    for p in model.parameters():
        p.requires_grad = False
    names = torch.tensor([3, 0, 2])  # the new task has four classes, one of them not seen yet
    y2, ty2 = names[y], names[ty]
    new = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    for p in model.head.parameters():
        p.requires_grad = True
    if is_faulty:
        optimizer = torch.optim.Adam(model.head.parameters(), 3e-3)
        model.head = new
    else:
        model.head = new
        optimizer = torch.optim.Adam(model.head.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y2), optimizer, lambda m: accuracy(m(tx), ty2))


@fault(
    "LoRA with both factors at zero: neither ever gets a gradient.",
    rules=["no-gradient", "symmetric-initialisation", "bad-initialisation"],
    layers=["inp", "mid"],
    fails=True,
    steps=400,
)
def lora_both_zero(is_faulty):
    seed(43)

    class LoRA(nn.Module):
        def __init__(self, base, rank=8):
            super().__init__()
            self.base = base
            for p in base.parameters():
                p.requires_grad_(False)
            self.a = nn.Parameter(torch.zeros(rank, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, rank))
            if not is_faulty:
                nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

        def forward(self, x):
            return self.base(x) + (x @ self.a.T) @ self.b.T

    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(10, 64)
            self.mid = nn.Linear(64, 64)
            self.head = nn.Linear(64, 4)

        def forward(self, x):
            h = F.gelu(self.inp(x)).mean(1)
            return self.head(F.gelu(self.mid(h)))

    def sets(n, s, moved):
        x = torch.randn(n, 6, 10, generator=gen(s))
        x = x + 0.8 * torch.randn(n, 1, 10, generator=gen(s + 1))
        m = x.mean(1)
        a, b = (m[:, 0], m[:, 1]) if not moved else (m[:, 7], -m[:, 4])
        return x, 2 * (a > 0).long() + (b > 0).long()

    model = Base()
    x, y = sets(1600, 45, False)
    pre = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(5):
        for a, b in loader(x, y):
            pre.zero_grad()
            F.cross_entropy(model(a), b).backward()
            pre.step()
    model.inp, model.mid = LoRA(model.inp), LoRA(model.mid)
    model.head.requires_grad_(False)
    x, y = sets(1600, 47, True)
    tx, ty = sets(400, 49, True)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x, y),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3),
        lambda m: accuracy(m(tx), ty),
    )


@fault(
    "The Noam schedule gives the rate itself, but multiplies an optimizer's rate of 1e-4.",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=400,
)
def noam_times_small_rate(is_faulty):
    seed(45)
    d, warmup = 32, 200

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, d)
            self.pos = nn.Parameter(torch.randn(12, d))
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)])
            self.tags = nn.Linear(d, 5)

        def forward(self, x):
            h = self.embed(x) + self.pos
            for layer in self.layers:
                h = layer(h)
            return self.tags(h).transpose(1, 2)

    def noam(step):
        step = max(step, 1)
        return d**-0.5 * min(step**-0.5, step * warmup**-1.5)

    x, y = tagged(1500, s=53)
    tx, ty = tagged(300, s=54)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4 if is_faulty else 0.5, betas=(0.9, 0.98), eps=1e-9)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x, y),
        optimizer,
        lambda m: accuracy(m(tx).transpose(1, 2), ty),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, noam),
    )


@fault("Adam with weight_decay=0.3 (an L2 penalty in its gradient).", rules=["weight-decay-dominates"], fails=False, steps=400)
def l2_in_adam(is_faulty):
    seed(46)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 32, padding_idx=0)
            self.conv = nn.Conv1d(32, 48, 3, padding=1)
            self.fc = nn.Linear(48, 3)

        def forward(self, x):
            h = F.relu(self.conv(self.embed(x).transpose(1, 2)))
            return self.fc(h.mean(2) * 2)

    x, _, y = sentiment(1600, s=55)
    tx, _, ty = sentiment(400, s=56)
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x, y),
        torch.optim.Adam(model.parameters(), 3e-3, weight_decay=0.3 if is_faulty else 1e-5),
        lambda m: accuracy(m(tx), ty),
    )


@fault(
    "The whole model in bfloat16, weights too, trained at a small rate: most updates round to nothing.",
    rules=["lost-updates", "learning-rate-too-low"],
    fails=True,
    steps=600,
)
def bfloat16_weights(is_faulty):
    seed(47)
    dtype = torch.bfloat16 if is_faulty else torch.float32

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 128)
            self.l1 = nn.Linear(128, 256)
            self.l2 = nn.Linear(256, 256)
            self.l3 = nn.Linear(256, 3)

        def forward(self, x):
            h = (self.emb(x) * (x > 0).unsqueeze(-1)).sum(1) / (x > 0).sum(1, keepdim=True).to(dtype).sqrt()
            return self.l3(F.gelu(self.l2(F.gelu(self.l1(h))))).float()

    x, _, y = sentiment(2560, s=57)
    tx, _, ty = sentiment(400, s=58)
    model = Net().to(dtype)

    def score(m):
        return accuracy(m(tx), ty)

    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-5), score)


@fault(
    "Left-padded sentences are cut to the first eight tokens, which are all padding.",
    rules=["constant-feature", "labels-unrelated"],
    fails=True,
    steps=300,
)
def cut_at_the_wrong_end(is_faulty):
    seed(48)

    def left_padded(n, s):
        x, lengths, y = sentiment(n, 12, s=s, longest=8)
        out = torch.zeros(n, 20, dtype=torch.long)
        for i, k in enumerate(lengths.tolist()):
            out[i, 20 - k :] = x[i, :k]
        return (out[:, :8] if is_faulty else out[:, -8:]), y

    model = nn.Sequential(
        nn.Embedding(20, 16, padding_idx=0), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    x, y = left_padded(1600, 59)
    tx, ty = left_padded(400, 60)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: accuracy(m(tx), ty)
    )


@fault(
    "The loss of a tagger sums over all words of the batch, with a rate of SGD that suits a mean.",
    rules=["summed-loss", "learning-rate-too-high", "diverging"],
    fails=True,
    steps=500,
)
def summed_over_words(is_faulty):
    seed(49)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 24)
            self.mix = nn.Conv1d(24, 64, 2)
            self.out = nn.Linear(64, 5)

        def forward(self, x):
            h = F.pad(self.embed(x).transpose(1, 2), (1, 0))
            return self.out(torch.relu(self.mix(h)).transpose(1, 2))

    criterion = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    x, y = tagged(1600, s=61)
    tx, ty = tagged(300, s=62)
    model = Tagger()
    return Program(
        model,
        lambda out, y: criterion(out.reshape(-1, 5), y.reshape(-1)),
        loader(x, y),
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        lambda m: accuracy(m(tx), ty),
    )
