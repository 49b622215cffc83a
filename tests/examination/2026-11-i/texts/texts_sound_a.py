"""Ordinary scripts."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from texts_data import G, accuracy, loader, markov, r2, reviews, tagged, tones, waves

from program import Program, sound


def next_accuracy(vocab, upto=9):
    held = markov(300, 20, vocab, 4321)
    return lambda m: (m(held[:, :upto])[:, -1].argmax(-1) == held[:, upto]).float().mean().item()


def token_ce(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@sound("a bag of words, Adam, shuffled", steps=200, least=0.8)
def ordinary_bag_of_words():
    model = nn.Sequential(nn.EmbeddingBag(40, 24, mode="mean"), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2))
    return Program(model, nn.CrossEntropyLoss(), loader(*reviews(1200, 14, 40, 101)), torch.optim.Adam(model.parameters(), 1e-2),
                   accuracy(*reviews(400, 14, 40, 102)))


class LM(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.decoder = nn.Linear(32, vocab)

    def forward(self, ids):
        return self.decoder(self.drop(self.lstm(self.drop(self.embed(ids)))[0]))


@sound("an LSTM language model in the middle of its run", trained=60, steps=200, least=0.8)
def ordinary_lstm_lm():
    s = markov(800, 17, 16, 103)
    model = LM(16)
    return Program(model, token_ce, loader(s[:, :-1], s[:, 1:]), torch.optim.AdamW(model.parameters(), 1e-2), next_accuracy(16))


class MaskedEncoder(nn.Module):
    def __init__(self, vocab=30, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.positions = nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask):
        h = self.embed(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        h = self.encoder(h, src_key_padding_mask=attention_mask == 0)
        m = attention_mask.unsqueeze(-1).float()
        return self.out((h * m).sum(1) / m.sum(1))


@sound("a transformer over padded sentences, masked in attention and pooling", steps=250, least=0.75)
def ordinary_masked_transformer():
    x, y = reviews(1200, 12, 30, 107, shortest=4)
    hx, hy = reviews(400, 12, 30, 108, shortest=4)
    batches = DataLoader(list(zip(x, y)), batch_size=32, shuffle=True,
                         collate_fn=lambda items: ({"input_ids": torch.stack([a for a, _ in items]),
                                                    "attention_mask": (torch.stack([a for a, _ in items]) != 0).long()},
                                                   torch.stack([b for _, b in items])))
    model = MaskedEncoder()
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01),
                   lambda m: (m(hx, (hx != 0).long()).argmax(-1) == hy).float().mean().item())


@sound("convolutions with BatchNorm over sounds", steps=150, least=0.8)
def ordinary_tones_cnn():
    model = nn.Sequential(nn.Conv1d(1, 12, 9, stride=2), nn.BatchNorm1d(12), nn.ReLU(), nn.Conv1d(12, 16, 9, stride=2), nn.BatchNorm1d(16),
                          nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(*tones(800, 96, 109)), torch.optim.Adam(model.parameters(), 3e-3), accuracy(*tones(300, 96, 110)))


class BiTagger(nn.Module):
    def __init__(self, vocab, tags):
        super().__init__()
        self.emb = nn.Embedding(vocab, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 20, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(40, tags)

    def forward(self, x):
        return self.fc(self.lstm(self.emb(x))[0])


@sound("a bidirectional tagger with ignored padding", steps=250, least=0.8)
def ordinary_bilstm_tagger():
    def data(n, seed):
        x, y = tagged(n, 12, 20, 5, seed)
        gone = torch.arange(12)[None] >= torch.randint(4, 13, (n, 1), generator=G(seed + 1))
        x[gone], y[gone] = 0, -100
        return x, y

    hx, hy = data(300, 113)
    model = BiTagger(20, 5)
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    return Program(model, lambda o, t: criterion(o.reshape(-1, 5), t.reshape(-1)), loader(*data(800, 111)), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: (m(hx).argmax(-1) == hy)[hy >= 0].float().mean().item())


class Seq2Seq(nn.Module):
    def __init__(self, vocab=8, hidden=48):
        super().__init__()
        self.src = nn.Embedding(vocab, 16)
        self.tgt = nn.Embedding(vocab + 1, 16)
        self.encoder = nn.GRU(16, hidden, batch_first=True)
        self.decoder = nn.GRU(16, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, source, target_in):
        _, state = self.encoder(self.src(source))
        return self.out(self.decoder(self.tgt(target_in), state)[0])


@sound("an encoder and decoder with teacher forcing", steps=400, least=0.7)
def ordinary_translation():
    words = torch.randperm(8, generator=G(115))

    def data(n, seed):
        s = torch.randint(8, (n, 4), generator=G(seed))
        t = words[s].flip(1)
        return s, torch.cat([torch.full((n, 1), 8), t[:, :-1]], 1), t

    s, ti, t = data(1500, 116)
    hs, hti, ht = data(300, 117)
    model = Seq2Seq()
    batches = loader(s, ti, t)

    def step(m, batch):
        source, target_in, target = batch
        return token_ce(m(source, target_in), target)

    return Program(model, None, batches, torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: (m(hs, hti).argmax(-1) == ht).float().mean().item(), step=step)


@sound("a dilated causal convolution over series, in the middle of its run", trained=80, steps=250, least=0.7)
def ordinary_causal_convolutions():
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv1d(1 if i == 0 else 16, 16, 2, dilation=2**i) for i in range(4)])
            self.head = nn.Conv1d(16, 1, 1)

        def forward(self, x):
            h = x.transpose(1, 2)
            for i, conv in enumerate(self.convs):
                h = torch.relu(conv(F.pad(h, (2**i, 0))))
            return self.head(h)[:, 0]

    def data(n, seed):
        x, y = waves(n, 24, seed)
        return x, torch.cat([x[:, 1:, 0], y], 1)

    hx, hy = data(300, 119)
    model = Causal()
    return Program(model, nn.SmoothL1Loss(), loader(*data(1000, 118)), torch.optim.Adam(model.parameters(), 3e-3), r2(hx, hy))
