"""Sound set-ups for texts, series and sounds: those that look odd."""

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from ts_audio import spectra
from ts_data import chain, loader, r2, reviews, share_right, tagged, tones, waves


class Bert(nn.Module):
    def __init__(self, vocab, d=32, length=12):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.bias = nn.Parameter(torch.zeros(vocab))
        nn.init.normal_(self.tok.weight, std=0.1)

    def forward(self, x):
        h = self.norm(self.enc(self.tok(x) + self.pos.weight[: x.shape[1]]))
        return (h @ self.tok.weight.T + self.bias).transpose(1, 2)


@sound("a masked language model: it sees both sides, most targets are ignored, and the output is tied", steps=500,
       least=0.6)
def masked_language_model():
    vocab, mask = 13, 12

    def task(n):
        ids = chain(n, 12, 12, 0.0)
        hidden = torch.rand(n, 12) < 0.2
        hidden[:, 5] = True
        return ids.masked_fill(hidden, mask), ids.masked_fill(~hidden, -100)

    (x, y), (xh, yh) = task(2000), task(300)
    model = Bert(vocab)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.AdamW(model.parameters(), 4e-3),
                   lambda m: share_right(m(xh).transpose(1, 2), yh))


@sound("targets are the inputs: an autoencoder of series with a narrow code", steps=400, least=0.7)
def series_autoencoder():
    x, xh = waves(1500, 32), waves(300, 32)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4), nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 32))
    return Program(net, nn.MSELoss(), loader(x, x), torch.optim.Adam(net.parameters(), 2e-3), lambda m: r2(m(xh), xh))


@sound("three steps ahead is what is asked for", steps=300, least=0.8)
def three_steps_ahead():
    s, held = waves(1000, 33), waves(300, 33)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 32, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, x):
            return self.out(self.rnn(x[..., None])[0])[..., 0]

    net = Net()
    return Program(net, nn.MSELoss(), loader(s[:, :-3], s[:, 3:]), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: r2(m(held[:, :-3])[:, 15:], held[:, 18:]))


@sound("a set of words read by attention without positions, where order does not matter", steps=250, least=0.7)
def attention_over_a_set():
    class Set(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 32, padding_idx=0)
            self.att = nn.MultiheadAttention(32, 2, batch_first=True)
            self.norm = nn.LayerNorm(32)
            self.fc = nn.Linear(32, 2)

        def forward(self, x):
            h = self.emb(x)
            h = self.norm(h + self.att(h, h, h, key_padding_mask=x == 0, need_weights=False)[0])
            real = (x != 0)[..., None].float()
            return self.fc((h * real).sum(1) / real.sum(1))

    (x, _, y), (xh, _, yh) = reviews(1200, width=30), reviews(400, width=30)
    net = Set()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: 2 * share_right(m(xh), yh) - 1)


@sound("a frozen encoder, of random features, under a head that is trained", steps=250, least=0.8)
def head_on_a_frozen_encoder():
    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv1d(1, 64, 25, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
            self.encoder.requires_grad_(False)
            nn.init.normal_(self.encoder[0].weight, std=0.3)
            self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 4))

        def forward(self, x):
            with torch.no_grad():
                f = self.encoder(x)
            return self.head(f)

    (x, y), (xh, yh) = tones(1000, length=128), tones(300, length=128)
    net = Probe()
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), opt, lambda m: share_right(m(xh), yh))


@sound("one transformer layer applied three times, as ALBERT does", steps=300, least=0.8)
def layer_used_three_times():
    class Albert(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb = nn.Embedding(40, d)
            self.pos = nn.Parameter(0.5 * torch.randn(14, d))
            self.layer = nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True, norm_first=True)
            self.norm = nn.LayerNorm(d)
            self.out = nn.Linear(d, 5)

        def forward(self, x):
            h = self.emb(x) + self.pos
            for _ in range(3):
                h = self.layer(h)
            return self.out(self.norm(h)).transpose(1, 2)

    words, tags, _, _ = tagged(1500)
    wh, th, _, _ = tagged(300)
    net = Albert()
    return Program(net, nn.CrossEntropyLoss(), loader(words, tags), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: share_right(m(wh).transpose(1, 2), th))


@sound("a rare class, one in twelve, weighted accordingly", steps=300, least=0.7)
def rare_events_weighted():
    def events(n):
        y = (torch.rand(n) < 1 / 12).float()
        x = 0.5 * torch.randn(n, 1, 48)
        at = torch.randint(4, 36, (n, 1)) + torch.arange(8)
        bump = torch.zeros(n, 48).scatter_(1, at, 2.0 * torch.sin(torch.arange(8) * 0.8).expand(n, 8))
        return x + (bump * y[:, None])[:, None], y

    (x, y), (xh, yh) = events(3000), events(1200)
    net = nn.Sequential(nn.Conv1d(1, 16, 9), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 1),
                        nn.Flatten(0))
    crit = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(11.0))

    def balanced(m):
        said = m(xh) > 0
        return (said[yh == 1].float().mean() + (~said[yh == 0]).float().mean()).item() - 1

    return Program(net, crit, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), balanced)


@sound("contrast within the batch: each example's loss depends on all others", steps=300, least=0.7)
def questions_and_answers_contrasted():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.question, self.answer = nn.EmbeddingBag(60, 24, mode="mean"), nn.EmbeddingBag(60, 24, mode="mean")
            self.log_scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, q, a):
            q, a = F.normalize(self.question(q), dim=1), F.normalize(self.answer(a), dim=1)
            return self.log_scale.exp() * q @ a.T

    follow = torch.randperm(60)

    def pairs(n):
        q = torch.randint(60, (n, 6))
        return q, follow[q][:, torch.randperm(6)]

    q, a = pairs(2000)
    qh, ah = pairs(64)
    net = Towers()

    def step(model, batch):
        z = model(*batch)
        y = torch.arange(len(z))
        return (F.cross_entropy(z, y) + F.cross_entropy(z.T, y)) / 2

    return Program(net, None, loader(q, a, drop_last=True), torch.optim.Adam(net.parameters(), 1e-2),
                   lambda m: share_right(m(qh, ah), torch.arange(64)), step=step)


@sound("raw inputs and targets of thousands, which the model itself normalises and scales back", steps=300, least=0.8)
def normalising_inside():
    s, held = 5000 + 1500 * waves(1500, 26), 5000 + 1500 * waves(300, 26)

    class RevIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, x):
            mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
            return self.net((x - mean) / std) * std + mean

    net = RevIN()
    return Program(net, nn.L1Loss(), loader(s[:, :24], s[:, 24:]), torch.optim.Adam(net.parameters(), 2e-3),
                   lambda m: r2(m(held[:, :24]), held[:, 24:]))


@sound("residual branches that begin at zero, and an output layer of zeros", steps=250, least=0.8)
def branches_begin_at_zero():
    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.conv = nn.Conv1d(c, c, 3, padding=1)
            self.gain = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.gain * F.relu(self.conv(x))

    out = nn.Linear(24, 4)
    nn.init.zeros_(out.weight)
    nn.init.zeros_(out.bias)
    net = nn.Sequential(nn.Conv1d(1, 24, 16, 4), nn.ReLU(), Block(24), Block(24), Block(24), nn.AdaptiveAvgPool1d(1),
                        nn.Flatten(), out)
    (x, y), (xh, yh) = tones(1000, length=128), tones(300, length=128)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: share_right(m(xh), yh))


@sound("batches of texts of one length each, to spare padding", steps=250, least=0.7)
def batches_by_length():
    ids, lengths, y = reviews(1200)
    xh, _, yh = reviews(400)
    order = lengths.argsort()
    batches = []
    for i in order.split(30):
        longest = int(lengths[i].max())
        batches.append((ids[i, :longest], y[i]))
    batches = [batches[i] for i in torch.randperm(len(batches)).tolist()]

    class CNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 24, padding_idx=0)
            self.conv = nn.Conv1d(24, 32, 3, padding=1)
            self.fc = nn.Linear(32, 2)

        def forward(self, x):
            h = self.conv(self.emb(x).mT).masked_fill((x == 0)[:, None], -1e4)
            return self.fc(F.relu(h.amax(2)))

    net = CNN()
    return Program(net, nn.CrossEntropyLoss(), batches, torch.optim.Adam(net.parameters(), 2e-3),
                   lambda m: 2 * share_right(m(xh), yh) - 1)


@sound("a pointer network: its attention looks at one place, as it should, when it is trained", trained=450, steps=500,
       least=0.8)
def trained_pointer():
    class Pointer(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.key, self.query = nn.Embedding(16, d), nn.Embedding(16, d)
            self.value = nn.Embedding(10, d)
            self.out = nn.Linear(d, 10)
            self.d = d

        def forward(self, x):
            keys, values, asked = x[:, :8], x[:, 8:16], x[:, 16]
            z = (self.query(asked)[:, None] * self.key(keys)).sum(-1) / self.d**0.5
            return self.out((z.softmax(1)[..., None] * self.value(values)).sum(1))

    def lookup(n):
        keys = torch.rand(n, 16).argsort(1)[:, :8]
        values = torch.randint(10, (n, 8))
        at = torch.randint(8, (n,))
        r = torch.arange(n)
        return torch.cat([keys, values, keys[r, at][:, None]], 1), values[r, at]

    (x, y), (xh, yh) = lookup(4000), lookup(400)
    net = Pointer()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch=64), torch.optim.Adam(net.parameters(), 1e-2),
                   lambda m: share_right(m(xh), yh))


@sound("a Gaussian likelihood whose loss becomes negative", trained=200, steps=300, least=0.8)
def loss_below_zero():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
            self.mean, self.log_var = nn.Linear(48, 1), nn.Linear(48, 1)

        def forward(self, x):
            h = self.body(x)
            return self.mean(h), self.log_var(h)

    s, held = waves(1500, 25, 0.02), waves(300, 25, 0.02)
    nll = nn.GaussianNLLLoss()
    net = Net()
    return Program(net, lambda out, y: nll(out[0], y, out[1].exp()), loader(s[:, :-1], s[:, -1:]),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda m: r2(m(held[:, :-1])[0], held[:, -1:]))


@sound("a text with much chance in it: the loss stays far above zero, which is its entropy", trained=250, steps=300,
       least=0.75)
def language_of_much_chance():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 16)
            self.rnn = nn.LSTM(16, 32, batch_first=True)
            self.out = nn.Linear(32, 12)

        def forward(self, x):
            return self.out(self.rnn(self.emb(x))[0]).transpose(1, 2)

    ids, held = chain(1500, 17, 12, 0.6), chain(400, 17, 12, 0.6)
    net = LM()
    best = 0.4 + 0.6 / 12
    return Program(net, nn.CrossEntropyLoss(), loader(ids[:, :-1], ids[:, 1:]),
                   torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: min(1.0, share_right(m(held[:, :-1]).transpose(1, 2), held[:, 1:]) / best))


@sound("dropout of a half in three places, and weight decay", trained=100, steps=300, least=0.75)
def dropout_of_a_half():
    (x, y), (xh, yh) = spectra(1500), spectra(300)
    x, xh = x.clamp(1e-6).log() / 3 + 1.5, xh.clamp(1e-6).log() / 3 + 1.5
    net = nn.Sequential(nn.Conv1d(20, 48, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv1d(48, 48, 3), nn.ReLU(),
                        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 48), nn.ReLU(),
                        nn.Dropout(0.5), nn.Linear(48, 4))
    return Program(net, nn.CrossEntropyLoss(), loader(x, y),
                   torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05), lambda m: share_right(m(xh), yh))


@sound("bfloat16 under autocast", steps=250, least=0.8)
def bfloat16_under_autocast():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32)
            self.a, self.b, self.c = nn.Linear(96, 64), nn.Linear(64, 64), nn.Linear(64, 5)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                e = self.emb(x)
                h = torch.cat([F.pad(e, (0, 0, 1, 0))[:, :-1], e, F.pad(e, (0, 0, 0, 1))[:, 1:]], -1)
                z = self.c(F.gelu(self.b(F.gelu(self.a(h)))))
            return z.float().transpose(1, 2)

    words, tags, _, _ = tagged(1200)
    wh, th, _, _ = tagged(300)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(words, tags), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: share_right(m(wh).transpose(1, 2), th))


@sound("connectionist classification: outputs longer than targets, lengths that differ, a blank", steps=400, least=0.6)
def phonemes_by_ctc():
    prints = torch.randn(5, 8)

    def speech(n):
        said = torch.randint(1, 5, (n, 4))
        frames = said.repeat_interleave(4, 1)
        return prints[frames] + 0.5 * torch.randn(n, 16, 8), said

    (x, y), (xh, yh) = speech(1200), speech(200)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(8, 32, batch_first=True, bidirectional=True)
            self.out = nn.Linear(64, 5)

        def forward(self, x):
            return self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)

    ctc = nn.CTCLoss()

    def loss(logp, y):
        n = len(y)
        return ctc(logp, y, torch.full((n,), 16), torch.full((n,), 4))

    def score(m):
        best = m(xh).argmax(-1).T.tolist()
        right = 0
        for path, want in zip(best, yh.tolist()):
            got = [c for i, c in enumerate(path) if c and (i == 0 or c != path[i - 1])]
            right += got == want
        return right / len(yh)

    net = Net()
    return Program(net, loss, loader(x, y), torch.optim.Adam(net.parameters(), 6e-3), score)
