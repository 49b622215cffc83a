"""Recurrent networks: memory, gates, encoders and decoders."""


import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recall(n, length, seed, symbols=6):
    """Which symbol stood first? The rest is noise from another alphabet."""
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(0, symbols, (n,), generator=g)
    rest = symbols + torch.randint(0, symbols, (n, length - 1), generator=g)
    return torch.cat([first[:, None], rest], 1), first


class Recaller(nn.Module):
    def __init__(self, cell=nn.LSTM, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.lstm = cell(16, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 6)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0][:, -1])


def first_symbol(length, n=300):
    x, y = recall(n, length, 901)
    return lambda m: (m(x).argmax(-1) == y).float().mean().item()


@fault(
    "the bias that should open the forget gates (+2) has the wrong sign, in a task for a long memory",
    rules=["vanishing-gradient", "bad-initialisation"], layers=["lstm"], fails=True, steps=250,
)
def forget_gates_shut(is_faulty):
    model = Recaller()
    with torch.no_grad():
        model.lstm.bias_hh_l0[32:64] = -4.0 if is_faulty else 2.0
    x, y = recall(1024, 20, 1)
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), 4e-3), first_symbol(20),
    )


class Seq2Seq(nn.Module):
    """Reverses a string of digits; the decoder is taught with the right digits before."""

    BOS = 8

    def __init__(self, shift=True):
        super().__init__()
        self.src = nn.Embedding(8, 24)
        self.encoder = nn.GRU(24, 64, batch_first=True)
        self.trg = nn.Embedding(9, 24)
        self.decoder = nn.GRU(24, 64, batch_first=True)
        self.out = nn.Linear(64, 8)
        self.shift = shift

    def encode(self, src):
        _, h = self.encoder(self.src(src))
        return h

    def forward(self, src, trg):
        begin = torch.full_like(trg[:, :1], self.BOS)
        given = torch.cat([begin, trg[:, :-1]], 1) if self.shift else trg
        return self.out(self.decoder(self.trg(given), self.encode(src))[0])

    def generate(self, src):
        h, token, said = self.encode(src), torch.full_like(src[:, :1], self.BOS), []
        for _ in range(src.size(1)):
            o, h = self.decoder(self.trg(token), h)
            token = self.out(o).argmax(-1)
            said.append(token)
        return torch.cat(said, 1)


def digits(n, seed, length=5):
    src = torch.randint(0, 8, (n, length), generator=torch.Generator().manual_seed(seed))
    return src, src.flip(1)


class Reversals(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        self.src, self.trg = digits(n, seed)

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        return {"src": self.src[i], "trg": self.trg[i]}, self.trg[i]


def reversed_right(m):
    src, trg = digits(200, 500)
    return (m.generate(src) == trg).float().mean().item()


def token_loss(out, y):
    return F.cross_entropy(out.reshape(-1, out.size(-1)), y.reshape(-1))


@fault(
    "the state of the last batch is kept for the next one together with its graph: the second backward raises",
    rules=["model-fails"], fails=True, steps=200,
)
def state_kept_with_its_graph(is_faulty):
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 16)
            self.rnn = nn.GRU(16, 32, batch_first=True)
            self.head = nn.Linear(32, 6)
            self.state = None

        def forward(self, x):
            if self.state is not None and self.state.size(1) != len(x):
                self.state = None
            out, state = self.rnn(self.embed(x), self.state if is_faulty else None)
            self.state = state
            return self.head(out[:, -1])

    x, y = recall(960, 6, 4)
    model = Stateful()
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), 4e-3), first_symbol(6),
    )


@fault(
    "three heads for three questions are made as `[Linear] * 3`, which is one head three times",
    rules=["shared-weight"], layers=["heads"], fails=False, steps=250,
)
def heads_multiplied(is_faulty):
    class Multi(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(6, 16)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.heads = nn.ModuleList(
                [nn.Linear(32, 6)] * 3 if is_faulty else [nn.Linear(32, 6) for _ in range(3)]
            )

        def forward(self, x):
            h = self.gru(self.embed(x))[1][0]
            return torch.stack([head(h) for head in self.heads], 1)

    def data(n, seed):
        x = torch.randint(0, 6, (n, 5), generator=torch.Generator().manual_seed(seed))
        return x, torch.stack([x[:, 4], x[:, 2], (x[:, 3] + 1) % 6], 1)

    model = Multi()
    hx, hy = data(300, 8)
    return Program(
        model, token_loss, DataLoader(TensorDataset(*data(1200, 7)), 40, shuffle=True),
        torch.optim.Adam(model.parameters(), 6e-3), lambda m: (m(hx).argmax(-1) == hy).float().mean().item(),
    )


@sound("an ordinary sequence-to-sequence network with teacher forcing", steps=500, least=0.75)
def ordinary_seq2seq():
    model = Seq2Seq()
    return Program(
        model, token_loss, DataLoader(Reversals(2000, 3), batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), 5e-3), reversed_right,
    )


@sound("an echo state network: the recurrence is random and frozen, only the read-out learns", steps=300, least=0.7)
def echo_state():
    class Echo(nn.Module):
        def __init__(self, n=80):
            super().__init__()
            w = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
            w = 0.9 * w / torch.linalg.eigvals(w).abs().max()
            self.reservoir = nn.RNN(1, n, batch_first=True)
            self.reservoir.weight_hh_l0.data.copy_(w)
            self.reservoir.weight_ih_l0.data.uniform_(-0.5, 0.5)
            self.reservoir.requires_grad_(False)
            self.readout = nn.Linear(n, 1)

        def forward(self, x):
            return self.readout(self.reservoir(x)[0][:, 10:])

    def series(n, seed):
        g = torch.Generator().manual_seed(seed)
        phase = 6.28 * torch.rand(n, 1, generator=g)
        t = torch.arange(31.0)
        s = torch.sin(0.4 * t + phase) + 0.5 * torch.sin(1.1 * t + 2 * phase)
        return s[:, :30, None], s[:, 11:, None]

    x, y = series(320, 1)
    hx, hy = series(64, 2)
    model = Echo()
    return Program(
        model, nn.MSELoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2),
        lambda m: 1 - (m(hx) - hy).pow(2).mean().item() / hy.var().item(),
    )


@sound("a pointer network, trained: its attention looks at one place because that is the answer", trained=350, steps=400, least=0.8)
def pointer_trained():
    class Pointer(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 32, batch_first=True, bidirectional=True)
            self.key = nn.Linear(64, 32)
            self.query = nn.Parameter(torch.randn(32))

        def forward(self, x):
            return torch.tanh(self.key(self.gru(x)[0])) @ self.query

    def data(n, seed):
        x = torch.rand(n, 7, 2, generator=torch.Generator().manual_seed(seed))
        return x, x.sum(-1).argmax(1)

    model = Pointer()
    hx, hy = data(300, 2)
    return Program(
        model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(*data(2000, 1)), 40, shuffle=True),
        torch.optim.Adam(model.parameters(), 5e-3), lambda m: (m(hx).argmax(-1) == hy).float().mean().item(),
    )
