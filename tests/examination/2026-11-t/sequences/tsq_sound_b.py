import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from tsq_faults_a import MF, Blocks, LookUp, recall
from tsq_faults_b import RowLSTM, TextCNN
from tsq_kit import accuracy, community, digit_rows, first_token, g, loader, markov, normalised, r2, ratings, series
from tsq_kit import topics, waves, who_is_first


@sound("CTC: no alignment, mostly blanks", steps=400, least=0.6)
def tsq_ok_ctc():
    def data(n, seed):
        r = g(seed)
        text = torch.randint(1, 5, (n, 3), generator=r)
        frames = torch.zeros(n, 18, dtype=torch.long)
        for i in range(3):
            start = torch.randint(0, 3, (n, 1), generator=r) + 6 * i
            t = torch.arange(18)
            frames = torch.where((t >= start) & (t < start + 3), text[:, i : i + 1], frames)
        patterns = torch.randn(5, 8, generator=g(6)) * 1.5
        return patterns[frames] + 0.3 * torch.randn(n, 18, 8, generator=r), text

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(8, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(48, 5)

        def forward(self, x):
            return self.fc(self.gru(x)[0]).log_softmax(-1)

    def ctc(logp, text):
        n = len(text)
        return F.ctc_loss(logp.transpose(0, 1), text, torch.full((n,), 18), torch.full((n,), 3))

    x, y = data(200, 2)

    def score(m):
        best = m(x).argmax(-1)
        hits = 0
        for path, want in zip(best.tolist(), y.tolist(), strict=True):
            got = [c for i, c in enumerate(path) if c and (i == 0 or path[i - 1] != c)]
            hits += got == want
        return hits / len(y)

    model = Net()
    return Program(model, ctc, loader(*data(1500, 1)), torch.optim.Adam(model.parameters(), lr=1e-2), score)


@sound("Quantile loss at 0.1, 0.5 and 0.9: asymmetric, three outputs for one target", steps=400, least=0.8)
def tsq_ok_quantiles():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.head = nn.Linear(24, 3)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    q = torch.tensor([0.1, 0.5, 0.9])

    def pinball(o, y):
        e = y - o
        return torch.maximum(q * e, (q - 1) * e).mean()

    xt, yt = series(300, 20, 2)
    model = Net()
    return Program(model, pinball, loader(*series(1200, 20, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(xt, yt)(lambda x: m(x)[:, 1]))


@sound("DeepAR: sales in thousands, scaled inside of the model, Gaussian likelihood", steps=400, least=0.8)
def tsq_ok_scaled_inside():
    class DeepAR(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 24, batch_first=True)
            self.head = nn.Linear(24, 2)

        def forward(self, x):
            mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
            mu, raw = self.head(self.lstm((x - mean) / std)[0][:, -1]).unbind(-1)
            return mean[:, 0, 0] + std[:, 0, 0] * mu, std[:, 0, 0] * (F.softplus(raw) + 0.02)

    def data(n, seed):
        x, y = series(n, 24, seed)
        level = 10 ** (1 + 2 * torch.rand(n, 1, generator=g(seed + 3)))
        return (x + 3) * level[..., None], ((y + 3) * level)[:, 0]

    def loss(out, y):
        return -torch.distributions.Normal(*out).log_prob(y).mean()

    xt, yt = data(300, 2)
    model = DeepAR()
    return Program(model, loss, loader(*data(1200, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(xt, yt)(lambda x: m(x)[0]))


@sound("Counts with a log link and Poisson likelihood", steps=300, least=0.8)
def tsq_ok_poisson():
    def data(n, seed):
        t = torch.rand(n, 1, generator=g(seed)) * 6.28
        rate = torch.exp(1.2 + 1.3 * torch.sin(t + 3.6))
        x = torch.sin(t + 0.3 * torch.arange(12)) + 0.05 * torch.randn(n, 12, generator=g(seed + 1))
        return x, torch.poisson(rate, generator=g(seed + 2)), rate

    x, y, _ = data(1500, 1)
    xt, _, rate = data(400, 5)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    return Program(model, nn.PoissonNLLLoss(log_input=True), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(xt, rate)(lambda v: m(v).exp()))


@sound("BPR on triples, by a training step", steps=400, least=0.75)
def tsq_ok_bpr():
    def triples(n, seed):
        r = g(11)
        u, v = torch.randn(60, 3, generator=r), torch.randn(50, 3, generator=r)
        r = g(seed)
        t = torch.stack([torch.randint(60, (n,), generator=r), torch.randint(50, (n,), generator=r),
                         torch.randint(50, (n,), generator=r)], 1)
        t = t[t[:, 1] != t[:, 2]]
        better = (u[t[:, 0]] * (v[t[:, 1]] - v[t[:, 2]])).sum(1) > 0
        return torch.where(better[:, None], t, t[:, [0, 2, 1]])

    def step(model, batch):
        (t,) = batch
        gap = model(t[:, [0, 1]]) - model(t[:, [0, 2]])
        return -F.logsigmoid(gap).mean() + 1e-4 * sum(p.square().sum() for p in model.parameters())

    test = triples(1000, 2)
    model = MF(std=0.1)
    return Program(model, None, loader(triples(6000, 1), batch=128), torch.optim.Adam(model.parameters(), lr=2e-2),
                   lambda m: (m(test[:, [0, 1]]) > m(test[:, [0, 2]])).float().mean().item(), step=step)


@sound("word2vec: tiny input vectors, output vectors at zero", steps=500, least=0.7)
def tsq_ok_word2vec():
    class SkipGram(nn.Module):
        def __init__(self, vocab=20, d=16):
            super().__init__()
            self.centre, self.context = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
            nn.init.uniform_(self.centre.weight, -0.5 / d, 0.5 / d)
            nn.init.zeros_(self.context.weight)

        def forward(self, pair):
            return (self.centre(pair[:, 0]) * self.context(pair[:, 1])).sum(-1)

    def data(n, seed):
        text = markov(n, 2, 20, seed, 0.9)
        noise = torch.stack([text[:, 0], torch.randint(20, (n,), generator=g(seed + 1))], 1)
        return torch.cat([text, noise]), torch.cat([torch.ones(n), torch.zeros(n)])

    x, y = data(400, 4)
    model = SkipGram()
    return Program(model, nn.BCEWithLogitsLoss(), loader(*data(2000, 1), batch=64),
                   torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: ((m(x) > 0).float() == y).float().mean().item())


@sound("ReZero: every residual branch starts at zero", steps=300, least=0.85)
def tsq_ok_rezero():
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.attention = nn.MultiheadAttention(d, 4, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
            self.alpha = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            x = x + self.alpha[0] * self.attention(x, x, x, need_weights=False)[0]
            return x + self.alpha[1] * self.mlp(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 32)
            self.position = nn.Parameter(0.3 * torch.randn(8, 32))
            self.blocks = nn.Sequential(*(Block(32) for _ in range(3)))
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            return self.head(self.blocks(self.embed(x) + self.position).mean(1))

    (x, y), (xt, yt) = digit_rows()
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=4e-3),
                   accuracy(xt, yt))


@sound("Encoder and decoder with teacher forcing: the decoder gets the target one step late", steps=500, least=0.7)
def tsq_ok_seq2seq():
    def data(n, seed):
        s = torch.randint(1, 8, (n, 4), generator=g(seed))
        return s, s.flip(1)

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 24)
            self.encoder, self.decoder = nn.GRU(24, 64, batch_first=True), nn.GRU(24, 64, batch_first=True)
            self.out = nn.Linear(64, 8)

        def forward(self, source, previous):
            _, h = self.encoder(self.emb(source))
            return self.out(self.decoder(self.emb(previous), h)[0]).transpose(1, 2)

    def late(y):
        return F.pad(y[:, :-1], (1, 0))

    class Batches:
        def __init__(self, n):
            self.s, self.y = data(n, 1)

        def __iter__(self):
            for i in torch.randperm(len(self.s)).split(64):
                yield {"source": self.s[i], "previous": late(self.y[i])}, self.y[i]

        def __len__(self):
            return -(-len(self.s) // 64)

    s, y = data(300, 2)
    model = Seq2Seq()

    def score(m):
        got = torch.zeros(300, 0, dtype=torch.long)
        for _ in range(4):
            got = torch.cat([got, m(s, F.pad(got, (1, 0))).argmax(1)[:, -1:]], 1)
        return (got == y).float().mean().item()

    return Program(model, nn.CrossEntropyLoss(), Batches(4000), torch.optim.Adam(model.parameters(), lr=4e-3), score)


@sound("Siamese network with a contrastive margin: one encoder, two inputs", steps=400, least=0.8)
def tsq_ok_siamese():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8))

        def forward(self, pair):
            return (self.encoder(pair[:, 0]) - self.encoder(pair[:, 1]) + 1e-6).norm(dim=1)

    def pairs(x, y, n, seed):
        r = g(seed)
        i = torch.randint(len(y), (n,), generator=r)
        j = torch.stack([torch.nonzero(y == c)[:, 0][torch.randint(int((y == c).sum()), (1,), generator=r)][0]
                         for c in y[i]])
        j = torch.where(torch.rand(n, generator=r) < 0.5, j, torch.randint(len(y), (n,), generator=r))
        return torch.stack([x[i], x[j]], 1), (y[i] == y[j]).float()

    def contrastive(d, same):
        return (same * d.square() + (1 - same) * F.relu(1.5 - d).square()).mean()

    train, test = digit_rows()
    x, y = pairs(*test, 500, 2)
    model = Siamese()
    return Program(model, contrastive, loader(*pairs(*train, 3000, 1)), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: ((m(x) < 0.75).float() == y).float().mean().item())


@sound("A sum over the batch with a rate that allows for it", steps=300, least=0.75)
def tsq_ok_summed():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 24)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 20)

        def forward(self, x):
            return self.fc(self.gru(self.emb(x))[0]).transpose(1, 2)

    text, test = markov(1200, 17, 20, 1), markov(300, 17, 20, 2)
    model = LM()
    return Program(model, nn.CrossEntropyLoss(reduction="sum"), loader(text[:, :-1], text[:, 1:]),
                   torch.optim.SGD(model.parameters(), lr=0.5 / 512, momentum=0.9),
                   lambda m: (m(test[:, :-1]).argmax(1) == test[:, 1:]).float().mean().item())


@sound("Graphs of different sizes, padded, with a mask over nodes", steps=400, least=0.8)
def tsq_ok_padded_graphs():
    def data(n, seed):
        r = g(seed)
        y = torch.randint(2, (n,), generator=r)
        size = torch.randint(6, 13, (n, 1), generator=r)
        real = torch.arange(12) < size
        p = torch.where(y == 1, 0.5, 0.2)[:, None, None]
        a = (torch.rand(n, 12, 12, generator=r) < p).float().triu(1)
        a = (a + a.transpose(1, 2)) * real[:, None] * real[..., None]
        return a, real, y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 24), nn.Linear(48, 24)
            self.fc = nn.Linear(24, 2)

        def forward(self, adjacency, real):
            m = real.float()[..., None]
            degree = adjacency.sum(2, keepdim=True)
            h = F.relu(self.first(torch.cat([m, degree / 4], 2))) * m
            h = F.relu(self.second(torch.cat([h, adjacency @ h / degree.clamp(min=1)], 2))) * m
            return self.fc(h.sum(1) / m.sum(1))

    class Batches:
        def __init__(self, n):
            self.data = data(n, 1)

        def __iter__(self):
            a, real, y = self.data
            for i in torch.randperm(len(y)).split(32):
                yield {"adjacency": a[i], "real": real[i]}, y[i]

        def __len__(self):
            return -(-len(self.data[2]) // 32)

    a, real, y = data(400, 2)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), Batches(1500), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy({"adjacency": a, "real": real}, y))


@sound("Raw day numbers and prices, but BatchNorm comes first", steps=400, least=0.85)
def tsq_ok_bn_first():
    r = g(4)
    days = 18000 + 365 * torch.rand(2000, 1, generator=r)
    price = 900 + 300 * torch.randn(2000, 1, generator=r)
    y = torch.sin(6.28 * (days - 18000) / 365) + 0.5 * (price - 900) / 300 + 0.05 * torch.randn(2000, 1, generator=r)
    x = torch.cat([days, price], 1)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), loader(x[:1600], y[:1600], batch=64),
                   torch.optim.Adam(model.parameters(), lr=5e-3), r2(x[1600:], y[1600:]))


@sound("DLinear: trend and season by two linear layers, no activation", steps=400, least=0.8)
def tsq_ok_dlinear():
    class DLinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.season, self.trend = nn.Linear(24, 4), nn.Linear(24, 4)

        def forward(self, x):
            x = x[..., 0]
            trend = F.avg_pool1d(F.pad(x[:, None], (2, 2), mode="replicate"), 5, stride=1)[:, 0]
            return self.season(x - trend) + self.trend(trend)

    model = DLinear()
    return Program(model, nn.MSELoss(), loader(*series(1200, 24, 1, 4)), torch.optim.Adam(model.parameters(), lr=1e-2),
                   r2(*series(300, 24, 2, 4)))


@sound("A dilated causal convolution (WaveNet), with gates", steps=300, least=0.75)
def tsq_ok_wavenet():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 16)
            self.filters = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=d) for d in (1, 2, 4))
            self.head = nn.Conv1d(16, 16, 1)

        def forward(self, x):
            h = self.emb(x).transpose(1, 2)
            for f in self.filters:
                a, b = f(F.pad(h, (f.dilation[0], 0))).chunk(2, 1)
                h = h + a.tanh() * b.sigmoid()
            return self.head(h)

    text, test = markov(1200, 17, 16, 1, 0.9), markov(300, 17, 16, 2, 0.9)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(text[:, :-1], text[:, 1:]),
                   torch.optim.Adam(model.parameters(), lr=4e-3),
                   lambda m: (m(test[:, :-1]).argmax(1) == test[:, 1:]).float().mean().item())


@sound("One-cycle schedule of Adam up to a rate of 0.01, from a 25th of it", steps=300, least=0.85)
def tsq_ok_one_cycle():
    model = TextCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(1500, 16, 60, 5, 1)), optimizer,
                   accuracy(*topics(400, 16, 60, 5, 3)), scheduler=OneCycleLR(optimizer, 0.01, total_steps=1000, pct_start=0.1))


@sound("REINFORCE in a contextual bandit, with a baseline", steps=500, least=0.7)
def tsq_ok_reinforce():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 16)
            self.actor = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
            self.critic = nn.Linear(16, 1)

        def forward(self, user):
            e = self.emb(user)
            return self.actor(e), self.critic(e.detach())[:, 0]

    best = torch.randint(4, (12,), generator=g(8))

    def step(model, batch):
        (user,) = batch
        logits, value = model(user)
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        reward = (action == best[user]).float() + 0.1 * torch.randn(len(user))
        advantage = reward - value.detach()
        return -(policy.log_prob(action) * advantage).mean() + F.mse_loss(value, reward) - 0.01 * policy.entropy().mean()

    model = Policy()
    users = torch.arange(12)
    return Program(model, None, loader(torch.randint(12, (2000,), generator=g(1)), batch=64),
                   torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: (m(users)[0].argmax(1) == best).float().mean().item(), step=step)


@sound("Attention that has learned to look at one place, trained", trained=400, steps=400, least=0.9)
def tsq_ok_sharp_attention():
    model = LookUp(-1)
    return Program(model, nn.CrossEntropyLoss(), loader(*recall(4000, 6, 1), batch=64),
                   torch.optim.Adam(model.parameters(), lr=4e-3), accuracy(*recall(500, 6, 2)))


@sound("Rare tags: focal loss and a bias for the prior", steps=400, least=0.7)
def tsq_ok_focal():
    def data(n, seed):
        x = torch.randint(40, (n, 12), generator=g(seed))
        return x, (x < 3).float()

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 16)
            self.gru = nn.GRU(16, 24, batch_first=True, bidirectional=True)
            self.tag = nn.Linear(48, 1)
            nn.init.constant_(self.tag.bias, -2.5)

        def forward(self, x):
            return self.tag(self.gru(self.emb(x))[0])[..., 0]

    def focal(logits, y):
        bce = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
        p = torch.exp(-bce)
        return ((1 - p).square() * bce).mean() * 10

    x, y = data(300, 2)

    def f1(m):
        p = (m(x) > 0).float()
        return (2 * (p * y).sum() / (p.sum() + y.sum()).clamp(min=1)).item()

    model = Tagger()
    return Program(model, focal, loader(*data(1000, 1)), torch.optim.Adam(model.parameters(), lr=5e-3), f1)


@sound("A CRF tagger: the loss comes out of the model's scores and transitions, by a step", steps=200, least=0.8)
def tsq_ok_crf():
    class CRF(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 16)
            self.conv = nn.Conv1d(16, 24, 3, padding=1)
            self.fc = nn.Linear(24, 4)
            self.transitions = nn.Parameter(torch.zeros(4, 4))

        def forward(self, x):
            return self.fc(F.relu(self.conv(self.emb(x).transpose(1, 2))).transpose(1, 2))

        def nll(self, x, y):
            e = self(x)
            alpha = e[:, 0]
            gold = e[:, 0].gather(1, y[:, :1])[:, 0]
            for t in range(1, x.shape[1]):
                alpha = (alpha[:, :, None] + self.transitions).logsumexp(1) + e[:, t]
                gold = gold + self.transitions[y[:, t - 1], y[:, t]] + e[:, t].gather(1, y[:, t : t + 1])[:, 0]
            return (alpha.logsumexp(1) - gold).mean()

    def data(n, seed):
        y = markov(n, 8, 4, seed, 0.8)
        x = y * 7 + torch.randint(7, (n, 8), generator=g(seed + 1))
        swap = torch.rand(n, 8, generator=g(seed + 2)) < 0.1
        return torch.where(swap, torch.randint(30, (n, 8), generator=g(seed + 3)), x), y

    x, y = data(300, 2)
    model = CRF()
    return Program(model, None, loader(*data(1000, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: (m(x).argmax(-1) == y).float().mean().item(), step=lambda m, b: m.nll(*b))


@sound("Vanilla ReLU recurrence from the identity (IRNN)", steps=400, least=0.8)
def tsq_ok_irnn():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(8, 48, nonlinearity="relu", batch_first=True)
            nn.init.eye_(self.rnn.weight_hh_l0)
            nn.init.normal_(self.rnn.weight_ih_l0, std=0.05)
            nn.init.zeros_(self.rnn.bias_hh_l0)
            nn.init.zeros_(self.rnn.bias_ih_l0)
            self.fc = nn.Linear(48, 10)

        def forward(self, x):
            return self.fc(self.rnn(x)[0][:, -1])

    (x, y), (xt, yt) = digit_rows()
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=2e-3),
                   accuracy(xt, yt))


@sound("Half-trained LSTM with batches of four", trained=200, steps=600, least=0.8)
def tsq_ok_small_batches():
    (x, y), (xt, yt) = digit_rows()
    model = RowLSTM()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch=4),
                   torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt))
