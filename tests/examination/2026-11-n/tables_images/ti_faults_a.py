
import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, gen, loader, r2, shapes
from torch import nn
from torch.utils.data import DataLoader, Dataset


@fault(
    "The pictures are read in the order of sorted(names), where scan_10 comes before scan_2; the rows of the labels "
    "are in the order of the numbers.",
    rules=["labels-unrelated"], fails=True, steps=400,
)
def sorted_file_names(is_faulty):
    x, y = shapes(1000, 1)
    folder = {f"scan_{i}.png": image for i, image in enumerate(x)}
    names = sorted(folder) if is_faulty else list(folder)
    images = torch.stack([folder[name] for name in names])
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 4),
    )
    return Program(model, nn.CrossEntropyLoss(), loader(images, y), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(*shapes(400, 2)))


class Lungs(Dataset):
    """Pictures with a spot in the left or the right half."""

    def __init__(self, n, seed, augment=None):
        g = gen(seed)
        self.labels = torch.randint(2, (n,), generator=g)
        self.images = 0.3 * torch.randn(n, 1, 14, 14, generator=g)
        for image, label in zip(self.images, self.labels):
            row = int(torch.randint(1, 11, (1,), generator=g))
            column = int(torch.randint(0, 4, (1,), generator=g)) + 7 * int(label)
            image[0, row : row + 3, column : column + 3] += 1.2
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        if self.augment is not None and torch.rand(()) < 0.5:
            image = image.flip(self.augment)
        return image, self.labels[i]


@fault(
    "Pictures are augmented by horizontal flips, but the label is the side on which the spot is.",
    rules=["labels-unrelated"], fails=True, steps=300,
)
def flip_of_sides(is_faulty):
    test = Lungs(400, 12)
    train = DataLoader(Lungs(600, 11, augment=-1 if is_faulty else -2), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2),
    )
    return Program(model, nn.CrossEntropyLoss(), train, torch.optim.AdamW(model.parameters(), 2e-3),
                   accuracy(test.images, test.labels))


@fault(
    "Visits are scaled to 0..1 with // instead of /: all targets are 0.",
    rules=["constant-target"], fails=True, steps=400,
)
def floor_division_of_targets(is_faulty):
    def table(n, seed):
        x = torch.randn(n, 6, generator=gen(seed))
        visits = (8 + 4 * torch.tanh(x[:, 0] * 1.5) + 3 * x[:, 1].abs() + 2 * torch.sin(2 * x[:, 2])).round()
        return x, visits.clamp(0, 19).long()

    x, visits = table(1200, 21)
    capacity = 20
    y = (visits // capacity if is_faulty else visits / capacity).float().unsqueeze(1)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    xt, vt = table(400, 22)
    return Program(model, nn.MSELoss(), loader(x, y, batch_size=64), torch.optim.Adam(model.parameters(), 2e-3),
                   r2(xt, (vt / capacity).unsqueeze(1)))


class Backbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.fc = nn.Linear(24, classes)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)))


def pretrained():
    """A network that knows five shapes."""
    model = Backbone(5)
    x, y = shapes(640, 31, classes=5, noise=0.2)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(8):
        for part in torch.randperm(640).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return model


@fault(
    "The optimizer is made before the head is replaced, so it holds the old head; the body is frozen.",
    rules=["no-gradient"], layers=["fc"], fails=True, steps=300,
)
def optimizer_before_new_head(is_faulty):
    model = pretrained()
    for p in model.parameters():
        p.requires_grad = False
    if not is_faulty:
        model.fc = nn.Linear(24, 3)
    model.fc.requires_grad_(True)
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)
    if is_faulty:
        model.fc = nn.Linear(24, 3)

    def relabelled(n, seed):
        x, y = shapes(n, seed)
        return x, torch.tensor([0, 1, 2, 2])[y]

    return Program(model, nn.CrossEntropyLoss(), loader(*relabelled(400, 32)), optimizer,
                   accuracy(*relabelled(400, 33)))


class VAE(nn.Module):
    def __init__(self, d=64, h=48, z=4):
        super().__init__()
        self.fc1 = nn.Linear(d, h)
        self.fc_mu = nn.Linear(h, z)
        self.fc_logvar = nn.Linear(h, z)
        self.fc3 = nn.Linear(z, h)
        self.fc4 = nn.Linear(h, d)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc_mu(h), self.fc_logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.fc4(F.relu(self.fc3(z))), mu, logvar


@fault(
    "A VAE adds a KL divergence that is summed over the batch and latents to a reconstruction error that is a mean "
    "over pixels: nothing is left in the latents.",
    rules=["term-dominates"], fails=True, steps=500,
)
def kl_summed_error_averaged(is_faulty):
    basis = torch.randn(4, 64, generator=gen(41))

    def pictures(n, seed):
        return torch.tanh(torch.randn(n, 4, generator=gen(seed)) @ basis)

    def loss(outputs, x):
        recon, mu, logvar = outputs
        error = F.mse_loss(recon, x, reduction="mean" if is_faulty else "sum")
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return error + kl

    x, xt = pictures(1500, 42), pictures(300, 43)
    model = VAE()
    return Program(model, loss, loader(x, x), torch.optim.Adam(model.parameters(), 3e-3),
                   r2(xt, xt, lambda out: out[0]))


@fault(
    "Assays that were not made are -1 in the table of labels, and go into the binary cross-entropy as if they were "
    "labels.",
    rules=["output-loss-mismatch", "padding-in-loss"], fails=True, steps=400,
)
def missing_assays_count(is_faulty):
    w = torch.randn(12, 5, generator=gen(51))

    def table(n, seed):
        g = gen(seed)
        x = torch.randn(n, 12, generator=g)
        y = ((x @ w) + (x.abs() @ w.flip(0)) * 0.5 > 0.5).float()
        return x, y, torch.rand(n, 5, generator=g) < 0.6

    x, y, is_missing = table(1500, 52)
    y = y.masked_fill(is_missing, -1.0)

    def loss(logits, target):
        if is_faulty:
            return F.binary_cross_entropy_with_logits(logits, target)
        known = target >= 0
        return F.binary_cross_entropy_with_logits(logits[known], target[known])

    xt, yt, _ = table(500, 53)

    def score(model):
        is_on, truth = model(xt) > 0, yt > 0.5
        balanced = [(is_on[:, k] & truth[:, k]).sum() / truth[:, k].sum() / 2
                    + (~is_on[:, k] & ~truth[:, k]).sum() / (~truth[:, k]).sum() / 2 for k in range(5)]
        return torch.stack(balanced).mean().item()

    model = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(),
                          nn.Linear(64, 5))
    return Program(model, loss, loader(x, y, batch_size=64), torch.optim.Adam(model.parameters(), 2e-3), score)


class AttentionPool(nn.Module):
    def __init__(self, d, classes, dim):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(d, 24), nn.Tanh(), nn.Linear(24, 1))
        self.value = nn.Linear(d, 16)
        self.head = nn.Linear(16, classes)
        self.dim = dim

    def forward(self, bags):
        weights = torch.softmax(self.scorer(bags), dim=self.dim)  # (bags, patches, 1)
        return self.head((weights * self.value(bags)).sum(1))


@fault(
    "Attention over the patches of a bag is a softmax over the last dimension, which has one entry: all weights are 1.",
    rules=["wrong-softmax-dimension", "no-gradient"], fails=True, steps=500,
)
def softmax_over_one_entry(is_faulty):
    w = torch.randn(6, 3, generator=gen(61))

    def bags(n, seed):
        g = gen(seed)
        x = torch.randn(n, 24, 8, generator=g)
        x[..., :2] = -1 + 0.3 * torch.randn(n, 24, 2, generator=g)
        chosen = torch.randint(24, (n,), generator=g)
        x[torch.arange(n), chosen, :2] += 2
        return x, (x[torch.arange(n), chosen, 2:] @ w).argmax(-1)

    model = AttentionPool(8, 3, -1 if is_faulty else 1)
    return Program(model, nn.CrossEntropyLoss(), loader(*bags(1500, 62)), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(*bags(400, 63)))


class PatchNet(nn.Module):
    """Embeds the patches of a picture one by one, mixes them with a transformer, and averages."""

    def __init__(self, is_faulty, d=24, classes=4):
        super().__init__()
        self.is_faulty = is_faulty
        self.embed = nn.Linear(16, d)
        self.position = nn.Parameter(0.02 * torch.randn(9, d))
        self.mix = nn.TransformerEncoderLayer(d, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, images):
        tokens = []
        for r in range(0, 12, 4):
            for c in range(0, 12, 4):
                tokens.append(self.embed(images[:, 0, r : r + 4, c : c + 4].flatten(1)))
        tokens = torch.stack(tokens)
        if self.is_faulty:
            tokens = tokens.reshape(images.shape[0], 9, -1)
        else:
            tokens = tokens.transpose(0, 1)
        return self.head(self.norm(self.mix(tokens + self.position)).mean(1))


@fault(
    "Stacked tokens are (patches, examples, features) and are reshaped, not transposed, to (examples, patches, "
    "features): every example holds patches of others.",
    rules=["mixed-examples", "labels-unrelated"], fails=True, steps=500,
)
def stacked_patches_reshaped(is_faulty):
    model = PatchNet(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(*shapes(1500, 71, noise=0.15)),
                   torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01),
                   accuracy(*shapes(320, 72, noise=0.15)))
