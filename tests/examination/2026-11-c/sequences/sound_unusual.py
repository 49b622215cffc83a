"""Set-ups that look faulty and are not."""
import copy
import math

import torch
import torch.nn.functional as F
from data import accuracy, chain, gen, loader, order_text, r2, seed, series, views
from program import Program, sound
from torch import nn
from torch.utils.checkpoint import checkpoint


@sound("a set Transformer with attention pooling and no positions: the largest of a set of numbers has no order", steps=300, least=0.8)
def set_without_positions():
    g = gen(120)
    x = torch.randn(1500, 9, 2, generator=g)
    y = x[..., 0].max(1).values + x[..., 1].min(1).values
    seed(120)

    class Pool(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.inp = nn.Sequential(nn.Linear(2, d), nn.ReLU(), nn.Linear(d, d))
            self.seeds = nn.Parameter(torch.randn(1, 2, d))
            self.att = nn.MultiheadAttention(d, 4, batch_first=True)
            self.out = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, 1))

        def forward(self, x):
            h = self.inp(x)
            return self.out(self.att(self.seeds.expand(len(x), -1, -1), h, h, need_weights=False)[0].flatten(1)).squeeze(1)

    model = Pool()
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(x[1200:]), y[1200:]))


@sound("a causal Transformer without position embeddings (NoPE): the mask alone tells the order", steps=400, least=0.85)
def causal_without_positions():
    ids, y = order_text(1600, 8, vocab=10, k=121)
    seed(121)

    class NoPE(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb = nn.Embedding(10, d)
            self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 2, 64, 0.0, batch_first=True, norm_first=True), 2, enable_nested_tensor=False)
            self.cls = nn.Linear(d, 2)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
            return self.cls(self.enc(self.emb(x), mask=mask).mean(1))

    model = NoPE()
    return Program(model, nn.CrossEntropyLoss(), loader(ids[:1300], y[:1300]), torch.optim.AdamW(model.parameters(), lr=2e-3),
                   lambda m: accuracy(m(ids[1300:]), y[1300:]))


@sound("ReZero: every residual branch begins with the factor zero", trained=200, steps=350, least=0.85)
def rezero_language_model():
    ids, table = chain(1000, 13, k=122)
    test, _ = chain(200, 13, k=123)
    seed(122)

    class ReZero(nn.Module):
        def __init__(self, d=32, layers=3):
            super().__init__()
            self.emb, self.pos = nn.Embedding(8, d), nn.Parameter(torch.randn(12, d) * 0.3)
            self.att = nn.ModuleList(nn.MultiheadAttention(d, 2, batch_first=True) for _ in range(layers))
            self.ff = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(layers))
            self.alpha = nn.Parameter(torch.zeros(layers, 2))
            self.head = nn.Linear(d, 8)

        def forward(self, x):
            mask = torch.ones(12, 12).triu(1).bool()
            h = self.emb(x) + self.pos
            for (a, b), att, ff in zip(self.alpha, self.att, self.ff):
                h = h + a * att(h, h, h, attn_mask=mask, need_weights=False)[0]
                h = h + b * ff(h)
            return self.head(h)

    model = ReZero()
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(ids[:, :-1], ids[:, 1:]),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: accuracy(m(test[:, :-1])[:, 1:], table[test[:, :-2], test[:, 1:-1]]))


class Base(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(8, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.up, self.down = nn.Linear(d, 64), nn.Linear(64, d)
        self.head = nn.Linear(d, 8)

    def features(self, x):
        h = self.gru(self.emb(x))[0]
        return h + self.down(F.gelu(self.up(h)))

    def forward(self, x):
        return self.head(self.features(x))


def pretrained(ids):
    model = Base()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for i in range(120):
        x = ids[torch.randint(len(ids), (32,))]
        optimizer.zero_grad()
        F.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:]).backward()
        optimizer.step()
    return model


class LoRA(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear
        self.A = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + 2 * F.linear(F.linear(x, self.A), self.B)


@sound("LoRA on a pre-trained language model: all else is frozen, B begins at zero", steps=250, least=0.85)
def lora_on_frozen_model():
    ids, table = chain(800, 12, k=124)
    test, _ = chain(200, 12, k=125)
    seed(124)
    model = pretrained(ids)
    for p in model.parameters():
        p.requires_grad_(False)
    model.up, model.down, model.head = LoRA(model.up), LoRA(model.down), LoRA(model.head, 8)
    swap = torch.tensor([3, 0, 1, 2, 7, 4, 5, 6])  # the same language in another spelling of the answers
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(ids[:, :-1], swap[ids[:, 1:]]),
                   torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3),
                   lambda m: accuracy(m(test[:, :-1])[:, 1:], swap[table[test[:, :-2], test[:, 1:-1]]]))


@sound("a frozen pre-trained backbone under no_grad with a fresh head that starts at zero", steps=150, least=0.85)
def frozen_backbone():
    ids, table = chain(800, 12, k=126)
    test, _ = chain(200, 12, k=127)
    seed(125)

    class Probe(nn.Module):
        def __init__(self, backbone):
            super().__init__()
            self.backbone = backbone
            self.head = nn.Linear(48, 2)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, x):
            with torch.no_grad():
                h = self.backbone.features(x)
            return self.head(h)

    model = Probe(pretrained(ids).requires_grad_(False))
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(ids[:, :-1], ids[:, 1:] % 2),
                   torch.optim.Adam(model.head.parameters(), lr=5e-3), lambda m: accuracy(m(test[:, :-1])[:, 1:], table[test[:, :-2], test[:, 1:-1]] % 2))


@sound("a causal TCN with weight norm that forecasts every next value", steps=300, least=0.85)
def weight_norm_tcn():
    x, test = series(600, 33, k=128), series(200, 33, k=129)
    seed(126)

    class TCN(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.utils.parametrizations.weight_norm
            self.convs = nn.ModuleList(norm(nn.Conv1d(1 if i == 0 else 16, 16, 3, dilation=2**i)) for i in range(4))
            self.out = nn.Conv1d(16, 1, 1)

        def forward(self, x):
            h = x.unsqueeze(1)
            for i, conv in enumerate(self.convs):
                new = F.relu(conv(F.pad(h, (2 * 2**i, 0))))
                h = new if i == 0 else h + new
            return self.out(h).squeeze(1)

    model = TCN()
    return Program(model, nn.MSELoss(), loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2(m(test[:, :-1])[:, -8:], test[:, -8:]))


@sound("InfoNCE with a learned temperature: every example's loss depends on the others by design", trained=100, steps=250, least=0.7)
def clip_like():
    (a, b), (ta, tb) = views(1000, k=130), views(100, k=131)
    seed(127)

    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 24))
            self.right = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 24))
            self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, a, b):
            return self.logit_scale.exp() * F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T

    model = Clip()

    def step(m, batch):
        logits = m(*batch)
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return Program(model, None, loader(a, b, batch=50), torch.optim.AdamW(model.parameters(), lr=2e-3), lambda m: accuracy(m(ta, tb), torch.arange(100)), step=step)


@sound("a mean teacher inside the model: the EMA copy gets no gradient and lags behind", trained=60, steps=250, least=0.85)
def ema_teacher():
    g = gen(132)
    y = torch.randint(3, (900,), generator=g)
    t = torch.arange(24.0)
    x = torch.sin(6.2832 * (t / torch.tensor([4.0, 7.0, 11.0])[y][:, None] + torch.rand(900, 1, generator=g))) + 0.3 * torch.randn(900, 24, generator=g)
    seed(128)

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Sequential(nn.Unflatten(1, (1, 24)), nn.Conv1d(1, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def forward(self, x):
            return self.student(x)

    model = Mean()

    def step(m, batch):
        inputs, labels = batch
        with torch.no_grad():
            for p, q in zip(m.teacher.parameters(), m.student.parameters()):
                p.lerp_(q, 0.05)
            soft = m.teacher(inputs).softmax(-1)
        logits = m.student(inputs + 0.1 * torch.randn_like(inputs))
        return F.cross_entropy(logits[:16], labels[:16]) + 0.5 * F.mse_loss(logits.softmax(-1), soft)  # half have no labels

    return Program(model, None, loader(x[:600], y[:600]), torch.optim.Adam(model.student.parameters(), lr=2e-3), lambda m: accuracy(m.teacher(x[600:]), y[600:]), step=step)


@sound("masked language modelling: five of six positions are ignored, a sixth of the inputs is one token, attention looks both ways", steps=400, least=0.9)
def masked_language_model():
    g = gen(133)
    text = torch.randint(6, (1400, 3), generator=g).repeat(1, 4)
    hide = torch.rand(text.shape, generator=g) < 1 / 6
    ids, labels = text.masked_fill(hide, 6), text.masked_fill(~hide, -100)
    seed(129)

    class Bert(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok, self.pos = nn.Embedding(7, d), nn.Embedding(12, d)
            self.norm = nn.LayerNorm(d)
            self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 2, 64, 0.0, "gelu", batch_first=True), 2, enable_nested_tensor=False)
            self.lm = nn.Linear(d, 7)

        def forward(self, x):
            return self.lm(self.enc(self.norm(self.tok(x) + self.pos.weight)))

    model = Bert()
    some = labels[1200:] >= 0
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(ids[:1200], labels[:1200]), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: accuracy(m(ids[1200:])[some], labels[1200:][some]))


@sound("batches of four with an own layer-normalised GRU cell", steps=400, least=0.8)
def four_at_a_time():
    x = series(900, 17, k=134)
    seed(130)

    class LNGRU(nn.Module):
        def __init__(self, h=24):
            super().__init__()
            self.xi, self.hi = nn.Linear(1, 3 * h), nn.Linear(h, 3 * h, bias=False)
            self.ln = nn.LayerNorm(3 * h)
            self.out = nn.Linear(h, 1)

        def forward(self, x):
            h = torch.zeros(len(x), 24)
            for t in range(x.size(1)):
                a = self.xi(x[:, t:t + 1])
                b = self.ln(self.hi(h)) if t else self.hi(h)
                (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
                z = torch.sigmoid(az + bz)
                h = z * h + (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn)
            return self.out(h)[:, 0]

    model = LNGRU()
    return Program(model, nn.MSELoss(), loader(x[:700, :-1], x[:700, -1], batch=4), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(x[700:, :-1]), x[700:, -1]))


@sound("warm-up from a rate of zero with Noam's rule: the first steps hardly move anything", steps=350, least=0.9)
def warm_up_from_zero():
    ids, y = order_text(1600, 10, k=135)
    seed(131)

    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(20, d), nn.Embedding(10, d)
            self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True), 2, enable_nested_tensor=False)
            self.out = nn.Linear(d, 2)

        def forward(self, x):
            return self.out(self.enc(self.emb(x) + self.pos.weight).mean(1))

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.15, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 32**-0.5 * min(max(s, 1) ** -0.5, s * 80**-1.5))
    return Program(model, nn.CrossEntropyLoss(), loader(ids[:1300], y[:1300]), optimizer, lambda m: accuracy(m(ids[1300:]), y[1300:]), scheduler=noam)


@sound("dropout 0.5 between two LSTM layers and before the head", trained=150, steps=300, least=0.9)
def half_dropped():
    ids, y = order_text(1600, 10, k=136)
    seed(132)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 32)
            self.lstm = nn.LSTM(32, 48, 2, batch_first=True, dropout=0.5)
            self.drop = nn.Dropout(0.5)
            self.fc = nn.Linear(48, 2)

        def forward(self, x):
            return self.fc(self.drop(self.lstm(self.emb(x))[1][0][-1]))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(ids[:1300], y[:1300]), torch.optim.Adam(model.parameters(), lr=4e-3), lambda m: accuracy(m(ids[1300:]), y[1300:]))


@sound("one fraud in twenty: the output bias starts at the prior's logit and the positives have a weight", steps=300, least=0.85)
def rare_events():
    g = gen(137)
    y = (torch.rand(3000, generator=g) < 0.05).float()
    x = torch.randn(3000, 12, 4, generator=g)
    x[:, 6:, 1] += 1.2 * y[:, None]
    seed(133)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(4, 24, batch_first=True)
            self.out = nn.Linear(24, 1)
            nn.init.constant_(self.out.bias, -2.9)

        def forward(self, x):
            return self.out(self.gru(x)[0].mean(1)).squeeze(1)

    model = Net()

    def score(m):
        p, t = m(x[2000:]) > 0, y[2000:].bool()
        return ((p[t].float().mean() + (~p[~t]).float().mean()) / 2).item()

    return Program(model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0)), loader(x[:2000], y[:2000], batch=64), torch.optim.Adam(model.parameters(), lr=3e-3), score)


@sound("counts of visitors, log-normal and Poisson: the output is a log-rate and the loss can be negative", trained=100, steps=300, least=0.6)
def poisson_counts():
    g = gen(138)
    level = torch.exp(2 + 0.8 * torch.randn(1000, 1, generator=g))
    rate = level * torch.exp(0.5 * torch.sin(6.2832 * (torch.arange(22) / 7.0 + torch.rand(1000, 1, generator=g))))
    counts = torch.poisson(rate, generator=g)
    x, y = torch.log1p(counts[:, :-1]), counts[:, -1]
    seed(134)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 16, 7)
            self.fc1, self.fc2 = nn.Linear(240, 32), nn.Linear(32, 1)

        def forward(self, x):
            level = x.mean(1, keepdim=True)
            h = F.relu(self.conv((x - level).unsqueeze(1))).flatten(1)
            return self.fc2(F.relu(self.fc1(h)))[:, 0] + level[:, 0]

    model = Net()
    return Program(model, nn.PoissonNLLLoss(log_input=True), loader(x[:800], y[:800]), torch.optim.Adam(model.parameters(), lr=1e-3),
                   lambda m: r2(m(x[800:]) - x[800:].mean(1), torch.log(rate[800:, -1]) - x[800:].mean(1)))


@sound("prices of tens of thousands, in and out, with the scale kept in the model and in the loss", steps=250, least=0.85)
def scale_in_the_head():
    x = 42000 + 3000 * series(1000, 25, k=139)
    seed(135)

    class Scaled(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)
            self.lstm = nn.LSTM(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            z = (x - self.mean) / self.std
            return self.fc(self.lstm(z.unsqueeze(-1))[0][:, -1]).squeeze(-1) * self.std + self.mean

    model = Scaled(x[:800].mean(), x[:800].std())
    return Program(model, lambda p, t: (((p - t) / 3000) ** 2).mean(), loader(x[:800, :-1], x[:800, -1]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(x[800:, :-1]), x[800:, -1]))


@sound("one Transformer block used three times on purpose, with a loss on what comes out each time", steps=350, least=0.9)
def universal_with_deep_supervision():
    ids, y = order_text(1600, 8, vocab=12, k=140)
    seed(136)

    class Universal(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(12, d), nn.Parameter(0.3 * torch.randn(8, d))
            self.block = nn.TransformerEncoderLayer(d, 2, 64, 0.0, batch_first=True)
            self.read = nn.Linear(d, 2)

        def forward(self, x):
            h, outs = self.emb(x) + self.pos, []
            for _ in range(3):
                h = self.block(h)
                outs.append(self.read(h.mean(1)))
            return outs

    model = Universal()
    return Program(model, lambda outs, t: sum(w * F.cross_entropy(o, t) for w, o in zip((0.2, 0.3, 0.5), outs)), loader(ids[:1300], y[:1300]),
                   torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: accuracy(m(ids[1300:])[-1], y[1300:]))


@sound("an echo state network: the reservoir is random, frozen and large, only the readout learns", steps=300, least=0.8)
def echo_state():
    x = series(900, 25, k=141)
    seed(137)

    class ESN(nn.Module):
        def __init__(self, n=100):
            super().__init__()
            w = torch.randn(n, n)
            self.register_buffer("w", 0.9 * w / torch.linalg.eigvals(w).abs().max())
            self.register_buffer("w_in", torch.rand(n) - 0.5)
            self.readout = nn.Linear(n, 1)

        def forward(self, x):
            h = torch.zeros(len(x), self.w.size(0))
            for t in range(x.size(1)):
                h = torch.tanh(h @ self.w + x[:, t:t + 1] * self.w_in)
            return self.readout(h).squeeze(1)

    model = ESN()
    return Program(model, nn.MSELoss(), loader(x[:700, :-1], x[:700, -1]), torch.optim.Adam(model.parameters(), lr=2e-2), lambda m: r2(m(x[700:, :-1]), x[700:, -1]))


@sound("a discrete autoencoder with a straight-through code: the code's choice has no gradient of its own", steps=400, least=0.8)
def straight_through_codes():
    g = gen(142)
    kind = torch.randint(6, (1200,), generator=g)
    t = torch.arange(16.0)
    shapes = torch.stack([torch.sin(6.2832 * t / p + s) for p, s in ((4, 0), (8, 0), (8, 1.6), (16, 0), (16, 1.6), (5, 1))])
    x = shapes[kind] + 0.15 * torch.randn(1200, 16, generator=g)
    seed(138)

    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.e1, self.e2 = nn.Linear(16, 48), nn.Linear(48, 24)
            self.d1, self.d2 = nn.Linear(24, 48), nn.Linear(48, 16)

        def forward(self, x):
            p = self.e2(F.relu(self.e1(x))).view(-1, 3, 8).softmax(-1)
            hard = F.one_hot(p.argmax(-1), 8).float()
            return self.d2(F.relu(self.d1((hard + p - p.detach()).flatten(1))))

    model = Codes()
    return Program(model, nn.MSELoss(), loader(x[:1000], x[:1000]), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(x[1000:]), shapes[kind[1000:]]))


@sound("policy gradient with a baseline: the loss hovers around zero and never falls", trained=40, steps=300, least=0.75)
def reinforce():
    g = gen(143)
    obs = torch.randn(2500, 6, 4, generator=g)
    best = obs.mean(1)[:, :3].argmax(1)
    seed(139)

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.pi, self.v = nn.Linear(24, 64), nn.Linear(64, 3), nn.Linear(64, 1)

        def forward(self, o):
            h = torch.tanh(self.body(o.flatten(1)))
            return self.pi(h), self.v(h).squeeze(-1)

    model = Agent()

    def step(m, batch):
        o, right = batch
        logits, value = m(o)
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        reward = (action == right).float()
        return -(dist.log_prob(action) * (reward - value.detach())).mean() + 0.5 * F.mse_loss(value, reward) - 0.01 * dist.entropy().mean()

    return Program(model, None, loader(obs[:2000], best[:2000], batch=64), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: accuracy(m(obs[2000:])[0], best[2000:]), step=step)


@sound("sparse gradients: a large table of hashed words of which a batch touches few rows", steps=250, least=0.85)
def hashed_words():
    g = gen(144)
    meaning = torch.randn(400, generator=g)
    ids = (torch.rand(2500, 8, generator=g) ** 2 * 400).long()
    y = (meaning[ids].sum(1) > 0).float()
    seed(140)

    class Hashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(400, 8, mode="sum", sparse=True)
            self.out = nn.Linear(8, 1)
            nn.init.normal_(self.table.weight, std=0.01)

        def forward(self, ids):
            return self.out(self.table(ids)).squeeze(1)

    model = Hashed()
    return Program(model, nn.BCEWithLogitsLoss(), loader(ids[:2000], y[:2000]), torch.optim.SGD(model.parameters(), lr=1.0),
                   lambda m: ((m(ids[2000:]) > 0) == y[2000:].bool()).float().mean().item())


@sound("CTC: the outputs are longer than the targets, most frames become blanks", steps=400, least=0.8)
def ctc_reader():
    g = gen(145)
    words = torch.randint(1, 6, (1000, 4), generator=g)
    frames = F.one_hot(words.repeat_interleave(4, 1), 6).float()[..., 1:] + 0.2 * torch.randn(1000, 16, 5, generator=g)
    seed(141)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(5, 32, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(64, 6)

        def forward(self, x):
            return self.fc(self.gru(x)[0]).log_softmax(-1)

    model = Reader()

    def loss(logp, y):
        n = len(y)
        return F.ctc_loss(logp.transpose(0, 1), y, torch.full((n,), 16), torch.full((n,), 4))

    def score(m):
        right = 0
        for path, want in zip(m(frames[800:]).argmax(-1), words[800:]):
            read = [c for c in torch.unique_consecutive(path).tolist() if c]
            right += read == want.tolist()
        return right / 200

    return Program(model, loss, loader(frames[:800], words[:800]), torch.optim.Adam(model.parameters(), lr=5e-3), score)


@sound("a long GRU run in pieces with gradient checkpointing; every text begins with the same token", steps=150, least=0.9)
def checkpointed_pieces():
    ids, y = order_text(1000, 15, k=147)
    ids = torch.cat([torch.zeros(1000, 1, dtype=torch.long), ids], 1)
    seed(143)

    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 24)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 2)

        def forward(self, ids):
            h, top = torch.zeros(1, len(ids), 32), []
            for piece in self.emb(ids).split(8, 1):
                out, h = checkpoint(self.gru, piece, h, use_reentrant=False)
                top.append(out.amax(1))
            return self.fc(torch.stack(top).amax(0))

    model = Long()
    return Program(model, nn.CrossEntropyLoss(), loader(ids[:800], y[:800]), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: accuracy(m(ids[800:]), y[800:]))
