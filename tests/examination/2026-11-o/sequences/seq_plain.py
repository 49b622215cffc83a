"""Ordinary set-ups with nothing wrong."""

import torch
import torch.nn.functional as F
from program import Program, sound
from seq_data import accuracy, chain2, loader, r2, tones, waves
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


@sound("a small GPT, half trained, with warm-up, AdamW and a little dropout", trained=120, steps=400, least=0.8)
def plain_gpt():
    text = chain2(1500, 16, 8, keep=0.95)

    class GPT(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok, self.pos = nn.Embedding(8, d), nn.Embedding(16, d)
            layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.05, activation="gelu", batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(d), enable_nested_tensor=False)
            self.head = nn.Linear(d, 8)

        def forward(self, x):
            t = x.size(1)
            mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
            return self.head(self.blocks(self.tok(x) + self.pos(torch.arange(t)), mask=mask))

    model = GPT()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        opt,
        [torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 30), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 570)],
        [30],
    )
    held = text[1300:]
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten(), label_smoothing=0.05),
                   loader(text[:1300, :-1], text[:1300, 1:]), opt,
                   lambda m: (m(held[:, :-1])[:, 1:].argmax(-1) == held[:, 2:]).float().mean().item(), scheduler=schedule)


@sound("a packed LSTM over padded texts", steps=250, least=0.8)
def plain_packed():
    n = 2600
    lengths = torch.randint(4, 15, (n,))
    x = torch.randint(1, 40, (n, 14))
    x[torch.arange(14) >= lengths[:, None]] = 0
    y = (((x > 0) & (x < 14)).sum(1) > ((x >= 14) & (x < 27)).sum(1)).long()

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 32, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(64, 2)

        def forward(self, x):
            packed = pack_padded_sequence(self.emb(x), (x != 0).sum(1), batch_first=True, enforce_sorted=False)
            _, (h, _) = self.lstm(packed)
            return self.fc(torch.cat([h[0], h[1]], dim=1))

    model = Packed()
    return Program(model, nn.CrossEntropyLoss(), loader(x[:2100], y[:2100]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(x[2100:], y[2100:]))


@sound("a convolutional network with BatchNorm on noisy tones, trained", trained=200, steps=250, least=0.9)
def plain_cnn():
    x, y = tones(1300, 64, 6, noise=0.6)

    def block(i, o, k, stride):
        return [nn.Conv1d(i, o, k, stride, k // 2), nn.BatchNorm1d(o), nn.ReLU()]

    model = nn.Sequential(*block(1, 16, 9, 1), *block(16, 32, 5, 2), *block(32, 32, 5, 2), nn.AdaptiveAvgPool1d(1),
                          nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 6))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1000], y[:1000]),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True),
                   accuracy(x[1000:], y[1000:]))


@sound("a transformer classifier with a class token and a padding mask", trained=50, steps=250, least=0.8)
def plain_encoder():
    n = 2000
    lengths = torch.randint(5, 13, (n,))
    x = torch.randint(12, 40, (n, 12))
    y = torch.randint(0, 3, (n,))
    x[torch.arange(n), (torch.rand(n) * lengths).long()] = 1 + 3 * y + torch.randint(3, (n,))
    x[torch.arange(12) >= lengths[:, None]] = 0

    class Classifier(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.embed = nn.Embedding(40, d, padding_idx=0)
            self.pos = nn.Parameter(0.02 * torch.randn(1, 13, d))
            self.cls = nn.Parameter(0.02 * torch.randn(1, 1, d))
            layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(d, 3)

        def forward(self, x):
            h = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1) + self.pos
            pad = F.pad(x == 0, (1, 0), value=False)
            return self.head(self.encoder(h, src_key_padding_mask=pad)[:, 0])

    model = Classifier()
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1600], y[:1600]), torch.optim.AdamW(model.parameters(), lr=1e-3),
                   accuracy(x[1600:], y[1600:]))


@sound("sequence to sequence with additive attention and teacher forcing", steps=300, least=0.7)
def plain_seq2seq():
    bos, vocab, n = 0, 9, 2400
    src = torch.randint(1, vocab, (n, 5))
    tgt = src.flip(1)

    class Seq2Seq(nn.Module):
        def __init__(self, hidden=48):
            super().__init__()
            self.emb = nn.Embedding(vocab, 32)
            self.encoder = nn.GRU(32, hidden, batch_first=True)
            self.decoder = nn.GRUCell(32 + hidden, hidden)
            self.wq, self.wk = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
            self.score = nn.Linear(hidden, 1)
            self.fc = nn.Linear(hidden, vocab)

        def forward(self, src, given=None):
            memory, h = self.encoder(self.emb(src))
            keys, h = self.wk(memory), h[0]
            token = torch.full((len(src),), bos)
            outputs = []
            for i in range(5):
                weights = self.score(torch.tanh(keys + self.wq(h).unsqueeze(1))).softmax(dim=1)
                context = (weights * memory).sum(1)
                h = self.decoder(torch.cat([self.emb(token), context], 1), h)
                outputs.append(self.fc(h))
                token = outputs[-1].argmax(-1) if given is None else given[:, i]
            return torch.stack(outputs, 1)

    model = Seq2Seq()
    data = [({"src": src[i : i + 40], "given": tgt[i : i + 40]}, tgt[i : i + 40]) for i in range(0, 2000, 40)]
    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), data,
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(src[2000:], tgt[2000:]))


@sound("a GRU that forecasts several steps, trained to the end", trained=300, steps=400, least=0.85)
def plain_forecast():
    s = waves(1300, 30)
    x, y = s[:, :25, None], s[:, 25:]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, num_layers=2, dropout=0.1, batch_first=True)
            self.fc = nn.Linear(32, 5)

        def forward(self, x):
            return self.fc(self.gru(x)[0][:, -1])

    model = Net()
    return Program(model, nn.HuberLoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(x[1000:], y[1000:]))
