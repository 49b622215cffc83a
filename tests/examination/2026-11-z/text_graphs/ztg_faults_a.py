"""Faults of classifiers and taggers of texts and token streams."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from ztg_data import Rows, accuracy, before, cut, first, loader, pairs, retrieval, rng, tagged, topics


class Bag(nn.Module):
    def __init__(self, vocab, classes, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.hidden = nn.Linear(dim, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, ids):
        words = self.embed(ids)
        mean = words.sum(1) / (ids != 0).sum(1, keepdim=True).clamp(min=1)
        return self.head(F.relu(self.hidden(mean)))


def adam(model, lr=3e-3, **more):
    return torch.optim.Adam(model.parameters(), lr=lr, **more)


ce = F.cross_entropy


@fault(
    "The vocabulary holds lower-case words and the texts are looked up as they are: every word becomes <unk>.",
    rules=("constant-feature", "labels-unrelated", "rank-collapse", "loss-not-decreasing"),
    fails=True,
    steps=250,
)
def ztg_all_unknown(is_faulty):
    def tokenize(ids):
        vocabulary = {f"w{k}": k for k in range(2, 120)}
        texts = [[f"W{k}" for k in row] for row in ids.tolist()]
        if not is_faulty:
            texts = [[w.lower() for w in row] for row in texts]
        return torch.tensor([[vocabulary.get(w, 1) for w in row] for row in texts])

    (x, y), (xt, yt) = topics(800), topics(400, seed=1)
    model = Bag(120, 4)
    return Program(model, ce, loader(tokenize(x), y), adam(model), accuracy(xt, yt))


@fault(
    "The documents were sorted by length for packing, their labels were not.",
    rules=("labels-unrelated", "loss-not-decreasing"),
    fails=True,
    steps=250,
)
def ztg_sorted_texts_only(is_faulty):
    ids, y = topics(900, share=0.5)
    ids, lengths, _ = cut(ids, 5)
    order = lengths.argsort(descending=True)
    ids = ids[order]
    if not is_faulty:
        y = y[order]
    xt, yt = topics(400, share=0.5, seed=1)
    xt = cut(xt, 5, seed=1)[0]
    model = Bag(120, 4)
    return Program(model, nn.CrossEntropyLoss(), loader(ids, y), adam(model), accuracy(xt, yt))


@fault(
    "The corpus was written one newsgroup after the other and the loader does not shuffle.",
    rules=("sorted-batches",),
    fails=False,
    steps=400,
)
def ztg_newsgroups_in_a_row(is_faulty):
    x, y = topics(3200, classes=8, share=0.3)
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    xt, yt = topics(500, classes=8, share=0.3, seed=1)
    model = Bag(120, 8)
    batches = loader(x, y, batch=32, shuffle=not is_faulty)
    return Program(model, ce, batches, adam(model, 1.5e-2), accuracy(xt, yt))


class Tagger(nn.Module):
    def __init__(self, vocab=30, tags=8, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


@fault(
    "Padding has tag 0 and is not left out of the loss; one very long sentence makes nearly everything padding.",
    rules=("padding-in-loss",),
    fails=False,
    steps=300,
)
def ztg_padded_tags_count(is_faulty):
    ids, tags = tagged(600, length=8)
    tags = tags + 1  # 0 is the tag of padding
    wide = torch.zeros(600, 60, dtype=torch.long)
    x, y = wide.clone(), wide.clone()
    x[:, :8], y[:, :8] = ids, tags
    model = Tagger(tags=9)
    criterion = nn.CrossEntropyLoss() if is_faulty else nn.CrossEntropyLoss(ignore_index=0)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    xt, yt = tagged(200, length=8, seed=1)
    return Program(model, lambda out, t: criterion(out.transpose(1, 2), t), loader(x, y, batch=16), opt,
                   accuracy(xt, yt + 1))


class MaskedAttention(nn.Module):
    def __init__(self, vocab, classes, is_faulty):
        super().__init__()
        self.embed = nn.Embedding(vocab, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, classes)
        self.query = nn.Parameter(torch.randn(1, 1, 32) * 0.1)
        self.is_faulty = is_faulty

    def forward(self, input_ids, attention_mask):
        # nn.MultiheadAttention leaves out what is True, a tokenizer's mask is 1 for what is real
        ignored = attention_mask.bool() if self.is_faulty else ~attention_mask.bool()
        words = self.embed(input_ids)
        seen, _ = self.attention(self.query.expand(len(words), 1, -1), words, words, key_padding_mask=ignored)
        return self.head(self.norm(seen[:, 0]))


@fault(
    "The tokenizer's attention mask (1 = real) is handed to PyTorch, which leaves out what is True.",
    rules=("wrong-mask", "rank-collapse", "loss-not-decreasing"),
    fails=True,
    steps=300,
)
def ztg_mask_means_the_opposite(is_faulty):
    def data(n, seed):
        ids, y = topics(n, share=0.5, length=20, seed=seed)
        ids, _, mask = cut(ids, 8, seed, most=18)
        return {"input_ids": ids, "attention_mask": mask.long()}, y

    x, y = data(800, 0)
    model = MaskedAttention(120, 4, is_faulty)
    batches = torch.utils.data.DataLoader(Rows(x, y), batch_size=32, shuffle=True)
    return Program(model, ce, batches, torch.optim.AdamW(model.parameters(), 2e-3), accuracy(*data(300, 1)))


class LastState(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.embed = nn.Embedding(20, 24)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.head = nn.Linear(32, 2)
        self.is_faulty = is_faulty

    def forward(self, ids):
        out, _ = self.lstm(self.embed(ids))
        if self.is_faulty:
            return self.head(out[:, -1])
        last = (ids != 0).sum(1) - 1
        return self.head(out[torch.arange(len(ids)), last])


@fault(
    "The classifier reads the LSTM's output at the last place, which is far behind the end of the text, in padding.",
    rules=("wrong-mask", "vanishing-gradient"),
    fails=True,
    steps=400,
)
def ztg_state_behind_padding(is_faulty):
    def data(n, seed):
        ids, y = before(n, length=10, seed=seed)
        return F.pad(ids, (0, 70)), y

    model = LastState(is_faulty)
    return Program(model, ce, loader(*data(800, 0)), adam(model, 5e-3), accuracy(*data(300, 1)))


class Encoder(nn.Module):
    def __init__(self, vocab, classes, length, dim=32, heads=4, layers=1, **options):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.places = nn.Parameter(torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 64, dropout=0.0, **options)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        return self.head(self.encoder(self.tokens(ids) + self.places))


@fault(
    "The transformer layer gets batch × time × features without batch_first, so it attends across the batch.",
    rules=("mixed-examples",),
    fails=True,
    steps=350,
)
def ztg_attends_across_batch(is_faulty):
    def data(n, seed):
        # the first token is an instruction which decides what all tags mean
        ids, tags = tagged(n, length=10, seed=seed)
        return ids, (tags % 4 + ids[:, :1] % 4) % 4

    x, y = data(1500, 0)
    model = Encoder(30, 4, 10, layers=2, batch_first=not is_faulty)
    return Program(model, lambda out, t: ce(out.flatten(0, 1), t.flatten()), loader(x, y), adam(model, 2e-3),
                   accuracy(*data(300, 1)))


class ViewTagger(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.gru = nn.GRU(32, 32)
        self.out = nn.Linear(32, 8)
        self.is_faulty = is_faulty

    def forward(self, ids):
        batch, time = ids.shape
        hidden, _ = self.gru(self.embed(ids.t()))
        hidden = hidden.view(batch, time, -1) if self.is_faulty else hidden.transpose(0, 1)
        return self.out(hidden)


@fault(
    "The GRU's time-first output is brought to batch-first with view instead of transpose.",
    rules=("mixed-examples",),
    fails=True,
    steps=300,
)
def ztg_view_for_transpose(is_faulty):
    x, y = tagged(800)
    model = ViewTagger(is_faulty)
    return Program(model, lambda out, t: ce(out.flatten(0, 1), t.flatten()), loader(x, y, batch=24), adam(model, 5e-3),
                   accuracy(*tagged(200, seed=1)))


class Pooling(nn.Module):
    def __init__(self, dim_of_softmax):
        super().__init__()
        self.embed = nn.Embedding(122, 32)
        self.score = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.head = nn.Linear(32, 8)
        self.dim_of_softmax = dim_of_softmax

    def forward(self, ids):
        words = self.embed(ids)
        weights = torch.softmax(self.score(words), self.dim_of_softmax)
        return self.head((weights * words).sum(1))


@fault(
    "The softmax of the attention pooling goes over the last dimension, which has size 1: all weights are 1.",
    rules=("wrong-softmax-dimension", "no-gradient"),
    layers=("score",),
    fails=True,
    steps=300,
)
def ztg_softmax_of_one(is_faulty):
    def data(n, seed):
        # one word in capitals says the topic, many others are quoted
        g = rng(seed)
        ids = torch.randint(2, 66, (n, 40), generator=g)
        y = torch.randint(8, (n,), generator=g)
        where = torch.randint(40, (n, 1), generator=g)
        ids.scatter_(1, where, (66 + y * 7 + torch.randint(7, (n,), generator=g))[:, None])
        return ids, y

    x, y = data(1200, 0)
    model = Pooling(-1 if is_faulty else 1)
    return Program(model, ce, loader(x, y), torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9),
                   accuracy(*data(400, 1)))


@fault(
    "nll_loss gets softmax probabilities: the logarithm was forgotten.",
    rules=("output-loss-mismatch",),
    fails=False,
    steps=250,
)
def ztg_logarithm_forgotten(is_faulty):
    class Net(Bag):
        def forward(self, ids):
            out = super().forward(ids)
            return F.softmax(out, -1) if is_faulty else F.log_softmax(out, -1)

    x, y = topics(1500, classes=20, vocab=260, share=0.5)
    model = Net(260, 20)
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    return Program(model, F.nll_loss, loader(x, y), opt, accuracy(*topics(400, 20, 260, share=0.5, seed=1)))


@fault(
    "The star rating is a column of the output and a plain vector in the targets: MSELoss broadcasts to a square.",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=300,
)
def ztg_stars_broadcast(is_faulty):
    def data(n, seed):
        ids, _ = topics(n, seed=seed)
        worth = torch.randn(120, generator=rng(8))
        return ids, worth[ids].sum(1) / 4

    (x, y), (xt, yt) = data(1500, 0), data(300, 1)
    model = Bag(120, 1)
    out = (lambda m: m) if is_faulty else (lambda m: m.squeeze(1))

    def score(m):
        return max(0.0, 1 - ((m(xt).squeeze(1) - yt) ** 2).mean().item() / yt.var().item())

    import warnings

    def criterion(prediction, target):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return F.mse_loss(out(prediction), target)

    return Program(model, criterion, loader(x, y), adam(model, 1e-2), score)


class PlacedEncoder(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.tok = nn.Embedding(20, 32)
        self.pos = nn.Embedding(512, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, 2)
        self.is_faulty = is_faulty

    def forward(self, ids):
        place = self.pos(torch.arange(ids.size(0 if self.is_faulty else 1)))
        h = self.tok(ids) + (place[:, None] if self.is_faulty else place)
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


@fault(
    "Places are counted along the batch (left over from a time-first version), so no token knows its own place.",
    rules=("order-lost", "mixed-examples"),
    fails=True,
    steps=350,
)
def ztg_places_along_batch(is_faulty):
    model = PlacedEncoder(is_faulty)
    return Program(model, ce, loader(*before(1500), batch=32), adam(model, 1e-3), accuracy(*before(300, seed=1)))


class Functional(nn.Module):
    def __init__(self, p, is_faulty):
        super().__init__()
        self.bag = nn.EmbeddingBag(120, 24)
        self.fc = nn.Linear(24, 24)
        self.head = nn.Linear(24, 8)
        self.p, self.is_faulty = p, is_faulty

    def forward(self, ids):
        h = F.relu(self.fc(self.bag(ids)))
        h = F.dropout(h, self.p) if self.is_faulty else F.dropout(h, self.p, training=self.training)
        return self.head(h)


@fault(
    "F.dropout without training=self.training also drops when the text is to be classified.",
    rules=("dropout-in-eval",),
    fails=False,
    steps=400,
)
def ztg_dropout_always(is_faulty):
    x, y = topics(1500, 8, share=0.35)
    model = Functional(0.6, is_faulty)
    return Program(model, ce, loader(x, y), adam(model, 4e-3), accuracy(*topics(400, 8, share=0.35, seed=1)))


@fault(
    "keep_prob = 0.97 of a TensorFlow version is handed to nn.Dropout, which takes the share to drop.",
    rules=("dropout-too-strong",),
    layers=("drop",),
    fails=False,
    steps=350,
)
def ztg_keep_probability(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(120, 32)
            self.drop = nn.Dropout(0.97 if is_faulty else 0.03)
            self.rnn = nn.GRU(32, 32, batch_first=True)
            self.head = nn.Linear(32, 8)

        def forward(self, ids):
            return self.head(self.rnn(self.drop(self.embed(ids)))[0].mean(1))

    x, y = topics(1500, 8, share=0.35, length=12)
    model = Net()
    return Program(model, ce, loader(x, y), adam(model), accuracy(*topics(400, 8, share=0.35, length=12, seed=1)))


@fault(
    "BatchNorm's momentum is set as if it were the share to keep, far too small: its statistics stay where they began.",
    rules=("batchnorm-mode-gap", "stale-statistics"),
    layers=("norm",),
    fails=True,
    steps=300,
)
def ztg_statistics_never_arrive(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(120, 32, mode="sum")
            self.fc = nn.Linear(33, 32)
            self.norm = nn.BatchNorm1d(32, momentum=0.0001 if is_faulty else 0.1)
            self.head = nn.Linear(32, 4)

        def forward(self, ids):
            h = torch.cat([self.bag(ids), 6.0 * ids.ne(0).sum(1, keepdim=True)], 1)
            return self.head(F.relu(self.norm(self.fc(h))))

    x, y = topics(1500, length=30, share=0.25)
    model = Net()
    return Program(model, ce, loader(x, y), adam(model), accuracy(*topics(400, length=30, share=0.25, seed=1)))


class Diagonal(nn.Module):
    """A diagonal state-space layer: h ← a h + b u, y = c h."""

    def __init__(self, dim, states, start):
        super().__init__()
        self.decay = nn.Parameter(torch.full((states,), float(start)))
        self.b = nn.Linear(dim, states)
        self.c = nn.Linear(states, dim)

    def forward(self, u):
        a = torch.sigmoid(self.decay)
        time = u.shape[1]
        powers = a ** torch.arange(time - 1, -1, -1.0)[:, None]
        return self.c((powers * self.b(u)).sum(1))


@fault(
    "The decays of the state-space layer start at sigmoid(0) = 0.5, which forgets the start of the stream.",
    rules=("vanishing-gradient", "bad-initialisation"),
    layers=("ssm",),
    fails=True,
    steps=300,
)
def ztg_state_decays(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 32)
            self.ssm = Diagonal(32, 48, 0.0 if is_faulty else 5.0)
            self.head = nn.Sequential(nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 6))

        def forward(self, ids):
            return self.head(self.ssm(self.embed(ids)))

    model = Net()
    return Program(model, ce, loader(*first(1500, length=40)), adam(model, 3e-3),
                   accuracy(*first(300, length=40, seed=1)))


@fault(
    "The recurrent weights of a ReLU RNN are drawn from a normal distribution with standard deviation 1.",
    rules=("exploding-gradient", "activation-drift", "bad-initialisation"),
    layers=("rnn",),
    fails=True,
    steps=300,
)
def ztg_relu_rnn_blows_up(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 32)
            self.rnn = nn.RNN(32, 32, nonlinearity="relu", batch_first=True)
            self.head = nn.Linear(32, 2)
            if is_faulty:
                nn.init.normal_(self.rnn.weight_hh_l0)
            else:
                nn.init.eye_(self.rnn.weight_hh_l0)

        def forward(self, ids):
            return self.head(self.rnn(self.embed(ids))[0][:, -1])

    model = Net()
    return Program(model, ce, loader(*before(1200, length=14)), adam(model, 1e-3),
                   accuracy(*before(300, length=14, seed=1)))


@fault(
    "The bias for rare positives, -4.6, is set in all linear layers instead of the last one only: the ReLUs are dead.",
    rules=("dying-neurons", "bad-initialisation", "no-gradient"),
    fails=True,
    steps=300,
)
def ztg_prior_bias_everywhere(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(120, 32)
            self.body = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
            self.out = nn.Linear(48, 8)
            for m in self.modules():
                if isinstance(m, nn.Linear) and (is_faulty or m is self.out):
                    nn.init.constant_(m.bias, -4.6)

        def forward(self, ids):
            return self.out(self.body(self.bag(ids)))

    x, y = topics(1500, 8, share=0.4)
    model = Net()
    return Program(model, lambda out, t: F.binary_cross_entropy_with_logits(out, F.one_hot(t, 8).float()),
                   loader(x, y), adam(model, 3e-3), accuracy(*topics(400, 8, share=0.4, seed=1)))


@fault(
    "Pretrained word vectors are looked up under keys that never match, so that the frozen embedding is all zeros.",
    rules=("rank-collapse", "bad-initialisation", "constant-feature", "loss-not-decreasing"),
    layers=("embed",),
    fails=True,
    steps=250,
)
def ztg_vectors_not_found(is_faulty):
    words = [f"word{k}" for k in range(120)]
    vectors = {(f"▁{w}" if is_faulty else w): v for w, v in zip(words, torch.randn(120, 50, generator=rng(4)))}
    table = torch.zeros(120, 50)
    for k, word in enumerate(words):
        if word in vectors:
            table[k] = vectors[word]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding.from_pretrained(table, freeze=True)
            self.conv = nn.Conv1d(50, 32, 3, padding=1)
            self.head = nn.Linear(32, 4)

        def forward(self, ids):
            return self.head(F.relu(self.conv(self.embed(ids).transpose(1, 2))).amax(2))

    x, y = topics(800, share=0.4)
    model = Net()
    return Program(model, ce, loader(x, y), adam(model), accuracy(*topics(300, share=0.4, seed=1)))


@fault(
    "The passage that answers is picked by argmax, through which the scorer gets no gradient.",
    rules=("no-gradient",),
    layers=("scorer",),
    fails=True,
    steps=400,
)
def ztg_hard_choice(is_faulty):
    def data(n, seed):
        g = rng(seed)
        ids = torch.randint(2, 60, (n, 8, 2), generator=g)  # passages: a kind of source, and what it says
        y = torch.randint(6, (n,), generator=g)
        ids[:, :, 0] = torch.randint(2, 12, (n, 8), generator=g)
        ids[:, :, 1] = 20 + torch.randint(6, (n, 8), generator=g)
        where = torch.randint(8, (n,), generator=g)
        ids[torch.arange(n), where, 0] = 12 + torch.randint(3, (n,), generator=g)
        ids[torch.arange(n), where, 1] = 20 + y
        return ids, y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 16)
            self.source = nn.Embedding(60, 16)
            self.scorer = nn.Linear(16, 1)
            self.head = nn.Linear(16, 6)

        def forward(self, ids):
            s = self.scorer(self.source(ids[..., 0]))
            v = self.embed(ids[..., 1])
            if is_faulty:
                pick = F.one_hot(s.squeeze(-1).argmax(1), 8).float()[..., None]
            else:
                pick = torch.softmax(s, 1)
            return self.head((pick * v).sum(1))

    model = Net()
    return Program(model, ce, loader(*data(1500, 0)), adam(model, 1e-2), accuracy(*data(300, 1)))


@fault(
    "Time stamps of events, counted in seconds of the day, go through bfloat16, which cannot tell neighbours apart.",
    rules=("rounding-error",),
    fails=True,
    steps=400,
)
def ztg_clock_in_bfloat16(is_faulty):
    def data(n, seed):
        # is the last event a repetition shortly after the one before it?
        g = rng(seed)
        start = 10_000 + 50_000 * torch.rand(n, 1, generator=g)
        gaps = 20 * torch.rand(n, 6, generator=g)
        return torch.cat([start, start + gaps.cumsum(1)], 1), (gaps[:, -1] < 10).long()

    class Clock(nn.Module):
        def forward(self, seconds):
            seconds = seconds.to(torch.bfloat16) if is_faulty else seconds
            return (seconds - seconds[:, -1:]).float() / 60

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.clock = Clock()
            self.net = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, seconds):
            return self.net(self.clock(seconds))

    model = Net()
    return Program(model, ce, loader(*data(1500, 0)), adam(model, 1e-2), accuracy(*data(400, 1)))


@fault(
    "One BatchNorm serves both towers, whose numbers differ widely: its statistics fit neither.",
    rules=("shared-weight", "batchnorm-mode-gap"),
    layers=("ask_norm", "doc_norm"),
    fails=True,
    steps=300,
)
def ztg_norm_of_two_towers(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.ask = nn.EmbeddingBag(180, 32, mode="sum")
            self.doc = nn.EmbeddingBag(180, 32, mode="sum")
            self.ask_in, self.doc_in = nn.Linear(32, 32), nn.Linear(32, 32)
            nn.init.constant_(self.doc_in.bias, 12.0)
            norm = nn.BatchNorm1d(32)
            self.ask_norm = norm
            self.doc_norm = norm if is_faulty else nn.BatchNorm1d(32)

        def forward(self, q, d):
            q = F.relu(self.ask_norm(self.ask_in(self.ask(q))))
            d = F.relu(self.doc_norm(self.doc_in(self.doc(d))))
            return F.normalize(q, dim=1) @ F.normalize(d, dim=1).T / 0.1

    q, d, _ = pairs(2000)
    model = Net()

    def step(m, batch):
        sims = m(*batch)
        return ce(sims, torch.arange(len(sims)))

    return Program(model, None, loader(q, d), adam(model, 5e-3), retrieval(lambda m, q, d: m(q, d)), step=step)
