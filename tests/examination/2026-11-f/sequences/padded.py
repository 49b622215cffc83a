"""Texts of different lengths: padding, masks, packing, pooling."""

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, TensorDataset

PAD, VOCAB, LONGEST = 0, 40, 24


def texts(n, seed, lo=3, hi=LONGEST, side="right"):
    """Texts of words 1..39; the class says which of three topics has more words in it."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(lo, hi + 1, (n,), generator=g)
    topic = torch.randint(0, 3, (n,), generator=g)
    ids = torch.full((n, LONGEST), PAD)
    for i, (m, c) in enumerate(zip(lengths.tolist(), topic.tolist())):
        words = torch.randint(1, VOCAB, (m,), generator=g)
        on_topic = 1 + 13 * c + torch.randint(0, 13, (m,), generator=g)
        row = torch.where(torch.rand(m, generator=g) < 0.6, on_topic, words)
        if side == "right":
            ids[i, :m] = row
        else:
            ids[i, LONGEST - m:] = row
    return ids, lengths, topic


def accuracy(forward, side="right"):
    ids, lengths, topic = texts(400, 77, side=side)

    def score(model):
        return (forward(model, ids, lengths).argmax(-1) == topic).float().mean().item()

    return score


class LastState(nn.Module):
    """The class is that of the very last word: the state after it must be taken."""

    def __init__(self, at_end):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 24)
        self.rnn = nn.RNN(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 3)
        self.at_end = at_end

    def forward(self, ids, lengths):
        out, _ = self.rnn(self.embedding(ids))
        if self.at_end:
            return self.fc(out[:, -1])
        return self.fc(out[torch.arange(len(ids)), lengths - 1])


@fault(
    "`out[:, -1]` of texts that are padded on the right: the state after up to 37 pads, not after the last word",
    rules=["wrong-mask", "vanishing-gradient"], fails=True, steps=200,
)
def state_after_the_padding(is_faulty):
    def data(n, seed):
        ids, lengths, _ = texts(n, seed, lo=3, hi=12)
        ids = torch.cat([ids, torch.zeros(n, 16, dtype=torch.long)], 1)
        last = ids[torch.arange(n), lengths - 1]
        return {"ids": ids, "lengths": lengths}, last % 3

    x, y = data(960, 4)
    batches = [({k: v[i : i + 32] for k, v in x.items()}, y[i : i + 32]) for i in range(0, 960, 32)]
    hx, hy = data(300, 5)
    model = LastState(at_end=is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: (m(**hx).argmax(-1) == hy).float().mean().item(),
    )


class Packed(nn.Module):
    def __init__(self, unsort=True):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 16, padding_idx=PAD)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(48, 3)
        self.unsort = unsort

    def forward(self, ids, lengths):
        order = lengths.argsort(descending=True)
        packed = pack_padded_sequence(self.embed(ids[order]), lengths[order], batch_first=True)
        _, (h, _) = self.lstm(packed)
        h = torch.cat([h[0], h[1]], 1)
        if self.unsort:
            h = h[order.argsort()]
        return self.linear(h)


@fault(
    "texts are sorted by length to be packed, and the results are not put back into the order of the labels",
    rules=["mixed-examples", "output-loss-mismatch", "labels-unrelated"], fails=True, steps=200,
)
def sorted_for_packing(is_faulty):
    model = Packed(unsort=not is_faulty)
    ids, lengths, topic = texts(1200, 8)
    data = list(zip(ids, lengths, topic))

    def collate(rows):
        i, m, t = (torch.stack(c) for c in zip(*rows))
        return {"ids": i[:, : m.max()], "lengths": m}, t

    return Program(
        model, F.cross_entropy, DataLoader(data, 24, shuffle=True, collate_fn=collate),
        torch.optim.Adam(model.parameters(), 4e-3), accuracy(lambda m, i, n: m(i, n)),
    )


class Tagger(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 24, padding_idx=PAD)
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(48, tags)

    def forward(self, ids):
        return self.tag(self.gru(self.emb(ids))[0])


def tagged(n, seed, lo=3, hi=LONGEST, pad_tag=-100, longest=LONGEST):
    """Four tags: by the parity of the word and of the word before it."""
    ids, lengths, _ = texts(n, seed, lo, hi)
    ids = F.pad(ids, (0, longest - LONGEST))
    before = F.pad(ids, (1, 0))[:, :-1]
    tags = (ids % 2) * 2 + before % 2
    return ids, tags.masked_fill(ids == PAD, pad_tag), ids != PAD


def tag_accuracy(model):
    ids, tags, real = tagged(200, 31)
    return (model(ids).argmax(-1) == tags)[real].float().mean().item()


@fault(
    "all texts are padded to the longest of the corpus, the padded tags are those of a real class, and all count",
    rules=["padding-in-loss"], fails=False, steps=250,
)
def tags_of_padding_count(is_faulty):
    model = Tagger(4)
    ids, tags, _ = tagged(800, 33, lo=2, hi=4, pad_tag=0 if is_faulty else -100, longest=40)

    def loss(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    return Program(
        model, loss, DataLoader(TensorDataset(ids, tags), 32, shuffle=True),
        torch.optim.SGD(model.parameters(), 0.5), tag_accuracy,
    )


@fault(
    "the tokenizer pads on the left to 24 and the script cuts to the first 4: nothing but padding is left",
    rules=["constant-feature", "labels-unrelated", "wrong-mask", "loss-not-decreasing", "rank-collapse"],
    fails=True, steps=200,
)
def cut_to_the_padding(is_faulty):
    ids, _, topic = texts(1000, 14, hi=18, side="left")
    ids = ids[:, :4] if is_faulty else ids

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(VOCAB, 24)
            self.g = nn.GRU(24, 24, batch_first=True)
            self.o = nn.Linear(24, 3)

        def forward(self, x):
            return self.o(self.g(self.e(x))[1][0])

    model = Net()
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(ids, topic), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), 4e-3), accuracy(lambda m, i, n: m(i), side="left"),
    )


@sound("an ordinary tagger with packing and ignored pads", steps=250, least=0.8)
def packed_tagger():
    class PackedTagger(Tagger):
        def forward(self, ids):
            lengths = (ids != PAD).sum(1)
            packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=ids.size(1))
            return self.tag(out)

    model = PackedTagger(4)
    ids, tags, _ = tagged(800, 30)
    return Program(
        model, lambda out, y: F.cross_entropy(out.transpose(1, 2), y), DataLoader(TensorDataset(ids, tags), 32, True),
        torch.optim.Adam(model.parameters(), 5e-3), tag_accuracy,
    )


@sound("tag 0, which nothing ignores, is a real one (silence) and most of the targets", steps=300, least=0.8)
def mostly_silence():
    g = torch.Generator().manual_seed(50)

    def data(n):
        loud = (torch.rand(n, 20, generator=g) < 0.15).long() * torch.randint(1, 6, (n, 20), generator=g)
        frames = torch.eye(6)[loud] @ torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
        return frames + 0.3 * torch.randn(n, 20, 12, generator=g), loud

    x, y = data(640)
    hx, hy = data(100)

    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(12, 32, 3, padding=1)
            self.out = nn.Conv1d(32, 6, 1)

        def forward(self, x):
            return self.out(F.relu(self.conv(x.transpose(1, 2))))

    def f_of_the_loud(m):
        found = m(hx).argmax(1)
        hit = ((found == hy) & (hy > 0)).sum().item()
        return 2 * hit / max(1, (found > 0).sum().item() + (hy > 0).sum().item())

    model = Frames()
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), 3e-3), f_of_the_loud,
    )


@sound("batches of ragged lists, padded in the collate function; a trained network", trained=250, steps=300, least=0.75)
def ragged_lists():
    ids, lengths, topic = texts(800, 21)
    rows = [(i[:m], t) for i, m, t in zip(ids, lengths.tolist(), topic)]

    def collate(batch):
        seqs, labels = zip(*batch)
        return {"ids": pad_sequence(seqs, batch_first=True), "lengths": torch.tensor([len(s) for s in seqs])}, torch.stack(
            labels
        )

    model = Packed()
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(rows, 20, shuffle=True, collate_fn=collate),
        torch.optim.Adam(model.parameters(), 3e-3), accuracy(lambda m, i, n: m(i, n)),
    )
