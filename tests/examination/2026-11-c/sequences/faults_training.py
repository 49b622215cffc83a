"""Data pipelines, optimizers, schedules, precision."""
import torch
import torch.nn.functional as F
from data import accuracy, chain, gen, loader, order_text, r2, seed, series
from program import Program, fault
from torch import nn


WORDS = "Book Cancel Play Stop Show Find Weather Music Table Flight Alarm Timer Please Now Today Tomorrow The A My Some".split()


def requests(n, k):
    """Sentences of six words; the intent is given by which of four verbs occurs."""
    g = gen(k)
    texts, labels = [], []
    for _ in range(n):
        kind = int(torch.randint(4, (1,), generator=g))
        words = [WORDS[int(i)] for i in torch.randint(6, 20, (5,), generator=g)]
        words.insert(int(torch.randint(6, (1,), generator=g)), WORDS[kind])
        texts.append(" ".join(words))
        labels.append(kind)
    return texts, torch.tensor(labels)


class Bag(nn.Module):
    def __init__(self, vocab, classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 24, mode="mean")
        self.fc = nn.Linear(24, 32)
        self.out = nn.Linear(32, classes)

    def forward(self, ids):
        return self.out(F.leaky_relu(self.fc(self.bag(ids))))


@fault("the vocabulary is in lower case and the texts are not: every word becomes the unknown word",
       rules=("constant-feature", "labels-unrelated"), fails=True, steps=200)
def all_words_unknown(is_faulty):
    texts, y = requests(600, 50)
    test, want = requests(200, 51)
    vocab = {w.lower(): i + 2 for i, w in enumerate(WORDS)}

    def encode(lines, lower):
        return torch.tensor([[vocab.get(w.lower() if lower else w, 1) for w in line.split()] for line in lines])

    seed(50)
    model = Bag(len(vocab) + 2, 4)
    held_out = encode(test, True)
    return Program(model, nn.CrossEntropyLoss(), loader(encode(texts, not is_faulty), y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: accuracy(m(held_out), want))


class MLM(nn.Module):
    def __init__(self, vocab, length, d=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 2, 64, 0.0, "gelu", batch_first=True), 2, enable_nested_tensor=False)
        self.lm = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.lm(self.enc(self.tok(ids) + self.pos(torch.arange(ids.size(1)))))


@fault("the labels of masked language modelling are taken after the tokens were replaced: every label is the mask token",
       rules=("constant-target", "labels-unrelated"), fails=True, steps=250)
def labels_after_masking(is_faulty):
    g = gen(52)
    pattern = torch.randint(6, (1400, 3), generator=g).repeat(1, 4)  # a motif of three, four times
    MASK = 6

    def masked(rows):
        ids, labels = pattern[rows].clone(), pattern[rows].clone()
        hide = torch.rand(ids.shape, generator=g) < 0.2
        ids[hide] = MASK
        labels = (ids if is_faulty else labels).masked_fill(~hide, -100)
        return ids, labels

    test = pattern[1200:].clone()
    want = test[:, 5].clone()
    test[:, 5] = MASK
    seed(51)
    model = MLM(7, 12)
    batches = [masked(torch.arange(i, i + 40)) for i in range(0, 1200, 40)]
    return Program(model, lambda out, y: F.cross_entropy(out.view(-1, 7), y.view(-1), ignore_index=-100), batches,
                   torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: accuracy(m(test)[:, 5], want))


@fault("weight decay 0.1 meant for AdamW is given to Adam, where it is part of the gradient and rules it",
       rules=("weight-decay-dominates",), fails=True, steps=350)
def decay_of_adamw(is_faulty):
    ids, y = order_text(1500, 10, k=56)
    test, want = order_text(300, 10, k=57)
    seed(54)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 32)
            self.gru = nn.GRU(32, 32, batch_first=True)
            self.cls = nn.Linear(32, 2)

        def forward(self, v):
            return self.cls(self.gru(self.emb(v))[0].mean(1))

    model = Net()
    kind = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(model, nn.CrossEntropyLoss(), loader(ids, y), kind(model.parameters(), lr=3e-3, weight_decay=0.1), lambda m: accuracy(m(test), want))


class Seq2One(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv1d(1, 24, 4, stride=2)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.dec = nn.Linear(32, 1)

    def forward(self, x):
        h = F.elu(self.enc(x[:, None])).transpose(1, 2)
        return self.dec(self.gru(h)[1][-1])[:, 0]


@fault("StepLR's step is meant in epochs and the scheduler is stepped after every batch: the rate is gone after thirty batches",
       rules=("learning-rate-too-low",), fails=False, steps=300)
def scheduler_per_batch(is_faulty):
    x = series(1100, 33, k=58)
    seed(55)
    model = Seq2One()
    batches = loader(x[:800, :-1], x[:800, -1])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10 if is_faulty else 10 * len(batches), gamma=0.1)
    return Program(model, nn.MSELoss(), batches, optimizer, lambda m: r2(m(x[800:, :-1]), x[800:, -1]), scheduler=scheduler)


class MLPLM(nn.Module):
    """Bengio's language model."""

    def __init__(self):
        super().__init__()
        self.C = nn.Embedding(8, 32)
        self.H = nn.Linear(96, 256)
        self.U = nn.Linear(256, 8)

    def forward(self, ids):
        return self.U(torch.tanh(self.H(self.C(ids).flatten(1)))).float()


@fault("the weights are bfloat16 and fine-tuned with small steps: most updates round to nothing",
       rules=("lost-updates",), fails=False, steps=400)
def bfloat16_weights(is_faulty):
    ids, table = chain(2000, 4, k=59)
    test, _ = chain(400, 4, k=60, noise=0.0)
    seed(56)
    model = MLPLM()
    before = torch.optim.Adam(model.parameters(), lr=1e-2)
    for i in range(60):  # pre-trained on the same language in which the tokens have other names
        x = ids[torch.randint(2000, (64,))]
        before.zero_grad()
        F.cross_entropy(model((x[:, :3] + 1) % 8), (x[:, 3] + 3) % 8).backward()
        before.step()
    if is_faulty:
        model = model.bfloat16()
    return Program(model, nn.CrossEntropyLoss(), loader(ids[:, :3], ids[:, 3], batch=64), torch.optim.AdamW(model.parameters(), lr=1.5e-4),
                   lambda m: accuracy(m(test[:, :3]), table[test[:, 1], test[:, 2]]))
