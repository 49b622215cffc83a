import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from data import accuracy, communities, flagged, gen, loader, next_score, ordered, r2, recall, reversal, second_order, seed, sentiment, tagged, waves
from program import Program, sound


def plain(model, x, y, tx, ty, lr=3e-3, batch_size=32, loss=None):
    return Program(
        model, loss or nn.CrossEntropyLoss(), loader(x, y, batch_size=batch_size), torch.optim.Adam(model.parameters(), lr), lambda m: accuracy(m(tx), ty)
    )


def words(out, y):
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


@sound("DeepSets: the mean over a set, no order on purpose; the range of the set's values.", steps=600, least=0.75)
def deep_set():
    seed(101)

    def sets(n, s):
        x = torch.randn(n, 8, 2, generator=gen(s))
        return x, (x[..., 0].max(1).values - x[..., 1].min(1).values).unsqueeze(1)

    class Set(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
            self.rho = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

        def forward(self, x):
            return self.rho(self.phi(x).mean(1))

    x, y = sets(2000, 101)
    tx, ty = sets(400, 102)
    model = Set()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(tx), ty))


@sound("Set transformer without positions: which value carries the flag, wherever it stands.", steps=300, least=0.9)
def set_attention():
    seed(102)

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(9, 32)
            self.query = nn.Parameter(torch.randn(1, 1, 32))
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.out = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))

        def forward(self, x):
            h = F.relu(self.lift(x))
            return self.out(self.attention(self.query.expand(len(x), -1, -1), h, h)[0].squeeze(1))

    return plain(Pool(), *flagged(2000, s=103), *flagged(500, s=104))


@sound("A transformer with ReZero: every residual branch starts at zero.", steps=400, least=0.9)
def rezero():
    seed(103)

    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
            self.ff = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d))
            self.alpha = nn.Parameter(torch.zeros(1))
            self.beta = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            x = x + self.alpha * self.attn(x, x, x, need_weights=False)[0]
            return x + self.beta * self.ff(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(8, 32), nn.Parameter(torch.randn(12, 32) * 0.5)
            self.layers = nn.Sequential(*[Layer(32) for _ in range(3)])
            self.out = nn.Linear(32, 5)

        def forward(self, x):
            return self.out(self.layers(self.tok(x) + self.pos))

    return plain(Net(), *tagged(1500, s=105), *tagged(300, s=106), lr=5e-3, loss=words)


@sound("A forecaster that adds a correction, zero at the start, to the last value.", steps=400, least=0.9)
def zero_last_layer():
    seed(104)

    class Correct(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv1d(1, 24, 5, padding=2)
            self.conv2 = nn.Conv1d(24, 24, 5, padding=2)
            self.out = nn.Linear(24 * 24, 4)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

        def forward(self, x):
            h = F.silu(self.conv2(F.silu(self.conv1(x.transpose(1, 2)))))
            return x[:, -1] + self.out(h.flatten(1))

    x, y = waves(1500, s=107)
    tx, ty = waves(400, s=108)
    model = Correct()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(tx), ty))


@sound("Language model whose output layer is tied to the embedding.", trained=200, steps=400, least=0.85)
def tied_embeddings():
    seed(105)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(6, 48)
            nn.init.normal_(self.embed.weight, std=0.2)
            self.lstm = nn.LSTM(48, 48, batch_first=True)
            self.head = nn.Linear(48, 6)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.lstm(self.embed(x))[0])

    x, _ = second_order(1500, s=109)
    model = LM()
    return Program(
        model, words, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(model.parameters(), 1e-2), lambda m: next_score(lambda p: m(p)[:, -1])
    )


@sound("Masked-word model: bidirectional attention, and only the hidden words (-100 elsewhere) count.", steps=500, least=0.75)
def masked_words():
    seed(106)
    runs = (torch.arange(12) * 1)[None] + torch.randint(10, (1600, 1), generator=gen(110))
    x = runs % 10
    hidden = torch.rand(x.shape, generator=gen(111)) < 0.2
    given, target = x.masked_fill(hidden, 10), x.masked_fill(~hidden, -100)

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(11, 32)
            self.place = nn.Embedding(12, 32)
            self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            return self.head(self.encoder(self.word(x) + self.place(torch.arange(x.shape[1]))))

    model = Bert()

    def score(m):
        held = hidden[1300:]
        return accuracy(m(given[1300:])[held], x[1300:][held])

    return Program(
        model,
        lambda out, y: F.cross_entropy(out.transpose(1, 2), y),
        loader(given[:1300], target[:1300]),
        torch.optim.Adam(model.parameters(), 3e-3),
        score,
    )


@sound("Bidirectional LSTM that tags each word; it may look ahead.", steps=300, least=0.9)
def bidirectional_tagger():
    seed(107)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 16)
            self.lstm = nn.LSTM(16, 24, bidirectional=True, batch_first=True)
            self.fc = nn.Linear(48, 5)

        def forward(self, x):
            return self.fc(self.lstm(self.emb(x))[0])

    x, y = tagged(1500, s=112)
    tx, ty = tagged(300, s=113)
    return plain(Tagger(), x, y.roll(-1, 1) * (torch.arange(12) < 11), tx, ty.roll(-1, 1) * (torch.arange(12) < 11), lr=1e-2, loss=words)


@sound("Causal convolutions with weight normalization forecast at every step.", trained=200, steps=300, least=0.9)
def weight_normed_tcn():
    seed(108)

    class Tcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(weight_norm(nn.Conv1d(i, 24, 3, dilation=k)) for i, k in ((1, 1), (24, 2), (24, 4)))
            self.out = nn.Conv1d(24, 1, 1)

        def forward(self, x):
            h = x.transpose(1, 2)
            for conv, k in zip(self.convs, (1, 2, 4)):
                h = F.relu(conv(F.pad(h, (2 * k, 0))))
            return self.out(h).squeeze(1)

    x, y = waves(1500, 24, 1, s=114)
    tx, ty = waves(400, 24, 1, s=115)
    nexts, tnexts = torch.cat([x[:, 1:, 0], y], 1), torch.cat([tx[:, 1:, 0], ty], 1)
    model = Tcn()
    return Program(
        model, nn.MSELoss(), loader(x, nexts), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(tx)[:, 8:], tnexts[:, 8:])
    )


@sound("Transformer with a linear warm-up from nearly zero and inverse-square-root decay.", steps=400, least=0.8)
def warm_up():
    seed(109)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(12, 32)
            self.p = nn.Parameter(torch.randn(12, 32) * 0.3)
            self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True), 1)
            self.o = nn.Linear(32, 2)

        def forward(self, x):
            return self.o(self.enc(self.e(x) + self.p).mean(1))

    x, y = ordered(2000, s=116)
    tx, ty = ordered(400, s=117)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 80, (80 / (s + 1)) ** 0.5))
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), optimizer, lambda m: 2 * accuracy(m(tx), ty) - 1, scheduler=schedule
    )


@sound("One layer used four times (as in ALBERT): the sharing is meant.", steps=400, least=0.85)
def layer_used_again():
    seed(110)

    class Albert(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(8, 32)
            self.pos = nn.Parameter(torch.randn(12, 32) * 0.5)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
            self.norm = nn.LayerNorm(32)
            self.out = nn.Linear(32, 5)

        def forward(self, x):
            h = self.tok(x) + self.pos
            for _ in range(3):
                h = self.layer(h)
            return self.out(self.norm(h))

    return plain(Albert(), *tagged(1500, s=118), *tagged(300, s=119), loss=words)


@sound("A recurrent network under gradient checkpointing, half trained.", trained=100, steps=300, least=0.9)
def checkpointed():
    seed(111)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 16)
            self.cell = nn.GRUCell(16, 32)
            self.out = nn.Linear(32, 6)

        def piece(self, e, h):
            for t in range(e.shape[1]):
                h = self.cell(e[:, t], h)
            return h

        def forward(self, x):
            e = self.emb(x)
            h = e.new_zeros(len(x), 32)
            for part in e.split(4, 1):
                h = checkpoint(self.piece, part, h, use_reentrant=False)
            return self.out(h)

    return plain(Net(), *recall(2000, 8, s=120), *recall(400, 8, s=121), lr=5e-3)


@sound("Translation by nn.Transformer with teacher forcing and a causal mask in the decoder only.", steps=350, least=0.8)
def translator():
    seed(112)
    vocab, d, length = 10, 32, 5

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, d)
            self.pos = nn.Parameter(torch.randn(length, d) * 0.5)
            self.core = nn.Transformer(d, 4, 1, 1, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.out = nn.Linear(d, vocab)

        def forward(self, src, tgt):
            mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
            return self.out(self.core(self.embed(src) + self.pos, self.embed(tgt) + self.pos[: tgt.size(1)], tgt_mask=mask))

    src, tgt = reversal(2000, length, s=122)
    tsrc, ttgt = reversal(200, length, s=123)
    given = torch.cat([torch.ones(len(src), 1, dtype=torch.long), tgt[:, :-1]], 1)
    batches = [({"src": a, "tgt": b}, c) for a, b, c in zip(src.split(40), given.split(40), tgt.split(40))]

    def score(m):
        out = torch.ones(len(tsrc), 1, dtype=torch.long)
        for _ in range(length):
            out = torch.cat([out, m(tsrc, out)[:, -1:].argmax(-1)], 1)
        return (out[:, 1:] == ttgt).float().mean().item()

    model = Translator()
    return Program(model, words, batches, torch.optim.Adam(model.parameters(), 2e-3), score)


@sound("A sequence autoencoder: the targets are the inputs, unshifted, through a narrow code.", steps=400, least=0.8)
def sequence_autoencoder():
    seed(114)

    class AE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.GRU(1, 32, batch_first=True)
            self.code = nn.Linear(32, 6)
            self.dec = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 16))

        def forward(self, x):
            return self.dec(self.code(self.enc(x)[1][0]))

    x, _ = waves(1500, 16, s=126)
    tx, _ = waves(400, 16, s=127)
    model = AE()
    return Program(
        model, nn.MSELoss(), loader(x, x.squeeze(-1)), torch.optim.Adam(model.parameters(), 5e-3), lambda m: r2(m(tx), tx.squeeze(-1))
    )


@sound("Graph network on whole graphs with a row-normalized adjacency; nodes of a graph depend on each other.", steps=200, least=0.85)
def graph_network():
    seed(115)

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1, self.l2, self.l3 = nn.Linear(6, 32), nn.Linear(64, 32), nn.Linear(64, 2)

        def forward(self, x, adj):
            a = adj / adj.sum(-1, keepdim=True).clamp(min=1)
            h = F.relu(self.l1(x))
            h = F.relu(self.l2(torch.cat([h, a @ h], -1)))
            return self.l3(torch.cat([h, a @ h], -1))

    x, a, y = communities(240, s=128)
    tx, ta, ty = communities(60, s=129)
    batches = [({"x": p, "adj": q}, r) for p, q, r in zip(x.split(8), a.split(8), y.split(8))]
    model = GCN()
    return Program(
        model, words, batches, torch.optim.Adam(model.parameters(), 5e-3), lambda m: 2 * accuracy(m(tx, ta), ty) - 1
    )


@sound("GPT with pre-norm, GELU and residual projections started small (0.02 / sqrt(2 layers)), after 250 steps.", trained=250, steps=500, least=0.85)
def gpt_trained():
    seed(116)
    d = 32

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc, self.proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (z.view(b, t, 2, d // 2).transpose(1, 2) for z in self.c_attn(self.ln1(x)).split(d, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, d))
            return x + self.proj(F.gelu(self.fc(self.ln2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(6, d), nn.Embedding(16, d)
            self.h = nn.ModuleList([Block(), Block()])
            self.ln_f = nn.LayerNorm(d)
            self.lm_head = nn.Linear(d, 6, bias=False)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.1 / (2 if "proj" in name else 1))

        def forward(self, idx):
            x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    x, _ = second_order(1600, s=130)
    model = GPT()
    return Program(
        model,
        words,
        loader(x[:, :-1], x[:, 1:]),
        torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.95), weight_decay=0.1),
        lambda m: next_score(lambda p: m(p)[:, -1]),
    )
