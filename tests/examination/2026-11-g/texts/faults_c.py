import torch
import torch.nn.functional as F
from program import Program, fault
from seqdata import acc, gen, loader, padded, topics
from torch import nn


@fault("the warm-up of the Noam schedule is made for a run a thousand times as long", rules=["learning-rate-too-low"],
       fails=True, steps=300)
def noam_never_warm(faulty):
    warmup = 40000 if faulty else 60
    d = 32
    model = nn.Sequential(nn.Embedding(20, d), nn.TransformerEncoderLayer(d, 2, 64, dropout=0.0, batch_first=True),
                          nn.Linear(d, 4))
    opt = torch.optim.Adam(model.parameters(), lr=0.2, betas=(0.9, 0.98), eps=1e-9)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: d**-0.5 * min((s + 1) ** -0.5, (s + 1) * warmup**-1.5))
    x = torch.randint(20, (2000, 10), generator=gen(1))
    tx = torch.randint(20, (200, 10), generator=gen(2))

    def tags(x):  # the class of a word, shifted where the sentence has the word 0
        return (x + (x == 0).any(1, keepdim=True).long()) % 4

    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), loader(x, tags(x), batch_size=40), opt,
                   lambda m: acc(m(tx), tags(tx)), scheduler=sched)


@fault("the vocabulary is extended after the optimizer was made, which keeps the old embedding", rules=["no-gradient"],
       layers=["embed"], fails=True, steps=300)
def embedding_resized_later(faulty):
    class Bag(nn.Module):
        def __init__(self, vocab):
            super().__init__()
            self.embed = nn.Embedding(vocab, 2)
            self.out = nn.Linear(2, 2)

        def resize(self, vocab):
            old = self.embed
            self.embed = nn.Embedding(vocab, 2)
            with torch.no_grad():
                self.embed.weight[: len(old.weight)] = old.weight

        def forward(self, x):
            return self.out(torch.tanh(self.embed(x).mean(1)))

    weights = torch.randn(120, generator=gen(50))
    x = torch.randint(120, (3000, 8), generator=gen(51))
    tx = torch.randint(120, (500, 8), generator=gen(52))
    y, ty = (weights[x].sum(1) > 0).long(), (weights[tx].sum(1) > 0).long()
    model = Bag(100)
    if faulty:
        opt = torch.optim.Adam(model.parameters(), lr=2e-2)
        model.resize(120)
    else:
        model.resize(120)
        opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, lambda m: acc(m(tx), ty))


@fault("[nn.Embedding(...)] * 3: one table for three different fields", rules=["shared-weight", "order-lost"],
       layers=["tables"], fails=False, steps=300)
def fields_share_a_table(faulty):
    class Fields(nn.Module):
        def __init__(self):
            super().__init__()
            made = [nn.Embedding(40, 8)] * 3 if faulty else [nn.Embedding(40, 8) for _ in range(3)]
            self.tables = nn.ModuleList(made)
            self.mlp = nn.Sequential(nn.ReLU(), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, x):
            return self.mlp(sum(table(x[:, i]) for i, table in enumerate(self.tables)))

    effects = torch.randn(3, 40, generator=gen(60))

    def make(n, seed):
        x = torch.randint(40, (n, 3), generator=gen(seed))
        return x, (sum(effects[i][x[:, i]] for i in range(3)) > 0).long()

    x, y = make(6000, 1)
    tx, ty = make(800, 2)
    model = Fields()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: acc(m(tx), ty))


@fault("the whole model in bfloat16, with small steps of Adam", rules=["lost-updates"], fails=False, steps=300)
def all_in_bfloat16(faulty):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(80, 32)
            self.norm = nn.LayerNorm(32)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.norm(self.embed(x).mean(1)))

    x, y = topics(2000, 10, 80, 4, 15, 0.6)
    tx, ty = topics(400, 10, 80, 4, 16, 0.6)
    model = Bag()
    if faulty:
        model = model.to(torch.bfloat16)
    return Program(model, lambda o, y: F.cross_entropy(o.float(), y), loader(x, y),
                   torch.optim.Adam(model.parameters(), lr=3e-4), lambda m: acc(m(tx).float(), ty))


@fault("empty sentences: a softmax over nothing but masked places", rules=["non-finite"], fails=True,
       steps=200)
def empty_sentences(faulty):
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 24, padding_idx=0)
            self.query = nn.Linear(24, 1)
            self.fc = nn.Linear(24, 3)

        def forward(self, x):
            h = self.embed(x)
            scores = self.query(torch.tanh(h)).squeeze(-1)
            scores = scores.masked_fill(x == 0, float("-inf") if faulty else -1e4)
            return self.fc((scores.softmax(-1).unsqueeze(-1) * h).sum(1))

    x, y = topics(2000, 12, 50, 3, 17, 0.6)
    x, _ = padded(x, 6, 18)
    x[torch.rand(2000, generator=gen(19)) < 0.04] = 0
    tx, ty = topics(400, 12, 50, 3, 20, 0.6)
    net = Attend()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 1e-2),
                   lambda m: 0.0 if m(tx).isnan().any() else acc(m(tx), ty))


@fault("the vocabulary is in lower case and the corpus is not: every word is <unk>",
       rules=["constant-feature", "labels-unrelated"], fails=True, steps=150)
def everything_unknown(faulty):
    words = [a + b + c for a in "bdklmn" for b in "aeiou" for c in "rst"]
    vocab = {"<unk>": 0} | {w: i for i, w in enumerate(words, 1)}
    ids, y = topics(1500, 9, 91, 3, 25, 0.6)
    corpus = [" ".join(words[i - 1].capitalize() for i in row) for row in ids.tolist()]
    encode = lambda s: [vocab.get(w if faulty else w.lower(), 0) for w in s.split()]
    x = torch.tensor([encode(s) for s in corpus])
    tx, ty = topics(300, 9, 91, 3, 26, 0.6)

    class Cnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(len(vocab), 24)
            self.conv = nn.Conv1d(24, 32, 3)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            return self.fc(torch.relu(self.conv(self.embed(x).transpose(1, 2))).amax(2))

    net = Cnn()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch_size=30), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: acc(m(tx), ty))


@fault("durations in milliseconds are an MSE next to the cross-entropy of the tags",
       rules=["term-dominates", "unscaled-target"], fails=True, steps=300)
def milliseconds_next_to_tags(faulty):
    unit = 1000.0 if faulty else 1.0

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.GRU(8, 24, batch_first=True)
            self.tag = nn.Linear(24, 4)
            self.duration = nn.Linear(24, 1)

        def forward(self, x):
            h = self.body(x)[0]
            return self.tag(h), self.duration(h).squeeze(-1)

    mix = torch.randn(8, 4, generator=gen(70))
    length = torch.randn(8, generator=gen(71))

    def make(n, seed):
        x = torch.randn(n, 10, 8, generator=gen(seed))
        return x, (x @ mix).argmax(-1), 0.2 + 0.1 * (x @ length).abs()

    x, tag, dur = make(1500, 1)
    tx, ttag, _ = make(200, 2)

    def step(m, batch):
        x, tag, dur = batch
        logits, seconds = m(x)
        return F.cross_entropy(logits.flatten(0, 1), tag.flatten()) + F.mse_loss(seconds, unit * dur)

    model = TwoHeads()
    return Program(model, None, loader(x, tag, dur, batch_size=30),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(tx)[0], ttag), step=step)


@fault("Dropout(0.95), meant as the share to keep", rules=["dropout-too-strong"], layers=["drop_in", "drop_out"],
       fails=True, steps=200)
def keep_probability(faulty):
    class Net(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.embed = nn.Embedding(80, 16)
            self.drop_in = nn.Dropout(p)
            self.rnn = nn.GRU(16, 16, batch_first=True)
            self.drop_out = nn.Dropout(p)
            self.fc = nn.Linear(16, 4)

        def forward(self, x):
            h, _ = self.rnn(self.drop_in(self.embed(x)))
            return self.fc(self.drop_out(h.mean(1)))

    x, y = topics(2000, 10, 80, 4, 13)
    tx, ty = topics(400, 10, 80, 4, 14)
    net = Net(0.95 if faulty else 0.05)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch_size=32), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: acc(m(tx), ty))
