import math
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from program import Program, fault
from sqs_data import *


class Block(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.h = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = (z.view(B, T, self.h, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        s = s.masked_fill(~mask, float("-inf"))
        x = x + self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.ln2(x))


class CharGPT(nn.Module):
    def __init__(self, V, d=32, layers=2, T=32, upper=False):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(T, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V)
        self.upper = upper

    def forward(self, ids):
        T = ids.shape[1]
        x = self.tok(ids) + self.pos(torch.arange(T))
        ones = torch.ones(T, T, dtype=torch.bool)
        mask = torch.triu(ones) if self.upper else torch.tril(ones)
        for b in self.blocks:
            x = b(x, mask)
        return self.head(self.norm(x))


def lm_loss(out, y):
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


@fault("the language model gets the inputs as targets, not shifted by one", rules=["label-shift", "future-seen"], fails=True, steps=200)
def sqs_source_code_lm(is_faulty):
    ids, test = chain(600, 17, 24, 1), chain(200, 17, 24, 2)
    x = ids[:, :-1]
    y = ids[:, :-1] if is_faulty else ids[:, 1:]
    m = CharGPT(24)
    return Program(m, lm_loss, loader(x, y), torch.optim.AdamW(m.parameters(), 2e-3), next_token(test))


@fault("labels shifted in the data set although the Hugging Face model shifts them itself", rules=["label-shift"], fails=True, steps=220)
def sqs_hf_gpt_small(is_faulty):
    ids, test = chain(600, 17, 20, 3), chain(200, 17, 20, 4)
    cfg = GPT2Config(vocab_size=20, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    m = GPT2LMHeadModel(cfg)

    class Lm:
        def __iter__(self):
            for i in torch.randperm(len(ids)).split(32):
                b = ids[i]
                yield ({"input_ids": b[:, :-1], "labels": b[:, 1:]} if is_faulty else {"input_ids": b, "labels": b}), b[:, 1:]

        def __len__(self):
            return 19

    return Program(m, lambda out, _: out.loss, Lm(), torch.optim.AdamW(m.parameters(), 3e-3), next_token(test, lambda o: o.logits))


class ClickLSTM(nn.Module):
    def __init__(self, V, both):
        super().__init__()
        self.items = nn.Embedding(V, 24)
        self.rnn = nn.LSTM(24, 48, batch_first=True, bidirectional=both)
        self.out = nn.Linear(96 if both else 48, V)

    def forward(self, x):
        return self.out(self.rnn(self.items(x))[0])


@fault("a bidirectional LSTM predicts the next click at every place", rules=["future-seen"], layers=["rnn"], fails=False, steps=400)
def sqs_next_click(is_faulty):
    def clicks(n, seed):
        return torch.stack([chain(n, 5, 12, seed + i, 0.95) for i in range(3)], 2).flatten(1)
    ids, test = clicks(800, 5), clicks(200, 15)
    m = ClickLSTM(12, is_faulty)
    return Program(m, lm_loss, loader(ids, with_next(ids)), torch.optim.Adam(m.parameters(), 5e-3), next_token(test))


@fault("triu in place of tril: every place sees itself and what comes after", rules=["future-seen", "wrong-mask"], layers=["blocks"], fails=True, steps=220)
def sqs_char_transformer(is_faulty):
    ids, test = chain(600, 17, 24, 7), chain(200, 17, 24, 8)
    m = CharGPT(24, d=24, layers=2, upper=is_faulty)
    return Program(m, lm_loss, loader(ids, with_next(ids)), torch.optim.Adam(m.parameters(), 3e-3), next_token(test))


class ChatEncoder(nn.Module):
    def __init__(self, V, flip):
        super().__init__()
        self.emb = nn.Embedding(V, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.cls = nn.Parameter(torch.randn(1, 1, 32) * 0.1)
        self.out = nn.Linear(32, 2)
        self.flip = flip

    def forward(self, ids):
        pad = (ids != 0) if self.flip else (ids == 0)
        pad = torch.cat([torch.zeros(len(ids), 1, dtype=torch.bool), pad], 1)
        x = torch.cat([self.cls.expand(len(ids), -1, -1), self.emb(ids)], 1)
        return self.out(self.encoder(x, src_key_padding_mask=pad)[:, 0])


@fault("src_key_padding_mask is True at the real tokens", rules=["wrong-mask"], fails=True, steps=200)
def sqs_chat_mood(is_faulty):
    x, _, y = chats(800, 20, 60, 1)
    tx, _, ty = chats(300, 20, 60, 2)
    m = ChatEncoder(60, is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 2e-3), accuracy(tx, ty))


class LastState(nn.Module):
    def __init__(self, V, naive):
        super().__init__()
        self.emb = nn.Embedding(V, 16)
        self.gru = nn.GRU(16, 24, batch_first=True)
        self.fc = nn.Linear(24, 2)
        self.naive = naive

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        if self.naive:
            return self.fc(h[:, -1])
        n = (ids > 0).sum(1)
        return self.fc(h[torch.arange(len(ids)), n - 1])


@fault("the last output of a padded sequence is taken, behind tens of paddings", rules=["wrong-mask", "vanishing-gradient"], fails=True, steps=100)
def sqs_ticket_router(is_faulty):
    x, _, y = chats(800, 75, 40, 3, 4, 14)
    tx, _, ty = chats(200, 75, 40, 4, 4, 14)
    m = LastState(40, is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(tx, ty))


class Beat(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=first)
        self.fc = nn.Linear(24, 3)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.fc(out[:, -1])


@fault("batch_first forgotten: the GRU runs over the examples of the batch", rules=["mixed-examples"], layers=["gru"], fails=True, steps=300)
def sqs_heart_beats(is_faulty):
    x, y = ecg(600, 24, 1)
    tx, ty = ecg(200, 24, 2)
    m = Beat(not is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


class AttPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lift = nn.Linear(2, 24)
        self.att = nn.Linear(24, 1)
        self.fc = nn.Linear(24, 1)
        self.dim = dim

    def forward(self, x):
        h = self.lift(x).relu()
        a = torch.softmax(self.att(h), dim=self.dim)
        return self.fc((a * h).sum(1))


def flagged(n, T, seed):
    g = gen(seed)
    v = torch.randn(n, T, generator=g)
    at = torch.randint(0, T, (n,), generator=g)
    return torch.stack([v, 2 * F.one_hot(at, T).float()], -1), v[torch.arange(n), at][:, None]


@fault("attention pooling takes its softmax over the batch", rules=["wrong-softmax-dimension", "mixed-examples"], fails=True, steps=400)
def sqs_flagged_reading(is_faulty):
    x, y = flagged(800, 10, 1)
    tx, ty = flagged(300, 10, 2)
    m = AttPool(0 if is_faulty else 1)
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), r2(tx, ty))


class Lookup(nn.Module):
    def __init__(self, std, d=32, C=4):
        super().__init__()
        self.q, self.k = nn.Linear(d, 32, bias=False), nn.Linear(d, 32, bias=False)
        nn.init.normal_(self.q.weight, std=std)
        nn.init.normal_(self.k.weight, std=std)
        self.v = nn.Linear(C, 16)
        self.out = nn.Linear(16, C)

    def forward(self, x):
        keys, vals = x[:, 1:, :32], x[:, 1:, 32:]
        s = (self.q(x[:, :1, :32]) @ self.k(keys).transpose(1, 2)) / 32 ** 0.5
        return self.out((s.softmax(-1) @ self.v(vals))[:, 0])


def lookups(n, seed, S=8, C=4):
    g = gen(seed)
    bank = torch.randn(12, 32, generator=gen(44))
    order = torch.stack([torch.randperm(12, generator=g)[:S] for _ in range(n)])
    val = torch.randint(0, C, (n, S), generator=g)
    ask = torch.randint(0, S, (n,), generator=g)
    slots = torch.cat([bank[order], 2 * F.one_hot(val, C).float()], -1)
    query = torch.cat([bank[order[torch.arange(n), ask]], torch.zeros(n, C)], -1)
    return torch.cat([query[:, None], slots], 1), val[torch.arange(n), ask]


@fault("queries and keys drawn with std 1: every softmax is one-hot", rules=["attention-saturation", "bad-initialisation"], layers=["q", "k"], fails=False, steps=250)
def sqs_key_value_store(is_faulty):
    x, y = lookups(800, 1)
    tx, ty = lookups(300, 2)
    m = Lookup(1.0 if is_faulty else 0.1)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


def speech(n, seed, T=20, L=3, C=5):
    g = gen(seed)
    proto = torch.randn(C + 1, 8, generator=gen(99))
    y = torch.randint(1, C + 1, (n, L), generator=g)
    x = 0.3 * torch.randn(n, T, 8, generator=g) + proto[0]
    for i in range(n):
        for j in range(L):
            s = 1 + j * 6 + int(torch.randint(0, 2, (1,), generator=g))
            x[i, s:s + 4] += proto[y[i, j]] - proto[0]
    return x, y


class Acoustic(nn.Module):
    def __init__(self, logp, C=5):
        super().__init__()
        self.conv = nn.Conv1d(8, 32, 3, padding=1)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.fc = nn.Linear(32, C + 1)
        self.logp = logp

    def forward(self, x):
        h = self.conv(x.transpose(1, 2)).relu().transpose(1, 2)
        z = self.fc(self.gru(h)[0])
        return z.log_softmax(-1) if self.logp else z


def ctc(out, y):
    B, T, _ = out.shape
    return F.ctc_loss(out.transpose(0, 1), y, torch.full((B,), T), torch.full((B,), y.shape[1]), blank=0)


def greedy(x, y):
    def score(m):
        best, good = m(x).argmax(-1), 0.0
        for b, t in zip(best, y):
            s = torch.unique_consecutive(b)
            s = s[s > 0]
            k = min(len(s), len(t))
            good += (s[:k] == t[:k]).sum().item() / max(len(s), len(t))
        return good / len(y)
    return score


@fault("ctc_loss gets raw scores instead of log-probabilities", rules=["output-loss-mismatch"], fails=True, steps=250)
def sqs_spoken_digits(is_faulty):
    x, y = speech(400, 1)
    tx, ty = speech(100, 2)
    m = Acoustic(not is_faulty)
    return Program(m, ctc, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), greedy(tx, ty))


class Tagger(nn.Module):
    def __init__(self, V, C):
        super().__init__()
        self.emb = nn.Embedding(V, 24, padding_idx=0)
        self.rnn = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, C)

    def forward(self, ids):
        return self.fc(self.rnn(self.emb(ids))[0])


def tags(n, T, V, C, seed, lo, hi):
    g = gen(seed)
    x = torch.randint(1, V, (n, T), generator=g)
    x[torch.arange(T)[None] >= torch.randint(lo, hi, (n, 1), generator=g)] = 0
    table = torch.randint(1, C, (V,), generator=gen(55))
    y = table[x]
    prev = F.pad(x, (1, 0))[:, :-1]
    y = torch.where((prev % 5 == 1), y % (C - 1) + 1, y)
    y[x == 0] = 0
    return x, y


def tag_accuracy(x, y):
    return lambda m: (m(x)[..., 1:].argmax(-1) + 1 == y)[y > 0].float().mean().item()


@fault("padding is tag 0 and is not ignored in the loss", rules=["padding-in-loss"], fails=False, steps=350)
def sqs_entity_tags(is_faulty):
    x, y = tags(600, 40, 30, 6, 1, 2, 7)
    tx, ty = tags(200, 40, 30, 6, 2, 2, 7)
    m = Tagger(30, 6)
    crit = nn.CrossEntropyLoss() if is_faulty else nn.CrossEntropyLoss(ignore_index=0)
    return Program(m, lambda o, t: crit(o.transpose(1, 2), t), loader(x, y),
                   torch.optim.SGD(m.parameters(), 0.3, momentum=0.9), tag_accuracy(tx, ty))


class HandRNN(nn.Module):
    def __init__(self, fin, h, out, scale, act=torch.tanh):
        super().__init__()
        self.inp = nn.Linear(fin, h)
        self.rec = nn.Linear(h, h, bias=False)
        nn.init.orthogonal_(self.rec.weight, scale)
        self.out = nn.Linear(h, out)
        self.act = act

    def forward(self, x):
        h = x.new_zeros(len(x), self.rec.in_features)
        for t in range(x.shape[1]):
            h = self.act(self.inp(x[:, t]) + self.rec(h))
        return self.out(h)


def first_symbol(n, T, C, seed):
    g = gen(seed)
    y = torch.randint(0, C, (n,), generator=g)
    x = 0.1 * torch.randn(n, T, C, generator=g)
    x[torch.arange(n), 0, y] += 2
    return x, y


@fault("recurrent weights far too small: the first symbol is forgotten", rules=["vanishing-gradient", "bad-initialisation"], layers=["rec"], fails=True, steps=200)
def sqs_session_start(is_faulty):
    x, y = first_symbol(600, 25, 4, 1)
    tx, ty = first_symbol(200, 25, 4, 2)
    m = HandRNN(4, 32, 4, 0.1 if is_faulty else 1.0)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 2e-3), accuracy(tx, ty))


@fault("a linear-ish recurrence whose weights have a norm above 1", rules=["exploding-gradient", "activation-drift", "bad-initialisation", "non-finite"], layers=["rec"], fails=True, steps=250)
def sqs_running_total(is_faulty):
    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 30, 2, generator=g)
        return x, (x[..., 0].sum(1, keepdim=True) - x[..., 1].sum(1, keepdim=True)) / 8
    (x, y), (tx, ty) = data(600, 1), data(200, 2)
    m = HandRNN(2, 24, 1, 1.0, lambda z: F.leaky_relu(z, 0.5))
    m.rec.weight.data.copy_((2.0 if is_faulty else 1.0) * torch.eye(24))
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-3), r2(tx, ty))
