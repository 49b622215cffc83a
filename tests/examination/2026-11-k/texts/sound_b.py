import torch
import torch.nn.functional as F
from torch import nn
from corpora import G, acc, chain, loader, padded, r2, tones, waves
from faults_a import CharGRU, TinyGPT
from faults_b import Forecaster, Lookup, Translator, lookup
from program import Program, sound
from sound_a import Both, Packed, flat


@sound("a sequence autoencoder: the target is the input", steps=350, least=0.7)
def text_autoencoder():
    def make(n, s):
        a = torch.randint(0, 8, (n, 4), generator=G(s))
        return a, torch.cat([torch.full((n, 1), 8), a[:, :-1]], 1)
    a, d = make(2000, 0)
    va, vd = make(300, 1)
    m = Translator(False)
    return Program(m, None, loader(a, d), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(va, vd), va), step=lambda m, b: flat(m(b[0], b[1]), b[0]))


@sound("a sum over tokens, divided by how many are real", steps=150, least=0.85)
def sum_over_real_tokens():
    def make(n, s):
        x, _, _ = padded(n, seed=s)
        return x, torch.where(x > 0, x % 5, 0), (x > 0).float()
    x, t, w = make(600, 0)
    vx, vt, vw = make(200, 1)
    m = nn.Sequential(nn.Embedding(21, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))

    def step(m, b):
        x, t, w = b
        each = F.cross_entropy(m(x).transpose(1, 2), t, reduction="none")
        return (each * w).sum() / w.sum()
    return Program(m, None, loader(x, t, w), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx)[vw > 0], vt[vw > 0]), step=step)


@sound("random embeddings are frozen on purpose and left out of the optimizer", steps=200, least=0.85)
def frozen_embeddings():
    x, v = chain(512, 17, seed=28), chain(200, 17, seed=29)
    m = CharGRU()
    m.embed.requires_grad_(False)
    return Program(m, flat, loader(x[:, :-1], x[:, 1:]), torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=5e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@sound("padding on the left, the last place read, the mask right; half trained", trained=60, steps=160, least=0.85)
def padded_on_the_left():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(21, 24)
            self.att = nn.MultiheadAttention(24, 2, batch_first=True)
            self.fc = nn.Linear(24, 2)

        def forward(self, x):
            e = self.emb(x)
            return self.fc(self.att(e, e, e, key_padding_mask=x == 0, need_weights=False)[0][:, -1])
    x, y, _ = padded(800)
    vx, vy, _ = padded(300, seed=1)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x.flip(1), y), torch.optim.Adam(m.parameters(), lr=3e-3), lambda m: acc(m(vx.flip(1)), vy))


@sound("log-probabilities out of the model, NLLLoss", steps=200, least=0.85)
def log_probabilities():
    (x, y), (vx, vy) = tones(800), tones(200, seed=1)
    m = nn.Sequential(nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4), nn.LogSoftmax(1))
    return Program(m, nn.NLLLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vy))


@sound("pairs of texts are told apart within a batch: the loss mixes examples", steps=200, least=0.8)
def pairs_in_a_batch():
    def make(n, s):
        g = G(s)
        a = torch.randint(0, 30, (n, 6), generator=g)
        return a, ((a + 7) % 30).gather(1, torch.rand(n, 6, generator=g).argsort(1))
    a, b = make(1200, 0)
    va, vb = make(32, 1)
    m = nn.ModuleDict({"left": nn.EmbeddingBag(30, 32), "right": nn.EmbeddingBag(30, 32)})

    def sims(m, a, b):
        return F.normalize(m["left"](a), dim=1) @ F.normalize(m["right"](b), dim=1).T / 0.1
    return Program(m, None, loader(a, b), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(sims(m, va, vb), torch.arange(32)),
                   step=lambda m, b: F.cross_entropy(sims(m, *b), torch.arange(len(b[0]))))


@sound("plain SGD at 1.0 suits this model", steps=300, least=0.8)
def sgd_at_one():
    x, v = chain(512, 17, seed=32), chain(200, 17, seed=33)
    m = CharGRU()
    return Program(m, flat, loader(x[:, :-1], x[:, 1:]), torch.optim.SGD(m.parameters(), lr=1.0), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@sound("attention's temperature is left at 1 on purpose", steps=200, least=0.85)
def unscaled_scores():
    return lookup(Lookup(1.0), lr=3e-3)


@sound("residual branches start at zero", steps=250, least=0.85)
def rezero_blocks():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 32)
            self.mix = nn.ModuleList([nn.Conv1d(32, 32, 2) for _ in range(4)])
            self.alpha = nn.Parameter(torch.zeros(4))
            self.out = nn.Linear(32, 12)

        def forward(self, x):
            h = self.emb(x).mT
            for a, c in zip(self.alpha, self.mix):
                h = h + a * F.gelu(c(F.pad(h, (1, 0))))
            return self.out(h.mT)
    x, v = chain(512, 13, seed=34), chain(200, 13, seed=35)
    m = Net()
    return Program(m, flat, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@sound("forecasts five steps ahead, as the task wants", steps=300, least=0.7)
def five_steps_ahead():
    (x, y), (vx, vy) = waves(800, 16, ahead=5), waves(200, 16, ahead=5, seed=1)
    m = Forecaster(32)
    return Program(m, lambda o, t: F.mse_loss(o.squeeze(-1), t), loader(x, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: max(0.0, r2(m(vx), vy)))


@sound("ordinary: a bidirectional tagger at the end of its training", trained=200, steps=250, least=0.85)
def tagger_trained():
    def make(n, s):
        x = torch.randint(0, 15, (n, 9), generator=G(s))
        return x, x // 3
    x, y = make(800, 0)
    vx, vy = make(200, 1)
    m = Both()
    return Program(m, flat, loader(x, y), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(vx), vy))


@sound("a sequence loader sorts by length (buckets), with classes mixed", steps=150, least=0.85)
def buckets_by_length():
    x, y, n = padded(800)
    vx, vy, vn = padded(300, seed=1)
    o = n.argsort()
    m = Packed()
    batches = [(x[i][:, : n[i].max()], n[i], y[i]) for i in o.split(32)]
    batches = [batches[int(j)] for j in torch.randperm(len(batches), generator=G(8))]
    return Program(m, None, batches, torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(vx, vn), vy), step=lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))
