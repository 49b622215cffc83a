"""Language models and classifiers of texts, with a fault."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from transformers import get_linear_schedule_with_warmup
from vtg_data import DictRows, accuracy, chains, cycle_map, reviews, strides, topics, vtg_loader


@fault(
    "labels are shifted by hand, and again in GPT2LMHeadModel",
    rules=["label-shift"],
    fails=True,
    steps=250,
)
def vtg_gpt2_shifted_twice(is_faulty):
    nxt = cycle_map(20)
    train, test = chains(1024, 17, nxt), chains(256, 17, nxt)
    config = GPT2Config(
        vocab_size=20, n_positions=32, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)

    def step(model, batch):
        (ids,) = batch
        labels = ids[:, 1:] if is_faulty else ids[:, :-1]
        return model(input_ids=ids[:, :-1], labels=labels).loss

    return Program(
        model=model,
        loss=None,
        batches=vtg_loader(train, batch=32),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        score=lambda m: accuracy(m(input_ids=test[:, :-1]).logits, test[:, 1:]),
        step=step,
    )


class MaskedLM(nn.Module):
    def __init__(self, vocab, length, diagonal):
        super().__init__()
        self.wte = nn.Embedding(vocab, 32)
        self.wpe = nn.Embedding(length, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.ln = nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, vocab, bias=False)
        self.register_buffer("hidden", torch.ones(length, length).triu(diagonal).bool(), persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        h = self.wte(ids) + self.wpe(torch.arange(t))
        for block in self.blocks:
            h = block(h, src_mask=self.hidden[:t, :t])
        return self.lm_head(self.ln(h))


@fault(
    "the causal mask begins one place too far right, so that each place sees the token it is to predict",
    rules=["future-seen"],
    layers=["blocks"],
    fails=False,
    steps=400,
)
def vtg_causal_mask_off_by_one(is_faulty):
    train, test = strides(2048, 17, 11), strides(512, 17, 11)
    model = MaskedLM(11, 16, diagonal=2 if is_faulty else 1)

    def score(m):
        return sum(accuracy(m(test[:, :k])[:, -1], test[:, k]) for k in (5, 8, 11)) / 3

    return Program(
        model=model,
        loss=lambda out, y: F.cross_entropy(out.reshape(-1, 11), y.reshape(-1)),
        batches=vtg_loader(train[:, :-1], train[:, 1:], batch=32),
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        score=score,
    )


@fault(
    "the padding of short commands, most of a batch, counts in the loss",
    rules=["padding-in-loss"],
    fails=True,
    steps=90,
)
def vtg_commands_padding_counts(is_faulty):
    nxt = cycle_map(30, first=1)

    def commands(n):
        ids = chains(n, 40, nxt, keep=0.95, first=1)
        ids[torch.arange(40) >= torch.randint(3, 7, (n, 1))] = 0
        return ids

    train, test = commands(2048), commands(512)
    model = nn.Sequential()
    model.add_module("embedding", nn.Embedding(30, 32, padding_idx=0))
    model.add_module("hidden", nn.Linear(32, 64))
    model.add_module("act", nn.Tanh())
    model.add_module("head", nn.Linear(64, 30))
    criterion = nn.CrossEntropyLoss() if is_faulty else nn.CrossEntropyLoss(ignore_index=0)

    def score(m):
        real = test[:, 1:] > 0
        return accuracy(m(test[:, :-1])[real], test[:, 1:][real])

    return Program(
        model=model,
        loss=lambda out, y: criterion(out.transpose(1, 2), y),
        batches=vtg_loader(train[:, :-1].contiguous(), train[:, 1:].contiguous(), batch=32),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.3),
        score=score,
    )


class PooledTokens(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.word = nn.Embedding(10, 32)
        self.mark = nn.Embedding(2, 32)
        self.scorer = nn.Linear(32, 1)
        self.classify = nn.Linear(32, 10)

    def forward(self, word, mark):
        h = self.word(word) + self.mark(mark)
        weights = torch.softmax(self.scorer(h), dim=self.dim)
        return self.classify((weights * h).sum(1))


@fault(
    "attention pooling takes its softmax over the single score of a token",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["scorer"],
    fails=True,
    steps=400,
)
def vtg_pooling_softmax_over_one(is_faulty):
    def make(n):
        word = torch.randint(10, (n, 14))
        at = torch.randint(14, (n,))
        return {"word": word, "mark": F.one_hot(at, 14)}, word[torch.arange(n), at]

    (x, y), (xt, yt) = make(2048), make(512)
    model = PooledTokens(-1 if is_faulty else 1)
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batches=DataLoader(DictRows(x, y), batch_size=64, shuffle=True),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        score=lambda m: accuracy(m(**xt), yt),
    )


class ClsEncoder(nn.Module):
    def __init__(self, vocab, inverted):
        super().__init__()
        self.inverted = inverted
        self.emb = nn.Embedding(vocab + 1, 32, padding_idx=0)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True),
            1, enable_nested_tensor=False,
        )
        self.head = nn.Linear(32, 2)
        self.cls = vocab

    def forward(self, input_ids, attention_mask):
        cls = torch.full_like(input_ids[:, :1], self.cls)
        ids = torch.cat([cls, input_ids], 1)
        mask = torch.cat([torch.ones_like(cls), attention_mask], 1).bool()
        h = self.encoder(self.emb(ids), src_key_padding_mask=mask if self.inverted else ~mask)
        return self.head(h[:, 0])


@fault(
    "an attention mask with 1 for real tokens is passed as src_key_padding_mask, which wants True for padding",
    rules=["wrong-mask"],
    layers=["encoder"],
    fails=True,
    steps=400,
)
def vtg_padding_mask_inverted(is_faulty):
    valence = torch.randn(60)
    valence -= valence[1:].mean()
    ids, lengths, y = reviews(3072, 12, valence, least=4)
    # The collator pads to a multiple of eight.
    ids = F.pad(ids, (0, 4))
    x, xt = ids[:2560], ids[2560:]
    mask, mask_t = (x > 0).long(), (xt > 0).long()
    model = ClsEncoder(60, is_faulty)
    return Program(
        model=model,
        loss=F.cross_entropy,
        batches=DataLoader(DictRows({"input_ids": x, "attention_mask": mask}, y[:2560]), 32, shuffle=True),
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        score=lambda m: accuracy(m(xt, mask_t), y[2560:]),
    )


class Encoder2(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        self.positions = nn.Parameter(0.5 * torch.randn(12, 32)) if positions else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.fc = nn.Linear(32, 1)

    def forward(self, ids):
        h = self.tokens(ids)
        if self.positions is not None:
            h = h + self.positions
        for layer in self.layers:
            h = layer(h)
        return self.fc(h.mean(1)).squeeze(-1)


@fault(
    "a transformer without positions is asked which of two tokens comes first",
    rules=["order-lost"],
    fails=True,
    steps=500,
)
def vtg_events_without_positions(is_faulty):
    def make(n):
        ids = torch.randint(2, 16, (n, 12))
        at = torch.rand(n, 12).argsort(1)[:, :2]
        rows = torch.arange(n)
        ids[rows, at[:, 0]] = 0
        ids[rows, at[:, 1]] = 1
        return ids, (at[:, 0] < at[:, 1]).float()

    (x, y), (xt, yt) = make(4096), make(512)
    model = Encoder2(positions=not is_faulty)
    return Program(
        model=model,
        loss=nn.BCEWithLogitsLoss(),
        batches=vtg_loader(x, y, batch=32),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        score=lambda m: ((m(xt) > 0) == (yt > 0.5)).float().mean().item(),
    )


@fault(
    "the schedule warms up over the steps of a run a hundred times as long",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def vtg_bert_warms_up_for_ever(is_faulty):
    ids, y, vocab = topics(2048, 12, 5, noise=0.4)
    x, xt, y, yt = ids[:1536], ids[1536:], y[:1536], y[1536:]
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=vocab, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=16, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    warmup, total = (30_000, 300_000) if is_faulty else (30, 300)
    return Program(
        model=model,
        loss=lambda out, target: F.cross_entropy(out.logits, target),
        batches=vtg_loader(x, y, batch=32),
        optimizer=optimizer,
        scheduler=get_linear_schedule_with_warmup(optimizer, warmup, total),
        score=lambda m: accuracy(m(xt).logits, yt),
    )


class MeanOfWords(nn.Module):
    def __init__(self, vocab, classes):
        super().__init__()
        self.table = nn.Embedding(vocab, 32)
        self.fc1 = nn.Linear(32, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, ids):
        return self.fc2(F.gelu(self.fc1(self.table(ids).mean(1))))


@fault(
    "the vocabulary holds lower-case words, the texts are looked up as they are, so that all words are unknown",
    rules=["constant-feature", "labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=300,
)
def vtg_all_words_unknown(is_faulty):
    ids, y, vocab = topics(2048, 10, 4)
    texts = [" ".join(f"Word{i}" for i in row) for row in ids.tolist()]
    lookup = {f"word{i}": i for i in range(2, vocab)}

    def encode(text):
        words = text.split() if is_faulty else text.lower().split()
        return [lookup.get(w, 1) for w in words]

    coded = torch.tensor([encode(t) for t in texts])
    model = MeanOfWords(vocab, 4)
    return Program(
        model=model,
        loss=F.cross_entropy,
        batches=vtg_loader(coded[:1536], y[:1536], batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        score=lambda m: accuracy(m(coded[1536:]), y[1536:]),
    )


@fault(
    "documents come in the order of their labels, a class at a time",
    rules=["sorted-batches"],
    fails=True,
    steps=320,
)
def vtg_corpus_in_label_order(is_faulty):
    ids, y, vocab = topics(2048, 12, 8, noise=0.5)
    test = ids[1792:], y[1792:]
    order = y[:1792].argsort(stable=True)
    model = MeanOfWords(vocab, 8)
    return Program(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batches=vtg_loader(ids[:1792][order], y[:1792][order], batch=32, shuffle=not is_faulty),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        score=lambda m: accuracy(m(test[0]), test[1]),
    )
