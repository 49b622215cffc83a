"""Faults: labels of a new shard, a loader, a scheduler, an embedding that grows, a VAE."""

from __future__ import annotations

import torch
from program import fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class _GRUClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 24)
        self.gru = nn.GRU(24, 40, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(80, 5)

    def forward(self, tokens):
        states, _ = self.gru(self.embed(tokens))
        return self.fc(states.max(1).values)


def _make_shard(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(5, 30, (n, 14), generator=g)
    y = torch.randint(0, 5, (n,), generator=g)
    place = torch.randint(0, 14, (n,), generator=g)
    x[torch.arange(n), place] = y  # the keyword
    return x, y


@fault(
    "The second shard of the data was shuffled for inputs and labels apart: from step 800 on labels are those of other "
    "examples",
    rules=["data-changed", "labels-unrelated"],
    step=800,
    steps=1500,
)
def gru_second_shard_labels_shuffled_apart(record, broken=True):
    torch.manual_seed(31)
    shards = []
    for number in range(2):
        x, y = _make_shard(8000, seed=number)
        order = torch.randperm(len(x))
        x = x[order]
        if number == 1 and broken:
            order = torch.randperm(len(y))
        shards.append(TensorDataset(x, y[order]))
    model = _GRUClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    step = 0
    while step < 1500:
        shard = shards[0] if step < 800 else shards[1]
        for tokens, labels in DataLoader(shard, batch_size=40, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(model(tokens), labels)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (tokens, labels))
            step += 1
            if step in (800, 1500):
                break


class _SetTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, points):
        return self.out(self.block(self.inp(points)).mean(1)).squeeze(-1)


@fault(
    "After the refactoring at step 600 the loop takes next(iter(loader)) of an unshuffled loader at every step: always the "
    "first batch",
    rules=["repeated-batches", "overfitting"],
    step=600,
    steps=1200,
)
def set_transformer_always_first_batch(record, broken=True):
    torch.manual_seed(32)

    def points(n):
        x = torch.randn(n, 8, 4)
        gap = (x[:, :, 0].amax(1) - x[:, :, 0].amin(1)) - 2.8
        return x, gap + x[:, :, 1].mul(x[:, :, 2]).mean(1) + 0.3 * torch.randn(n)

    dataset = TensorDataset(*points(6400))
    x_val, y_val = points(500)
    shuffled = DataLoader(dataset, batch_size=32, shuffle=True)
    plain = DataLoader(dataset, batch_size=32)
    model = _SetTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mse = nn.MSELoss()
    recorder = record(model, optimizer, mse)
    batches = iter(shuffled)
    for step in range(1200):
        if step < 600 or not broken:
            batch = next(batches, None)
            if batch is None:
                batches = iter(shuffled)
                batch = next(batches)
        else:
            batch = next(iter(plain))
        optimizer.zero_grad()
        loss = mse(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), tuple(batch))
        if step % 50 == 49:
            with torch.no_grad():
                recorder.validation(mse(model(x_val), y_val).item())


class _Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


@fault(
    "ReduceLROnPlateau(mode='max') watches a loss: from step 500 on the rate is cut by 100 because the loss goes down",
    rules=["learning-rate-too-low", "lost-updates"],
    step=500,
    steps=1800,
)
def residual_mlp_plateau_mode_max(record, broken=True):
    torch.manual_seed(33)
    freq = torch.randn(6, 24)

    def draw(n):
        x = 2 * torch.rand(n, 6) - 1
        return x, torch.sin(2.0 * x @ freq)[:, :8]

    x_val, y_val = draw(1000)
    model = nn.Sequential(nn.Linear(6, 72), *[_Residual(72) for _ in range(3)], nn.Linear(72, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if broken else "min", factor=0.01, patience=3
    )
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for step in range(1, 1801):
        x, y = draw(64)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, y))
        if step % 100 == 0:
            with torch.no_grad():
                val = criterion(model(x_val), y_val).item()
            scheduler.step(val)
            recorder.validation(val)


class _BagOfWords(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        self.body = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, 6)

    def forward(self, words):
        return self.head(self.body(self.embed(words).mean(1)))

    def grow(self, vocabulary):
        old = self.embed.weight.data
        new = torch.randn(vocabulary - len(old), old.shape[1])
        self.embed = nn.Embedding.from_pretrained(torch.cat([old, new]), freeze=False)


@fault(
    "The vocabulary grows at step 700 and the embedding is made anew; the optimizer still holds the old one, so no word "
    "vector moves any more",
    rules=["no-gradient", "data-changed", "gradients-not-cleared", "exploding-gradient"],
    layers=["embed"],
    step=700,
    steps=1600,
)
def bag_of_words_grown_embedding_not_in_optimizer(record, broken=True):
    torch.manual_seed(34)
    topics = torch.randn(1200, 6) * 1.5
    model = _BagOfWords(400)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    vocabulary = 400
    for step in range(1600):
        if step == 700:
            vocabulary = 1200
            model.grow(vocabulary)
            if not broken:
                optimizer.add_param_group({"params": model.embed.parameters()})
        words = torch.randint(0, vocabulary, (320, 8))
        labels = topics[words].sum(1).argmax(1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (words, labels))


class _VAE(nn.Module):
    def __init__(self, size=64, latent=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, 160), nn.ReLU(), nn.Linear(160, 96), nn.ReLU())
        self.mu = nn.Linear(96, latent)
        self.logvar = nn.Linear(96, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 160), nn.ReLU(), nn.Linear(160, size))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.decoder(z), mu, logvar


@fault(
    "From step 700 on the reconstruction is a mean over pixels, and the divergence still a sum over latents: it outweighs "
    "the reconstruction, and the posterior collapses",
    rules=["term-dominates", "data-changed", "rank-collapse"],
    step=700,
    steps=1500,
)
def vae_reconstruction_becomes_a_mean(record, broken=True):
    torch.manual_seed(35)
    maps = torch.randn(4, 64)
    phase = {"second": False}

    def elbo(outputs, x):
        reconstruction, mu, logvar = outputs
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        if not phase["second"]:
            return ((reconstruction - x) ** 2).sum(1).mean() + kl
        mae = F.smooth_l1_loss(reconstruction, x, reduction="mean")  # against outliers
        return mae + kl if broken else x.shape[1] * mae + kl

    model = _VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, elbo)
    for step in range(1500):
        phase["second"] = step >= 700
        x = torch.tanh(torch.randn(144, 4) @ maps) + 0.1 * torch.randn(144, 64)
        optimizer.zero_grad()
        loss = elbo(model(x), x)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, x))
