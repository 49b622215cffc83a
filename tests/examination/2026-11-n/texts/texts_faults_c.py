"""Texts, tags and graphs with mistakes in their preparation and in small corners of the model."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def gen(seed):
    return torch.Generator().manual_seed(seed)


@fault(
    "Texts are cut to 12 tokens, and all begin with the same instruction of 14",
    rules=("constant-feature", "labels-unrelated"), fails=True, steps=150,
)
def cut_before_the_text(is_faulty):
    g = gen(1)
    instruction = torch.randint(5, 60, (14,), generator=g)
    y = torch.randint(0, 3, (1200,), generator=g)
    body = torch.randint(20, 60, (1200, 10), generator=g)
    spot = torch.randint(0, 10, (1200,), generator=g)
    body[torch.arange(1200), spot] = 2 + y
    full = torch.cat([instruction.expand(1200, -1), body], 1)
    max_length = 12 if is_faulty else 32
    ids = full[:, :max_length]

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 32)
            self.pos = nn.Parameter(torch.randn(32, 32) * 0.1)
            self.enc = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
            self.cls = nn.Linear(32, 3)

        def forward(self, ids):
            return self.cls(self.enc(self.emb(ids) + self.pos[: ids.shape[1]]).amax(1))

    model = Classifier()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(ids[:1000], y[:1000]), 32, shuffle=True),
                   torch.optim.AdamW(model.parameters(), lr=2e-3),
                   lambda m: (m(ids[1000:]).argmax(1) == y[1000:]).float().mean().item())


@fault(
    "Ratings in [0, 1) are made integers on the way to the loss, and so are all 0",
    rules=("constant-target",), fails=True, steps=200,
)
def ratings_truncated(is_faulty):
    g = gen(2)
    taste, kind = torch.randn(80, 3, generator=g), torch.randn(50, 3, generator=g)
    user, item = torch.randint(0, 80, (4000,), generator=g), torch.randint(0, 50, (4000,), generator=g)
    liked = torch.sigmoid((taste[user] * kind[item]).sum(1)) * 0.999

    def collate(rows):
        users, items, values = zip(*rows, strict=True)
        dtype = torch.long if is_faulty else torch.float
        labels = torch.tensor([float(v) for v in values]).to(dtype)
        return {"user": torch.stack(users), "item": torch.stack(items)}, labels.float()

    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            self.user_table, self.item_table = nn.Embedding(80, 6), nn.Embedding(50, 6)
            self.bias = nn.Embedding(50, 1)
            for table in (self.user_table, self.item_table, self.bias):
                nn.init.normal_(table.weight, std=0.3)

        def forward(self, user, item):
            u, v = self.user_table(user), self.item_table(item)
            return (u * v).sum(-1) + self.bias(item).squeeze(-1)

    def score(model):
        p = torch.sigmoid(model(user[3400:], item[3400:]))
        t = liked[3400:]
        return max(0.0, torch.corrcoef(torch.stack([p, t]))[0, 1].item()) if p.std() > 1e-4 else 0.0

    model = Factors()
    rows = TensorDataset(user[:3400], item[:3400], liked[:3400])
    return Program(model, nn.BCEWithLogitsLoss(), DataLoader(rows, 64, shuffle=True, collate_fn=collate),
                   torch.optim.Adam(model.parameters(), lr=3e-2), score)


@fault(
    "Messages are summed over dense neighbourhoods in six layers, without dividing by the degree",
    rules=("activation-drift", "exploding-gradient", "non-finite", "learning-rate-too-high"),
    layers=("convs",), fails=True, steps=200,
)
def degree_not_divided(is_faulty):
    g = gen(3)
    nodes = 20
    adjacency = (torch.rand(nodes, nodes, generator=g) < 0.5).float()
    adjacency = ((adjacency + adjacency.T) > 0).float()
    adjacency.fill_diagonal_(1)
    norm = adjacency if is_faulty else adjacency / adjacency.sum(1, keepdim=True)
    y = torch.randint(0, 2, (1200,), generator=g)
    x = torch.randn(1200, nodes, 5, generator=g)
    x[:, :, 0] += (y[:, None].float() - 0.5)

    class GraphConv(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.self_lin, self.nb_lin = nn.Linear(a, b), nn.Linear(a, b, bias=False)
            self.register_buffer("norm", norm)

        def forward(self, x):
            return F.relu(self.self_lin(x) + self.nb_lin(self.norm @ x))

    class GNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(GraphConv(5 if i == 0 else 24, 24) for i in range(6))
            self.out = nn.Linear(24, 2)

        def forward(self, x):
            for conv in self.convs:
                x = conv(x)
            return self.out(x.mean(1))

    for_all = GNN()
    return Program(for_all, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1000], y[:1000]), 32, shuffle=True),
                   torch.optim.SGD(for_all.parameters(), lr=0.05, momentum=0.9),
                   lambda m: (m(x[1000:]).argmax(1) == y[1000:]).float().mean().item())


@fault(
    "The encoder's state is detached before the decoder takes it",
    rules=("no-gradient",), layers=("encoder", "source"), fails=False, steps=250,
)
def detached_context(is_faulty):
    g = gen(4)
    vocab, length = 30, 10
    group = torch.randint(0, 4, (vocab,), generator=g)
    src = torch.randint(0, vocab, (1500, length), generator=g)
    # the answer is the group that is most frequent in the text, then its neighbours
    counts = F.one_hot(group[src], 4).sum(1).float() + 0.01 * torch.arange(4)
    best = counts.argmax(1)
    answer = torch.stack([best, (best + 1) % 4, (best + 3) % 4], 1)

    class Captioner(nn.Module):
        def __init__(self):
            super().__init__()
            self.source = nn.Embedding(vocab, 8)
            self.encoder = nn.GRU(8, 16, batch_first=True)
            self.target = nn.Embedding(5, 16)
            self.decoder = nn.GRU(16, 16, batch_first=True)
            self.words = nn.Linear(16, 4)
            nn.init.normal_(self.source.weight, std=0.2)

        def forward(self, src, prefix):
            context = self.encoder(self.source(src))[1]
            if is_faulty:
                context = context.detach()
            return self.words(self.decoder(self.target(prefix), context)[0])

    start = torch.full((1500, 1), 4)
    prefix = torch.cat([start, answer[:, :-1]], 1)

    def step(model, batch):
        s, p, a = batch
        return F.cross_entropy(model(s, p).transpose(1, 2), a)

    model = Captioner()
    return Program(model, None, DataLoader(TensorDataset(src[:1300], prefix[:1300], answer[:1300]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: (m(src[1300:], start[1300:])[:, 0].argmax(-1) == best[1300:]).float().mean().item(),
                   step=step)


@fault(
    "F.dropout is called without training=self.training, and so also drops in evaluation",
    rules=("dropout-in-eval",), fails=False, steps=250,
)
def functional_dropout(is_faulty):
    g = gen(5)
    x = torch.randint(0, 40, (1500, 12), generator=g)
    tag = torch.randint(0, 6, (40,), generator=g)
    y = tag[x]

    class WindowTagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 12)
            self.conv = nn.Conv1d(12, 16, 3, padding=1)
            self.fc = nn.Linear(16, 6)

        def forward(self, x):
            on = True if is_faulty else self.training
            h = F.dropout(self.emb(x), 0.5, training=on)
            h = F.relu(self.conv(h.transpose(1, 2))).transpose(1, 2)
            return self.fc(F.dropout(h, 0.5, training=on))

    model = WindowTagger()
    return Program(model, lambda o, t: F.cross_entropy(o.reshape(-1, 6), t.reshape(-1)),
                   DataLoader(TensorDataset(x[:1200], y[:1200]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: (m(x[1200:]).argmax(-1) == y[1200:]).float().mean().item())
