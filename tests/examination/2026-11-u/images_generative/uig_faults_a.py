
import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn, optim
from uig_data import uig_accuracy, uig_digits, uig_explained, uig_gratings, uig_iou, uig_loader, uig_shapes


class UigSegNet(nn.Module):
    def __init__(self, last=None, width=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.mid = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(3 * width, 1, 3, padding=1)
        self.last = last or nn.Identity()

    def forward(self, x):
        a = self.down(x)
        b = F.interpolate(self.mid(a), scale_factor=2)
        return self.last(self.out(torch.cat([a, b], 1)))


def uig_seg_score(model):
    x, m, *_ = uig_shapes(200, seed=1)
    return uig_iou(model(x) > 0, m)


@fault("MSE of (n, 1) outputs against (n,) radii, which broadcasts", rules=["output-loss-mismatch"], fails=True, steps=300)
def uig_radius_broadcast(is_faulty):
    x, m, c, p, r = uig_shapes(1000)
    tx, tm, *_, tr = uig_shapes(300, seed=1)
    y, ty = m.mean((1, 2, 3)) * 10, tm.mean((1, 2, 3)) * 10
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 25, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    loss = nn.MSELoss() if is_faulty else (lambda o, t: F.mse_loss(o.squeeze(1), t))
    return Program(model, loss, uig_loader(x, y), optim.Adam(model.parameters(), 2e-3), lambda net: uig_explained(net(tx).flatten(), ty))


@fault("keypoints in pixels of the 640 x 640 original", rules=["unscaled-target", "learning-rate-too-low"], fails=True, steps=200)
def uig_keypoints_in_pixels(is_faulty):
    x, _, _, p, _ = uig_shapes(1000)
    tx, _, _, tp, _ = uig_shapes(300, seed=1)
    unit = 640.0 if is_faulty else 1.0

    class PointNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 8, 5, stride=2, padding=2)
            self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.fc1 = nn.Linear(256, 48)
            self.fc2 = nn.Linear(48, 2)

        def forward(self, x):
            x = F.relu(self.conv1(x))
            x = F.relu(self.conv2(x))
            return self.fc2(F.relu(self.fc1(x.flatten(1))))

    model = PointNet()
    return Program(
        model, F.smooth_l1_loss, uig_loader(x, p * unit), optim.Adam(model.parameters(), lr=1e-3), lambda net: uig_explained(net(tx) / unit, tp)
    )


@fault("super-resolution fed bytes 0..255, asked for 0..1", rules=["unscaled-input", "saturated-activation"], fails=True, steps=200)
def uig_superres_bytes(is_faulty):
    x, _, t, _ = uig_digits()

    class Upscale(nn.Module):
        def __init__(self, peak):
            super().__init__()
            self.peak = peak
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 64), nn.Unflatten(1, (1, 8, 8)))

        def forward(self, low):
            return self.body(low / self.peak)

    model = Upscale(1.0 if is_faulty else 255.0)
    low, tlow = (F.avg_pool2d(v, 2) * 255 for v in (x, t))
    return Program(model, nn.MSELoss(), uig_loader(low.round(), x), optim.SGD(model.parameters(), 0.5, momentum=0.9), lambda n: uig_explained(n(tlow.round()), t))


class UigVAE(nn.Module):
    def __init__(self, latent=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU())
        self.mu, self.logvar = nn.Linear(128, latent), nn.Linear(128, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z).view(-1, 1, 8, 8), mu, logvar


@fault("a VAE whose reconstruction is a mean over pixels and whose KL is a sum over batch and latents", rules=["term-dominates", "rank-collapse"], fails=True, steps=400)
def uig_vae_kl_sum(is_faulty):
    x, _, t, _ = uig_digits()
    model = UigVAE()

    def elbo(out, target):
        recon, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
        if not is_faulty:
            kl = 0.1 * kl / target.numel()
        return F.mse_loss(recon, target) + kl

    return Program(model, elbo, uig_loader(x, x, batch=64), optim.Adam(model.parameters(), 2e-3), lambda net: uig_explained(net(t)[0], t))


@fault("convolutions without an activation between them: the results of F.relu are thrown away", rules=["no-nonlinearity"], fails=True, steps=300)
def uig_relu_result_unused(is_faulty):
    x, y = uig_gratings(1200)
    tx, ty = uig_gratings(400, seed=1)

    class GratingNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 12, 5)
            self.conv2 = nn.Conv2d(12, 16, 3)
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            x = self.conv1(x)
            if is_faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            x = self.conv2(x)
            if is_faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            return self.head(x.mean((2, 3)))

    model = GratingNet()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optim.Adam(model.parameters(), 5e-3), uig_accuracy(tx, ty))


UIG_T = 50
UIG_BAR = torch.cumprod(1 - torch.linspace(1e-3, 0.15, UIG_T), 0)


def uig_noised(x, t, noise):
    a = UIG_BAR[t].view(-1, 1, 1, 1)
    return a.sqrt() * x + (1 - a).sqrt() * noise


class UigDenoiser(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.time = nn.Embedding(UIG_T, 32)
        self.fc1, self.fc2, self.fc3 = nn.Linear(64 + 32, width), nn.Linear(width, width), nn.Linear(width, 64)

    def forward(self, x, t):
        h = torch.cat([x.flatten(1), self.time(t)], 1)
        h = F.silu(self.fc1(h))
        h = h + F.silu(self.fc2(h))
        return self.fc3(h).view_as(x)


def uig_noise_score(net):
    x = uig_digits()[2] * 2 - 1
    g = torch.Generator().manual_seed(3)
    t = torch.randint(0, UIG_T, (len(x),), generator=g)
    noise = torch.randn(x.shape, generator=g)
    return uig_explained(net(uig_noised(x, t, noise), t), noise)


@fault("a diffusion model whose loss draws the noise a second time", rules=["labels-unrelated", "loss-not-decreasing", "output-loss-mismatch"], fails=True, steps=400)
def uig_diffusion_second_noise(is_faulty):
    x = uig_digits()[0] * 2 - 1
    model = UigDenoiser()

    def q_sample(x, t, noise):
        return uig_noised(x, t, torch.randn_like(x) if is_faulty else noise)

    def step(net, batch):
        (x0,) = batch
        t = torch.randint(0, UIG_T, (len(x0),))
        noise = torch.randn_like(x0)
        return F.mse_loss(net(q_sample(x0, t, noise), t), noise)

    return Program(model, None, uig_loader(x, batch=128), optim.AdamW(model.parameters(), 3e-3), uig_noise_score, step=step)


@fault("binary codes by a comparison, without a straight-through gradient", rules=["no-gradient"], layers=["encoder"], fails=False, steps=400)
def uig_binary_code_no_gradient(is_faulty):
    x, _, t, _ = uig_digits()

    class Hashing(nn.Module):
        def __init__(self, bits=14):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, bits))
            self.decoder = nn.Sequential(nn.Linear(bits, 96), nn.ReLU(), nn.Linear(96, 64))

        def forward(self, x):
            score = self.encoder(x)
            code = (score > 0).float()
            if not is_faulty:
                soft = torch.sigmoid(score)
                code = code + soft - soft.detach()
            return self.decoder(code).view_as(x)

    model = Hashing()
    return Program(model, nn.MSELoss(), uig_loader(x, x, batch=64), optim.Adam(model.parameters(), 3e-3), lambda net: uig_explained(net(t), t))


UIG_CACHE = {}


def uig_pretrained():
    """A backbone that has learned orientations of digits (upright or not, mirrored or not) beforehand."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 48), nn.ReLU())
    if not UIG_CACHE:
        with torch.random.fork_rng():
            torch.manual_seed(99)
            whole = nn.Sequential(net, nn.Linear(48, 10))
            x, y, *_ = uig_digits()
            opt = optim.Adam(whole.parameters(), 3e-3)
            for _ in range(200):
                i = torch.randint(0, 700, (32,))
                opt.zero_grad()
                F.cross_entropy(whole(x[i] + 0.2 * torch.randn(x[i].shape)), y[i]).backward()
                opt.step()
            UIG_CACHE.update({k: v.clone() for k, v in net.state_dict().items()})
    net.load_state_dict(UIG_CACHE)
    return net


@fault("the head is replaced after the optimizer has been made", rules=["no-gradient"], layers=["fc"], fails=True, steps=200)
def uig_head_after_optimizer(is_faulty):
    x, y, t, ty = uig_digits()

    class Classifier(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.backbone = uig_pretrained()
            for p in self.backbone.parameters():
                p.requires_grad_(False)
            self.fc = nn.Linear(48, classes)

        def forward(self, x):
            return self.fc(self.backbone(x))

    model = Classifier(1000)
    if is_faulty:
        optimizer = optim.Adam(model.parameters(), lr=5e-3)
        model.fc = nn.Linear(48, 10)
    else:
        model.fc = nn.Linear(48, 10)
        optimizer = optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optimizer, uig_accuracy(t, ty))


@fault("BatchNorm momentum of 1e-4, taken for Keras's complement", rules=["batchnorm-mode-gap"], layers=["bn1", "bn2"], fails=False, steps=200)
def uig_batchnorm_momentum(is_faulty):
    x, y, t, ty = uig_digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            m = 1e-4 if is_faulty else 0.1
            self.conv1 = nn.Conv2d(1, 12, 3, bias=False)
            self.bn1 = nn.BatchNorm2d(12, momentum=m)
            self.conv2 = nn.Conv2d(12, 24, 3, bias=False)
            self.bn2 = nn.BatchNorm2d(24, momentum=m)
            self.fc = nn.Linear(24 * 4, 10)

        def forward(self, x):
            x = self.bn1(self.conv1(x)).relu()
            x = self.bn2(self.conv2(x)).relu()
            return self.fc(F.max_pool2d(x, 2).flatten(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x * 16, y), optim.Adam(model.parameters(), 2e-3), uig_accuracy(t * 16, ty))


def uig_views(x, g=None):
    rand = lambda *s: torch.rand(*s, generator=g)  # noqa: E731
    keep = (rand(len(x), 1, 8, 8) > 0.1).float()
    return x * keep * (0.6 + 0.8 * rand(len(x), 1, 1, 1)) + 0.05 * torch.randn(x.shape, generator=g) + 1.5 * (rand(len(x), 1, 1, 1) - 0.5)


def uig_retrieval(embed, n=80):
    """How often the nearest of 80 other views is the one of the same image."""
    g = torch.Generator().manual_seed(5)
    x = uig_digits()[2][:n]
    a, b = F.normalize(embed(uig_views(x, g)), dim=1), F.normalize(embed(uig_views(x, g)), dim=1)
    return ((a @ b.T).argmax(1) == torch.arange(n)).float().mean().item()


@fault("VICReg's hinge on the standard deviations is the wrong way round, so that embeddings collapse", rules=["rank-collapse", "term-dominates", "output-loss-mismatch"], fails=True, steps=600)
def uig_vicreg_hinge(is_faulty):
    x = uig_digits()[0]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 48))

    def variance(z):
        std = (z.var(0) + 1e-4).sqrt()
        return F.relu(std - 1).mean() if is_faulty else F.relu(1 - std).mean()

    def covariance(z):
        z = z - z.mean(0)
        c = z.T @ z / (len(z) - 1)
        return (c - torch.diag(c.diagonal())).pow(2).sum() / z.shape[1]

    def step(net, batch):
        a, b = net(uig_views(batch[0])), net(uig_views(batch[0]))
        return 25 * F.mse_loss(a, b) + 25 * (variance(a) + variance(b)) + covariance(a) + covariance(b)

    return Program(model, None, uig_loader(x, batch=200), optim.Adam(model.parameters(), 3e-3), uig_retrieval, step=step)


@fault("the rate of SGD kept for Adam", rules=["learning-rate-too-high"], fails=True, steps=200)
def uig_adam_with_sgd_rate(is_faulty):
    x, y, t, ty = uig_digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    opt = optim.Adam(model.parameters(), lr=0.2 if is_faulty else 2e-3)
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), opt, uig_accuracy(t, ty))


@fault("StepLR of five epochs that is stepped after every batch", rules=["learning-rate-too-low"], fails=True, steps=250)
def uig_step_lr_per_batch(is_faulty):
    x, m, *_ = uig_shapes(800)
    model = UigSegNet(width=8)
    loader = uig_loader(x, m, batch=16)
    opt = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sched = optim.lr_scheduler.StepLR(opt, step_size=4 if is_faulty else 4 * len(loader), gamma=0.1)
    return Program(model, nn.BCEWithLogitsLoss(), loader, opt, uig_seg_score, scheduler=sched)


@fault("a soft-argmax whose softmax is over the maps instead of the places", rules=["wrong-softmax-dimension"], fails=True, steps=300)
def uig_soft_argmax_dim(is_faulty):
    x, _, _, p, _ = uig_shapes(1000)
    tx, _, _, tp, _ = uig_shapes(300, seed=1)

    class SoftArgmax(nn.Module):
        def __init__(self, maps=4):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, maps, 5, padding=2))
            at = (torch.arange(16) + 0.5) / 16
            self.register_buffer("grid", torch.stack(torch.meshgrid(at, at, indexing="xy"), -1).view(256, 2))
            self.mix = nn.Linear(2 * maps, 2)

        def forward(self, x):
            heat = self.features(x).flatten(2)
            heat = heat.softmax(dim=1 if is_faulty else 2)
            return self.mix((heat @ self.grid).flatten(1))

    model = SoftArgmax()
    return Program(model, nn.MSELoss(), uig_loader(x, p), optim.Adam(model.parameters(), 5e-3), lambda net: uig_explained(net(tx), tp))


@fault("all weights start at one constant", rules=["symmetric-initialisation", "bad-initialisation"], layers=["conv1", "conv2", "fc"], fails=False, steps=250)
def uig_constant_convolutions(is_faulty):
    x, y = uig_gratings(1200)
    tx, ty = uig_gratings(400, seed=1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 12, 5)
            self.conv2 = nn.Conv2d(12, 16, 3)
            self.fc = nn.Linear(16, 4)
            if is_faulty:
                for m in self.modules():
                    if isinstance(m, (nn.Conv2d, nn.Linear)):
                        nn.init.constant_(m.weight, 0.05)
                        nn.init.zeros_(m.bias)

        def forward(self, x):
            return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).mean((2, 3)))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optim.Adam(model.parameters(), 5e-3), uig_accuracy(tx, ty))


@fault("random crops that are drawn for the image and for the mask separately", rules=["labels-unrelated", "output-loss-mismatch"], fails=True, steps=200)
def uig_separate_crops(is_faulty):
    x, m, *_ = uig_shapes(800, size=24)
    tx, tm, *_ = uig_shapes(150, size=24, seed=1)
    model = UigSegNet(width=8)

    class Crops(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def place(self):
            return torch.randint(0, 9, (2,)).tolist()

        def __getitem__(self, i):
            r, c = self.place()
            image = x[i, :, r : r + 16, c : c + 16]
            if is_faulty:
                r, c = self.place()
            return image, m[i, :, r : r + 16, c : c + 16]

    loader = torch.utils.data.DataLoader(Crops(), batch_size=16, shuffle=True)
    return Program(model, nn.BCEWithLogitsLoss(), loader, optim.Adam(model.parameters(), 3e-3), lambda net: uig_iou(net(tx) > 0, tm))


def uig_patches(x, k=2):
    return F.unfold(x, k, stride=k).transpose(1, 2)


@fault("(batch, tokens, features) given to an encoder layer that takes the tokens first", rules=["mixed-examples"], layers=["blocks"], fails=True, steps=250)
def uig_vit_batch_first(is_faulty):
    x, y, t, ty = uig_digits()

    class ViT(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.embed = nn.Linear(4, dim)
            self.cls = nn.Parameter(0.02 * torch.randn(1, 1, dim))
            self.pos = nn.Parameter(0.1 * torch.randn(1, 17, dim))
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=not is_faulty) for _ in range(2))
            self.head = nn.Linear(dim, 10)

        def forward(self, x):
            h = self.embed(uig_patches(x))
            h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1) + self.pos
            for block in self.blocks:
                h = block(h)
            return self.head(h[:, 0])

    model = ViT()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optim.Adam(model.parameters(), 3e-3), uig_accuracy(t, ty))


@fault("patches without positions, where the place is asked for", rules=["order-lost"], fails=True, steps=250)
def uig_patches_without_position(is_faulty):
    x, _, _, p, _ = uig_shapes(1000)
    tx, _, _, tp, _ = uig_shapes(300, seed=1)
    quadrant = lambda p: (p[:, 0] > 0.5).long() * 2 + (p[:, 1] > 0.5).long()  # noqa: E731

    class Where(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.embed = nn.Linear(16, dim)
            if not is_faulty:
                self.pos = nn.Parameter(0.3 * torch.randn(16, dim))
            self.block = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True)
            self.head = nn.Linear(dim, 4)

        def forward(self, x):
            h = self.embed(uig_patches(x, 4))
            if not is_faulty:
                h = h + self.pos
            return self.head(self.block(h).mean(1))

    model = Where()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, quadrant(p)), optim.Adam(model.parameters(), 3e-3), uig_accuracy(tx, quadrant(tp)))


@fault("an autoencoder of eight sigmoid layers", rules=["vanishing-gradient", "rank-collapse", "activation-drift"], fails=True, steps=300)
def uig_deep_sigmoid_autoencoder(is_faulty):
    x, _, t, _ = uig_digits()
    widths = [64, 96, 64, 48, 32, 48, 64, 96]
    layers = [nn.Flatten()]
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.Sigmoid() if is_faulty else nn.ELU()]
    model = nn.Sequential(*layers, nn.Linear(96, 64), nn.Unflatten(1, (1, 8, 8)))
    return Program(model, nn.MSELoss(), uig_loader(x, x), optim.Adam(model.parameters(), 1e-3), lambda net: uig_explained(net(t), t))
