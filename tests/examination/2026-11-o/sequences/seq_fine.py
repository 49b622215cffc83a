"""Set-ups with nothing wrong that look unusual."""

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from seq_data import accuracy, chain, chain2, loader, r2, tones, waves
from torch import nn


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@sound("the embedding is the output layer's weight as well", steps=300, least=0.8)
def tied_lm():
    text = chain(800, 17, 24)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(24, 32)
            nn.init.normal_(self.emb.weight, std=0.1)
            self.rnn = nn.LSTM(32, 32, batch_first=True)
            self.decoder = nn.Linear(32, 24)
            self.decoder.weight = self.emb.weight

        def forward(self, x):
            return self.decoder(self.rnn(self.emb(x))[0])

    model = Tied()
    return Program(model, token_loss, loader(text[:700, :-1], text[:700, 1:]),
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(text[700:, :-1], text[700:, 1:]))


@sound("one layer of a transformer is applied three times", trained=100, steps=300, least=0.8)
def layers_shared():
    text = chain2(1200, 14, 7, keep=0.95)

    class Albert(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok = nn.Embedding(7, d)
            self.pos = nn.Parameter(torch.randn(13, d) * 0.1)
            self.layer = nn.TransformerEncoderLayer(d, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 7)

        def forward(self, x):
            h = self.tok(x) + self.pos[: x.size(1)]
            mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
            for _ in range(3):
                h = self.layer(h, src_mask=mask)
            return self.head(self.norm(h))

    model = Albert()
    held = text[1000:]
    return Program(model, token_loss, loader(text[:1000, :-1], text[:1000, 1:]),
                   torch.optim.AdamW(model.parameters(), lr=3e-3),
                   lambda m: (m(held[:, :-1])[:, 1:].argmax(-1) == held[:, 2:]).float().mean().item())


@sound("a bidirectional tagger sees the words after each one, as it may", trained=60, steps=250, least=0.8)
def bidirectional_tagger():
    x = torch.randint(0, 20, (900, 12))
    y = (x % 4 + (x.roll(-1, 1) < 7).long()) % 4

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 4)

        def forward(self, x):
            return self.out(self.lstm(self.emb(x))[0])

    y[:, -1] = x[:, -1] % 4
    model = Tagger()
    return Program(model, token_loss, loader(x[:750], y[:750]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(x[750:], y[750:]))


@sound("a masked language model: targets are the inputs, most of them ignored", steps=400, least=0.7)
def masked_lm():
    text = chain(1600, 12, 12, keep=0.97)
    masked = torch.rand(text.shape) < 0.2
    masked[:, 5] = True
    x = text.masked_fill(masked, 12)
    y = text.masked_fill(~masked, -100)

    class Bert(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok, self.pos = nn.Embedding(13, d), nn.Embedding(12, d)
            self.enc = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False)
            self.head = nn.Linear(d, 12)

        def forward(self, x):
            return self.head(self.enc(self.tok(x) + self.pos.weight))

    model = Bert()
    held, truth = x[1400:], text[1400:]
    at = masked[1400:]
    return Program(model, token_loss, loader(x[:1400], y[:1400]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: (m(held).argmax(-1)[at] == truth[at]).float().mean().item())


@sound("an autoencoder of token sequences, whose targets are its inputs", steps=400, least=0.7)
def sequence_autoencoder():
    x = chain(1500, 8, 12, keep=0.95)

    class AE(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 16)
            self.enc = nn.GRU(16, 64, batch_first=True)
            self.code = nn.Linear(64, 32)
            self.dec = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8 * 12))

        def forward(self, x):
            z = torch.tanh(self.code(self.enc(self.emb(x))[1][0]))
            return self.dec(z).view(-1, 8, 12)

    model = AE()
    return Program(model, token_loss, loader(x[:1300], x[:1300]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(x[1300:], x[1300:]))


@sound("a bag of words, at a rate of 2 of plain SGD", steps=300, least=0.8)
def bag_of_words():
    x = torch.randint(0, 60, (1500, 20))
    value = (x < 15).sum(1) - ((x >= 15) & (x < 30)).sum(1)
    y = (value > 0).long()

    class TextClassification(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.EmbeddingBag(60, 16)
            self.fc = nn.Linear(16, 2)
            self.embedding.weight.data.uniform_(-0.5, 0.5)
            self.fc.weight.data.uniform_(-0.5, 0.5)
            self.fc.bias.data.zero_()

        def forward(self, text):
            return self.fc(self.embedding(text))

    model = TextClassification()
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200], batch=16),
                   torch.optim.SGD(model.parameters(), lr=2.0), accuracy(x[1200:], y[1200:]))


@sound("a summed loss with a rate that is meant for it", steps=250, least=0.8)
def summed_on_purpose():
    x, y = tones(1200, 48, 5)
    model = nn.Sequential(nn.Conv1d(1, 24, 11), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 5))
    return Program(model, nn.CrossEntropyLoss(reduction="sum"), loader(x[:1000], y[:1000]),
                   torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9), accuracy(x[1000:], y[1000:]))


@sound("a linear forecaster, which needs nothing nonlinear", steps=300, least=0.9)
def dlinear():
    s = waves(1300, 30)
    x, y = s[:, :24], s[:, 24:]

    class DLinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.trend, self.rest = nn.Linear(24, 6), nn.Linear(24, 6)
            self.pool = nn.AvgPool1d(5, 1, padding=2, count_include_pad=False)

        def forward(self, x):
            mean = self.pool(x.unsqueeze(1)).squeeze(1)
            return self.trend(mean) + self.rest(x - mean)

    model = DLinear()
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=1e-2),
                   r2(x[1000:], y[1000:]))


@sound("frozen word vectors that were trained elsewhere", trained=80, steps=250, least=0.8)
def frozen_vectors():
    vectors = torch.randn(50, 20)
    direction = torch.randn(20)
    x = torch.randint(0, 50, (1500, 9))
    y = ((vectors[x] @ direction).mean(1) > 0).float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding.from_pretrained(vectors, freeze=True)
            self.gru = nn.GRU(20, 24, batch_first=True)
            self.fc = nn.Linear(24, 1)

        def forward(self, x):
            return self.fc(self.gru(self.emb(x))[0].mean(1)).squeeze(1)

    model = Net()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x[:1200], y[:1200]),
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3),
                   lambda m: ((m(x[1200:]) > 0) == y[1200:].bool()).float().mean().item())


@sound("attention that has learned to look at one place", trained=400, steps=500, least=0.95)
def sharp_attention():
    keys = torch.rand(2500, 10).argsort(1)[:, :6]
    values = torch.randint(6, (2500, 6))
    which = torch.randint(6, (2500,))
    at = torch.arange(2500)
    query, answer = keys[at, which], values[at, which]

    class Retrieve(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.k_emb, self.v_emb = nn.Embedding(10, d), nn.Embedding(6, d)
            self.attn = nn.MultiheadAttention(d, 1, batch_first=True)
            self.out = nn.Linear(d, 6)

        def forward(self, keys, values, query):
            q = self.k_emb(query).unsqueeze(1)
            return self.out(self.attn(q, self.k_emb(keys), self.v_emb(values))[0][:, 0])

    model = Retrieve()
    data = [({"keys": keys[i : i + 40], "values": values[i : i + 40], "query": query[i : i + 40]}, answer[i : i + 40])
            for i in range(0, 2000, 40)]
    return Program(model, F.cross_entropy, data, torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: (m(keys[2000:], values[2000:], query[2000:]).argmax(-1) == answer[2000:]).float().mean().item())


@sound("residual branches that start at zero, and an output layer of zeros", steps=250, least=0.8)
def rezero():
    x, y = tones(1200, 48, 5)

    class ReZero(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.conv = nn.Conv1d(c, c, 5, padding=2)
            self.gain = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return x + self.gain * F.relu(self.conv(x))

    model = nn.Sequential(nn.Conv1d(1, 16, 9, padding=4), nn.ReLU(), *(ReZero(16) for _ in range(6)),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 5))
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(x[1000:], y[1000:]))


@sound("a rare event, the bias of the output at its log-odds", steps=300, least=0.7)
def rare_event():
    n, t = 1500, 40
    x = 0.5 * torch.randn(n, 1, t)
    y = torch.zeros(n, t)
    for i in torch.randperm(n)[: n * 3 // 4]:
        at = int(torch.randint(5, t - 5, ()))
        x[i, 0, at - 1 : at + 2] += torch.tensor([2.0, 3.0, 2.0])
        y[i, at] = 1

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 3, padding=1), nn.ReLU())
            self.head = nn.Conv1d(16, 1, 1)
            nn.init.constant_(self.head.bias, math.log(0.02 / 0.98))

        def forward(self, x):
            return self.head(self.body(x)).squeeze(1)

    model = Detector()

    def f1(m):
        said, true = m(x[1200:]) > 0, y[1200:] > 0
        return (2 * (said & true).sum() / (said.sum() + true.sum()).clamp(min=1)).item()

    return Program(model, nn.BCEWithLogitsLoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), lr=5e-3), f1)


@sound("series of very different levels, which the network itself normalises and scales back", steps=300, least=0.8)
def reversible_norm():
    level = 10 ** (1 + 2 * torch.rand(1300, 1))
    s = level * (1 + 0.3 * waves(1300, 25, noise=0.03))
    x, y = s[:, :-1], s[:, -1:]

    class RevIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 1))

        def forward(self, x):
            mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True)
            return mean + std * self.net((x - mean) / std)

    def relative(out, y):
        return ((out - y) / y).abs().mean()

    def score(m):
        error = (m(x[1000:]) - y[1000:]) / level[1000:]
        return 1 - (error.square().mean() / (y[1000:] / level[1000:]).var()).item()

    model = RevIN()
    return Program(model, relative, loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=3e-3), score)


@sound("forget gates that start open", steps=300, least=0.8)
def open_forget_gates():
    x = 0.2 * torch.randn(1300, 24, 2)
    y = torch.rand(1300) < 0.5
    x[:, 0, 0] += 2.0 * y - 1
    lstm = nn.LSTM(2, 24, batch_first=True)
    for name, p in lstm.named_parameters():
        if "bias_ih" in name:
            p.data[24:48].fill_(3.0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.fc = lstm, nn.Linear(24, 1)

        def forward(self, x):
            return self.fc(self.lstm(x)[1][0][-1]).squeeze(-1)

    model = Net()
    return Program(model, F.binary_cross_entropy_with_logits, loader(x[:1000], y[:1000].float()),
                   torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: ((m(x[1000:]) > 0) == y[1000:]).float().mean().item())


@sound("CTC on frames, with lengths of their own, through a step function", trained=150, steps=400, least=0.6)
def ctc_speech():
    n, symbols = 800, 4
    words = torch.randint(1, symbols + 1, (n, 3))
    pattern = torch.randn(symbols, 6)
    frames = pattern[words - 1].repeat_interleave(5, dim=1) + 0.5 * torch.randn(n, 15, 6)
    frames[:, 4::5] = 0.2 * torch.randn(n, 3, 6)

    class Acoustic(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(6, 32, 3, padding=1)
            self.gru = nn.GRU(32, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(48, symbols + 1)

        def forward(self, x):
            h = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
            return self.fc(self.gru(h)[0]).log_softmax(2)

    def step(model, batch):
        x, target = batch
        out = model(x).transpose(0, 1)
        return F.ctc_loss(out, target, torch.full((len(x),), 15), torch.full((len(x),), 3))

    def score(m):
        hits = 0
        for path, word in zip(m(frames[650:]).argmax(-1).tolist(), words[650:].tolist(), strict=True):
            said = [s for i, s in enumerate(path) if s and (i == 0 or path[i - 1] != s)]
            hits += said == word
        return hits / 150

    model = Acoustic()
    return Program(model, None, loader(frames[:650], words[:650]), torch.optim.Adam(model.parameters(), lr=5e-3), score, step=step)


@sound("the other examples of the batch are the negatives of a contrastive loss", steps=250, least=0.7)
def contrastive():
    phase, f = torch.rand(1200, 1), 0.02 + 0.2 * torch.rand(1200, 1)
    t = torch.arange(40)
    a = torch.sin(6.283 * (f * t + phase)) + 0.1 * torch.randn(1200, 40)
    b = torch.sin(6.283 * (f * t + torch.rand(1200, 1))) + 0.1 * torch.randn(1200, 40)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(1, 32, 9), nn.ReLU(), nn.Conv1d(32, 32, 5), nn.ReLU())
            self.proj = nn.Linear(32, 16)

        def forward(self, x):
            return F.normalize(self.proj(self.net(x.unsqueeze(1)).mean(-1)), dim=-1)

    def step(model, batch):
        one, two = batch
        logits = model(one) @ model(two).T / 0.1
        return F.cross_entropy(logits, torch.arange(len(one)))

    model = Encoder()

    def score(m):  # the partner is among the five nearest of 100
        near = (m(a[1000:1100]) @ m(b[1000:1100]).T).topk(5).indices
        return (near == torch.arange(100)[:, None]).any(1).float().mean().item()

    return Program(model, None, loader(a[:1000], b[:1000]), torch.optim.Adam(model.parameters(), lr=5e-3), score, step=step)


@sound("batches of sentences of like length, padding ignored", steps=300, least=0.8)
def buckets():
    batches, held = [], []
    table = torch.arange(25) % 5
    for length in list(range(3, 13)) * 4 + [7]:
        x = torch.randint(1, 25, (32, length))
        y = (table[x] + table[F.pad(x, (1, 0))[:, :-1]]) % 5
        (held if len(batches) == 40 else batches).append((x, y))
    batches = [batches[i] for i in torch.randperm(40).tolist()]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(25, 20, padding_idx=0)
            self.gru = nn.GRU(20, 40, batch_first=True)
            self.fc = nn.Linear(40, 5)

        def forward(self, x):
            return self.fc(self.gru(self.emb(x))[0])

    model = Net()
    return Program(model, lambda o, y: F.cross_entropy(o.mT, y, ignore_index=-100), batches,
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(*held[0]))


@sound("a mixture of Gaussians as output, whose loss falls below zero", trained=150, steps=400, least=0.7)
def mixture_density():
    s = 0.3 * waves(1300, 21, noise=0.03)
    x, y = s[:, :-1], s[:, -1]

    class MDN(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
            self.pi, self.mu, self.log_sigma = nn.Linear(48, 3), nn.Linear(48, 3), nn.Linear(48, 3)

        def forward(self, x):
            h = self.body(x)
            return self.pi(h).log_softmax(-1), self.mu(h), self.log_sigma(h).clamp(-5, 3)

    def nll(out, y):
        log_pi, mu, log_sigma = out
        log_p = -0.5 * ((y[:, None] - mu) / log_sigma.exp()) ** 2 - log_sigma - 0.919
        return -torch.logsumexp(log_pi + log_p, -1).mean()

    model = MDN()

    def score(m):
        log_pi, mu, _ = m(x[1000:])
        mean = (log_pi.exp() * mu).sum(-1)
        return 1 - ((mean - y[1000:]).square().mean() / y[1000:].var()).item()

    return Program(model, nll, loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=3e-3), score)


@sound("one-hot characters, most of them zero, some never seen", steps=250, least=0.8)
def one_hot_characters():
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 .,-"
    stems = ["run", "walk", "jump", "talk", "look", "work", "call", "play"]
    ends = ["ing", "ed", "s", "er"]
    texts, labels = [], []
    for _ in range(1000):
        stem, label = stems[int(torch.randint(8, ()))], int(torch.randint(4, ()))
        noise = "".join(alphabet[i] for i in torch.randint(26, (3,)).tolist())
        texts.append((noise + " " + stem + ends[label]).rjust(12))
        labels.append(label)
    x = F.one_hot(torch.tensor([[alphabet.index(c) for c in s] for s in texts]), 40).float().transpose(1, 2)
    y = torch.tensor(labels)
    model = nn.Sequential(nn.Conv1d(40, 48, 3), nn.ReLU(), nn.MaxPool1d(10), nn.Flatten(), nn.Linear(48, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:800], y[:800]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(x[800:], y[800:]))


@sound("a diagonal linear recurrence, without anything nonlinear between its steps", steps=250, least=0.8)
def linear_recurrence():
    s = waves(1200, 33)
    x, y = s[:, :-1], s[:, 1:]

    class DiagonalSSM(nn.Module):
        def __init__(self, n=24):
            super().__init__()
            self.log_decay = nn.Parameter(torch.log(torch.linspace(0.01, 0.5, n)))
            self.theta = nn.Parameter(torch.linspace(0, 1.5, n))
            self.B = nn.Parameter(0.3 * torch.randn(n, 2))
            self.mix = nn.Sequential(nn.Linear(2 * n + 1, 32), nn.GELU(), nn.Linear(32, 1))

        def forward(self, u):
            length = u.size(1)
            k = torch.arange(length)
            kernel = torch.exp((-self.log_decay.exp() + 1j * self.theta)[:, None] * k) * torch.view_as_complex(self.B)[:, None]
            f = torch.fft.fft(kernel, 2 * length) * torch.fft.fft(u, n=2 * length)[:, None]
            h = torch.fft.ifft(f)[..., :length].transpose(1, 2)
            return self.mix(torch.cat([h.real, h.imag, u.unsqueeze(-1)], -1)).squeeze(-1)

    model = DiagonalSSM()
    held, truth = x[1000:], y[1000:, 16:]
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: 1 - ((m(held)[:, 16:] - truth).square().mean() / truth.var()).item())


@sound("word vectors by negative sampling, most of whose rows get no gradient in a step", trained=150, steps=500, least=0.6)
def skip_gram():
    group = torch.arange(60) % 6
    centre = torch.randint(60, (6400,))
    context = (centre + 6 * torch.randint(1, 10, (6400,))) % 60
    noise = torch.randint(60, (6400, 5))

    class SkipGram(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.v = nn.Embedding(60, 8, sparse=True), nn.Embedding(60, 8, sparse=True)
            nn.init.uniform_(self.u.weight, -0.06, 0.06)
            nn.init.zeros_(self.v.weight)

        def forward(self, centre, context, noise):
            u = self.u(centre)
            good = (u * self.v(context)).sum(-1)
            bad = torch.einsum("bd,bkd->bk", u, self.v(noise))
            return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(-1)).mean()

    model = SkipGram()

    def score(m):
        e = F.normalize(m.u.weight, dim=1)
        sim = e @ e.T - 2 * torch.eye(60)
        return (group[sim.argmax(1)] == group).float().mean().item()

    return Program(model, None, loader(centre, context, noise, batch=64), torch.optim.SparseAdam(list(model.parameters()), lr=0.02),
                   score, step=lambda m, batch: m(*batch))


@sound("an echo state network: a fixed recurrent layer, only the readout is trained", steps=300, least=0.8)
def echo_state():
    s = waves(1200, 30)
    x, y = s[:, :-1, None], s[:, -1:]

    class ESN(nn.Module):
        def __init__(self):
            super().__init__()
            self.reservoir = nn.RNN(1, 80, batch_first=True)
            w = torch.randn(80, 80)
            self.reservoir.weight_hh_l0.data = 0.9 * w / torch.linalg.eigvals(w).abs().max()
            for p in self.reservoir.parameters():
                p.requires_grad_(False)
            self.readout = nn.Linear(80, 1)

        def forward(self, x):
            return self.readout(self.reservoir(x)[0][:, -1])

    model = ESN()
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]),
                   torch.optim.Adam(model.readout.parameters(), lr=1e-2), r2(x[1000:], y[1000:]))


@sound("a reader that carries its state from batch to batch, detached, with strong dropout", trained=100, steps=400, least=0.75)
def carried_and_cut():
    stream = chain(16, 2420, 16)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 48)
            self.drop = nn.Dropout(0.5)
            self.rnn = nn.GRU(48, 64, batch_first=True)
            self.fc = nn.Linear(64, 16)
            self.state = None

        def forward(self, x):
            state = self.state if self.training and self.state is not None and self.state.size(1) == len(x) else None
            out, state = self.rnn(self.drop(self.emb(x)), state)
            if self.training:
                self.state = state.detach()
            return self.fc(self.drop(out))

    model = Reader()
    batches = [(stream[:, i : i + 20], stream[:, i + 1 : i + 21]) for i in range(0, 2000, 20)]
    held = stream[:, 2010:]
    return Program(model, token_loss, batches, torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(held[:, :-1], held[:, 1:]))


@sound("targets three steps ahead of the last reading", steps=250, least=0.8)
def three_ahead():
    s = waves(1200, 32)
    x, y = s[:, :-3], s[:, 3:]

    class CausalConv(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv1d(i, 24, 3, dilation=d) for i, d in ((1, 1), (24, 2), (24, 4)))
            self.out = nn.Conv1d(24, 1, 1)

        def forward(self, x):
            h = x.unsqueeze(1)
            for conv in self.convs:
                h = F.gelu(conv(F.pad(h, (2 * conv.dilation[0], 0))))
            return self.out(h).squeeze(1)

    model = CausalConv()
    held, truth = x[1000:], y[1000:, 14:]
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: 1 - ((m(held)[:, 14:] - truth).square().mean() / truth.var()).item())
