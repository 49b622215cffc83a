"""Ordinary set-ups of sequences, graphs and recommenders."""
import copy

import torch
import torch.nn.functional as F
from data import accuracy, chain, community, gen, loader, order_text, r2, seed, series
from program import Program, sound
from torch import nn


@sound("a two-sided LSTM tagger: it may see the words that follow; padding is ignored in the loss", steps=200, least=0.9)
def two_sided_tagger():
    g = gen(100)
    ids = torch.randint(1, 15, (900, 12), generator=g)
    real = torch.arange(12) < torch.randint(4, 13, (900, 1), generator=g)
    tags = (ids % 3 + (F.pad(ids, (0, 1))[:, 1:] % 2)) % 3  # depends on the next word, too
    ids, tags = ids * real, tags.masked_fill(~real, -100)
    edge = real & ~F.pad(real, (0, 1))[:, 1:]
    tags = torch.where(edge, ids % 3, tags)
    seed(100)

    class BiLSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(15, 24, padding_idx=0)
            self.lstm = nn.LSTM(24, 32, bidirectional=True, batch_first=True)
            self.hidden2tag = nn.Linear(64, 3)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(self.emb(x), (x != 0).sum(1), batch_first=True, enforce_sorted=False)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.size(1))
            return self.hidden2tag(out)

    model = BiLSTM()
    keep = tags[700:] >= 0
    return Program(model, lambda out, y: F.cross_entropy(out.transpose(1, 2), y, ignore_index=-100), loader(ids[:700], tags[:700]),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: accuracy(m(ids[700:])[keep], tags[700:][keep]))


@sound("a GRU that forecasts the next value, shown when it is trained", trained=250, steps=250, least=0.85)
def gru_forecaster():
    x = series(1000, 25, k=101)
    seed(101)

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, v):
            return self.head(self.gru(v.unsqueeze(-1))[1][0])

    model = Forecaster()
    return Program(model, nn.MSELoss(), loader(x[:800, :-1], x[:800, -1:]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(x[800:, :-1]), x[800:, -1:]))


@sound("a Transformer encoder on padded texts with the right mask and a masked mean, after most of its training", trained=250, steps=300, least=0.9)
def padded_encoder():
    ids, y, _ = order_text(1600, 10, k=103, padded=True)
    seed(103)

    class Encoder(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok = nn.Embedding(20, d, padding_idx=0)
            self.pos = nn.Parameter(torch.randn(10, d) * 0.2)
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 64, 0.0, batch_first=True, norm_first=True), 2, enable_nested_tensor=False)
            self.head = nn.Linear(d, 1)

        def forward(self, x):
            pad = x == 0
            h = self.layers(self.tok(x) + self.pos, src_key_padding_mask=pad)
            h = h.masked_fill(pad[..., None], 0).sum(1) / (~pad).sum(1, keepdim=True)
            return self.head(h).squeeze(1)

    model = Encoder()
    return Program(model, nn.BCEWithLogitsLoss(), loader(ids[:1300], y[:1300].float()), torch.optim.AdamW(model.parameters(), lr=2e-3),
                   lambda m: ((m(ids[1300:]) > 0) == y[1300:].bool()).float().mean().item())


@sound("a GCN of two layers on one graph: one batch, every node's output depends on others, most labels unused", steps=100, least=0.85)
def gcn_one_graph():
    a, x, y = community(k=105)
    a = a + torch.eye(120)
    a = a / a.sum(1, keepdim=True)
    train = torch.arange(120) % 4 == 0
    seed(105)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin1, self.lin2 = nn.Linear(12, 16), nn.Linear(16, 3)

        def forward(self, x, adj):
            return self.lin2(adj @ F.dropout(F.relu(self.lin1(adj @ x)), 0.3, self.training))

    model = Net()
    return Program(model, lambda out, t: F.cross_entropy(out[train], t[train]), [({"x": x, "adj": a}, y)],
                   torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4), lambda m: accuracy(m(x, a)[~train], y[~train]))


@sound("Q-learning from a replay buffer with a frozen target network inside of the step", steps=400, least=0.9)
def q_learning():
    g = gen(106)
    n = 2000  # a corridor of eight cells with the reward at the right end
    s, a = torch.randint(8, (n,), generator=g), torch.randint(2, (n,), generator=g)
    s2 = (s + 2 * a - 1).clamp(0, 7)
    r, done = (s2 == 7).float(), (s2 == 7).float()
    seed(106)
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 2))
    target = copy.deepcopy(model)
    count = [0]

    def step(m, batch):
        s, a, r, s2, done = batch
        if count[0] % 20 == 0:
            target.load_state_dict(m.state_dict())
        count[0] += 1
        q = m(F.one_hot(s, 8).float()).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            goal = r + 0.8 * (1 - done) * target(F.one_hot(s2, 8).float()).amax(1)
        return F.smooth_l1_loss(q, goal)

    truth = 0.8 ** torch.arange(6, -1, -1).float()
    return Program(model, None, loader(s, a, r, s2, done, batch=64), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(torch.eye(8)[:7])[:, 1], truth), step=step)


@sound("denoising diffusion on windows of a series: targets are pure noise, new at every step", steps=400, least=0.6)
def diffusion():
    x, test = series(1000, 24, k=107, noise=0.0), series(300, 24, k=108, noise=0.0)
    seed(107)

    class Eps(nn.Module):
        def __init__(self):
            super().__init__()
            self.t_emb = nn.Embedding(20, 128)
            self.a, self.b, self.c, self.d = nn.Linear(24, 128), nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 24)

        def forward(self, x, t):
            h = F.gelu(self.a(x) + self.t_emb(t))
            h = h + F.gelu(self.b(h))
            h = h + F.gelu(self.c(h))
            return self.d(h)

    bars = torch.cos(torch.linspace(0.25, 1.45, 20)) ** 2
    model = Eps()

    def noised(x, t, eps):
        return bars[t].sqrt()[:, None] * x + (1 - bars[t]).sqrt()[:, None] * eps

    def step(m, batch):
        x0 = batch[0]
        t, eps = torch.randint(20, (len(x0),)), torch.randn_like(x0)
        return F.mse_loss(m(noised(x0, t, eps), t), eps)

    def score(m):
        t, eps = torch.randint(20, (300,), generator=gen(3)), torch.randn(300, 24, generator=gen(4))
        return r2(m(noised(test, t, eps), t), eps)

    return Program(model, None, loader(x, batch=64), torch.optim.AdamW(model.parameters(), lr=2e-3), score, step=step)


@sound("sequence to sequence (reversal) with teacher forcing and cross-attention; the encoder looks both ways", trained=150, steps=400, least=0.85)
def seq2seq_reversal():
    g = gen(109)
    src = torch.randint(2, 10, (1500, 6), generator=g)
    out = src.flip(1)
    inp = torch.cat([torch.ones(1500, 1, dtype=torch.long), out[:, :-1]], 1)  # starts with <s>
    seed(109)

    class Seq2Seq(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(10, d), nn.Parameter(torch.randn(6, d) * 0.5)
            self.transformer = nn.Transformer(d, 2, 1, 1, 64, 0.0, batch_first=True)
            self.gen = nn.Linear(d, 10)

        def forward(self, src, tgt):
            t = tgt.size(1)
            mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
            return self.gen(self.transformer(self.emb(src) + self.pos, self.emb(tgt) + self.pos[:t], tgt_mask=mask))

    model = Seq2Seq()
    batches = [({"src": src[i:i + 50], "tgt": inp[i:i + 50]}, out[i:i + 50]) for i in range(0, 1300, 50)]

    def score(m):  # greedy decoding
        words = torch.ones(200, 1, dtype=torch.long)
        for _ in range(6):
            words = torch.cat([words, m(src[1300:], words)[:, -1:].argmax(-1)], 1)
        return (words[:, 1:] == out[1300:]).float().mean().item()

    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), batches, torch.optim.Adam(model.parameters(), lr=3e-3), score)


@sound("a small GPT with tied embeddings and GPT-2's initialization, half trained", trained=120, steps=350, least=0.9)
def tied_gpt():
    ids, table = chain(1000, 17, k=110)
    test, _ = chain(200, 17, k=111)
    seed(110)

    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

        def forward(self, x):
            q, k, v = self.c_attn(self.ln_1(x)).chunk(3, -1)
            scores = torch.einsum("bid,bjd->bij", q, k) / q.size(-1) ** 0.5
            causal = torch.ones_like(scores[0]).tril().bool()
            x = x + self.c_proj(scores.masked_fill(~causal, -1e9).softmax(-1) @ v)
            return x + self.down(F.gelu(self.up(self.ln_2(x))))

    class GPT(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(8, d), nn.Embedding(16, d)
            self.h = nn.ModuleList(Layer(d) for _ in range(2))
            self.ln_f = nn.LayerNorm(d)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, idx):
            x = self.wte(idx) + self.wpe.weight
            for layer in self.h:
                x = layer(x)
            return self.ln_f(x) @ self.wte.weight.t()

    model = GPT()
    return Program(model, lambda o, y: F.cross_entropy(o.view(-1, 8), y.reshape(-1)), loader(ids[:, :-1], ids[:, 1:]),
                   torch.optim.AdamW(model.parameters(), lr=3e-3), lambda m: accuracy(m(test[:, :-1])[:, 1:], table[test[:, :-2], test[:, 1:-1]]))
