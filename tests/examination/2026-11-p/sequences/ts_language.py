"""Faults in programs that read texts."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from ts_data import chain, loader, reviews, share_right, tagged


class CausalLM(nn.Module):
    def __init__(self, vocab, d=32, layers=2, longest=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(longest, d)
        block = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        h = self.tok(ids) + self.pos.weight[:t]
        mask = torch.triu(torch.full((t, t), float("-inf")), 1)
        return self.head(self.norm(self.blocks(h, mask=mask)))


@fault(
    "labels are the input ids, and neither the model nor the loss shifts them",
    rules=["label-shift", "future-seen"],
    fails=True,
    steps=250,
)
def lm_targets_not_shifted(is_faulty):
    ids = chain(1500, 17, 24)
    held = chain(300, 17, 24)
    model = CausalLM(24)
    targets = ids[:, :-1] if is_faulty else ids[:, 1:]

    def loss(logits, y):
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    return Program(
        model, loss, loader(ids[:, :-1], targets), torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda m: share_right(m(held[:, :-1]), held[:, 1:]),
    )


class Tagger(nn.Module):
    def __init__(self, vocab=40, tags=5, d=24, hidden=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.lstm = nn.LSTM(d, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, words):
        return self.out(self.lstm(self.emb(words))[0])


@fault(
    "scores (batch, time, tags) are brought to (batch, tags, time) by view, which scrambles them",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=250,
)
def tagger_views_its_scores(is_faulty):
    words, tags, _, _ = tagged(1200)
    words_held, tags_held, _, _ = tagged(300)
    model = Tagger()
    ce = nn.CrossEntropyLoss()

    def loss(scores, y):
        b, t, c = scores.shape
        return ce(scores.view(b, c, t) if is_faulty else scores.transpose(1, 2), y)

    return Program(model, loss, loader(words, tags), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: share_right(m(words_held), tags_held))


@fault(
    "short sentences are padded to 60 words, and their padding counts as tag 0",
    rules=["padding-in-loss"],
    fails=False,
    steps=200,
)
def tagger_counts_padding(is_faulty):
    words, tags, gone, _ = tagged(1000, length=60, shortest=3)
    words_h, tags_h, gone_h, _ = tagged(300, length=60, shortest=3)
    keep = torch.arange(60)[None] < 3 + torch.randint(6, (1000, 1))
    gone = gone | ~keep
    words = words.masked_fill(gone, 0)
    tags = tags.masked_fill(gone, 0 if is_faulty else -100)
    net = nn.Sequential(nn.Embedding(40, 24, padding_idx=0), Permute(), nn.Conv1d(24, 48, 3, padding=1), nn.ReLU(),
                        nn.Conv1d(48, 5, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    return Program(net, nn.CrossEntropyLoss(), loader(words, tags), opt,
                   lambda m: share_right(m(words_h).transpose(1, 2), tags_h.masked_fill(gone_h, -100)))


class Permute(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


class ReviewGRU(nn.Module):
    def __init__(self, at_end):
        super().__init__()
        self.at_end = at_end
        self.embed = nn.Embedding(60, 24, padding_idx=0)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.classify = nn.Linear(32, 2)

    def forward(self, ids, lengths):
        states, _ = self.gru(self.embed(ids))
        if self.at_end:
            last = states[:, -1]
        else:
            last = states[torch.arange(len(ids)), lengths - 1]
        return self.classify(last)


class Dicts(torch.utils.data.Dataset):
    def __init__(self, ids, lengths, y):
        self.all = ids, lengths, y

    def __len__(self):
        return len(self.all[0])

    def __getitem__(self, i):
        ids, lengths, y = self.all
        return {"ids": ids[i], "lengths": lengths[i]}, y[i]


@fault(
    "the classifier takes the state of the last column, which is after up to 54 steps of padding",
    rules=["wrong-mask", "vanishing-gradient", "rank-collapse"],
    fails=True,
    steps=200,
)
def review_state_after_padding(is_faulty):
    train, held = reviews(1000, longest=14, width=60), reviews(300, longest=14, width=60)
    model = ReviewGRU(is_faulty)
    batches = torch.utils.data.DataLoader(Dicts(*train), batch_size=16, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: share_right(m(held[0], held[1]), held[2]) * 2 - 1)


class AttentivePool(nn.Module):
    """Pools the states of real words by learned attention."""

    def __init__(self, d, inverted):
        super().__init__()
        self.score = nn.Linear(d, 1)
        self.inverted = inverted

    def forward(self, h, is_pad):
        e = self.score(torch.tanh(h)).squeeze(-1)
        e = e.masked_fill(~is_pad if self.inverted else is_pad, -1e9)
        return (e.softmax(1)[..., None] * h).sum(1)


class PooledReview(nn.Module):
    def __init__(self, inverted):
        super().__init__()
        self.emb = nn.Embedding(60, 32, padding_idx=0)
        self.mix = nn.Conv1d(32, 32, 3, padding=1)
        self.pool = AttentivePool(32, inverted)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids):
        h = F.relu(self.mix(self.emb(ids).mT)).mT
        return self.fc(self.pool(h, ids == 0))


@fault(
    "the mask of the attention is the wrong way round: it hides the words and shows the padding",
    rules=["wrong-mask", "rank-collapse"],
    layers=["pool"],
    fails=False,
    steps=200,
)
def pooling_mask_inverted(is_faulty):
    ids, _, y = reviews(1000, longest=17, width=20)
    ids_held, _, y_held = reviews(400, longest=17, width=20)
    model = PooledReview(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(ids, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: share_right(m(ids_held), y_held) * 2 - 1)


def recall_task(n, length=6, vocab=8):
    """Which word came first."""
    x = torch.randint(vocab, (n, length))
    return x, x[:, 0].clone()


@fault(
    "batches are (batch, time), but the LSTM has no batch_first",
    rules=["mixed-examples", "order-lost"],
    layers=["rnn"],
    fails=True,
    steps=300,
)
def lstm_without_batch_first(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 16)
            self.rnn = nn.LSTM(16, 48) if is_faulty else nn.LSTM(16, 48, batch_first=True)
            self.fc = nn.Linear(48, 8)

        def forward(self, x):
            out, _ = self.rnn(self.embed(x))
            return self.fc(out[:, -1, :])

    x, y = recall_task(1200)
    xt, yt = recall_task(300)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), lr=0.01),
                   lambda m: share_right(m(xt), yt))


def marked(n, length=16, values=6):
    """The value beside the one marked place; the input is value + values * mark."""
    v = torch.randint(values, (n, length))
    at = torch.randint(length, (n,))
    x = v.clone()
    x[torch.arange(n), at] += values
    return x, v[torch.arange(n), (at + 1) % length]


@fault(
    "scores (batch, time, 1) go through a softmax over their last dimension, of which each weight is 1",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["attend"],
    fails=True,
    steps=500,
)
def pooling_softmax_over_one(is_faulty):
    class Attend(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.w = nn.Linear(d, d)
            self.v = nn.Linear(d, 1)
            self.softmax = nn.Softmax(dim=-1 if is_faulty else 1)

        def forward(self, states):
            alpha = self.softmax(self.v(torch.tanh(self.w(states))))
            return (alpha * states).sum(1)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 24)
            self.shift = nn.Linear(48, 32)
            self.attend = Attend(32)
            self.fc = nn.Linear(32, 6)

        def forward(self, x):
            e = self.emb(x)
            h = self.shift(torch.cat([e, e.roll(-1, 1)], -1))
            return self.fc(self.attend(h))

    x, y = marked(1500)
    xt, yt = marked(400)
    net = Reader()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch=64), torch.optim.Adam(net.parameters(), lr=5e-3),
                   lambda m: share_right(m(xt), yt))


class Encoder(nn.Module):
    def __init__(self, vocab, classes, length, with_positions=True, d=32, drop=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.positions = nn.Parameter(torch.randn(length, d)) if with_positions else None
        layer = nn.TransformerEncoderLayer(d, 2, 64, drop, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls = nn.Linear(d, classes)

    def forward(self, x):
        h = self.embed(x)
        if self.positions is not None:
            h = h + self.positions
        return self.cls(self.encoder(h).mean(1))


@fault(
    "which of two words comes first, asked of a transformer without positions",
    rules=["order-lost"],
    fails=True,
    steps=300,
)
def encoder_without_positions(is_faulty):
    def before(n):
        x = torch.randint(2, 20, (n, 10))
        places = torch.rand(n, 10).argsort(1)[:, :2]
        y = (places[:, 0] < places[:, 1]).long()
        x.scatter_(1, places, torch.tensor([[0, 1]]).expand(n, 2))
        return x, y

    (x, y), (xh, yh) = before(1500), before(400)
    model = Encoder(20, 2, 10, not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: 2 * share_right(m(xh), yh) - 1)


@fault(
    "the embedding is enlarged for new tokens after the optimizer has been made",
    rules=["no-gradient"],
    layers=["embedding"],
    fails=False,
    steps=300,
)
def vocabulary_enlarged_too_late(is_faulty):
    class Model(nn.Module):
        def __init__(self, vocab):
            super().__init__()
            self.embedding = nn.EmbeddingBag(vocab, 6, mode="mean")
            self.hidden = nn.Linear(6, 32)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(torch.relu(self.hidden(self.embedding(x))))

    def enlarge(model, vocab):
        old = model.embedding.weight.data
        model.embedding = nn.EmbeddingBag(vocab, 6, mode="mean")
        model.embedding.weight.data[: len(old)] = old

    def topics(n):
        y = torch.randint(4, (n,))
        x = torch.randint(200, (n, 12))
        own = torch.randint(50, (n, 12)) * 4 + y[:, None]
        return torch.where(torch.rand(n, 12) < 0.5, own, x), y

    (x, y), (xh, yh) = topics(2000), topics(400)
    model = Model(150)
    if is_faulty:
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        enlarge(model, 200)
    else:
        enlarge(model, 200)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), optimizer, lambda m: share_right(m(xh), yh))


@fault(
    "the probability of keeping, 0.9, given as that of dropping",
    rules=["dropout-too-strong"],
    layers=["drop"],
    fails=True,
    steps=250,
)
def keep_probability_for_dropout(is_faulty):
    class TextCNN(nn.Module):
        def __init__(self, keep_prob=0.9):
            super().__init__()
            self.embed = nn.Embedding(61, 16)
            self.convs = nn.ModuleList(nn.Conv1d(16, 8, k, padding="same") for k in (1, 3, 5))
            self.drop = nn.Dropout(keep_prob if is_faulty else 1 - keep_prob)
            self.fc = nn.Linear(24, 6)

        def forward(self, x):
            e = self.drop(self.embed(x)).mT
            h = torch.cat([conv(e).relu().amax(2) for conv in self.convs], 1)
            return self.fc(self.drop(h))

    def texts(n):
        y = torch.randint(6, (n,))
        x = torch.randint(1, 61, (n, 15))
        own = 1 + 10 * y[:, None] + torch.randint(10, (n, 15))
        return torch.where(torch.rand(n, 15) < 0.4, own, x), y

    (x, y), (xh, yh) = texts(1500), texts(400)
    model = TextCNN()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: share_right(m(xh), yh))


@fault(
    "F.dropout without training=self.training",
    rules=["dropout-in-eval"],
    fails=False,
    steps=300,
)
def functional_dropout_stays_on(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True, bidirectional=True)
            self.fc1 = nn.Linear(64, 32)
            self.fc2 = nn.Linear(32, 13)

        def drop(self, x):
            return F.dropout(x, 0.5) if is_faulty else F.dropout(x, 0.5, training=self.training)

        def forward(self, x):
            h = self.drop(self.emb(x))
            h = self.drop(self.rnn(h)[0])
            return self.fc2(self.drop(F.relu(self.fc1(h)))).transpose(1, 2)

    words, tags, _, _ = tagged(1200, 60, 12, 13)
    wh, th, _, _ = tagged(300, 60, 12, 13)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(words, tags), torch.optim.Adam(model.parameters(), 6e-3),
                   lambda m: share_right(m(wh).transpose(1, 2), th))


@fault(
    "embeddings of unit normals, multiplied by the root of their dimension as if they were made smaller by it",
    rules=["attention-saturation", "bad-initialisation"],
    layers=["attention", "embed", "position"],
    fails=False,
    steps=150,
)
def unit_normals_multiplied_by_root(is_faulty):
    class SelfAttention(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
            self.scale = d**-0.5

        def forward(self, h):
            scores = self.q(h) @ self.k(h).mT * self.scale
            return scores.softmax(-1) @ self.v(h)

    class Model(nn.Module):
        def __init__(self, d=128):
            super().__init__()
            self.d = d
            self.embed = nn.Embedding(30, d)
            self.position = nn.Embedding(10, d)
            if not is_faulty:
                nn.init.normal_(self.embed.weight, std=d**-0.5)
                nn.init.normal_(self.position.weight, std=d**-0.5)
            self.attention = SelfAttention(d)
            self.norm = nn.LayerNorm(d)
            self.head = nn.Linear(d, 10)

        def forward(self, x):
            h = (self.embed(x) + self.position.weight) * self.d**0.5
            return self.head(self.norm(self.attention(h))).mT

    def task(n):  # every place is to tell what stands one place before it
        x = torch.randint(10, (n, 10))
        return x, x.roll(1, 1)

    (x, y), (xh, yh) = task(1500), task(300)
    model = Model()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: share_right(m(xh).mT, yh))
