import torch
from program import Program, fault
from tdata import accuracy, chain, flat_ce, gen, loader, r2, tagged, topics, waves
from torch import nn
from torch.nn import functional as F


@fault("The pooling attention is normalised over the batch (dim=0) and not over the time.",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["0"], fails=True, steps=250)
def attention_pool_over_batch(bad):
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(6, 1)

        def forward(self, x):
            return (x * torch.softmax(self.query(x), dim=0 if bad else 1)).sum(1)

    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 12, 6, generator=g)
        key = torch.randint(12, (n,), generator=g)
        x[:, :, 0] = 0
        x[torch.arange(n), key, 0] = 3.0
        return x, 2 * x[torch.arange(n), key, 1:2] - x[torch.arange(n), key, 2:3]

    x, y = data(800, 21)
    tx, ty = data(256, 22)
    model = nn.Sequential(Pool(), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: r2(m(tx), ty))


@fault("Forecasts of shape (batch, 1) are compared with targets of shape (batch,): they broadcast.",
       rules=["output-loss-mismatch"], fails=True, steps=250)
def forecast_broadcast(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 24, batch_first=True)
            self.linear = nn.Linear(24, 1)

        def forward(self, x):
            return self.linear(self.lstm(x.unsqueeze(-1))[0][:, -1])

    w, t = waves(800, 16, 25), waves(256, 16, 26)
    y = w[:, -1] if bad else w[:, -1:]
    model = Net()
    return Program(model, nn.MSELoss(), loader(w[:, :-1], y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(t[:, :-1]), t[:, -1:]))


@fault("16-bit audio samples go into the recurrent network as integers up to 32767.",
       rules=["unscaled-input", "saturated-activation"], fails=False, steps=250)
def raw_pcm(bad):
    def data(n, seed):
        g = gen(seed)
        y = torch.randint(3, (n,), generator=g)
        f = torch.tensor([0.3, 0.6, 1.1])[y][:, None]
        amp = 0.3 + 0.6 * torch.rand(n, 1, generator=g)
        wave = amp * torch.sin(f * torch.arange(32) + 6.28 * torch.rand(n, 1, generator=g))
        wave = wave + 0.1 * torch.randn(n, 32, generator=g)
        return (wave * 20000).round().clamp(-32768, 32767).view(n, 8, 4), y

    class Speech(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 24, batch_first=True)
            self.out = nn.Linear(24, 3)

        def forward(self, frames):
            if not bad:
                frames = frames / 32768
            return self.out(self.rnn(frames)[0][:, -1])

    x, y = data(600, 29)
    tx, ty = data(300, 30)
    model = Speech()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(tx, ty))


@fault("The vocabulary is extended, with a new embedding, after the optimizer was made.",
       rules=["no-gradient"], layers=["wte"], fails=False, steps=250)
def embedding_resized_after_optimizer(bad):
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(30, 6)
            self.mlp = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 6))

        def forward(self, x):
            h = self.wte(x)
            return (h + self.mlp(h)) @ self.wte.weight.T

    def resize(m, n):
        fresh = nn.Embedding(n, 6)
        nn.init.normal_(fresh.weight, std=0.3)
        with torch.no_grad():
            fresh.weight[:30] = m.wte.weight * 0.3
        m.wte = fresh

    text, test = chain(512, 13, 40, 33, 0.05), chain(256, 13, 40, 34, 0.05)
    model = Tiny()
    if not bad:
        resize(model, 40)
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    if bad:
        resize(model, 40)
    return Program(model, flat_ce, loader(text[:, :-1], text[:, 1:]), opt, accuracy(test[:, :-1], test[:, 1:]))


@fault("A warm-up of 200000 steps, copied from a long pre-training, in a run of hundreds.",
       rules=["learning-rate-too-low"], fails=True, steps=200)
def endless_warmup(bad):
    x, _, y = topics(800, 20, 37)
    tx, _, ty = topics(400, 20, 38)

    class CBOW(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(61, 16)
            self.f = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, ids):
            return self.f(self.e(ids).mean(1))

    model = CBOW()
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    warm = 200_000 if bad else 20
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warm))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(tx, ty), scheduler=sched)
