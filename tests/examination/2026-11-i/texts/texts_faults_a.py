"""Language models, taggers and their losses."""
import torch
import torch.nn.functional as F
from torch import nn
from texts_data import G, accuracy, loader, markov, reviews, tagged

from program import Program, fault


def next_accuracy(vocab, upto=9):
    held = markov(300, 24, vocab, 1234)
    return lambda m: (m(held[:, :upto])[:, -1].argmax(-1) == held[:, upto]).float().mean().item()


def token_ce(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class RecurrentLM(nn.Module):
    def __init__(self, vocab, width=24, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0])


class Dialogue(nn.Module):
    def __init__(self, vocab, is_faulty):
        super().__init__()
        self.is_faulty = is_faulty
        self.embed = nn.Embedding(vocab, 32)
        self.pos = nn.Embedding(32, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.lm_head = nn.Linear(32, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        ones = torch.ones(t, t, dtype=torch.bool)
        blocked = ones.tril(-1) if self.is_faulty else ones.triu(1)
        return self.lm_head(self.block(self.embed(ids) + self.pos(torch.arange(t)), src_mask=blocked))


@fault("the causal mask blocks the past, as True was thought to mean what is seen", rules=["future-seen"], layers=["block"], fails=True, steps=300)
def lm_mask_transposed(is_faulty):
    def data(n, seed):
        """Two speakers take turns: a b a b ..."""
        pair = torch.rand(n, 12, generator=G(seed)).argsort(1)[:, :2]
        return pair.repeat(1, 8)

    s, held = data(900, 1), data(300, 2)
    model = Dialogue(12, is_faulty)
    return Program(model, lambda o, t: token_ce(o[:, 1:], t[:, 1:]), loader(s[:, :-1], s[:, 1:]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: (m(held[:, :10])[:, -1].argmax(-1) == held[:, 10]).float().mean().item())


@fault("targets are shifted in the dataset and once more in the loss", rules=["label-shift"], fails=True, steps=200)
def lm_shifted_twice(is_faulty):
    s = markov(600, 20, 16, 2)
    model = RecurrentLM(16)

    def loss(logits, labels):
        if is_faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.reshape(-1, 16), labels.reshape(-1))

    return Program(model, loss, loader(s[:, :-1], s[:, 1:]), torch.optim.AdamW(model.parameters(), 1e-2), next_accuracy(16))


class Tagger(nn.Module):
    def __init__(self, vocab, tags, hidden=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, 16)
        self.gru = nn.GRU(16, hidden, batch_first=True)
        self.head = nn.Linear(hidden, tags)

    def forward(self, x):
        return self.head(self.gru(self.emb(x))[0])


@fault("pad_sequence pads words and tags with 0, which is a word and a tag, and the loss ignores nothing", rules=["padding-in-loss"], fails=False, steps=250)
def tagger_counts_padding(is_faulty):
    def data(n, seed):
        g = G(seed)
        x, y = tagged(n, 24, 12, 4, seed)
        the = torch.rand(x.shape, generator=g) < 0.5
        x[the] = 0
        y = torch.where(the, torch.full_like(y, 3), y % 3)
        gone = torch.arange(24)[None] >= torch.randint(2, 8, (n, 1), generator=g)
        x[gone], y[gone] = 0, 0
        return x, y, gone

    x, y, gone = data(800, 3)
    hx, hy, hgone = data(300, 4)
    if not is_faulty:
        y[gone] = -100
    model = Tagger(12, 4)

    def score(m):
        return (m(hx).argmax(-1) == hy)[~hgone].float().mean().item()

    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t, ignore_index=-100), loader(x, y),
                   torch.optim.Adam(model.parameters(), 5e-3), score)


@fault("logits are viewed as (batch, tags, time) instead of transposed", rules=["output-loss-mismatch"], fails=True, steps=200)
def tagger_views_logits(is_faulty):
    x, y = tagged(800, 12, 20, 5, 5)
    model = Tagger(20, 5, 32)

    def loss(logits, tags):
        b, t, c = logits.shape
        return nn.functional.cross_entropy(logits.view(b, c, t) if is_faulty else logits.permute(0, 2, 1), tags)

    return Program(model, loss, loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), accuracy(*tagged(300, 12, 20, 5, 6)))


@fault("the activation regulariser of the LSTM is a sum, at a weight for a mean", rules=["term-dominates", "summed-loss"], fails=True, steps=200)
def lm_activation_penalty(is_faulty):
    s = markov(600, 17, 16, 9)
    model = RecurrentLM(16)
    alpha = 2e-1

    def step(m, batch):
        ids, nxt = batch
        h, _ = m.lstm(m.embed(ids))
        ar = h.pow(2).sum() if is_faulty else h.pow(2).mean()
        return token_ce(m.out(h), nxt) + alpha * ar

    return Program(model, None, loader(s[:, :-1], s[:, 1:]), torch.optim.Adam(model.parameters(), 1e-2), next_accuracy(16), step=step)


class CarelessDropout(nn.Module):
    def __init__(self, vocab, is_faulty):
        super().__init__()
        self.is_faulty = is_faulty
        self.emb = nn.Embedding(vocab, 24)
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.fc = nn.Linear(32, vocab)

    def forward(self, x):
        training = True if self.is_faulty else self.training
        h = F.dropout(self.emb(x), 0.6, training)
        h, _ = self.rnn(h)
        return self.fc(F.dropout(h, 0.75, training))


@fault("F.dropout is called without training=self.training", rules=["dropout-in-eval"], fails=False, steps=250)
def lm_functional_dropout(is_faulty):
    s = markov(800, 17, 24, 10)
    model = CarelessDropout(24, is_faulty)
    return Program(model, token_ce, loader(s[:, :-1], s[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3), next_accuracy(24))


@fault("the embedding has no row for the last token, as padding shifted all by one", rules=["model-fails"], layers=["embed"], fails=True, steps=150)
def vocabulary_off_by_one(is_faulty):
    x, y = reviews(800, 16, 41, 11, shortest=6)
    hx, hy = reviews(300, 16, 41, 12, shortest=6)

    class Classifier(nn.Module):
        def __init__(self, words):
            super().__init__()
            self.embed = nn.Embedding(words, 16, padding_idx=0)
            self.fc = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

        def forward(self, ids):
            return self.fc(self.embed(ids).sum(1))

    model = Classifier(40 if is_faulty else 41)

    def score(m):
        try:
            return accuracy(hx, hy)(m)
        except IndexError:
            return 0.0

    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), score)
