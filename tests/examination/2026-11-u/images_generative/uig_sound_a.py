import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn, optim
from uig_data import uig_accuracy, uig_digits, uig_explained, uig_iou, uig_loader, uig_shapes
from uig_faults_a import UigSegNet, UigVAE, uig_pretrained, uig_seg_score


@sound("an ordinary CNN on digits", steps=200, least=0.85)
def uig_plain_cnn():
    x, y, t, ty = uig_digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optim.Adam(model.parameters(), 3e-3), uig_accuracy(t, ty))


@sound("an ordinary MLP on digits, some of whose pixels are always black", steps=250, least=0.85)
def uig_plain_mlp():
    x, y, t, ty = uig_digits()

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(64, 64)
            self.fc2 = nn.Linear(64, 10)

        def forward(self, x):
            return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))

    model = MLP()
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y, drop_last=False), optim.Adam(model.parameters(), 2e-3), uig_accuracy(t, ty))


class UigBasic(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.skip = nn.Identity() if a == b and stride == 1 else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        return F.relu(self.skip(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("a small ResNet with SGD, momentum and a cosine schedule", steps=200, least=0.85)
def uig_small_resnet():
    x, y, t, ty = uig_digits()
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), UigBasic(12, 12), UigBasic(12, 24, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), opt, uig_accuracy(t, ty), scheduler=optim.lr_scheduler.CosineAnnealingLR(opt, 200))


@sound("a small U-Net with BCE and Dice together, half trained", trained=60, steps=150, least=0.8)
def uig_small_unet():
    x, m, *_ = uig_shapes(800)
    model = UigSegNet()

    def both(logits, mask):
        p = logits.sigmoid()
        dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + dice

    return Program(model, both, uig_loader(x, m, batch=16), optim.Adam(model.parameters(), 3e-3), uig_seg_score)


@sound("a VAE with a Bernoulli decoder, all terms summed over pixels and latents", steps=400, least=0.6)
def uig_beta_vae():
    x, _, t, _ = uig_digits()
    model = UigVAE()

    def loss(out, target):
        recon, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(recon, target, reduction="none").flatten(1).sum(1).mean() + 0.3 * kl

    return Program(model, loss, uig_loader(x, x, batch=64), optim.Adam(model.parameters(), 2e-3), lambda n: uig_explained(n(t)[0].sigmoid(), t))


@sound("a ViT with warm-up from zero", steps=300, least=0.8)
def uig_vit_warmup():
    x, y, t, ty = uig_digits()

    class ViT(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.patch = nn.Conv2d(1, d, 2, 2)
            self.pos = nn.Parameter(0.02 * torch.randn(1, 16, d))
            layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

        def forward(self, x):
            h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
            return self.head(self.norm(self.encoder(h)).mean(1))

    model = ViT()
    opt = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    warm = optim.lr_scheduler.LambdaLR(opt, lambda k: min(k / 30, 0.5 * (1 + math.cos(math.pi * min(1, k / 300)))))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), uig_loader(x, y), opt, uig_accuracy(t, ty), scheduler=warm)


@sound("flow matching: times and noise are drawn in the step, and the noise cannot be told exactly", steps=500, least=0.6)
def uig_flow_matching():
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
    basis = torch.stack([xs, ys, xs * ys, (3.14 * xs).cos()]).view(4, 64)
    waves = lambda n, seed: torch.tanh(2 * torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)) @ basis).view(n, 1, 8, 8)  # noqa: E731
    x, t = waves(2000, 1), waves(400, 2)

    class Velocity(nn.Module):
        def __init__(self, w=160):
            super().__init__()
            self.register_buffer("freq", 2.0 ** torch.arange(4) * math.pi)
            self.inp = nn.Linear(64 + 8, w)
            self.mid = nn.ModuleList(nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.SiLU()) for _ in range(2))
            self.out = nn.Linear(w, 64)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

        def forward(self, image, time):
            angle = time[:, None] * self.freq
            h = F.silu(self.inp(torch.cat([image.flatten(1), angle.sin(), angle.cos()], 1)))
            for block in self.mid:
                h = h + block(h)
            return self.out(h).view_as(image)

    def between(image, noise, time):
        s = time.view(-1, 1, 1, 1)
        return (1 - s) * noise + s * image

    def step(net, batch):
        (image,) = batch
        noise, time = torch.randn_like(image), torch.rand(len(image))
        return F.mse_loss(net(between(image, noise, time), time), image - noise)

    def score(net):
        g = torch.Generator().manual_seed(8)
        noise, time = torch.randn(t.shape, generator=g), torch.rand(len(t), generator=g)
        return uig_explained(net(between(t, noise, time), time), t - noise)

    model = Velocity()
    return Program(model, None, uig_loader(x, batch=128), optim.AdamW(model.parameters(), 3e-3), score, step=step)


@sound("a convolutional autoencoder with transposed convolutions and a sigmoid output", steps=300, least=0.6)
def uig_conv_autoencoder():
    x, _, t, _ = uig_digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(12, 12, 3, 2, 1), nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(12, 12, 4, 2, 1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    return Program(model, nn.MSELoss(), uig_loader(x, x), optim.Adam(model.parameters(), 5e-3), lambda n: uig_explained(n(t), t))


@sound("a frozen pretrained backbone, of which only the head learns", steps=200, least=0.8)
def uig_frozen_backbone():
    x, y, t, ty = uig_digits()
    backbone = uig_pretrained().requires_grad_(False).eval()
    model = nn.Sequential(backbone, nn.Linear(48, 10))
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y), optim.Adam(model[1].parameters(), 5e-3), uig_accuracy(t, ty))


@sound("an autoencoder whose decoder has the encoder's weights", steps=300, least=0.6)
def uig_tied_autoencoder():
    x, _, t, _ = uig_digits()

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(24, 64))
            nn.init.orthogonal_(self.weight)
            self.hidden_bias, self.visible_bias = nn.Parameter(torch.zeros(24)), nn.Parameter(torch.zeros(64))

        def forward(self, x):
            h = torch.tanh(F.linear(x.flatten(1), self.weight, self.hidden_bias))
            return F.linear(h, self.weight.t(), self.visible_bias).view_as(x)

    model = Tied()
    return Program(model, nn.MSELoss(), uig_loader(x, x), optim.Adam(model.parameters(), 3e-3), lambda n: uig_explained(n(t), t))


@sound("few foreground pixels, with a positive weight of 4", steps=250, least=0.65)
def uig_positive_weight():
    x, m, *_ = uig_shapes(800, size=20)
    tx, tm, *_ = uig_shapes(150, size=20, seed=1)
    model = UigSegNet(width=8)
    with torch.no_grad():
        model.out.bias.fill_(-2.0)
    return Program(model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0)), uig_loader(x, m, batch=8), optim.Adam(model.parameters(), 3e-3), lambda n: uig_iou(n(tx) > 0, tm))


@sound("batches of 700 at a large rate", steps=120, least=0.8)
def uig_large_batch():
    x, y, t, ty = uig_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
    opt = optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y, batch=700), opt, uig_accuracy(t, ty))


@sound("batches of three with GroupNorm", steps=500, least=0.75)
def uig_tiny_batch():
    x, y, t, ty = uig_digits()
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10))
    return Program(model, nn.CrossEntropyLoss(), uig_loader(x, y, batch=3), optim.Adam(model.parameters(), 1.5e-3), uig_accuracy(t, ty))
