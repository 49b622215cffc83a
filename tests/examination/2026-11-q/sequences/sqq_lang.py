import math

import torch
import torch.nn.functional as F
from program import Program, fault
from sqq_tools import (accuracy, before, chain, events, loader, pairs, rng, tag_accuracy, tags, topics)
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

CE = nn.CrossEntropyLoss()


def token_loss(out, y):
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


class TorchLM(nn.Module):
    def __init__(self, vocab, length, causal, dim=32):
        super().__init__()
        self.causal = causal
        self.embed = nn.Embedding(vocab, dim)
        self.place = nn.Parameter(0.1 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        t = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t) if self.causal else None
        return self.head(self.encoder(self.embed(x) + self.place[:t], mask=mask))


def prefix_score(x, best):
    def score(model):
        hits = []
        for t in (3, 5, 7, 9):
            hits.append((model(x[:, :t])[:, -1].argmax(-1) == x[:, t]).float().mean())
        return min(1.0, (sum(hits) / len(hits)).item() / best)

    return score


@fault("language model of nn.TransformerEncoder without a causal mask", rules=("future-seen",), fails=False, steps=300)
def sqq_lm_unmasked(is_faulty):
    x, held = pairs(1500, 16, 7, 1), pairs(300, 16, 7, 2)
    model = TorchLM(7, 16, not is_faulty)
    return Program(model, token_loss, loader(x[:, :-1], x[:, 1:]),
                   torch.optim.Adam(model.parameters(), 3e-3), prefix_score(held, 0.95))


class GruLM(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, 48, batch_first=True)
        self.out = nn.Linear(48, vocab)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


@fault("targets are the inputs themselves, not shifted", rules=("label-shift",), fails=True, steps=250)
def sqq_lm_unshifted(is_faulty):
    x, held = chain(1200, 13, 20, 1), chain(300, 13, 20, 2)
    model = GruLM(20)
    data = loader(x[:, :-1], x[:, :-1] if is_faulty else x[:, 1:])
    return Program(model, token_loss, data, torch.optim.AdamW(model.parameters(), 5e-3),
                   lambda m: min(1.0, (m(held[:, :-1]).argmax(-1) == held[:, 1:]).float().mean().item() / 0.905))


@fault("labels shifted by hand for a Hugging Face model that shifts them itself", rules=("label-shift",), fails=True,
       steps=200)
def sqq_hf_shifted_twice(is_faulty):
    x, held = chain(1200, 13, 16, 3), chain(300, 13, 16, 4)
    config = GPT2Config(vocab_size=16, n_positions=16, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    rows = []
    for row in x:
        if is_faulty:
            rows.append(({"input_ids": row[:-1], "labels": row[1:]}, 0))
        else:
            rows.append(({"input_ids": row[:-1], "labels": row[:-1]}, 0))
    data = torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True)
    return Program(model, lambda out, y: out.loss, data, torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda m: min(1.0, (m(input_ids=held[:, :-1]).logits.argmax(-1) == held[:, 1:]).float().mean().item() / 0.906))


class AttentionPool(nn.Module):
    """Embedding, convolution, and attention over what is not padding."""

    def __init__(self, vocab, dim, classes, upside_down=False):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 1)
        self.energy = nn.Linear(dim, 1)
        self.head = nn.Linear(dim, classes)
        self.upside_down = upside_down

    def forward(self, x):
        h = torch.relu(self.conv(self.embed(x).transpose(1, 2))).transpose(1, 2)
        e = self.energy(h).squeeze(-1)
        mask = x.ne(0) if self.upside_down else x.eq(0)
        weights = e.masked_fill(mask, -1e9).softmax(-1)
        return self.head((weights.unsqueeze(-1) * h).sum(1))


@fault("mask of attention pooling is upside down", rules=("wrong-mask", "rank-collapse"), fails=True, steps=200)
def sqq_mask_inverted(is_faulty):
    x, y = topics(1500, 30, 5, short=5)
    hx, hy = topics(400, 30, 6, short=5)
    model = AttentionPool(60, 24, 4, upside_down=is_faulty)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))


class ConvTagger(nn.Module):
    def __init__(self, vocab, dim, kinds):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, 48, 3, padding=1)
        self.out = nn.Linear(48, kinds)

    def forward(self, x):
        return self.out(self.conv(self.embed(x).transpose(1, 2)).relu().transpose(1, 2))


@fault("padded tags count as class 0 in a tagger's loss", rules=("padding-in-loss",), fails=False, steps=300)
def sqq_tags_padded(is_faulty):
    x, y = tags(1500, 60, 7, short=2, span=6)
    hx, hy = tags(400, 60, 8, short=2, span=6)
    if is_faulty:
        y = y.clamp(min=0)
    model = ConvTagger(12, 16, 4)
    return Program(model, lambda out, t: F.cross_entropy(out.transpose(1, 2), t), loader(x, y),
                   torch.optim.SGD(model.parameters(), 0.05, momentum=0.5), tag_accuracy(hx, hy))


class OrderTransformer(nn.Module):
    def __init__(self, vocab, length, dim, with_places):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.place = nn.Embedding(length, dim) if with_places else None
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(dim, 2, 64, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        h = self.embed(x)
        if self.place is not None:
            h = h + self.place(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


@fault("transformer without positions, where the order decides", rules=("order-lost",), fails=True, steps=300)
def sqq_no_positions(is_faulty):
    x, y = before(2000, 10, 9)
    hx, hy = before(500, 10, 10)
    model = OrderTransformer(12, 10, 32, not is_faulty)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(hx, hy))


class EventPool(nn.Module):
    def __init__(self, classes, dim):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(classes + 1, dim), nn.Tanh())
        self.energy = nn.Linear(dim, 1)
        self.value = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, classes)
        self.dim = -1

    def forward(self, x):
        h = self.inner(x)
        w = F.softmax(self.energy(h), dim=self.dim)
        return self.head((w * self.value(h)).sum(1))


@fault("softmax of attention pooling over the last dimension, of size 1", rules=("wrong-softmax-dimension",),
       fails=False, steps=400)
def sqq_pool_wrong_dimension(is_faulty):
    x, y = events(3000, 16, 11)
    hx, hy = events(500, 16, 12)
    model = EventPool(4, 32)
    model.dim = -1 if is_faulty else 1
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), accuracy(hx, hy))


class SelfAttention(nn.Module):
    def __init__(self, dim, axis):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.axis = axis

    def forward(self, x):
        w = (self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])).softmax(self.axis)
        return self.o(w @ self.v(x))


class Lookup(nn.Module):
    """Each row holds four (key, value) tokens; the last is a key to look up."""

    def __init__(self, axis, dim=48):
        super().__init__()
        self.key, self.val = nn.Embedding(9, dim), nn.Embedding(5, dim)
        self.attention = SelfAttention(dim, axis)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        h = self.key(x[..., 0]) + self.val(x[..., 1])
        return self.head(self.norm(self.attention(h)[:, -1]))


def lookups(n, seed):
    g = rng(seed)
    keys = torch.rand(n, 8, generator=g).argsort(1)
    values = torch.randint(4, (n, 8), generator=g)
    at = torch.randint(8, (n,), generator=g)
    rows = torch.arange(n)
    query = torch.stack([keys[rows, at], torch.full((n,), 4)], -1)[:, None]
    return torch.cat([torch.stack([keys, values], -1), query], 1), values[rows, at]


class LastState(nn.Module):
    def __init__(self, cell, head):
        super().__init__()
        self.cell, self.head = cell, head

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class WordLSTM(nn.Module):
    def __init__(self, vocab, batch_first):
        super().__init__()
        self.embed = nn.Embedding(vocab, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=batch_first)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        out, _ = self.lstm(self.embed(x))
        return self.head(out[:, -1])


@fault("LSTM without batch_first on (batch, time, features)", rules=("mixed-examples",), layers=("lstm",), fails=True,
       steps=500)
def sqq_not_batch_first(is_faulty):
    x, y = before(2000, 8, 15)
    hx, hy = before(500, 8, 16)
    model = WordLSTM(12, not is_faulty)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), accuracy(hx, hy))


class PaddedRNN(nn.Module):
    def __init__(self, vocab, dim, classes, by_length):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.RNN(dim, 32, batch_first=True)
        self.head = nn.Linear(32, classes)
        self.by_length = by_length

    def forward(self, x):
        out, _ = self.rnn(self.embed(x))
        if self.by_length:
            last = x.ne(0).sum(1) - 1
            return self.head(out[torch.arange(len(x)), last])
        return self.head(out[:, -1])


@fault("state read after the padding instead of at the last token", rules=("wrong-mask", "vanishing-gradient", "rank-collapse"), fails=True,
       steps=300)
def sqq_state_after_padding(is_faulty):
    x, y = topics(1500, 60, 17, short=5, strength=0.7)
    hx, hy = topics(400, 60, 18, short=5, strength=0.7)
    x, hx = (torch.cat([a, torch.zeros(len(a), 10, dtype=torch.long)], 1)[:, :40] * (torch.arange(40) < 12) for a in (x, hx))
    model = PaddedRNN(60, 16, 4, not is_faulty)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@fault("Noam factor multiplied with a small rate", rules=("learning-rate-too-low",), fails=True, steps=300)
def sqq_noam_times_rate(is_faulty):
    x, held = pairs(1500, 16, 7, 19), pairs(300, 16, 7, 20)
    model = TorchLM(7, 16, True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3 if is_faulty else 0.4, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 32**-0.5 * min((s + 1) ** -0.5, (s + 1) * 60**-1.5))
    return Program(model, token_loss, loader(x[:, :-1], x[:, 1:]), optimizer, prefix_score(held, 0.95), scheduler=noam)


@fault("Adam at 0.1 on a transformer", rules=("learning-rate-too-high", "diverging"), fails=True, steps=250)
def sqq_transformer_hot(is_faulty):
    x, y = before(2000, 10, 21)
    hx, hy = before(500, 10, 22)
    model = OrderTransformer(12, 10, 32, True)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 0.1 if is_faulty else 2e-3),
                   accuracy(hx, hy))


@fault("texts were sorted by length for packing, their labels were not", rules=("labels-unrelated",), fails=True, steps=250)
def sqq_sorted_without_labels(is_faulty):
    x, y = topics(1200, 24, 25, short=5, strength=0.6)
    hx, hy = topics(400, 24, 26, short=5, strength=0.6)
    order = x.ne(0).sum(1).argsort(descending=True)
    x = x[order]
    if not is_faulty:
        y = y[order]

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 16, padding_idx=0)
            self.rnn = nn.GRU(16, 24, batch_first=True)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), x.ne(0).sum(1), True, False)
            return self.fc(self.rnn(packed)[1][0])

    model = Packed()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))


@fault("texts padded on the left and then cut on the right", rules=("constant-feature", "labels-unrelated", "rank-collapse", "loss-not-decreasing"),
       fails=True, steps=200)
def sqq_cut_to_padding(is_faulty):
    x, y = topics(1200, 28, 27, short=5, strength=0.6)
    hx, hy = topics(400, 28, 28, short=5, strength=0.6)
    x, hx = x.flip(1), hx.flip(1)
    train = x[:, :14] if is_faulty else x[:, -14:]

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 24)
            self.net = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 4))

        def forward(self, x):
            return self.net(self.embed(x).mean(1))

    model = Mean()
    return Program(model, CE, loader(train, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx[:, -14:], hy))


@fault("empty texts: rows of attention that are masked altogether", rules=("non-finite", "wrong-mask"), fails=True, steps=300)
def sqq_empty_rows(is_faulty):
    x, y = topics(1500, 16, 29, short=3, strength=0.7)
    hx, hy = topics(400, 16, 30, short=3, strength=0.7)
    x[::40] = 0
    if not is_faulty:
        filled = x.ne(0).any(1)
        x, y = x[filled], y[filled]

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 24)
            self.q, self.k, self.v = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
            self.norm = nn.LayerNorm(24)
            self.head = nn.Linear(24, 4)

        def forward(self, x):
            pad = x.eq(0)
            h = self.embed(x)
            scores = self.q(h) @ self.k(h).transpose(1, 2) / 24**0.5
            weights = scores.masked_fill(pad[:, None, :], float("-inf")).softmax(-1)
            h = self.norm(h + weights @ self.v(h))
            real = (~pad).unsqueeze(-1)
            return self.head((h * real).sum(1) / real.sum(1).clamp(min=1))

    model = Encoder()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@fault("vocabulary one too small: the last id is out of range", rules=("model-fails",), layers=("embed",), fails=True, steps=200)
def sqq_vocabulary_short(is_faulty):
    x, held = chain(1200, 13, 20, 31), chain(300, 13, 20, 32)
    model = GruLM(20)
    if is_faulty:
        model.embed = nn.Embedding(19, 32)

    def score(m):
        given = held[:, :-1]
        right = m(given.clamp(max=m.embed.num_embeddings - 1)).argmax(-1) == held[:, 1:]
        return min(1.0, right.float().mean().item() / 0.905)

    return Program(model, token_loss, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3), score)


class Hot(nn.Module):
    """Own multi-head attention over (key, value) tokens, with or without a scale."""

    def __init__(self, wild, dim=64):
        super().__init__()
        self.key, self.val = nn.Embedding(9, dim), nn.Embedding(5, dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.keys = nn.Linear(dim, dim, bias=False)
        self.values = nn.Linear(dim, dim, bias=False)
        self.head = nn.Linear(dim, 4)
        self.scale = 1.0 if wild else dim**-0.5
        if wild:
            nn.init.normal_(self.query.weight)
            nn.init.normal_(self.keys.weight)

    def forward(self, x):
        h = self.key(x[..., 0]) + self.val(x[..., 1])
        w = (self.query(h[:, -1:]) @ self.keys(h).transpose(1, 2) * self.scale).softmax(-1)
        return self.head((w @ self.values(h))[:, 0])


@fault("attention with N(0, 1) weights and no 1/√d", rules=("attention-saturation", "bad-initialisation"),
       layers=("query", "keys"), fails=True, steps=500)
def sqq_attention_unscaled(is_faulty):
    x, y = lookups(3000, 33)
    hx, hy = lookups(500, 34)
    model = Hot(is_faulty)
    return Program(model, CE, loader(x, y, size=48), torch.optim.Adam(model.parameters(), 4e-3), accuracy(hx, hy))


@fault("the optimizer's groups leave out the attention", rules=("no-gradient",), layers=("query", "keys", "key", "val"), fails=True, steps=500)
def sqq_group_forgotten(is_faulty):
    x, y = lookups(3000, 23)
    hx, hy = lookups(500, 24)
    model = Hot(False)
    groups = [{"params": model.values.parameters()}, {"params": model.head.parameters(), "lr": 2e-3}]
    if not is_faulty:
        groups += [{"params": p.parameters()} for p in (model.query, model.keys, model.key, model.val)]
    return Program(model, CE, loader(x, y, size=48), torch.optim.Adam(groups, 4e-3), accuracy(hx, hy))


@fault("the hidden state goes through argmax to an embedding", rules=("no-gradient",), layers=("embed", "gru", "choose"), fails=True, steps=400)
def sqq_argmax_inside(is_faulty):
    x, y = before(2500, 8, 35)
    hx, hy = before(500, 8, 36)

    class Chooser(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 16)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.choose = nn.Linear(32, 8)
            self.code = nn.Embedding(8, 16)
            self.head = nn.Linear(16, 2)

        def forward(self, x):
            logits = self.choose(self.gru(self.embed(x))[1][0])
            if is_faulty:
                return self.head(self.code(logits.argmax(-1)))
            return self.head(logits.softmax(-1) @ self.code.weight)

    model = Chooser()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), accuracy(hx, hy))
