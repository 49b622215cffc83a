"""Texts with nothing wrong."""

import math

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    AlbertConfig, AlbertForSequenceClassification, BertConfig, BertForSequenceClassification, GPT2Config,
    GPT2LMHeadModel, T5Config, T5ForConditionalGeneration,
)
from vtg_data import DictRows, accuracy, chains, cycle_map, reviews, slots, strides, topics, vtg_loader


class PackedGru(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, 24, padding_idx=0)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.fc(self.gru(packed)[1][0])


@sound("ordinary: a GRU over packed reviews of different lengths", steps=400, least=0.75)
def vtg_packed_reviews():
    valence = torch.randn(50)
    valence -= valence[1:].mean()
    ids, lengths, y = reviews(3072, 14, valence, least=5)
    fields = {"ids": ids, "lengths": lengths}
    xt = {k: v[2560:] for k, v in fields.items()}
    model = PackedGru(50)
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batches=DataLoader(DictRows({k: v[:2560] for k, v in fields.items()}, y[:2560]), 32, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        score=lambda m: accuracy(m(**xt), y[2560:]),
    )


@sound("ordinary: a small BERT on topics, half trained", trained=150, steps=350, least=0.8)
def vtg_bert_topics_half_way():
    ids, y, vocab = topics(2560, 14, 6, noise=0.5)
    lengths = torch.randint(8, 15, (2560, 1))
    mask = (torch.arange(14) < lengths).long()
    ids = ids * mask
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=vocab, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=16, num_labels=6, pad_token_id=0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)

    def step(m, batch):
        return m(input_ids=batch[0], attention_mask=batch[1], labels=batch[2]).loss

    return Program(
        model=model,
        loss=None,
        batches=vtg_loader(ids[:2048], mask[:2048], y[:2048], batch=32),
        optimizer=optimizer,
        score=lambda m: accuracy(m(input_ids=ids[2048:], attention_mask=mask[2048:]).logits, y[2048:]),
        step=step,
    )


@sound("labels are the input ids themselves, which GPT2LMHeadModel shifts", trained=60, steps=250, least=0.85)
def vtg_gpt2_labels_are_inputs():
    nxt = cycle_map(24)
    train, test = chains(1024, 16, nxt), chains(256, 16, nxt)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=24, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, loss_type="ForCausalLMLoss",
        )
    )
    return Program(
        model=model,
        loss=None,
        batches=vtg_loader(train, batch=32),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        score=lambda m: accuracy(m(input_ids=test).logits[:, :-1], test[:, 1:]),
        step=lambda m, batch: m(input_ids=batch[0], labels=batch[0]).loss,
    )


class SinusoidClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        at = torch.arange(12.0)[:, None] * torch.exp(-torch.arange(0, 32, 2) / 32 * math.log(10000.0))
        self.register_buffer("where", torch.cat([at.sin(), at.cos()], 1))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids):
        return self.fc(self.encoder(self.tokens(ids) + self.where).mean(1))


@sound("ordinary: torch's encoder with sinusoids, asked for the order of two tokens", steps=500, least=0.85)
def vtg_encoder_knows_order():
    def make(n):
        ids = torch.randint(2, 16, (n, 12))
        at = torch.rand(n, 12).argsort(1)[:, :2]
        rows = torch.arange(n)
        ids[rows, at[:, 0]] = 0
        ids[rows, at[:, 1]] = 1
        return ids, (at[:, 0] < at[:, 1]).long()

    (x, y), (xt, yt) = make(4096), make(512)
    model = SinusoidClassifier()
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(label_smoothing=0.05),
        batches=vtg_loader(x, y, batch=32),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        score=lambda m: accuracy(m(xt), yt),
    )


class TiedGru(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        nn.init.normal_(self.embed.weight, std=0.2)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.Linear(width, vocab, bias=False)
        self.decoder.weight = self.embed.weight

    def forward(self, ids):
        return self.decoder(self.gru(self.embed(ids))[0])


@sound("the output layer of a language model holds the weight of its embedding, on purpose", steps=450, least=0.8)
def vtg_tied_language_model():
    train, test = strides(2048, 21, 11), strides(256, 21, 11)
    model = TiedGru(11, 48)
    return Program(
        model=model,
        loss=lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        batches=vtg_loader(train[:, :-1], train[:, 1:], batch=32),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        score=lambda m: accuracy(m(test[:, :-1])[:, 1:], test[:, 2:]),
    )


@sound("ALBERT takes its only layer three times", trained=100, steps=350, least=0.8)
def vtg_albert_repeats_its_layer():
    ids, y, vocab = topics(2048, 12, 4, noise=0.4)
    model = AlbertForSequenceClassification(
        AlbertConfig(
            vocab_size=vocab, embedding_size=24, hidden_size=32, num_hidden_layers=3, num_hidden_groups=1,
            num_attention_heads=2, intermediate_size=64, max_position_embeddings=16, num_labels=4,
            classifier_dropout_prob=0.0,
        )
    )
    return Program(
        model=model,
        loss=lambda out, target: F.cross_entropy(out.logits, target),
        batches=vtg_loader(ids[:1536], y[:1536], batch=16),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        score=lambda m: accuracy(m(ids[1536:]).logits, y[1536:]),
    )


@sound("T5 gets the same tokens as input and as labels, which it shifts for its decoder", steps=400, least=0.7)
def vtg_t5_repeats_and_maps():
    nxt = cycle_map(14, first=2)

    def make(n):
        ids = torch.randint(2, 14, (n, 5))
        return ids, nxt[ids]

    (x, y), (xt, yt) = make(3072), make(256)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=14, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, relative_attention_num_buckets=16,
        )
    )
    return Program(
        model=model,
        loss=None,
        batches=vtg_loader(x, y, batch=32),
        optimizer=torch.optim.AdamW(model.parameters(), lr=4e-3),
        score=lambda m: accuracy(m(input_ids=xt, labels=yt).logits, yt),
        step=lambda m, batch: m(input_ids=batch[0], labels=batch[1]).loss,
    )


class BiTagger(nn.Module):
    def __init__(self, vocab, tags):
        super().__init__()
        self.emb = nn.Embedding(vocab, 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, tags)

    def forward(self, ids):
        return self.out(self.lstm(self.emb(ids))[0]).transpose(1, 2)


@sound("a tagger reads both ways: the tag of a word depends on the next word", trained=120, steps=400, least=0.85)
def vtg_tagger_reads_ahead():
    def make(n):
        ids = torch.randint(12, (n, 15))
        following = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], 1)
        return ids, ids % 3 + 3 * (following > 5)

    (x, y), (xt, yt) = make(2048), make(256)
    model = BiTagger(12, 6)
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batches=vtg_loader(x, y, batch=32),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        score=lambda m: accuracy(m(xt).transpose(1, 2), yt),
    )


@sound("typos are corrected: most targets are the token at the same place of the input", steps=500, least=0.6)
def vtg_typo_correction():
    nxt = cycle_map(16)

    def make(n):
        clean = chains(n, 14, nxt, keep=1.0)
        wrong = torch.rand(n, 14) < 0.15
        wrong[:, 0] = False
        return torch.where(wrong, torch.randint(16, clean.shape), clean), clean

    (x, y), (xt, yt) = make(3072), make(256)
    spoiled = xt != yt
    model = nn.Sequential(nn.Embedding(16, 24))
    model.append(nn.GRU(24, 32, batch_first=True, bidirectional=True))

    class First(nn.Module):
        def forward(self, pair):
            return pair[0]

    model.extend([First(), nn.Linear(64, 16)])
    return Program(
        model=model,
        loss=lambda out, target: F.cross_entropy(out.transpose(1, 2), target),
        batches=vtg_loader(x, y, batch=32),
        optimizer=torch.optim.Adam(model.parameters(), lr=4e-3),
        score=lambda m: accuracy(m(xt)[spoiled], yt[spoiled]),
    )


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Embedding(12, 24), nn.Embedding(6, 24)
        self.ask = nn.Linear(24, 24)
        self.answer = nn.Linear(24, 6)

    def forward(self, keys, values, query):
        score = (self.key(keys) @ self.ask(self.key(query))[..., None])[..., 0] / 24**0.5
        weight = score.softmax(1)
        return self.answer((weight[..., None] * self.value(values)).sum(1))


@sound("a memory has learned to look at one slot only, as it must", trained=500, steps=500, least=0.9)
def vtg_memory_looks_at_one_slot():
    def make(n):
        keys, values, query, y = slots(n, 6, 12, 6)
        return {"keys": keys, "values": values, "query": query}, y

    (x, y), (xt, yt) = make(4096), make(512)
    model = Memory()
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batches=DataLoader(DictRows(x, y), batch_size=64, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        score=lambda m: accuracy(m(**xt), yt),
    )


class Bag(nn.Module):
    def __init__(self, vocab, classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 32, mode="mean")
        self.hidden = nn.Linear(32, 64)
        self.middle = nn.Linear(64, 64)
        self.classifier = nn.Linear(64, classes)

    def forward(self, ids):
        h = torch.relu(self.hidden(self.bag(ids)))
        return self.classifier(torch.relu(self.middle(h)))


@sound("LoRA of peft: one factor is zero, nearly all weights are frozen", steps=400, least=0.8)
def vtg_peft_lora():
    ids, y, vocab = topics(2560, 14, 8, per_topic=8, noise=0.4)
    model = Bag(vocab, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        pick = torch.randint(1024, (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(ids[pick]), y[pick]).backward()
        optimizer.step()
    optimizer.zero_grad()
    other = torch.roll(torch.arange(8), 3)[y]
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["hidden", "middle", "classifier"])
    model = get_peft_model(model, config)
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batches=vtg_loader(ids[1024:2048], other[1024:2048], batch=32),
        optimizer=torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3),
        score=lambda m: accuracy(m(ids[2048:]), other[2048:]),
    )


class ReZero(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.emb = nn.Embedding(30, 32)
        self.pos = nn.Parameter(torch.randn(10, 32))
        self.attn = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(depth))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(depth))
        self.gates = nn.Parameter(torch.zeros(depth, 2))
        self.fc = nn.Linear(32, 1)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, ids):
        h = self.emb(ids) + self.pos
        for attn, mlp, gate in zip(self.attn, self.mlp, self.gates):
            h = h + gate[0] * attn(h, h, h, need_weights=False)[0]
            h = h + gate[1] * mlp(h)
        return self.fc(h.mean(1))[:, 0]


@sound("residual gates and the head are zero at the start (ReZero)", steps=400, least=0.7)
def vtg_rezero_with_zero_head():
    valence = torch.randn(30)

    def make(n):
        ids = torch.randint(30, (n, 10))
        v = valence[ids]
        return ids, v.sum(1) / 4 + 0.5 * (v[:, 0] * v[:, 1])

    (x, y), (xt, yt) = make(4096), make(400)
    model = ReZero(2)
    return Program(
        model=model,
        loss=F.mse_loss,
        batches=vtg_loader(x, y, batch=32),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        score=lambda m: 1 - ((m(xt) - yt).square().mean() / yt.var()).item(),
    )


class ShortInLong(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, 32, padding_idx=0)
        self.attn = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.fc = nn.Linear(32, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        future = torch.ones(t, t).triu(1).bool()
        h = self.emb(ids)
        # What is later, and so all padding of a real place, is hidden.
        h = self.norm(h + self.attn(h, h, h, attn_mask=future, need_weights=False)[0])
        return self.fc(h)


@sound("nine tenths of a batch are padding, which the loss leaves out", trained=40, steps=300, least=0.85)
def vtg_mostly_padding_ignored():
    nxt = cycle_map(20, first=1)

    def make(n):
        ids = chains(n, 41, nxt, first=1)
        ids[torch.arange(41) >= torch.randint(4, 7, (n, 1))] = 0
        return ids[:, :-1], ids[:, 1:]

    (x, y), (xt, yt) = make(1536), make(256)
    model = ShortInLong(20)
    return Program(
        model=model,
        loss=lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten(), ignore_index=0),
        batches=vtg_loader(x, y, batch=16),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        score=lambda m: accuracy(m(xt)[yt > 0], yt[yt > 0]),
    )
