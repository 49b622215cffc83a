"""Faulty programs on texts and tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from atg_data import accuracy, chain, first_of_two, loader, lookup, padded, tags, topics
from program import Program, fault
from torch import nn


class LastState(nn.Module):
    """An LSTM that classifies by a state."""

    def __init__(self, vocab, classes, at_end, width=32):
        super().__init__()
        self.at_end = at_end
        self.embed = nn.Embedding(vocab, 24)
        self.lstm = nn.LSTM(24, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        out, _ = self.lstm(self.embed(x))
        if self.at_end:
            return self.head(out[:, -1])
        last = x.ne(0).sum(1) - 1
        return self.head(out[torch.arange(len(x)), last])


@fault("takes the LSTM's state after long padding", rules=["wrong-mask", "vanishing-gradient"], fails=True, steps=300)
def atg_review_state_after_padding(is_faulty):
    x, y = topics(1800, 10, share=0.5)
    x = padded(x, 5, 56)
    model = LastState(120, 4, is_faulty)
    return Program(model, F.cross_entropy, loader(x[:1500], y[:1500]), torch.optim.Adam(model.parameters(), 2e-3),
                   accuracy(x[1500:], y[1500:]))


class ClsEncoder(nn.Module):
    """A transformer encoder with a leading class token."""

    def __init__(self, vocab, classes, width=32, places=40, inverted=False, positions=True, layers=1):
        super().__init__()
        self.inverted = inverted
        self.embed = nn.Embedding(vocab, width)
        self.place = nn.Parameter(0.02 * torch.randn(places, width)) if positions else None
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, width))
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        h = self.embed(x)
        if self.place is not None:
            h = h + self.place[: x.shape[1]]
        h = torch.cat([self.cls.expand(len(x), -1, -1), h], 1)
        mask = x.ne(0) if self.inverted else x.eq(0)
        mask = F.pad(mask, (1, 0), value=False)
        return self.head(self.encoder(h, src_key_padding_mask=mask)[:, 0])


@fault("the padding mask is True for the words, not for the padding", rules=["wrong-mask"], fails=True, steps=250)
def atg_encoder_mask_inverted(is_faulty):
    x, y = topics(1500, 14, classes=5, share=0.4)
    x = padded(x, 6, 18)
    model = ClsEncoder(120, 5, inverted=is_faulty)
    return Program(model, F.cross_entropy, loader(x[:1200], y[:1200]), torch.optim.AdamW(model.parameters(), 1e-3),
                   accuracy(x[1200:], y[1200:]))


class ConvLanguage(nn.Module):
    """A convolutional language model over code-like tokens."""

    def __init__(self, vocab, both_sides):
        super().__init__()
        self.pads = (1, 1) if both_sides else (2, 0)
        self.embed = nn.Embedding(vocab, 32)
        self.one = nn.Conv1d(32, 48, 3)
        self.two = nn.Conv1d(48, 48, 3)
        self.out = nn.Linear(48, vocab)

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        h = F.relu(self.one(F.pad(h, self.pads)))
        h = F.relu(self.two(F.pad(h, self.pads)))
        return self.out(h.transpose(1, 2))


@fault("convolutions padded on both sides see the next token", rules=["future-seen"], layers=["one", "two"],
       fails=False, steps=250)
def atg_code_convolution_sees_ahead(is_faulty):
    x = chain(800, 21, 40, sure=0.85, start=1)
    model = ConvLanguage(40, is_faulty)
    held = x[700:]

    def score(m):
        right = []
        for k in (6, 10, 14, 18):
            so_far = held[:, :-1].clone()
            so_far[:, k:] = 0
            right.append((m(so_far)[:, k - 1].argmax(-1) == held[:, k]).float().mean())
        return torch.stack(right).mean().item()

    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   loader(x[:700, :-1], x[:700, 1:]), torch.optim.Adam(model.parameters(), 2e-3), score)


class GruLanguage(nn.Module):
    """A recurrent language model."""

    def __init__(self, vocab, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, 32)
        self.gru = nn.GRU(32, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


@fault("the labels are shifted by the data set and again by the loss", rules=["label-shift"], fails=True, steps=250)
def atg_language_model_shifted_twice(is_faulty):
    x = chain(700, 20, 30)
    model = GruLanguage(30)

    def loss(logits, labels):
        if is_faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.reshape(-1, 30), labels.reshape(-1))

    return Program(model, loss, loader(x[:600, :-1], x[:600, 1:]), torch.optim.Adam(model.parameters(), 2e-3),
                   accuracy(x[600:, :-1], x[600:, 1:]))


class Tagger(nn.Module):
    """A bidirectional tagger."""

    def __init__(self, vocab, kinds, width=24, both=True):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24)
        self.rnn = nn.GRU(24, width, batch_first=True, bidirectional=both)
        self.out = nn.Linear(width * (1 + both), kinds)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


@fault("padding is tagged as class 0 and counted in the loss", rules=["padding-in-loss"], fails=False, steps=300)
def atg_tags_of_padding_counted(is_faulty):
    x, y = tags(1000, 6)
    width = 50
    pad = torch.zeros(1000, width - 6, dtype=torch.long)
    x = torch.cat([x, pad], 1)
    y = torch.cat([y, pad if is_faulty else pad - 100], 1)
    real = torch.where(x.gt(0), y, -100)
    model = Tagger(60, 5, 16)
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t),
                   loader(x[:800], y[:800]), torch.optim.SGD(model.parameters(), 0.2, momentum=0.9),
                   accuracy(x[800:], real[800:]))


class Averaging(nn.Module):
    """Mean of word vectors, then a small network."""

    def __init__(self, vocab, classes, width=32, hidden=32, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.hidden = nn.Linear(width, hidden)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.drop(F.relu(self.hidden(self.embed(x).mean(1)))))


@fault("every weight starts at one constant", rules=["symmetric-initialisation", "bad-initialisation"], fails=False,
       steps=300)
def atg_averaging_constant_start(is_faulty):
    x, y = topics(1500, 16, classes=6)
    model = Averaging(120, 6)
    if is_faulty:
        for p in model.parameters():
            nn.init.constant_(p, 0.1)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]),
                   torch.optim.Adam(model.parameters(), 5e-3), accuracy(x[1200:], y[1200:]))


class Spam(nn.Module):
    """A filter with one output."""

    def __init__(self, last):
        super().__init__()
        self.bag = nn.EmbeddingBag(120, 32)
        self.body = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.last = last

    def forward(self, x):
        return self.last(self.body(self.bag(x)))


@fault("softmax over the single output of a binary classifier, which is always 1",
       rules=["output-loss-mismatch", "wrong-softmax-dimension", "no-gradient", "saturated-output",
              "loss-not-decreasing"], layers=["last"], fails=True, steps=300)
def atg_spam_softmax_of_one(is_faulty):
    x, y = topics(1800, 16, classes=2, share=0.2)
    y = y.float()[:, None]
    model = Spam(nn.Softmax(dim=1) if is_faulty else nn.Sigmoid())

    def score(m):
        return max(0.0, 2 * ((m(x[1500:]) > 0.5) == (y[1500:] > 0.5)).float().mean().item() - 1)

    return Program(model, nn.BCELoss(), loader(x[:1500], y[:1500]), torch.optim.Adam(model.parameters(), 3e-3), score)


class Memory(nn.Module):
    """Answers a question by attention to the keys of a memory."""

    def __init__(self, dim=-1, width=32, pairs=6, keys=12, values=10):
        super().__init__()
        self.dim, self.pairs, self.width = dim, pairs, width
        self.key_words = nn.Embedding(keys, width)
        self.value_words = nn.Embedding(values, width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, values))

    def forward(self, x):
        p = self.pairs
        k = self.key(self.key_words(x[:, :p]))
        q = self.query(self.key_words(x[:, 2 * p :]))
        scores = q @ k.transpose(1, 2) / self.width**0.5
        weights = F.softmax(scores, dim=self.dim)
        return self.head((weights @ self.value_words(x[:, p : 2 * p]))[:, 0])


@fault("attention's softmax over the one question, not over the keys", rules=["wrong-softmax-dimension"],
       fails=False, steps=400)
def atg_question_softmax_over_queries(is_faulty):
    x, y = lookup(3000)
    model = Memory(1 if is_faulty else -1)
    return Program(model, F.cross_entropy, loader(x[:2600], y[:2600]), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(x[2600:], y[2600:]))


@fault("queries and keys begin with weights of unit variance",
       rules=["attention-saturation", "bad-initialisation"], layers=["query", "key"], fails=False, steps=500)
def atg_memory_unit_queries_and_keys(is_faulty):
    x, y = lookup(3000, keys=80)
    model = Memory(width=64, keys=80)
    for layer in (model.query, model.key):
        if is_faulty:
            nn.init.normal_(layer.weight)
        else:
            nn.init.xavier_normal_(layer.weight)
    return Program(model, F.cross_entropy, loader(x[:2600], y[:2600]), torch.optim.Adam(model.parameters(), 1e-3),
                   accuracy(x[2600:], y[2600:]))


class WordTagger(nn.Module):
    """Tags words by themselves."""

    def __init__(self, vocab, kinds):
        super().__init__()
        self.embed = nn.Embedding(vocab, 8)
        self.hidden = nn.Linear(8, 24)
        self.out = nn.Linear(24, kinds)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.embed(x))))


@fault("the vocabulary is enlarged after the optimizer was made", rules=["no-gradient"], layers=["embed"],
       fails=False, steps=400)
def atg_tagger_table_replaced(is_faulty):
    kind = torch.randint(10, (300,))
    x = torch.randint(300, (900, 10))
    y = kind[x]
    model = WordTagger(250, 10)
    if is_faulty:
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        model.embed = nn.Embedding(300, 8)
    else:
        model.embed = nn.Embedding(300, 8)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), loader(x[:800], y[:800]),
                   optimizer, accuracy(x[800:], y[800:]))


class Recall(nn.Module):
    """A plain recurrent network that has to remember the first token."""

    def __init__(self, vocab, classes):
        super().__init__()
        self.embed = nn.Embedding(vocab, 16)
        self.rnn = nn.RNN(16, 48, batch_first=True)
        self.out = nn.Linear(48, classes)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0][:, -1])


@fault("recurrent weights start so small that the first token is forgotten",
       rules=["vanishing-gradient", "bad-initialisation"], layers=["rnn"], fails=True, steps=500)
def atg_recall_forgets_first(is_faulty):
    x = torch.randint(4, 12, (2500, 22))
    y = torch.randint(4, (2500,))
    x[:, 0] = y
    model = Recall(12, 4)
    if is_faulty:
        nn.init.normal_(model.rnn.weight_hh_l0, std=0.02)
    else:
        nn.init.orthogonal_(model.rnn.weight_hh_l0)
    nn.init.normal_(model.rnn.weight_ih_l0, std=0.05)
    return Program(model, F.cross_entropy, loader(x[:2100], y[:2100]), torch.optim.Adam(model.parameters(), 1e-3),
                   accuracy(x[2100:], y[2100:]))


class Dialogue(nn.Module):
    """A GRU over the words of an utterance."""

    def __init__(self, classes, batch_first):
        super().__init__()
        self.embed = nn.Embedding(90, 24)
        self.gru = nn.GRU(24, 40, batch_first=batch_first)
        self.head = nn.Linear(40, classes)

    def forward(self, x):
        out, _ = self.gru(self.embed(x))
        return self.head(out[:, -1])


@fault("batch_first was forgotten: the GRU runs over the examples", rules=["mixed-examples"], layers=["gru"],
       fails=False, steps=300)
def atg_dialogue_batch_first_forgotten(is_faulty):
    x, y = topics(1500, 10, 90, 5, share=0.5)
    model = Dialogue(5, not is_faulty)
    return Program(model, F.cross_entropy, loader(x[:1200], y[:1200], size=24),
                   torch.optim.Adam(model.parameters(), 3e-3), accuracy(x[1200:], y[1200:]))


@fault("0.95 was meant as the share that is kept", rules=["dropout-too-strong"], layers=["drop"], fails=False,
       steps=300)
def atg_news_keep_probability(is_faulty):
    x, y = topics(1500, 16, classes=8)
    model = Averaging(120, 8, hidden=24, dropout=0.95 if is_faulty else 0.05)
    return Program(model, F.cross_entropy, loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 2e-3),
                   accuracy(x[1200:], y[1200:]))


@fault("the corpus is sorted by language and read in order", rules=["sorted-batches"], fails=False, steps=160)
def atg_corpus_sorted_by_language(is_faulty):
    x, y = topics(1400, 12, classes=5, share=0.25)
    order = y[:1280].argsort()
    model = Averaging(120, 5)
    return Program(model, F.cross_entropy, loader(x[order], y[order], shuffle=not is_faulty),
                   torch.optim.Adam(model.parameters(), 1e-2), accuracy(x[1280:], y[1280:]))


@fault("a decay meant for AdamW, given to Adam, outweighs the gradients of words", rules=["weight-decay-dominates"],
       fails=True, steps=300)
def atg_vocabulary_decayed_away(is_faulty):
    x = chain(700, 16, 50)
    model = GruLanguage(50, 32)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=0.1 if is_faulty else 1e-5)
    return Program(model, lambda o, t: F.cross_entropy(o.reshape(-1, 50), t.reshape(-1)),
                   loader(x[:600, :-1], x[:600, 1:]), optimizer, accuracy(x[600:, :-1], x[600:, 1:]))


@fault("SGD's usual rate given to Adam on a transformer", rules=["learning-rate-too-high", "diverging"], fails=True,
       steps=200)
def atg_transformer_at_rate_of_sgd(is_faulty):
    x, y = first_of_two(2500, 10)
    model = ClsEncoder(30, 2, layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3 if is_faulty else 2e-3)
    return Program(model, F.cross_entropy, loader(x[:2200], y[:2200]), optimizer, accuracy(x[2200:], y[2200:]))


@fault("an encoder without positions for a question of order", rules=["order-lost"], fails=True, steps=300)
def atg_order_without_positions(is_faulty):
    x, y = first_of_two(2500, 10)
    model = ClsEncoder(30, 2, positions=not is_faulty)

    def score(m):
        return max(0.0, 2 * (m(x[2200:]).argmax(-1) == y[2200:]).float().mean().item() - 1)

    return Program(model, F.cross_entropy, loader(x[:2200], y[:2200]), torch.optim.Adam(model.parameters(), 2e-3),
                   score)


@fault("logits reshaped, not transposed, to have the classes second", rules=["output-loss-mismatch"], fails=True,
       steps=300)
def atg_entities_view_for_transpose(is_faulty):
    x, y = tags(1000, 12)
    model = Tagger(60, 5)

    def loss(out, t):
        b, n, c = out.shape
        return F.cross_entropy(out.view(b, c, n) if is_faulty else out.transpose(1, 2), t)

    return Program(model, loss, loader(x[:800], y[:800]), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(x[800:], y[800:]))


@fault("texts are cut after the prompt that all of them begin with",
       rules=["constant-feature", "labels-unrelated", "loss-not-decreasing"], fails=True, steps=250)
def atg_prompt_uses_up_the_length(is_faulty):
    x, y = topics(1500, 12, classes=4)
    prompt = torch.tensor([5, 60, 33, 71, 100, 9, 14, 80]).expand(1500, 8)
    full = torch.cat([prompt, x], 1)
    most = 8 if is_faulty else 20
    model = ClsEncoder(120, 4)

    return Program(model, F.cross_entropy, loader(full[:1200, :most], y[:1200]),
                   torch.optim.Adam(model.parameters(), 2e-3), accuracy(full[1200:, :most], y[1200:]))


class Masked(nn.Module):
    """Attention pooling with padding set to minus infinity."""

    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Embedding(120, 24, padding_idx=0)
        self.score = nn.Linear(24, 1)
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        h = self.embed(x)
        scores = self.score(h).squeeze(-1).masked_fill(x.eq(0), float("-inf"))
        return self.head((scores.softmax(-1)[..., None] * h).sum(1))


@fault("some texts are empty, and attention to nothing is NaN", rules=["non-finite", "wrong-mask"], fails=True,
       steps=250)
def atg_empty_texts(is_faulty):
    x, y = topics(1500, 14, classes=4, share=0.5)
    x = padded(x, 5, 14)
    train_x, train_y = x[:1200].clone(), y[:1200]
    train_x[::40] = 0
    if not is_faulty:
        keep = train_x.ne(0).any(1)
        train_x, train_y = train_x[keep], train_y[keep]
    model = Masked(4)
    return Program(model, F.cross_entropy, loader(train_x, train_y), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(x[1200:], y[1200:]))
