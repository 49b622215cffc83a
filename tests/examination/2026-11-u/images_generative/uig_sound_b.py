import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn, optim
from uig_data import uig_accuracy, uig_digits, uig_explained, uig_iou, uig_loader, uig_shapes
from uig_faults_a import uig_pretrained, uig_retrieval, uig_views


@sound("a sinusoidal network that learns one image from coordinates", steps=400, least=0.8)
def uig_siren():
    at = torch.linspace(-1, 1, 32)
    grid = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1).view(-1, 2)
    value = (torch.sin(7 * grid[:, 0] + 3 * grid[:, 1] ** 2) * torch.cos(5 * grid[:, 1]))[:, None]
    fine = grid[:-1] + 1 / 62
    truth = (torch.sin(7 * fine[:, 0] + 3 * fine[:, 1] ** 2) * torch.cos(5 * fine[:, 1]))[:, None]

    class Sine(nn.Module):
        def __init__(self, a, b, first=False, w0=15.0):
            super().__init__()
            self.w0, self.linear = w0, nn.Linear(a, b)
            bound = 1 / a if first else (6 / a) ** 0.5 / w0
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(self.w0 * self.linear(x))

    model = nn.Sequential(Sine(2, 48, True), Sine(48, 48), nn.Linear(48, 1))
    inside = (fine.abs() < 1).all(1)
    return Program(
        model, nn.MSELoss(), uig_loader(grid, value, batch=256), optim.Adam(model.parameters(), 1e-3), lambda n: uig_explained(n(fine)[inside], truth[inside])
    )


@sound("a Siamese network with a triplet loss, one branch used three times", steps=300, least=0.6)
def uig_triplet():
    x, y, t, ty = uig_digits()
    by = [x[y == k] for k in range(10)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 16))

    def drawn(k):
        return torch.stack([by[c][torch.randint(len(by[c]), ())] for c in k.tolist()])

    def step(net, batch):
        images, labels = batch
        other = (labels + torch.randint(1, 10, labels.shape)) % 10
        return F.triplet_margin_loss(net(images), net(drawn(labels)), net(drawn(other)), margin=1.0)

    def score(net):
        # Pairs told apart by distance: adjusted so that chance is 0.
        e = net(t)
        d = torch.cdist(e, e)
        same = ty[:, None] == ty[None]
        near, far = d[same & ~torch.eye(len(t), dtype=torch.bool)], d[~same]
        g = torch.Generator().manual_seed(0)
        a = near[torch.randint(len(near), (3000,), generator=g)]
        b = far[torch.randint(len(far), (3000,), generator=g)]
        return 2 * (a < b).float().mean().item() - 1

    return Program(model, None, uig_loader(x, y), optim.Adam(model.parameters(), 2e-3), score, step=step)


@sound("distillation from a frozen teacher at temperature 4", steps=250, least=0.8)
def uig_distillation():
    x, y, t, ty = uig_digits()
    teacher = nn.Sequential(uig_pretrained(), nn.Linear(48, 10))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        head = optim.Adam(teacher[1].parameters(), 1e-2)
        for _ in range(150):
            i = torch.randint(0, 1400, (64,))
            head.zero_grad()
            F.cross_entropy(teacher(x[i]), y[i]).backward()
            head.step()
    teacher.eval().requires_grad_(False)
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

    def step(net, batch):
        image, label = batch
        logits = net(image)
        soft = F.kl_div(F.log_softmax(logits / 4, 1), F.softmax(teacher(image) / 4, 1), reduction="batchmean") * 16
        return 0.9 * soft + 0.1 * F.cross_entropy(logits, label)

    return Program(student, None, uig_loader(x, y), optim.Adam(student.parameters(), 3e-3), uig_accuracy(t, ty), step=step)


@sound("three tasks with losses of different size: class, place and mask", steps=250, least=0.6)
def uig_three_tasks():
    x, m, c, p, _ = uig_shapes(1000)
    tx, tm, tc, tp, _ = uig_shapes(200, seed=1)

    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
            self.mask = nn.Conv2d(16, 1, 1)
            self.shared = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 48), nn.ReLU())
            self.kind, self.place = nn.Linear(48, 3), nn.Linear(48, 2)

        def forward(self, x):
            h = self.stem(x)
            s = self.shared(h)
            return {"mask": self.mask(h), "kind": self.kind(s), "place": self.place(s)}

    def loss(out, target):
        m, c, p = target
        return F.binary_cross_entropy_with_logits(out["mask"], m) + 0.5 * F.cross_entropy(out["kind"], c) + 5 * F.mse_loss(out["place"], p)

    def collate(items):
        a, b, c, d = (torch.stack(v) for v in zip(*items))
        return a, (b, c, d)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, m, c, p), batch_size=16, shuffle=True, collate_fn=collate)

    def score(net):
        out = net(tx)
        return (uig_iou(out["mask"] > 0, tm) + (out["kind"].argmax(1) == tc).float().mean().item() + uig_explained(out["place"], tp)) / 3

    model = Three()
    return Program(model, loss, loader, optim.Adam(model.parameters(), 2e-3), score)


@sound("the discriminator's half of a GAN: smoothed labels, beta1 of 0.5, a fixed generator", steps=200, least=0.8)
def uig_discriminator():
    x, _, t, _ = uig_digits()
    with torch.random.fork_rng():
        torch.manual_seed(21)
        generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid()).requires_grad_(False)
        for layer in (generator[0], generator[2]):
            nn.init.normal_(layer.weight, 0, 0.5)
    shade = x.mean(0).view(1, 1, 8, 8) * 2

    def fake(n, g=None):
        return (generator(torch.randn(n, 8, generator=g)).view(-1, 1, 8, 8) * shade).clamp(0, 1)

    model = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(12, 24, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(96, 1))

    def step(net, batch):
        (real,) = batch
        d_real, d_fake = net(real), net(fake(len(real)))
        return F.binary_cross_entropy_with_logits(d_real, torch.full_like(d_real, 0.9)) + F.binary_cross_entropy_with_logits(d_fake, torch.zeros_like(d_fake))

    def score(net):
        g = torch.Generator().manual_seed(9)
        return ((net(t) > 0).float().mean().item() + (net(fake(len(t), g)) < 0).float().mean().item()) / 2

    return Program(model, None, uig_loader(x), optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.999)), score, step=step)


@sound("a generator fitted by maximum mean discrepancy: noise in, no pairing of noise with images", steps=500, least=0.6)
def uig_mmd_generator():
    x, _, t, _ = uig_digits()
    x, t = x.flatten(1), t.flatten(1)

    def mmd(a, b):
        both = torch.cat([a, b])
        d = torch.cdist(both, both).pow(2)
        k = sum(torch.exp(-d / s) for s in (2.0, 5.0, 10.0, 20.0))
        n = len(a)
        return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()

    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 64), nn.Sigmoid())

        def forward(self, z):
            return self.net(z)

    model = Generator()

    def score(net):
        z = torch.randn(len(t), 8, generator=torch.Generator().manual_seed(2))
        grey = torch.full_like(t, 0.5)
        return max(0.0, 1 - (mmd(net(z), t) / mmd(grey, t)).item())

    def step(net, batch):
        (real,) = batch
        return mmd(net(torch.randn(len(real), 8)), real)

    return Program(model, None, uig_loader(x, batch=128), optim.Adam(model.parameters(), 2e-3), score, step=step)


@sound("a classifier that has been trained, and is sure of nearly everything", trained=400, steps=500, least=0.9)
def uig_trained_classifier():
    x, y, t, ty = uig_digits()
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optim.Adam(model.parameters(), 2e-3), uig_accuracy(t, ty))


@sound("contrastive learning with two views, the batch as its negatives", steps=500, least=0.6)
def uig_contrastive():
    x = uig_digits()[0]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 48))

    def step(net, batch):
        a, b = (F.normalize(net(uig_views(batch[0])), dim=1) for _ in range(2))
        logits = a @ b.T / 0.1
        at = torch.arange(len(a))
        return (F.cross_entropy(logits, at) + F.cross_entropy(logits.T, at)) / 2

    return Program(model, None, uig_loader(x, batch=128), optim.Adam(model.parameters(), 3e-3), uig_retrieval, step=step)


@sound("a masked autoencoder: half of the patches hidden, loss on those only", steps=500, least=0.6)
def uig_masked_autoencoder():
    def waves(n, seed):
        g = torch.Generator().manual_seed(seed)
        u = torch.randn(n, 4, generator=g)
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
        basis = torch.stack([xs, ys, xs * ys, (3.14 * xs).cos()]).view(4, 64)
        return torch.tanh(u @ basis).view(n, 1, 8, 8)

    x, t = waves(1500, 1), waves(200, 2)

    def hide(images, g=None):
        keep = (torch.rand(len(images), 1, 4, 4, generator=g) > 0.5).float()
        return F.interpolate(keep, scale_factor=2)

    class MAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU())
            self.dec = nn.Linear(128, 64)

        def forward(self, image, seen):
            h = torch.cat([(image * seen).flatten(1), seen.flatten(1)], 1)
            return self.dec(self.enc(h)).view_as(image)

    def step(net, batch):
        (image,) = batch
        seen = hide(image)
        gone = 1 - seen
        return ((net(image, seen) - image).pow(2) * gone).sum() / gone.sum()

    def score(net):
        seen = hide(t, torch.Generator().manual_seed(1))
        gone = seen == 0
        return max(0.0, 1 - ((net(t, seen) - t)[gone].pow(2).mean() / t[gone].var()).item())

    model = MAE()
    return Program(model, None, uig_loader(x, batch=64), optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.05), score, step=step)


@sound("heat maps for keypoints, nearly all of whose pixels are zero", steps=250, least=0.6)
def uig_heatmaps():
    x, _, _, p, _ = uig_shapes(800)
    tx, _, _, tp, _ = uig_shapes(200, seed=1)
    at = (torch.arange(16) + 0.5) / 16
    heat = torch.exp(-((at[None, None] - p[:, :1, None]) ** 2 + (at[None, :, None] - p[:, 1:, None]) ** 2) / (2 * 0.06**2))[:, None]
    model = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))

    def score(net):
        best = net(tx).flatten(1).argmax(1)
        found = torch.stack([at[best % 16], at[best // 16]], 1)
        return ((found - tp).norm(dim=1) < 0.1).float().mean().item()

    return Program(model, lambda o, y: 10 * F.mse_loss(o, y), uig_loader(x, heat, batch=16), optim.Adam(model.parameters(), 3e-3), score)


@sound("a VQ autoencoder with straight-through gradients and a commitment loss", steps=500, least=0.6)
def uig_vq():
    x, _, t, _ = uig_digits()

    class VQ(nn.Module):
        def __init__(self, codes=64, d=6, slots=8):
            super().__init__()
            self.slots, self.d = slots, d
            self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, slots * d))
            self.book = nn.Embedding(codes, d)
            nn.init.normal_(self.book.weight, std=0.3)
            self.dec = nn.Sequential(nn.Linear(slots * d, 128), nn.ReLU(), nn.Linear(128, 64))

        def forward(self, x):
            z = self.enc(x).view(-1, self.d)
            q = self.book(torch.cdist(z, self.book.weight).argmin(1))
            out = self.dec((z + (q - z).detach()).view(-1, self.slots * self.d)).view_as(x)
            return out, F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())

    model = VQ()
    return Program(
        model, lambda o, y: F.mse_loss(o[0], y) + 0.1 * o[1], uig_loader(x, x, batch=64), optim.Adam(model.parameters(), 3e-3), lambda n: uig_explained(n(t)[0], t)
    )


@sound("focal loss with the last bias at the prior of rare objects", steps=300, least=0.65)
def uig_focal():
    x, _, c, p, _ = uig_shapes(1000)
    tx, _, tc, tp, _ = uig_shapes(200, seed=1)

    def cells(p):
        cell = (p * 8).long().clamp(0, 7)
        target = torch.zeros(len(p), 8, 8)
        target[torch.arange(len(p)), cell[:, 1], cell[:, 0]] = 1
        return target

    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU())
            self.cls = nn.Conv2d(16, 1, 3, padding=1)
            nn.init.normal_(self.cls.weight, std=0.01)
            nn.init.constant_(self.cls.bias, -4.6)

        def forward(self, x):
            return self.cls(self.net(x))[:, 0]

    def focal(logits, target, gamma=2.0, alpha=0.75):
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        pt = torch.exp(-ce)
        at = alpha * target + (1 - alpha) * (1 - target)
        return (at * (1 - pt) ** gamma * ce).sum() / target.sum()

    def score(net):
        best = net(tx).flatten(1).argmax(1)
        found = (torch.stack([best % 8, best // 8], 1) + 0.5) / 8
        return ((found - tp).abs().max(1).values < 0.13).float().mean().item()

    model = Dense()
    return Program(model, focal, uig_loader(x, cells(p)), optim.Adam(model.parameters(), 3e-3), score)
