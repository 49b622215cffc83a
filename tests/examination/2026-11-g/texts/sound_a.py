"""Ordinary scripts."""
import torch
import torch.nn.functional as F
from faults_b import Acoustic, ctc_score, speech
from program import Program, sound
from seqdata import acc, chain, gen, loader, padded, r2, topics
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


@sound("ordinary: GRU classifier of documents", steps=200, least=0.85)
def gru_classifier():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(100, 24)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.dropout = nn.Dropout(0.2)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            _, h = self.gru(self.embedding(x))
            return self.fc(self.dropout(h[-1]))

    x, y = topics(2000, 12, 100, 4, 101, 0.6)
    tx, ty = topics(300, 12, 100, 4, 102, 0.6)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch_size=50), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: acc(m(tx), ty))


@sound("ordinary: LSTM language model, half trained", trained=100, steps=200, least=0.8)
def lstm_language_model():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(25, 24)
            self.lstm = nn.LSTM(24, 48, batch_first=True)
            self.head = nn.Linear(48, 25)

        def forward(self, x):
            return self.head(self.lstm(self.embed(x))[0])

    a, b = chain(1500, 13, 25, 103), chain(200, 13, 25, 104)
    m = LM()
    return Program(m, lambda o, y: F.cross_entropy(o.reshape(-1, 25), y.reshape(-1)),
                   loader(a[:, :-1], a[:, 1:], batch_size=50), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: acc(m(b[:, :-1]), b[:, 1:]))


@sound("ordinary: transformer encoder with padding mask and masked mean", steps=250, least=0.85)
def transformer_classifier():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(61, 32, padding_idx=0)
            self.pos = nn.Embedding(16, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            pad = x == 0
            h = self.encoder(self.tok(x) + self.pos(torch.arange(x.shape[1])), src_key_padding_mask=pad)
            real = (~pad).unsqueeze(-1)
            return self.head((h * real).sum(1) / real.sum(1))

    x, y = topics(2000, 16, 61, 4, 105, 0.6)
    tx, ty = topics(300, 16, 61, 4, 106, 0.6)
    x, tx = padded(x, 6, 1)[0], padded(tx, 6, 2)[0]
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch_size=32), torch.optim.AdamW(net.parameters(), 2e-3),
                   lambda m: acc(m(tx), ty))


@sound("ordinary: packed BiLSTM tagger, padding ignored", steps=200, least=0.85)
def bilstm_tagger():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(31, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 4)

        def forward(self, tokens, lengths):
            p = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
            h, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(p)[0], batch_first=True, total_length=tokens.shape[1])
            return self.out(h)

    def make(n, seed):
        x, lengths = padded(torch.randint(1, 31, (n, 12), generator=gen(seed)), 5, seed + 1)
        y = 2 * (x % 2) + x.roll(-1, 1) % 2
        return x, lengths, torch.where(x == 0, -100, y)

    def collate(rows):
        x, n, y = (torch.stack(c) for c in zip(*rows))
        return {"tokens": x, "lengths": n}, y

    tx, tn, ty = make(200, 5)
    model = Tagger()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*make(2000, 1)), 50, shuffle=True,
                                       collate_fn=collate)
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten(), ignore_index=-100), data,
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(tx, tn)[ty >= 0], ty[ty >= 0]))


@sound("ordinary: GRU forecast of a standardised series", steps=250, least=0.85)
def gru_forecast():
    def make(n, seed):
        g = gen(seed)
        p = 6.28 * torch.rand(n, 1, generator=g)
        s = torch.sin(p + (0.3 + 0.4 * torch.rand(n, 1, generator=g)) * torch.arange(17))
        s = s + 0.05 * torch.randn(n, 17, generator=g)
        return s[:, :16, None], s[:, 16:]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            return self.fc(self.rnn(x)[0][:, -1])

    x, y = make(2000, 1)
    tx, ty = make(300, 2)
    net = Net()
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: r2(m(tx), ty))


@sound("ordinary: CTC on frames, half trained", trained=120, steps=250, least=0.8)
def ctc_half_trained():
    def loss(logits, labels):
        b, t, _ = logits.shape
        return F.ctc_loss(logits.log_softmax(-1).transpose(0, 1), labels, torch.full((b,), t),
                          torch.full((b,), labels.shape[1]))

    x, y = speech(800, 11)
    tx, ty = speech(150, 12)
    model = Acoustic()
    return Program(model, loss, loader(x, y, batch_size=32), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: ctc_score(m(tx), ty))


@sound("ordinary: causal transformer language model with cosine schedule and gradient of all weights", steps=300,
       least=0.8)
def small_gpt():
    V, T = 16, 10

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(V, 32), nn.Embedding(T, 32)
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.h = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.ln = nn.LayerNorm(32)
            self.head = nn.Linear(32, V, bias=False)

        def forward(self, x):
            t = x.shape[1]
            mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
            return self.head(self.ln(self.h(self.wte(x) + self.wpe(torch.arange(t)), mask=mask)))

    a, b = chain(2000, T + 1, V, 107), chain(200, T + 1, V, 108)
    m = GPT()
    opt = torch.optim.AdamW(m.parameters(), 3e-3, weight_decay=0.1)
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
                   loader(a[:, :-1], a[:, 1:], batch_size=40), opt, lambda m: acc(m(b[:, :-1]), b[:, 1:]),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(opt, 400))
