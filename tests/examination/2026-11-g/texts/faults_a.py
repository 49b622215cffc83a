import torch
import torch.nn.functional as F
from program import Program, fault
from seqdata import acc, chain, gen, loader, padded, r2, topics
from torch import nn


@fault("nn.TransformerEncoderLayer without batch_first attends across the batch", rules=["mixed-examples", "order-lost"],
       layers=["encoder"], fails=True, steps=250)
def encoder_without_batch_first(faulty):
    def make(n, seed):
        x = torch.randint(4, 24, (n, 10), generator=gen(seed))
        x[:, 0] = torch.randint(4, (n,), generator=gen(seed + 1))
        return x, x[:, :1].expand(-1, 10).clone()

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(24, 32)
            self.pos = nn.Parameter(0.1 * torch.randn(1, 10, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=not faulty)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.encoder(self.embed(x) + self.pos))

    x, y = make(2048, 1)
    tx, ty = make(256, 9)
    model = Tagger()
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), loader(x, y, batch_size=32),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: acc(m(tx)[:, 1:], ty[:, 1:]))


@fault("the last hidden states (2, B, H) of a bidirectional GRU are put together with view(B, 2H)",
       rules=["mixed-examples"], fails=True, steps=200)
def hidden_view(faulty):
    class Sentiment(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(60, 16)
            self.gru = nn.GRU(16, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(48, 3)

        def forward(self, tokens):
            _, hidden = self.gru(self.embedding(tokens))
            if faulty:
                hidden = hidden.view(tokens.size(0), -1)
            else:
                hidden = torch.cat([hidden[0], hidden[1]], dim=1)
            return self.fc(hidden)

    x, y = topics(2048, 12, 60, 3, 3)
    tx, ty = topics(400, 12, 60, 3, 4)
    net = Sentiment()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), lr=5e-3),
                   lambda m: acc(m(tx), ty))


@fault("triu for tril: the attention of a language model looks at the present and the future only",
       rules=["future-seen"], fails=True, steps=300)
def mask_upside_down(faulty):
    V, T = 12, 9

    def make(n, seed):
        g = gen(seed)
        perm = torch.randperm(V, generator=gen(5))
        x = torch.randint(V, (n, T + 1), generator=g)
        for t in range(2, T + 1):
            keep = torch.rand(n, generator=g) < 0.05
            x[:, t] = torch.where(keep, x[:, t], perm[x[:, t - 2]])
        return x

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(V, 32), nn.Embedding(T, 32)
            self.ln1, self.ln2 = nn.LayerNorm(32), nn.LayerNorm(32)
            self.attn = nn.MultiheadAttention(32, 2, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            self.out = nn.Linear(32, V)

        def forward(self, idx):
            n = idx.shape[1]
            h = self.tok(idx) + self.pos(torch.arange(n))
            ones = torch.ones(n, n)
            blocked = (torch.triu(ones) if faulty else torch.tril(ones)) == 0
            a = self.ln1(h)
            h = h + self.attn(a, a, a, attn_mask=blocked, need_weights=False)[0]
            return self.out(h + self.mlp(self.ln2(h)))

    train, test = make(2048, 1), make(400, 2)
    model = LM()
    return Program(model, lambda o, y: F.cross_entropy(o.view(-1, V), y.reshape(-1)),
                   loader(train[:, :-1], train[:, 1:]), torch.optim.AdamW(model.parameters(), lr=5e-3),
                   lambda m: acc(m(test[:, :-1])[:, -1], test[:, -1]))


@fault("a captioning decoder is fed the caption itself in place of the caption shifted right",
       rules=["label-shift", "future-seen"], fails=False, steps=250)
def caption_not_shifted(faulty):
    V, BOS, L = 13, 12, 5
    centres = torch.randn(12, 16, generator=gen(40))

    def make(n, seed):
        cap = chain(n, L, 12, seed, noise=0.0)
        return centres[cap[:, 0]] + 0.3 * torch.randn(n, 16, generator=gen(seed + 1)), cap

    class Captioner(nn.Module):
        def __init__(self):
            super().__init__()
            self.bridge = nn.Linear(16, 32)
            self.embed = nn.Embedding(V, 16)
            self.decoder = nn.GRU(16, 32, batch_first=True)
            self.out = nn.Linear(32, V)

        def forward(self, features, tokens):
            h0 = torch.tanh(self.bridge(features))[None]
            return self.out(self.decoder(self.embed(tokens), h0)[0])

    def collate(rows):
        f, c = torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])
        shifted = torch.cat([torch.full((len(c), 1), BOS), c[:, :-1]], 1)
        return {"features": f, "tokens": c if faulty else shifted}, c

    tf, tc = make(300, 8)

    def greedy(m):
        seq = torch.full((len(tf), 1), BOS)
        for _ in range(L):
            seq = torch.cat([seq, m(tf, seq)[:, -1:].argmax(-1)], 1)
        return (seq[:, 1:] == tc).float().mean().item()

    data = torch.utils.data.TensorDataset(*make(2000, 6))
    model = Captioner()
    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y),
                   torch.utils.data.DataLoader(data, 50, shuffle=True, collate_fn=collate, drop_last=True),
                   torch.optim.Adam(model.parameters(), 5e-3), greedy)


@fault("the dataset shifts the labels, and the loss shifts them once more", rules=["label-shift"], fails=True, steps=200)
def shifted_twice(faulty):
    class CharRNN(nn.Module):
        def __init__(self, vocab=20):
            super().__init__()
            self.encoder = nn.Embedding(vocab, 24)
            self.rnn = nn.LSTM(24, 32, batch_first=True)
            self.decoder = nn.Linear(32, vocab)

        def forward(self, x):
            return self.decoder(self.rnn(self.encoder(x))[0])

    def lm_loss(logits, labels):
        if faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.reshape(-1, 20), labels.reshape(-1))

    text, held = chain(1500, 16, 20, 10), chain(200, 16, 20, 11)
    model = CharRNN()
    return Program(model, lm_loss, loader(text[:, :-1], text[:, 1:], batch_size=50),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: acc(m(held[:, :-1]), held[:, 1:]))


@fault("the places after the end of a series count in the MSE, with target 0", rules=["padding-in-loss"], fails=True,
       steps=300)
def padded_series_in_loss(faulty):
    def make(n, seed):
        g = gen(seed)
        events = (torch.rand(n, 30, 1, generator=g) < 0.15).float()
        lengths = torch.randint(4, 16, (n,), generator=g)
        real = torch.arange(30) < lengths[:, None]
        level = 1.0 + 0.5 * events[..., 0].cumsum(1)
        return events * real[..., None], level * real, real

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 16, batch_first=True)
            self.head = nn.Linear(16, 1)

        def forward(self, x):
            return self.head(self.rnn(x)[0]).squeeze(-1)

    x, y, real = make(1024, 1)
    tx, ty, treal = make(300, 2)
    model = Counter()

    def step(m, batch):
        x, y, real = batch
        error = (m(x) - y) ** 2
        return error.mean() if faulty else (error * real).sum() / real.sum()

    return Program(model, None, loader(x, y, real, batch_size=32), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(tx)[treal], ty[treal]), step=step)


@fault("src_key_padding_mask is True at the real tokens", rules=["wrong-mask"], fails=True, steps=250)
def padding_mask_inverted(faulty):
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(62, 32)
            self.enc = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
            self.head = nn.Linear(32, 4)

        def forward(self, ids):
            ids = torch.cat([torch.full((len(ids), 1), 61), ids], 1)
            mask = ids != 0 if faulty else ids == 0
            return self.head(self.enc(self.embed(ids), src_key_padding_mask=mask)[:, 0])

    x, y = topics(2048, 16, 61, 4, 5, 0.6)
    tx, ty = topics(400, 16, 61, 4, 6, 0.6)
    x, tx = padded(x, 6, 1)[0], padded(tx, 6, 2)[0]
    model = Classifier()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch_size=32),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: acc(m(tx), ty))


@fault("the output at the last column is taken, which is padding for nearly all sentences",
       rules=["wrong-mask", "vanishing-gradient"], fails=True, steps=200)
def last_column_is_padding(faulty):
    def make(n, seed):
        x = torch.randint(1, 41, (n, 40), generator=gen(seed))
        lengths = torch.randint(3, 10, (n,), generator=gen(seed + 1))
        x = torch.where(torch.arange(40) < lengths[:, None], x, 0)
        return x, x[torch.arange(n), lengths - 1] % 4

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(41, 16, padding_idx=0)
            self.rnn = nn.RNN(16, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            out, _ = self.rnn(self.embed(x))
            if faulty:
                return self.fc(out[:, -1])
            last = (x != 0).sum(1) - 1
            return self.fc(out[torch.arange(len(x)), last])

    x, y = make(2000, 1)
    tx, ty = make(400, 3)
    model = Last()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, batch_size=40),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(tx), ty))
