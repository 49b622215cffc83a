"""Classifiers and taggers of texts, and sequence-to-sequence models, with a mistake each."""

import torch
import torch.nn.functional as F
from program import Program, fault
from seq_data import accuracy, chain, loader
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


def reviews(n, vocab=60, low=4, high=14, length=None):
    """Token ids (0 is padding) and whether more of the good words (1 to 15) than of the bad (16 to 30) are in them."""
    lengths = torch.randint(low, high + 1, (n,))
    x = torch.randint(1, vocab, (n, length or high))
    x[torch.arange(x.size(1)) >= lengths[:, None]] = 0
    value = ((x >= 1) & (x <= 15)).sum(1) - ((x > 15) & (x <= 30)).sum(1)
    keep = value != 0
    return x[keep], (value[keep] > 0).long(), lengths[keep]


class SentimentLSTM(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_dim, last):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, batch_first=True)
        self.fc = nn.Linear(hidden_dim, 2)
        self.last = last

    def forward(self, text):
        output, _ = self.lstm(self.embedding(text))
        if self.last:
            return self.fc(output[:, -1])
        end = (text != 0).sum(1) - 1
        return self.fc(output[torch.arange(len(text)), end])


@fault("the state after the padding is classified, not the one after the last word", rules=["wrong-mask", "vanishing-gradient", "rank-collapse"],
       layers=["lstm", "fc"], fails=True, steps=200)
def padded_state(is_faulty):
    x, y, _ = reviews(2700, low=3, high=10, length=64)
    model = SentimentLSTM(60, 16, 32, last=is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1500], y[:1500]),
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(x[1500:], y[1500:]))


@fault("key_padding_mask is True for the words instead of for the padding", rules=["wrong-mask", "rank-collapse"],
       layers=["encoder"], fails=True, steps=250)
def inverted_mask(is_faulty):
    vocab = 40
    n = 1800
    lengths = torch.randint(4, 12, (n,))
    x = torch.randint(2, vocab, (n, 16))
    pos = (torch.rand(n) * lengths).long()
    y = torch.randint(0, 2, (n,))
    for i in range(n):  # one word decides
        row = x[i]
        row[row < 12] += 20
        row[pos[i]] = 2 + 5 * y[i] + torch.randint(5, (1,)).item()
        row[lengths[i]:] = 0

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, 32)
            self.cls = nn.Parameter(torch.randn(1, 1, 32) * 0.02)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, 2)

        def forward(self, ids):
            h = torch.cat([self.cls.expand(len(ids), -1, -1), self.embed(ids)], dim=1)
            real = torch.cat([torch.ones(len(ids), 1, dtype=torch.bool), ids != 0], dim=1)
            mask = real if is_faulty else ~real
            h = self.encoder(h, src_key_padding_mask=mask)
            return self.head(h[:, 0])

    model = Classifier()
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1500], y[:1500]),
                   torch.optim.Adam(model.parameters(), lr=1e-3), accuracy(x[1500:], y[1500:]))


@fault("an LSTM that takes the examples for time steps", rules=["mixed-examples", "order-lost"], layers=["rnn"],
       fails=True, steps=300)
def without_batch_first(is_faulty):
    x = torch.randint(2, 20, (2400, 10))
    first, second = torch.rand(2400, 10).topk(2).indices.T
    x[torch.arange(2400), first], x[torch.arange(2400), second] = 0, 1
    y = (first < second).float()  # whether 0 stands before 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16)
            self.rnn = nn.LSTM(16, 32, batch_first=not is_faulty)
            self.lin = nn.Linear(32, 1)

        def forward(self, x):
            out, _ = self.rnn(self.emb(x))
            return self.lin(out[:, -1, :]).squeeze(1)

    net = Net()
    return Program(net, nn.BCEWithLogitsLoss(), loader(x[:2000], y[:2000]),
                   torch.optim.RMSprop(net.parameters(), lr=5e-3),
                   lambda m: 2 * ((m(x[2000:]) > 0).float() == y[2000:]).float().mean().item() - 1)


@fault("the vocabulary is in lower case, the texts of training are not, so that all words are unknown",
       rules=["constant-feature", "labels-unrelated", "rank-collapse"], layers=[], fails=True, steps=150)
def unknown_words(is_faulty):
    good = "Great Lovely Superb Fine Brilliant Charming".split()
    bad = "Dull Awful Boring Poor Weak Tedious".split()
    other = "The Film Plot Actor And Scene Was A Music Story Of It".split()
    texts, labels = [], []
    for _ in range(1200):
        label = int(torch.rand(()) < 0.5)
        words = [other[i] for i in torch.randint(len(other), (7,))]
        for i in torch.randperm(7)[:2]:
            words[i] = (good if label else bad)[torch.randint(6, ()).item()]
        texts.append(" ".join(words))
        labels.append(label)
    vocab = {word.lower(): i + 1 for i, word in enumerate(good + bad + other)}

    def encode(text):
        return [vocab.get(word, 0) for word in text.split()]

    x = torch.tensor([encode(t if is_faulty else t.lower()) for t in texts[:1000]])
    y = torch.tensor(labels)
    held = torch.tensor([encode(t.lower()) for t in texts[1000:]])
    model = nn.Sequential(nn.Embedding(len(vocab) + 1, 16), nn.Flatten(), nn.Linear(7 * 16, 32), nn.ReLU(),
                          nn.Linear(32, 2))
    right = accuracy(held, y[1000:])
    return Program(model, nn.CrossEntropyLoss(), loader(x, y[:1000]), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: 2 * right(m) - 1)


@fault("stars from 1 to 5 made good or bad with a wrong threshold", rules=["constant-target"], fails=True, steps=200)
def star_threshold(is_faulty):
    x, _, _ = reviews(1600, low=6, high=12)
    value = ((x >= 1) & (x <= 15)).sum(1) - ((x > 15) & (x <= 30)).sum(1)
    x, value = x[value != 0], value[value != 0]
    stars = (value.clamp(-2, 2) + 3).float()
    threshold = 0 if is_faulty else 3
    target = (stars > threshold).float()

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(60, 16, mode="mean", padding_idx=0)
            self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

        def forward(self, x):
            return self.mlp(self.bag(x)).squeeze(-1)

    model = Bag()
    n = len(x) - 300

    def score(m):
        return 2 * ((m(x[n:]) > 0.5) == (stars[n:] > 3)).float().mean().item() - 1

    return Program(model, nn.BCELoss(), loader(x[:n], target[:n]), torch.optim.Adam(model.parameters(), lr=5e-3), score)


@fault("a transformer encoder that is given no positions, for a task of order", rules=["order-lost"], layers=["enc", "emb"],
       fails=True, steps=300)
def no_positions(is_faulty):
    x = torch.randint(2, 16, (2400, 8))
    first, second = torch.rand(2400, 8).topk(2).indices.T
    x[torch.arange(2400), first], x[torch.arange(2400), second] = 0, 1
    y = (first < second).long()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 32)
            if not is_faulty:
                self.pos = nn.Parameter(torch.randn(8, 32))
            self.enc = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
            )
            self.cls = nn.Linear(32, 2)

        def forward(self, x):
            h = self.emb(x)
            if not is_faulty:
                h = h + self.pos
            return self.cls(self.enc(h).mean(1))

    model = Net()
    right = accuracy(x[2000:], y[2000:])
    return Program(model, F.cross_entropy, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: 2 * right(m) - 1)


@fault("examples sorted by length for packing are not put back into the order of their labels",
       rules=["output-loss-mismatch", "labels-unrelated", "mixed-examples"], fails=True, steps=250)
def packed_order(is_faulty):
    x, y, _ = reviews(2900, low=3, high=12)

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 16, padding_idx=0)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.out = nn.Linear(32, 2)

        def forward(self, x):
            lengths, order = (x != 0).sum(1).sort(descending=True)
            packed = pack_padded_sequence(self.emb(x[order]), lengths, batch_first=True)
            _, h = self.gru(packed)
            h = h[-1]
            if not is_faulty:
                h = h[order.argsort()]
            return self.out(h)

    model = Packed()
    right = accuracy(x[1700:], y[1700:])
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1700], y[:1700]),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: 2 * right(m) - 1)


def tagged(n, length, vocab=30, tags=5):
    """Each tag depends on a word and the one before."""
    x = torch.randint(1, vocab, (n, length))
    y = (x % tags + (F.pad(x, (1, 0))[:, :-1] < 10).long()) % tags
    return x, y


@fault("logits of a tagger are viewed as (batch, tags, words) instead of transposed", rules=["output-loss-mismatch"],
       fails=True, steps=250)
def viewed_logits(is_faulty):
    x, y = tagged(900, 12)

    class BiLSTMTagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.word_embeddings = nn.Embedding(30, 20)
            self.lstm = nn.LSTM(20, 24, bidirectional=True, batch_first=True)
            self.hidden2tag = nn.Linear(48, 5)

        def forward(self, sentence):
            return self.hidden2tag(self.lstm(self.word_embeddings(sentence))[0])

    def loss(scores, tags):
        b, t, c = scores.shape
        scores = scores.view(b, c, t) if is_faulty else scores.permute(0, 2, 1)
        return F.cross_entropy(scores, tags)

    model = BiLSTMTagger()
    return Program(model, loss, loader(x[:750], y[:750]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(x[750:], y[750:]))


@fault("padded places of long rows count in a tagger's loss", rules=["padding-in-loss"], fails=False, steps=200)
def padded_tags(is_faulty):
    sentences, tags = [], []
    for _ in range(900):
        x, y = tagged(1, int(torch.randint(3, 9, ())))
        sentences.append(x[0])
        tags.append(y[0])
    sentences[0], tags[0] = (z[0] for z in tagged(1, 64))  # one is long
    x = pad_sequence(sentences, batch_first=True)
    y = pad_sequence(tags, batch_first=True, padding_value=0 if is_faulty else -100)
    real = pad_sequence(tags, batch_first=True, padding_value=-100)

    class CNNTagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 16, padding_idx=0)
            self.conv = nn.Conv1d(16, 48, 3, padding=1)
            self.out = nn.Linear(48, 5)

        def forward(self, x):
            h = torch.relu(self.conv(self.embed(x).mT)).mT
            return self.out(h)

    model = CNNTagger()
    criterion = nn.CrossEntropyLoss()
    held, truth = x[750:], real[750:]

    def score(m):
        mask = truth != -100
        return (m(held).argmax(-1)[mask] == truth[mask]).float().mean().item()

    return Program(model, lambda out, y: criterion(out.view(-1, 5), y.view(-1)), loader(x[:750], y[:750]),
                   torch.optim.SGD(model.parameters(), lr=0.5), score)


@fault("new embeddings are put into the model after the optimizer was made", rules=["no-gradient"], layers=["tokens"],
       fails=False, steps=250)
def resized_embeddings(is_faulty):
    text = chain(800, 15, 40)

    class LM(nn.Module):
        def __init__(self, vocab):
            super().__init__()
            self.tokens = nn.Embedding(vocab, 12)
            self.gru = nn.GRU(12, 24, batch_first=True)
            self.head = nn.Linear(24, 40)

        def resize(self, vocab):
            old = self.tokens.weight.data
            self.tokens = nn.Embedding(vocab, 12)
            self.tokens.weight.data[: len(old)] = old
            nn.init.normal_(self.tokens.weight, std=0.02)

        def forward(self, x):
            return self.head(self.gru(self.tokens(x))[0])

    model = LM(32)
    if is_faulty:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        model.resize(40)
    else:
        model.resize(40)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, lambda o, y: F.cross_entropy(o.mT, y), loader(text[:650, :-1], text[:650, 1:]), optimizer,
                   accuracy(text[650:, :-1], text[650:, 1:]))


@fault("the probability of keeping was given as that of dropping", rules=["dropout-too-strong"],
       layers=["drop", "drop_out"], fails=False, steps=250)
def keep_probability(is_faulty):
    x, y = tagged(900, 12)
    keep = 0.9

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            p = keep if is_faulty else 1 - keep
            self.embed = nn.Embedding(30, 24)
            self.drop = nn.Dropout(p)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.drop_out = nn.Dropout(p)
            self.fc = nn.Linear(32, 5)

        def forward(self, x):
            h, _ = self.gru(self.drop(self.embed(x)))
            return self.fc(self.drop_out(h))

    model = Tagger()
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(x[:750], y[:750]),
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(x[750:], y[750:]))


def recall(n, pairs=6, keys=10, values=6):
    """Keys and values, and one of the keys, whose value is asked for."""
    k = torch.rand(n, keys).argsort(1)[:, :pairs]
    v = torch.randint(values, (n, pairs))
    which = torch.randint(pairs, (n,))
    at = torch.arange(n)
    return torch.stack([k, v], 2), k[at, which], v[at, which]


class Attention(nn.Module):
    """Of one query, by hand."""

    def __init__(self, d, scale, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.scale, self.dim = scale, dim

    def forward(self, query, keys, values):
        scores = torch.einsum("bd,btd->bt", self.q(query), self.k(keys)) * self.scale
        return torch.einsum("bt,btd->bd", scores.softmax(self.dim), self.v(values))


class Lookup(nn.Module):
    def __init__(self, d, scale, dim=-1):
        super().__init__()
        self.key_emb, self.value_emb = nn.Embedding(10, d), nn.Embedding(6, d)
        self.attention = Attention(d, scale, dim)
        self.classify = nn.Linear(d, 6)

    def forward(self, pairs, query):
        keys, values = self.key_emb(pairs[..., 0]), self.value_emb(pairs[..., 1])
        return self.classify(self.attention(self.key_emb(query), keys, values))


def recall_program(model, lr, singly=False):
    pairs, query, answer = recall(2500)
    data = [({"pairs": pairs[i : i + 32], "query": query[i : i + 32]}, answer[i : i + 32]) for i in range(0, 2016, 32)]

    def score(m):
        if singly:  # as requests come in
            out = torch.cat([m(pairs[i : i + 1], query[i : i + 1]) for i in range(2016, 2316)])
            return (out.argmax(-1) == answer[2016:2316]).float().mean().item()
        return (m(pairs[2016:], query[2016:]).argmax(-1) == answer[2016:]).float().mean().item()

    return Program(model, F.cross_entropy, data, torch.optim.Adam(model.parameters(), lr=lr), score)


@fault("attention scores are multiplied with the root of the width instead of divided", rules=["attention-saturation"],
       layers=["attention"], fails=False, steps=300)
def scale_of_scores(is_faulty):
    d = 64
    return recall_program(Lookup(d, d**0.5 if is_faulty else d**-0.5), 1e-3)


@fault("attention weights add up to one over the batch instead of over the places",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["attention"], fails=False, steps=300)
def attention_over_batch(is_faulty):
    return recall_program(Lookup(32, 32**-0.5, dim=0 if is_faulty else 1), 3e-3, singly=True)


@fault("a decoder is given the very tokens that it is asked for", rules=["future-seen", "label-shift"],
       layers=["decoder"], fails=True, steps=400)
def unshifted_decoder(is_faulty):
    bos, vocab, n = 0, 9, 2400
    src = torch.randint(1, vocab, (n, 5))
    tgt = src.flip(1)

    class Seq2Seq(nn.Module):
        def __init__(self, hidden=64):
            super().__init__()
            self.src_emb, self.tgt_emb = nn.Embedding(vocab, 32), nn.Embedding(vocab, 32)
            self.encoder = nn.GRU(32, hidden, batch_first=True)
            self.decoder = nn.GRU(32, hidden, batch_first=True)
            self.fc = nn.Linear(hidden, vocab)

        def forward(self, src, tgt):
            _, h = self.encoder(self.src_emb(src))
            return self.fc(self.decoder(self.tgt_emb(tgt), h)[0])

        def translate(self, src):
            _, h = self.encoder(self.src_emb(src))
            token, said = torch.full((len(src), 1), bos), []
            for _ in range(5):
                out, h = self.decoder(self.tgt_emb(token), h)
                token = self.fc(out).argmax(-1)
                said.append(token)
            return torch.cat(said, 1)

    model = Seq2Seq()
    given = tgt if is_faulty else torch.cat([torch.full((n, 1), bos), tgt[:, :-1]], 1)
    batches = [({"src": src[i : i + 50], "tgt": given[i : i + 50]}, tgt[i : i + 50]) for i in range(0, 2000, 50)]
    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), batches,
                   torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: (m.translate(src[2000:]) == tgt[2000:]).float().mean().item())
