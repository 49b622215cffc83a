"""Classification of padded texts."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

from program import Program, fault

VOCAB, PAD = 40, 0


def reviews(n, seed, low=4, high=24):
    """Texts of neutral words and one word of sentiment, which a "not" (39) before it turns round."""
    g = torch.Generator().manual_seed(seed)
    texts, labels = [], []
    for _ in range(n):
        length = int(torch.randint(low, high + 1, (1,), generator=g))
        text = torch.randint(15, 39, (length,), generator=g)
        where = int(torch.randint(1, length, (1,), generator=g))
        word = int(torch.randint(1, 15, (1,), generator=g))
        label = int(word < 8)
        text[where] = word
        if torch.rand((), generator=g) < 0.3:
            text[where - 1] = 39
            label = 1 - label
        texts.append(text)
        labels.append(label)
    return texts, torch.tensor(labels)


def collate(rows):
    texts, labels = zip(*rows)
    lengths = torch.tensor([len(t) for t in texts])
    return {"ids": pad_sequence(texts, batch_first=True), "lengths": lengths}, torch.stack(labels)


def loader(n, seed, size=32, collate_fn=collate, **lengths):
    texts, labels = reviews(n, seed, **lengths)
    return DataLoader(list(zip(texts, labels)), batch_size=size, shuffle=True, collate_fn=collate_fn)


def accuracy_on(**lengths):
    texts, labels = reviews(400, 77, **lengths)
    inputs, labels = collate(list(zip(texts, labels)))

    def score(model):
        return (model(**inputs).argmax(-1) == labels).float().mean().item()

    return score


@fault(
    "key_padding_mask is True for the words instead of for the padding",
    rules=["wrong-mask"],
    fails=True,
    steps=400,
)
def padding_mask_of_words(is_faulty):
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCAB, 32, padding_idx=PAD)
            self.position = nn.Embedding(64, 32)
            self.before = nn.Linear(32, 32, bias=False)
            self.mix = nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
            self.query = nn.Parameter(torch.randn(1, 1, 32) * 0.1)
            self.out = nn.Linear(32, 2)

        def forward(self, ids, lengths):
            mask = (ids != PAD) if is_faulty else (ids == PAD)
            e = self.embed(ids)
            h = self.mix(e + self.position(torch.arange(ids.shape[1])) + self.before(F.pad(e, (0, 0, 1, 0))[:, :-1]))
            h = h.masked_fill((ids == PAD)[..., None], 0.0)
            pooled, _ = self.attend(self.query.expand(len(ids), -1, -1), h, h, key_padding_mask=mask)
            return self.out(pooled[:, 0])

    def pad_to(rows):
        inputs, labels = collate(rows)
        inputs["ids"] = F.pad(inputs["ids"], (0, 26 - inputs["ids"].shape[1]))
        return inputs, labels

    texts, labels = reviews(400, 77)
    inputs, labels = pad_to(list(zip(texts, labels)))
    model = Classifier()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(1600, 3, collate_fn=pad_to),
        torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: (m(**inputs).argmax(-1) == labels).float().mean().item(),
    )


@fault(
    "The LSTM's output at the last place of the padded batch is taken, which lies far behind the last word",
    rules=["wrong-mask", "vanishing-gradient"],
    fails=True,
    steps=400,
)
def last_place_is_padding(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(VOCAB, 24, padding_idx=PAD)
            self.lstm = nn.LSTM(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 2)

        def forward(self, ids, lengths):
            out, _ = self.lstm(self.emb(ids))
            if is_faulty:
                return self.fc(out[:, -1])
            return self.fc(out[torch.arange(len(ids)), lengths - 1])

    def to_fixed(rows):
        inputs, labels = collate(rows)
        inputs["ids"] = F.pad(inputs["ids"], (0, 60 - inputs["ids"].shape[1]))
        return inputs, labels

    texts, labels = reviews(300, 77, low=3, high=8)
    test, test_labels = to_fixed(list(zip(texts, labels)))
    net = Net()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(1200, 4, collate_fn=to_fixed, low=3, high=8),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: (m(**test).argmax(1) == test_labels).float().mean().item(),
    )


@fault(
    "The batch is sorted by length for packing, and the outputs are not put back into the order of the labels",
    rules=["output-loss-mismatch", "mixed-examples", "labels-unrelated"],
    fails=True,
    steps=350,
)
def sorted_for_packing(is_faulty):
    class GRUClassifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCAB, 32, padding_idx=PAD)
            self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
            self.classifier = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, ids, lengths):
            lengths, order = lengths.sort(descending=True)
            packed = pack_padded_sequence(self.embedding(ids[order]), lengths, batch_first=True)
            _, hidden = self.gru(packed)
            hidden = torch.cat([hidden[0], hidden[1]], dim=1)
            if not is_faulty:
                hidden = hidden[order.argsort()]
            return self.classifier(hidden)

    model = GRUClassifier()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(1600, 5, high=12),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        accuracy_on(high=12),
    )


@fault(
    "collate reshapes the (time, batch) of pad_sequence to (batch, time) instead of transposing it",
    rules=["labels-unrelated"],
    fails=True,
    steps=300,
)
def collate_reshapes(is_faulty):
    def collate_batch(rows):
        texts = pad_sequence([t for t, _ in rows], padding_value=PAD)
        texts = texts.reshape(len(rows), -1) if is_faulty else texts.T
        return texts, torch.tensor([int(y) for _, y in rows])

    class DeepAverage(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(VOCAB, 32, padding_idx=PAD)
            self.conv = nn.Conv1d(32, 48, 2, padding=1)
            self.out = nn.Linear(48, 2)

        def forward(self, ids):
            h = F.relu(self.conv(self.emb(ids).transpose(1, 2)))
            return self.out(h.amax(2))

    texts, labels = reviews(300, 78, 4, 14)
    ids = pad_sequence(texts, batch_first=True)
    model = DeepAverage()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(2000, 6, collate_fn=collate_batch, high=14),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        lambda m: (m(ids).argmax(1) == labels).float().mean().item(),
    )


@fault(
    "Labels come from a CSV as the strings '0' and '1', and `1 if label else 0` makes all of them 1",
    rules=["constant-target"],
    fails=True,
    steps=250,
)
def labels_are_strings(is_faulty):
    texts, labels = reviews(1500, 8, high=12)
    rows = [{"text": t, "label": str(int(y))} for t, y in zip(texts, labels)]

    def target(row):
        if is_faulty:
            return 1.0 if row["label"] else 0.0
        return 1.0 if int(row["label"]) else 0.0

    def collate_rows(batch):
        return pad_sequence([r["text"] for r in batch], batch_first=True), torch.tensor([[target(r)] for r in batch])

    class TextCNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(VOCAB, 24, padding_idx=PAD)
            self.convs = nn.ModuleList(nn.Conv1d(24, 16, k, padding=k - 1) for k in (1, 2, 3))
            self.drop = nn.Dropout(0.2)
            self.fc = nn.Linear(48, 1)

        def forward(self, x):
            e = self.emb(x).transpose(1, 2)
            return self.fc(self.drop(torch.cat([F.relu(c(e)).amax(-1) for c in self.convs], 1)))

    test, y = reviews(300, 79, 4, 12)
    test = pad_sequence(test, batch_first=True)
    model = TextCNN()
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        DataLoader(rows, batch_size=32, shuffle=True, collate_fn=collate_rows),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: ((m(test)[:, 0] > 0) == y.bool()).float().mean().item(),
    )


@fault(
    "Batches are cut from texts sorted by length; spam is long, so that each batch holds one class",
    rules=["sorted-batches"],
    fails=True,
    steps=310,
)
def sorted_by_length(is_faulty):
    def mails(n, seed):
        g = torch.Generator().manual_seed(seed)
        rows = []
        for i in range(n):
            spam = i % 2
            length = int(torch.randint(4, 12, (1,), generator=g)) + 8 * spam
            text = torch.randint(1, 60, (length,), generator=g)
            weird = torch.rand(length, generator=g) < 0.35
            text[weird] = torch.randint(*((40, 60) if spam else (20, 40)), (int(weird.sum()),), generator=g)
            rows.append((text, spam))
        return rows

    rows = mails(640, 11)
    if is_faulty:
        rows.sort(key=lambda row: len(row[0]))  # less padding
    else:
        g = torch.Generator().manual_seed(0)
        rows = [rows[i] for i in torch.randperm(len(rows), generator=g)]

    def pad(batch):
        return pad_sequence([t for t, _ in batch], batch_first=True), torch.tensor([y for _, y in batch])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 16, padding_idx=0)
            self.fc1 = nn.Linear(16, 32)
            self.fc2 = nn.Linear(32, 2)

        def forward(self, ids):
            mask = (ids != 0).float().unsqueeze(-1)
            mean = (self.emb(ids) * mask).sum(1) / mask.sum(1)
            return self.fc2(torch.tanh(self.fc1(mean)))

    test, labels = pad(mails(300, 12))
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(rows, batch_size=32, collate_fn=pad),
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        lambda m: (m(test).argmax(1) == labels).float().mean().item(),
    )


@fault(
    "The table of words counts from 1 and the Embedding has one row too few, so that the rarest word raises",
    rules=["model-fails"],
    layers=["embed"],
    fails=True,
    steps=300,
)
def vocabulary_one_short(is_faulty):
    texts, labels = reviews(1600, 14, high=14)
    g = torch.Generator().manual_seed(15)
    for text in texts:
        if torch.rand((), generator=g) < 0.04:
            text[0] = VOCAB  # the rarest word of the corpus
    words = VOCAB  # different words, without the padding

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words if is_faulty else words + 1, 32, padding_idx=PAD)
            self.rnn = nn.GRU(32, 32, batch_first=True)
            self.head = nn.Linear(32, 2)

        def forward(self, ids, lengths):
            packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
            return self.head(self.rnn(packed)[1][0])

    model = Model()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(list(zip(texts, labels)), batch_size=64, shuffle=True, collate_fn=collate),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        accuracy_on(high=14),
    )


@fault(
    "Sinusoids are cut to the size of the batch, not to the length of the texts: batch_first with the tutorial's code",
    rules=["order-lost"],
    fails=True,
    steps=400,
)
def sinusoids_along_batch(is_faulty):
    class PositionalEncoding(nn.Module):
        def __init__(self, width, most=500):
            super().__init__()
            place = torch.arange(most).unsqueeze(1)
            rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
            pe = torch.zeros(most, 1, width)
            pe[:, 0, 0::2] = torch.sin(place * rate)
            pe[:, 0, 1::2] = torch.cos(place * rate)
            self.register_buffer("pe", pe)

        def forward(self, x):
            if is_faulty:
                return x + self.pe[: x.size(0)]
            return x + self.pe[: x.size(1)].transpose(0, 1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 32)
            self.positions = PositionalEncoding(32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = nn.Linear(32, 2)

        def forward(self, ids):
            return self.out(self.encoder(self.positions(self.embed(ids))).mean(1))

    def events(n, seed):
        """Does event 1 come before event 2?"""
        g = torch.Generator().manual_seed(seed)
        x = torch.randint(3, 20, (n, 12), generator=g)
        places = torch.rand(n, 12, generator=g).argsort(1)[:, :2]
        x.scatter_(1, places, torch.tensor([[1, 2]]).expand(n, 2))
        return x, (places[:, 0] < places[:, 1]).long()

    x, y = events(2000, 21)
    test, test_y = events(400, 22)
    model = Model()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )
