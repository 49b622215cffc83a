"""Sound set-ups for texts, series and sounds: the ordinary ones."""

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from ts_data import chain, loader, r2, reviews, share_right, tagged, tones, waves
from ts_language import CausalLM, Dicts, Encoder, ReviewGRU, Tagger
from ts_series import TCN, Forecaster


@sound("an ordinary classifier of padded texts, half trained", trained=100, steps=200, least=0.7)
def reviews_by_gru():
    train, held = reviews(1000), reviews(400)
    model = ReviewGRU(at_end=False)
    data = torch.utils.data.DataLoader(Dicts(*train), batch_size=32, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), data, torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: 2 * share_right(m(held[0], held[1]), held[2]) - 1)


@sound("an ordinary causal language model with a pre-norm transformer", steps=250, least=0.8)
def small_gpt():
    ids, held = chain(1500, 17, 30), chain(300, 17, 30)
    model = CausalLM(30)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    return Program(model, lambda z, y: F.cross_entropy(z.transpose(1, 2), y), loader(ids[:, :-1], ids[:, 1:]), opt,
                   lambda m: share_right(m(held[:, :-1]), held[:, 1:]))


@sound("an ordinary tagger with a bidirectional LSTM, trained", trained=300, steps=400, least=0.9)
def bilstm_tagger():
    words, tags, gone, _ = tagged(1200, shortest=5)
    wh, th, gh, _ = tagged(300, shortest=5)
    model = Tagger()
    return Program(model, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=-100),
                   loader(words, tags.masked_fill(gone, -100)), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: share_right(m(wh), th.masked_fill(gh, -100)))


@sound("an ordinary forecaster with an LSTM", steps=300, least=0.85)
def lstm_forecaster():
    s, held = waves(1500, 26), waves(300, 26)
    model = Forecaster(32, 2)
    return Program(model, nn.MSELoss(), loader(s[:, :-2], s[:, -2:]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(held[:, :-2]), held[:, -2:]))


@sound("an ordinary causal convolutional forecaster, half trained", trained=150, steps=300, least=0.85)
def causal_tcn():
    s, held = waves(1000, 41), waves(300, 41)
    model = TCN(causal=True)
    return Program(model, nn.MSELoss(), loader(s[:, :-1], s[:, 1:]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(held[:, :-1])[:, -1], held[:, -1]))


@sound("an ordinary network for sounds, with BatchNorm, trained", trained=250, steps=300, least=0.9)
def sounds_with_batchnorm():
    (x, y), (xh, yh) = tones(1000, 5, length=128), tones(300, 5, length=128)
    net = nn.Sequential(nn.Conv1d(1, 16, 16, 4, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
                        nn.Conv1d(16, 32, 5, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
                        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5))
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, drop_last=True),
                   torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4),
                   lambda m: share_right(m(xh), yh))


@sound("an ordinary bag of embeddings with SGD", steps=300, least=0.8)
def bag_of_words():
    def topics(n):
        y = torch.randint(4, (n,))
        x = torch.randint(120, (n, 12))
        own = torch.randint(30, (n, 12)) * 4 + y[:, None]
        return torch.where(torch.rand(n, 12) < 0.6, own, x), y

    (x, y), (xh, yh) = topics(2000), topics(400)
    net = nn.Sequential(nn.EmbeddingBag(120, 32, mode="mean"), nn.Linear(32, 4))
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.SGD(net.parameters(), lr=2.0),
                   lambda m: share_right(m(xh), yh))


@sound("an ordinary post-norm transformer that classifies, with dropout 0.1 and warm-up", steps=300, least=0.8)
def transformer_classifier():
    def first_of_two(n):
        x = torch.randint(2, 20, (n, 10))
        places = torch.rand(n, 10).argsort(1)[:, :2]
        y = (places[:, 0] < places[:, 1]).long()
        x.scatter_(1, places, torch.tensor([[0, 1]]).expand(n, 2))
        return x, y

    (x, y), (xh, yh) = first_of_two(2000), first_of_two(400)
    model = Encoder(20, 2, 10, drop=0.1)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min(1.0, (t + 1) / 50))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, lambda m: 2 * share_right(m(xh), yh) - 1, warm)


@sound("an ordinary sequence-to-sequence GRU with teacher forcing, half trained", trained=200, steps=400, least=0.6)
def reversing_seq2seq():
    class Model(nn.Module):
        def __init__(self, vocab=8, d=48):
            super().__init__()
            self.src = nn.Embedding(vocab, d)
            self.enc = nn.GRU(d, d, batch_first=True)
            self.tgt = nn.Embedding(vocab + 1, d)
            self.dec = nn.GRU(d, d, batch_first=True)
            self.out = nn.Linear(d, vocab)

        def forward(self, source, given):
            state = self.enc(self.src(source))[1]
            return self.out(self.dec(self.tgt(given), state)[0])

    def task(n):
        x = torch.randint(8, (n, 5))
        y = x.flip(1)
        return x, torch.cat([torch.full((n, 1), 8), y[:, :-1]], 1), y

    train, (xh, gh, yh) = task(3000), task(300)
    model = Model()

    def step(model, batch):
        x, given, y = batch
        return F.cross_entropy(model(x, given).flatten(0, 1), y.flatten())

    return Program(model, None, loader(*train), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: share_right(m(xh, gh), yh), step=step)
