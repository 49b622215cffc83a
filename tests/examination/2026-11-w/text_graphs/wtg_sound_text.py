"""Sound set-ups: texts and language models."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from program import Program, sound
from wtg_data import (
    DictSet,
    wtg_accuracy,
    wtg_before,
    wtg_chain,
    wtg_loader,
    wtg_padded,
    wtg_short_in_long,
    wtg_topic_text,
)


@sound("an ordinary GRU that reads texts", steps=300, least=0.8)
def wtg_gru_topics():
    x, y = wtg_topic_text(1200, 12)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(60, 24)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.out = nn.Linear(32, 5)

        def forward(self, ids):
            _, h = self.gru(self.embedding(ids))
            return self.out(h[0])

    model = Reader()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        wtg_loader(x[:900], y[:900]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda net: wtg_accuracy(net(x[900:]), y[900:]),
    )


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(12, 32, padding_idx=0)
        self.pos = nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.tags = nn.Linear(32, 4)

    def forward(self, ids, mask):
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        return self.tags(self.encoder(h, src_key_padding_mask=~mask))


@sound("an ordinary tagger with padding that is masked, and ignored in the loss", steps=400, least=0.8)
def wtg_masked_tagger():
    x = torch.randint(1, 12, (1100, 14))
    left = torch.cat([torch.zeros(1100, 1, dtype=torch.long), x[:, :-1]], 1)
    tags = 2 * (x > 6).long() + (left % 2)
    x, _ = wtg_padded(x, 6)
    mask = x != 0
    tags = tags.masked_fill(~mask, -100)
    model = Tagger()
    rows = DictSet(tags[:800], ids=x[:800], mask=mask[:800])
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.transpose(1, 2), y, ignore_index=-100),
        DataLoader(rows, batch_size=32, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        lambda net: wtg_accuracy(net(x[800:], mask[800:])[mask[800:]], tags[800:][mask[800:]]),
    )


@sound("an ordinary GPT-2 from a config, whose labels are its inputs; half trained", trained=100, steps=300, least=0.8)
def wtg_gpt2_own_shift():
    x, table = wtg_chain(700, 16, noise=0.3)
    config = GPT2Config(
        vocab_size=8, n_positions=16, n_embd=48, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None,
        use_cache=False, resid_pdrop=0.05, embd_pdrop=0.05, attn_pdrop=0.05,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.train()

    def step(net, batch):
        (ids,) = batch
        return net(input_ids=ids, labels=ids).loss

    def score(net):
        return wtg_accuracy(net(x[500:]).logits[:, 1:-1], table[x[500:, :-2], x[500:, 1:-1]])

    return Program(
        model, None, wtg_loader(x[:500], size=16), torch.optim.AdamW(model.parameters(), lr=5e-3), score, step=step
    )


class Tied(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, 48)
        self.lstm = nn.LSTM(48, 48, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.lm_head = nn.Linear(48, vocab, bias=False)
        nn.init.normal_(self.wte.weight, std=0.1)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        return self.lm_head(self.norm(self.lstm(self.wte(ids))[0]))


@sound("a language model whose output layer is its embedding (shared on purpose)", steps=400, least=0.8)
def wtg_tied_embedding():
    x, table = wtg_chain(800, 15, noise=0.25)
    model = Tied(8)
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.reshape(-1, 8), y.reshape(-1)),
        wtg_loader(x[:600, :-1], x[:600, 1:]),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda net: wtg_accuracy(net(x[600:, :-1])[:, 1:], table[x[600:, :-2], x[600:, 1:-1]]),
    )


@sound(
    "a masked language model: sees both sides, targets at the same places, most of them -100; half trained",
    trained=250,
    steps=600,
    least=0.8,
)
def wtg_masked_words():
    n, length, vocab = 900, 14, 9
    order = torch.randperm(vocab)  # each word has one that follows it
    x = torch.randint(0, vocab, (n, length))
    for t in range(1, length):
        x[:, t] = torch.where(torch.rand(n) < 0.05, x[:, t], order[x[:, t - 1]])
    config = BertConfig(
        vocab_size=vocab + 1, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=length, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, pad_token_id=None,
        initializer_range=0.1,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    model.train()

    def mask(ids):
        hidden = torch.rand(ids.shape) < 0.25
        return ids.masked_fill(hidden, vocab), ids.masked_fill(~hidden, -100)

    def collate(items):
        ids, labels = mask(torch.stack([i for (i,) in items]))
        return {"input_ids": ids}, labels

    test, wanted = mask(x[700:])
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.logits.flatten(0, 1), y.flatten()),
        DataLoader(TensorDataset(x[:700]), batch_size=16, shuffle=True, collate_fn=collate),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        lambda net: wtg_accuracy(net(input_ids=test).logits[wanted >= 0], wanted[wanted >= 0]),
    )


@sound("an autoencoder of sequences: the targets are the inputs", steps=600, least=0.8)
def wtg_echo():
    x, _ = wtg_chain(1400, 8, noise=0.15)

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 16)
            self.encode = nn.GRU(16, 48, batch_first=True)
            self.code = nn.Linear(48, 24)
            self.decode = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 64))

        def forward(self, ids):
            code = torch.tanh(self.code(self.encode(self.embed(ids))[1][0]))
            return self.decode(code).view(-1, 8, 8)

    model = Auto()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.transpose(1, 2), y),
        wtg_loader(x[:1200], x[:1200]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda net: wtg_accuracy(net(x[1200:]), x[1200:]),
    )


@sound("attention without positions, on a task that has no order: which word is more frequent?", steps=400, least=0.8)
def wtg_counts_of_words():
    x = torch.randint(0, 6, (1500, 15))
    ones, twos = (x == 1).sum(1), (x == 2).sum(1)
    y = 1 + (ones > twos).long() - (ones < twos).long()

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(6, 32)
            self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
            self.ln = nn.LayerNorm(32)
            self.out = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

        def forward(self, ids):
            h = self.embed(ids)
            h = self.ln(h + self.attn(h, h, h, need_weights=False)[0])
            return self.out(h.mean(1))

    model = Counter()
    return Program(
        model,
        F.cross_entropy,
        wtg_loader(x[:1200], y[:1200]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda net: wtg_accuracy(net(x[1200:]), y[1200:]),
    )


@sound("the same block four times over, as in ALBERT", steps=500, least=0.7)
def wtg_one_block_four_times():
    x, y = wtg_before(2600, 10)

    class Universal(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(20, 32)
            self.pos = nn.Parameter(0.5 * torch.randn(10, 32))
            self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.norm = nn.LayerNorm(32)
            self.out = nn.Linear(32, 2)

        def forward(self, ids):
            h = self.tok(ids) + self.pos
            for _ in range(4):
                h = self.block(h)
            return self.out(self.norm(h).mean(1))

    model = Universal()
    return Program(
        model,
        F.cross_entropy,
        wtg_loader(x[:2300], y[:2300], size=24),
        torch.optim.Adam(model.parameters(), lr=1.5e-3),
        lambda net: 2 * wtg_accuracy(net(x[2300:]), y[2300:]) - 1,
    )


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, 5)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.fc(torch.cat([h[0], h[1]], -1))


@sound("four fifths of every batch are padding, which is packed away", steps=300, least=0.8)
def wtg_mostly_padding():
    ids, lengths, y = wtg_short_in_long(1100, 8, 36)
    model = Packed()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(DictSet(y[:800], ids=ids[:800], lengths=lengths[:800]), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda net: wtg_accuracy(net(ids[800:], lengths[800:]), y[800:]),
    )


@sound("time comes first and the batch second, everywhere", steps=400, least=0.8)
def wtg_time_first():
    x, y = wtg_topic_text(1000, 12)
    rows = [(x[i], y[i]) for i in range(700)]

    def collate(items):
        texts, topics = zip(*items)
        return torch.stack(texts, 1), torch.stack(topics)

    class Classic(nn.Module):
        def __init__(self):
            super().__init__()
            self.src = nn.Embedding(60, 32)
            self.pe = nn.Parameter(0.1 * torch.randn(12, 1, 32))
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1)
            self.decoder = nn.Linear(32, 5)

        def forward(self, src):
            return self.decoder(self.layer(self.src(src) * math.sqrt(32) / 4 + self.pe).mean(0))

    model = Classic()
    return Program(
        model,
        F.cross_entropy,
        DataLoader(rows, batch_size=20, shuffle=True, collate_fn=collate),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda net: wtg_accuracy(net(x[700:].t()), y[700:]),
    )


@sound("a vocabulary of 3000 words most of which never occur", steps=400, least=0.8)
def wtg_unused_words():
    x, y = wtg_topic_text(1500, 20, classes=6, vocab=400, hits=4)
    spread = torch.randperm(2999)[:400] + 1
    x = spread[x]
    x, _ = wtg_padded(x, 14)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(3000, 32, mode="mean", padding_idx=0)
            self.fc = nn.Linear(32, 6)

        def forward(self, ids):
            return self.fc(self.bag(ids))

    model = Bag()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        wtg_loader(x[:1200], y[:1200]),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda net: wtg_accuracy(net(x[1200:]), y[1200:]),
    )


@sound("attention that has learned to look at one place, as the task wants it; trained", trained=450, steps=500, least=0.8)
def wtg_look_up():
    n, places = 1800, 6
    keys = torch.rand(n, 10).argsort(1)[:, :places]
    values = torch.randint(0, 6, (n, places))
    at = torch.randint(0, places, (n,))
    rows = torch.arange(n)
    query, y = keys[rows, at], values[rows, at]

    class LookUp(nn.Module):
        def __init__(self):
            super().__init__()
            self.key = nn.Embedding(10, 24)
            self.query = nn.Embedding(10, 24)
            self.value = nn.Embedding(6, 24)
            self.out = nn.Linear(24, 6)

        def forward(self, keys, values, query):
            scores = torch.einsum("bd,bpd->bp", self.query(query), self.key(keys)) / 24**0.5
            return self.out(torch.einsum("bp,bpd->bd", scores.softmax(-1), self.value(values)))

    model = LookUp()
    train = DictSet(y[:1500], keys=keys[:1500], values=values[:1500], query=query[:1500])
    return Program(
        model,
        F.cross_entropy,
        DataLoader(train, batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda net: wtg_accuracy(net(keys[1500:], values[1500:], query[1500:]), y[1500:]),
    )


@sound("nine of ten tags are O, which weights make up for; half trained", trained=100, steps=400, least=0.7)
def wtg_rare_tags():
    x = torch.randint(3, 30, (1300, 16))
    x[torch.rand(1300, 16) < 0.08] = 1  # Mr
    x[torch.rand(1300, 16) < 0.04] = 2  # in
    y = torch.zeros_like(x)
    y[:, 1:][x[:, :-1] == 1] = 1
    y[:, 1:][x[:, :-1] == 2] = 2

    class NER(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 16)
            self.rnn = nn.GRU(16, 16, batch_first=True, bidirectional=True)
            self.drop = nn.Dropout(0.2)
            self.tag = nn.Linear(32, 3)

        def forward(self, ids):
            return self.tag(self.drop(self.rnn(self.embed(ids))[0]))

    model = NER()
    weight = torch.tensor([0.3, 2.0, 3.0])

    def f1(net):
        guess, true = net(x[1000:]).argmax(-1), y[1000:]
        scores = []
        for tag in (1, 2):
            hit = ((guess == tag) & (true == tag)).sum().item()
            scores.append(2 * hit / max(1, ((guess == tag).sum() + (true == tag).sum()).item()))
        return sum(scores) / 2

    return Program(
        model,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), weight=weight),
        wtg_loader(x[:1000], y[:1000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        f1,
    )


class CausalBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, 4, d // 4).transpose(1, 2) for z in self.c_attn(self.ln1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class NanoGPT(nn.Module):
    def __init__(self, vocab=10, d=32, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(24, d)
        self.blocks = nn.ModuleList(CausalBlock(d) for _ in range(depth))
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (2 * depth) ** 0.5 if name.endswith(("c_proj.weight", "down.weight")) else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@sound(
    "nanoGPT's recipe: weights of 0.02, betas (0.9, 0.95), decay 0.1, warm-up and cosine; half trained",
    trained=150,
    steps=400,
    least=0.75,
)
def wtg_nano_recipe():
    x, table = wtg_chain(800, 15, vocab=10, noise=0.25)
    model = NanoGPT()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-3, betas=(0.9, 0.95))

    def rate(s):
        return (s + 1) / 20 if s < 20 else 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (s - 20) / 380)))

    return Program(
        model,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        wtg_loader(x[:600, :-1], x[:600, 1:], size=20),
        optimizer,
        lambda net: wtg_accuracy(net(x[600:, :-1])[:, 1:], table[x[600:, :-2], x[600:, 1:-1]]),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, rate),
    )


class Translate(nn.Module):
    def __init__(self, length=5):
        super().__init__()
        self.src, self.tgt = nn.Embedding(9, 32), nn.Embedding(9, 32)
        self.ps, self.pt = nn.Embedding(length, 32), nn.Embedding(length, 32)
        self.core = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(32, 9)
        self.register_buffer("mask", torch.ones(length, length).triu(1).bool())

    def forward(self, src, tgt):
        at = torch.arange(src.shape[1])
        h = self.core(self.src(src) + self.ps(at), self.tgt(tgt) + self.pt(at), tgt_mask=self.mask)
        return self.out(h)


@sound("an encoder that sees all and a decoder that is given the targets, one place later", steps=500, least=0.8)
def wtg_teacher_forced():
    x = torch.randint(1, 9, (1800, 5))
    code = torch.randperm(8) + 1
    y = code[x.flip(1) - 1]
    given = torch.cat([torch.zeros(1800, 1, dtype=torch.long), y[:, :-1]], 1)
    model = Translate()
    data = DictSet(y[:1600], src=x[:1600], tgt=given[:1600])
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.reshape(-1, 9), y.reshape(-1)),
        DataLoader(data, batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda net: wtg_accuracy(net(x[1600:], given[1600:]), y[1600:]),
    )
