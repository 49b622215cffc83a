"""More sound set-ups."""
import math
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, sound
from ytg_data import *


@sound("matrix factorisation: nothing nonlinear, and nothing nonlinear is needed; its ratings are centred inside", steps=500, least=0.85)
def ytg_factorisation():
    class MF(nn.Module):
        def __init__(self):
            super().__init__()
            self.p, self.q = nn.Embedding(60, 6), nn.Embedding(40, 6)
            self.mean = nn.Parameter(torch.tensor(3.0))
            nn.init.normal_(self.p.weight, std=0.3)
            nn.init.normal_(self.q.weight, std=0.3)

        def forward(self, pair):
            return self.mean + (self.p(pair[:, 0]) * self.q(pair[:, 1])).sum(-1)

    u, i, r = ytg_ratings()
    pairs = torch.stack([u, i], 1)
    model = MF()
    return Program(model, nn.MSELoss(), ytg_loader(pairs[:2000], r[:2000], batch=64), torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-5), lambda m: ytg_r2(m(pairs[2000:]), r[2000:]))


@sound("Bayesian personalised ranking: no targets, negatives drawn at random", steps=500, least=0.8)
def ytg_bpr():
    class Ranker(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(50, 8), nn.Embedding(60, 8)
            nn.init.normal_(self.users.weight, std=0.1)
            nn.init.normal_(self.items.weight, std=0.1)

        def forward(self, u, i):
            return (self.users(u) * self.items(i)).sum(-1)

    taste = torch.randn(50, 3) @ torch.randn(3, 60)
    u, i = (taste > 1.0).nonzero(as_tuple=True)
    order = torch.randperm(len(u))
    u, i = u[order], i[order]
    cut = len(u) * 9 // 10
    low = torch.stack([torch.multinomial((row < 0.5).float(), 1)[0] for row in taste[u[cut:]]])

    def step(m, batch):
        a, b = batch
        c = torch.randint(0, 60, a.shape)
        return -F.logsigmoid(m(a, b) - m(a, c)).mean()

    model = Ranker()
    return Program(model, None, ytg_loader(u[:cut], i[:cut], batch=64), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: (m(u[cut:], i[cut:]) > m(u[cut:], low)).float().mean().item(), step=step)


@sound("three outputs for one target: quantiles and the pinball loss", steps=400, least=0.85)
def ytg_quantiles():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 24, batch_first=True)
            self.heads = nn.Linear(24, 3)

        def forward(self, x):
            return self.heads(self.rnn(x)[0][:, -1])

    q = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out, y):
        e = y[:, None] - out
        return torch.maximum(q * e, (q - 1) * e).mean()

    x, y = ytg_series(1700)
    model = Net()
    return Program(model, pinball, ytg_loader(x[:1400], y[:1400]), torch.optim.Adam(model.parameters(), 5e-3), lambda m: ytg_r2(m(x[1400:])[:, 1], y[1400:]))


@sound("the teacher has weights that nobody trains; the loss is a divergence of soft labels", steps=300, least=0.8)
def ytg_distilled():
    from ytg_faults_more import ytg_Reader, ytg_pretrained

    teacher = ytg_pretrained().eval()
    ids = torch.randint(0, 40, (3000, 8))
    with torch.no_grad():
        soft = (teacher(ids) / 2).softmax(-1)

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.EmbeddingBag(40, 12)
            self.out = nn.Linear(12, 2)

        def forward(self, ids):
            return self.out(self.words(ids))

    model = Student()
    return Program(model, lambda out, p: 4 * F.kl_div((out / 2).log_softmax(-1), p, reduction="batchmean"), ytg_loader(ids[:2500], soft[:2500]),
                   torch.optim.RMSprop(model.parameters(), 5e-3), lambda m: ytg_accuracy(m(ids[2500:]), soft[2500:].argmax(-1)))


@sound("an encoder and a decoder that is fed the shifted answer under a causal mask", steps=500, least=0.8)
def ytg_reverse_with_decoder():
    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(11, 32)
            self.pos = nn.Parameter(0.5 * torch.randn(6, 32))
            self.transformer = nn.Transformer(32, 2, 1, 1, 64, 0.0, batch_first=True)
            self.out = nn.Linear(32, 11)

        def forward(self, source, before):
            mask = nn.Transformer.generate_square_subsequent_mask(6)
            return self.out(self.transformer(self.tok(source) + self.pos, self.tok(before) + self.pos, tgt_mask=mask))

    def make(n):
        s = torch.randint(1, 11, (n, 6))
        t = s.flip(1)
        return s, F.pad(t, (1, 0))[:, :-1], t

    s, b, t = make(3000)
    ts, tb, tt = make(300)

    def step(m, batch):
        x, y, z = batch
        return F.cross_entropy(m(x, y).flatten(0, 1), z.flatten())

    model = Seq2Seq()
    return Program(model, None, ytg_loader(s, b, t), torch.optim.AdamW(model.parameters(), 3e-3), lambda m: ytg_accuracy(m(ts, tb), tt), step=step)


@sound("experts, of which each example uses one, so that some get few gradients", steps=400, least=0.85)
def ytg_experts():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, 16)
            self.router = nn.Linear(16, 3)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3))
            self.out = nn.Linear(16, 4)

        def forward(self, ids):
            x = self.embed(ids).mean(1)
            p = self.router(x).softmax(-1)
            best, which = p.max(-1)
            y = torch.stack([e(x) for e in self.experts], 1)[torch.arange(len(x)), which]
            return self.out(x + best[:, None] * y)

    topic = torch.randint(0, 4, (40,))
    ids = torch.randint(0, 40, (2600, 7))
    y = (F.one_hot(topic[ids], 4).sum(1) + 0.1 * torch.arange(4)).argmax(1)
    model = Mixture()
    return Program(model, F.cross_entropy, ytg_loader(ids[:2200], y[:2200]), torch.optim.Adam(model.parameters(), 5e-3), lambda m: ytg_accuracy(m(ids[2200:]), y[2200:]))


@sound("a graph isomorphism network that sums, because counts matter", steps=300, least=0.85)
def ytg_gin_counts():
    class GIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps = nn.Parameter(torch.zeros(1))
            self.one = nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.two = nn.Linear(32, 1)

        def forward(self, x, a):
            h = (1 + self.eps) * x + a @ x
            b, n, f = h.shape
            h = self.one(h.reshape(b * n, f)).view(b, n, -1)
            return self.two(h.mean(1)).squeeze(1)

    n = 1300
    x = F.one_hot(torch.randint(0, 3, (n, 12)), 3).float()
    a = torch.triu((torch.rand(n, 12, 12) < 0.15 + 0.3 * torch.rand(n, 1, 1)).float(), 1)
    a = a + a.transpose(1, 2)
    y = ((a @ x)[..., 0] * x[..., 1]).sum(1)
    y = (y - y.mean()) / y.std()

    def step(m, batch):
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    model = GIN()
    return Program(model, None, ytg_loader(x[:1000], a[:1000], y[:1000]), torch.optim.Adam(model.parameters(), 5e-3), lambda m: ytg_r2(m(x[1000:], a[1000:]), y[1000:]), step=step)


@sound("attention that has become sharp because it should, trained", trained=350, steps=450, least=0.9)
def ytg_sharp_pointer():
    class Pointer(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.ask = nn.Embedding(12, 24), nn.Embedding(12, 24)
            self.value = nn.Embedding(6, 16)
            self.out = nn.Linear(16, 6)

        def forward(self, asked, names, values):
            s = torch.einsum("bd,btd->bt", self.ask(asked), self.key(names)) / 24**0.5
            return self.out((s.softmax(-1)[..., None] * self.value(values)).sum(1))

    def make(n):
        names = torch.rand(n, 12).argsort(1)[:, :5]
        values = torch.randint(0, 6, (n, 5))
        at = torch.randint(0, 5, (n,))
        r = torch.arange(n)
        return dict(asked=names[r, at], names=names, values=values), values[r, at]

    x, y = make(3000)
    tx, ty = make(400)
    rows = [({k: v[j] for k, v in x.items()}, y[j]) for j in range(len(y))]
    model = Pointer()
    return Program(model, nn.CrossEntropyLoss(), torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True), torch.optim.Adam(model.parameters(), 1e-2), lambda m: ytg_accuracy(m(**tx), ty))


@sound("fraud in one of ten sequences: weighted positives and a bias that starts at the rate", steps=400, least=0.75)
def ytg_rare_positives():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.events = nn.Embedding(25, 16, padding_idx=0)
            self.gru = nn.GRU(16, 24, batch_first=True)
            self.logit = nn.Linear(24, 1)
            nn.init.constant_(self.logit.bias, math.log(0.1 / 0.9))

        def forward(self, ids):
            n = (ids != 0).sum(1)
            packed = nn.utils.rnn.pack_padded_sequence(self.events(ids), n, batch_first=True, enforce_sorted=False)
            return self.logit(self.gru(packed)[1][-1]).squeeze(-1)

    def make(n):
        ids = torch.randint(3, 25, (n, 10))
        y = torch.rand(n) < 0.1
        r = torch.arange(n)
        ids[r, torch.randint(0, 3, (n,))] = torch.where(y, 1, 2)
        ids[torch.arange(10) >= torch.randint(4, 11, (n,))[:, None]] = 0
        return ids, y.float()

    x, y = make(2500)
    tx, ty = make(1000)

    def score(m):
        p = m(tx) > 0
        return ((p[ty > 0.5]).float().mean() + (~p[ty < 0.5]).float().mean()).item() / 2

    model = Detector()
    return Program(model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0)), ytg_loader(x, y, batch=64), torch.optim.AdamW(model.parameters(), 5e-3), score)


@sound("stochastic gradient descent at a rate of 2 on averages of word vectors", steps=400, least=0.85)
def ytg_fasttext_rate():
    ids, y, mood = ytg_mood(3000, 10, 50)
    ti, ty, _ = ytg_mood(500, 10, 50, mood)
    model = nn.Sequential(nn.EmbeddingBag(50, 16, mode="mean"), nn.Linear(16, 2))
    nn.init.uniform_(model[0].weight, -0.25, 0.25)
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(ids, y), torch.optim.SGD(model.parameters(), lr=2.0), lambda m: ytg_accuracy(m(ti), ty))


@sound("an ordinary LSTM language model with dropout, half trained", trained=100, steps=300, least=0.85)
def ytg_lstm_lm():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Embedding(12, 24)
            self.drop = nn.Dropout(0.2)
            self.lstm = nn.LSTM(24, 64, batch_first=True)
            self.decoder = nn.Linear(64, 12)

        def forward(self, ids):
            return self.decoder(self.drop(self.lstm(self.drop(self.encoder(ids)))[0]))

    ids, table = ytg_chain2(1000, 25, 12)
    test, _ = ytg_chain2(200, 9, 12, table)
    model = LM()
    return Program(model, lambda out, y: F.cross_entropy(out.reshape(-1, 12), y.reshape(-1)), ytg_loader(ids[:, :-1], ids[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: ytg_accuracy(m(test)[:, 1:], table[test[:, 1:], test[:, :-1]]))


@sound("a variational autoencoder of short codes, noise in its middle and two terms in its loss", steps=400, least=0.85)
def ytg_vae_of_codes():
    table = torch.randint(0, 10, (16, 8))

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Sequential(nn.Embedding(10, 12), nn.Flatten(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 16))
            self.outside = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 80), nn.Unflatten(1, (8, 10)))

        def forward(self, ids):
            mu, logvar = self.inside(ids).chunk(2, 1)
            z = mu + (torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else 0)
            return self.outside(z), mu, logvar

    def loss(out, ids):
        logits, mu, logvar = out
        recon = F.cross_entropy(logits.transpose(1, 2), ids, reduction="sum") / len(ids)
        return recon - 0.5 * 0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()

    ids = table[torch.randint(0, 16, (2300,))]
    model = VAE()
    return Program(model, loss, ytg_loader(ids[:2000], ids[:2000]), torch.optim.Adam(model.parameters(), 3e-3), lambda m: ytg_accuracy(m(ids[2000:])[0], ids[2000:]))


@sound("an encoder of padded sentences with a mask and mean pooling of what is real, ordinary", steps=300, least=0.85)
def ytg_masked_encoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 32, padding_idx=0)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
            self.out = nn.Linear(32, 4)

        def forward(self, ids):
            pad = ids == 0
            h = self.layer(self.embed(ids), src_key_padding_mask=pad)
            h = h.masked_fill(pad[..., None], 0).sum(1) / (~pad).sum(1, keepdim=True)
            return self.out(h)

    ids, _, y = ytg_ragged(1600, 3, 12, 14, 30, 4)
    ti, _, ty = ytg_ragged(400, 3, 12, 14, 30, 4)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(ids, y), torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01), lambda m: ytg_accuracy(m(ti), ty))
