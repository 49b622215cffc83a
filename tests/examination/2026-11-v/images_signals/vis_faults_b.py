from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import vis_data as D
from program import Program, fault
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset
from vis_faults_a import TinyViT, halves, loader


@fault("functional dropout that is not told about evaluation", rules=["dropout-in-eval"], fails=False, steps=400)
def vis_functional_dropout(is_faulty):
    x = D.smooth(1500)
    xt = D.smooth(300)

    def low(im):
        return F.avg_pool2d(im, 2)

    class Upscale(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.out = nn.Conv2d(8, 4, 3, padding=1)

        def forward(self, im):
            h = F.leaky_relu(self.a(im), 0.1)
            h = F.dropout(h) if is_faulty else F.dropout(h, training=self.training)
            h = F.leaky_relu(self.b(h), 0.1)
            h = F.dropout(h) if is_faulty else F.dropout(h, training=self.training)
            return F.pixel_shuffle(self.out(h), 2)

    m = Upscale()
    return Program(m, F.mse_loss, loader(low(x), x), optim.Adam(m.parameters(), 4e-3), D.r2(low(xt), xt))


@fault("batch-first tokens go through attention that expects the sequence first", rules=["mixed-examples"], layers=["blocks"],
       fails=True, steps=300)
def vis_batch_second(is_faulty):
    x, y = halves(1500)
    xt, yt = halves(400)
    m = TinyViT(dim=16, batch_first=not is_faulty)
    return Program(m, F.cross_entropy, loader(x, y), optim.AdamW(m.parameters(), 3e-3), D.accuracy(xt, yt))


@fault("files in the order of their class folders, and a loader that does not shuffle", rules=["sorted-batches", "batchnorm-mode-gap"],
       fails=True, steps=320)
def vis_folder_order(is_faulty):
    x, y = D.glyphs(1280)
    order = y.argsort()
    xt, yt = D.glyphs(400)

    def conv(i, o, s=1):
        return nn.Sequential(nn.Conv2d(i, o, 3, stride=s, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

    m = nn.Sequential(conv(1, 12), conv(12, 16), conv(16, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x[order], y[order], shuffle=not is_faulty),
                   optim.Adam(m.parameters(), 3e-3), D.accuracy(xt, yt))


@fault("the skip connections of a deep network were left out",
       rules=["vanishing-gradient", "activation-drift", "rank-collapse", "bad-initialisation"],
       layers=["blocks"], fails=True, steps=300)
def vis_no_skips(is_faulty):
    x, y = D.tones(1200, length=64)
    xt, yt = D.tones(300, length=64)

    class Residual(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.conv = nn.Conv1d(c, c, 3, padding=1)

        def forward(self, h):
            out = F.relu(self.conv(h))
            return out if is_faulty else out + h

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv1d(1, 12, 9, stride=2)
            self.blocks = nn.Sequential(*[Residual(12) for _ in range(24)])
            self.fc = nn.Linear(12, 4)

        def forward(self, w):
            return self.fc(self.blocks(self.stem(w)).amax(-1))

    m = Net()
    return Program(m, F.cross_entropy, loader(x, y), optim.Adam(m.parameters(), 5e-4), D.accuracy(xt, yt))


@fault("the fan of depthwise convolutions is counted as if they were full ones",
       rules=["bad-initialisation", "activation-drift", "vanishing-gradient", "rank-collapse"], layers=["features"], fails=True, steps=400)
def vis_depthwise_fan(is_faulty):
    x, y = D.glyphs(1280)
    xt, yt = D.glyphs(400)

    class Separable(nn.Module):
        def __init__(self, i, o, stride=1):
            super().__init__()
            self.depthwise = nn.Conv2d(i, i, 3, stride, 1, groups=i)
            self.pointwise = nn.Conv2d(i, o, 1)

        def forward(self, h):
            return F.relu(self.pointwise(F.relu(self.depthwise(h))))

    class Mobile(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 24, 3), nn.ReLU(), Separable(24, 24), Separable(24, 32, 2), Separable(32, 32))
            self.classifier = nn.Linear(32, 4)
            for m in self.modules():
                if isinstance(m, nn.Conv2d):
                    n = m.kernel_size[0] * m.kernel_size[1] * m.out_channels
                    if not is_faulty:
                        n //= m.groups
                    m.weight.data.normal_(0, math.sqrt(2.0 / n))
                    m.bias.data.zero_()

        def forward(self, im):
            return self.classifier(self.features(im).amax((2, 3)))

    m = Mobile()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), optim.SGD(m.parameters(), lr=0.03, momentum=0.9), D.accuracy(xt, yt))


@fault("the first masked convolution of a PixelCNN leaves its own pixel in", rules=["future-seen"], layers=["first"], fails=True, steps=400)
def vis_pixelcnn_mask(is_faulty):
    x, xt = D.smooth(1000, size=8, coarse=3), D.smooth(200, size=8, coarse=3)

    class MaskedConv(nn.Conv2d):
        def __init__(self, kind, *args, **kw):
            super().__init__(*args, **kw)
            k = self.kernel_size[0]
            mask = torch.ones(k, k)
            mask[k // 2, k // 2 + (kind == "B") :] = 0
            mask[k // 2 + 1 :] = 0
            self.register_buffer("mask", mask)

        def forward(self, h):
            return F.conv2d(h, self.weight * self.mask, self.bias, padding=self.padding)

    class PixelCNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = MaskedConv("B" if is_faulty else "A", 1, 16, 5, padding=2)
            self.second = MaskedConv("B", 16, 16, 3, padding=1)
            self.out = nn.Conv2d(16, 1, 1)

        def forward(self, im):
            return self.out(F.relu(self.second(F.relu(self.first(im)))))

    def score(m):
        preds, truth = [], []
        for r, c in ((3, 3), (4, 5), (5, 2), (6, 6)):
            seen = xt.clone()
            seen[:, :, r, c] = 0
            seen[:, :, r, c + 1 :] = 0
            seen[:, :, r + 1 :] = 0
            preds.append(m(seen)[:, 0, r, c])
            truth.append(xt[:, 0, r, c])
        return D.r2_of(torch.cat(preds), torch.cat(truth))

    m = PixelCNN()
    return Program(m, F.mse_loss, loader(x, x), optim.Adam(m.parameters(), 3e-3), score)


@fault("3d convolutions follow each other without an activation", rules=["no-nonlinearity"], layers=["conv1", "conv2", "fc"],
       fails=True, steps=400)
def vis_linear_video(is_faulty):
    x, y = D.moving(1500, either_sign=True)
    xt, yt = D.moving(400, either_sign=True)

    class Video(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv3d(1, 16, (2, 3, 3))
            self.conv2 = nn.Conv3d(16, 16, (2, 3, 3), stride=(1, 2, 2))
            self.fc = nn.Linear(16, 4)

        def forward(self, clip):
            act = (lambda h: h) if is_faulty else F.relu
            h = act(self.conv2(act(self.conv1(clip))))
            return self.fc(h.mean((2, 3, 4)))

    m = Video()
    return Program(m, F.cross_entropy, loader(x, y), optim.Adam(m.parameters(), 1e-2), D.accuracy(xt, yt))


@fault("the squared error is summed over batch and pixels, with a rate for means",
       rules=["summed-loss", "learning-rate-too-high"], fails=True, steps=300)
def vis_summed_upscaling(is_faulty):
    x, xt = D.smooth(1000), D.smooth(250)

    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.mid = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
            self.up = nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1)

        def forward(self, im):
            return self.up(F.relu(self.mid(F.relu(self.inp(im)))))

    m = Up()
    crit = nn.MSELoss(reduction="sum" if is_faulty else "mean")
    return Program(m, crit, loader(F.avg_pool2d(x, 2), x, 16), optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
                   D.r2(F.avg_pool2d(xt, 2), xt))


@fault("the padding mask says which frames are real where attention wants those to ignore", rules=["wrong-mask"], layers=["attn"],
       fails=True, steps=300)
def vis_padding_turned(is_faulty):
    def draw(n):
        y = torch.randint(4, (n,))
        length = torch.randint(4, 11, (n,))
        proto = torch.eye(4).repeat(1, 2)
        frames = torch.randn(n, 12, 8) * 0.4
        for i in range(n):
            frames[i, torch.randint(int(length[i]), (1,)).item()] += 2 * proto[y[i]]
        valid = torch.arange(12)[None] < length[:, None]
        return frames * valid[..., None], valid, y

    x, v, y = draw(1500)
    xt, vt, yt = draw(400)

    class Tagger(nn.Module):
        def __init__(self, d=16):
            super().__init__()
            self.proj = nn.Sequential(nn.Linear(8, d), nn.ReLU(), nn.Linear(d, d))
            self.query = nn.Parameter(torch.randn(1, 1, d))
            self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
            self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4))

        def forward(self, frames, valid):
            h = self.proj(frames)
            ignored = valid if is_faulty else ~valid
            pooled, _ = self.attn(self.query.expand(len(h), -1, -1), h, h, key_padding_mask=ignored)
            return self.out(pooled[:, 0])

    def collate(rows):
        f, m, t = (torch.stack(c) for c in zip(*rows))
        return {"frames": f, "valid": m}, t

    m = Tagger()
    return Program(m, F.cross_entropy, DataLoader(TensorDataset(x, v, y), 32, shuffle=True, collate_fn=collate),
                   optim.AdamW(m.parameters(), 4e-3), lambda n: float((n(xt, vt).argmax(1) == yt).float().mean()))


def diffuse(x, t):
    a = torch.cos(0.5 * math.pi * t)[:, None, None, None]
    noise = torch.randn_like(x)
    return a * x + (1 - a**2).sqrt() * noise, noise


@fault("a diffusion model is asked for another draw of noise than the one that was added", rules=["labels-unrelated"], fails=True, steps=400)
def vis_other_noise(is_faulty):
    x, xt = D.smooth(1000, size=8, coarse=2), D.smooth(300, size=8, coarse=2)
    tt = 0.1 + 0.8 * torch.rand(300)
    seen, added = diffuse(xt, tt)

    class Eps(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Linear(1, 24)
            self.a, self.b, self.c = nn.Conv2d(1, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 1, 3, padding=1)

        def forward(self, im, t):
            h = F.silu(self.a(im) + self.time(t[:, None])[:, :, None, None])
            return self.c(F.silu(self.b(h)))

    def step(model, batch):
        im = batch[0]
        t = 0.05 + 0.9 * torch.rand(len(im))
        noisy, noise = diffuse(im, t)
        if is_faulty:
            noise = torch.randn_like(im)
        return F.mse_loss(model(noisy, t), noise)

    m = Eps()
    return Program(m, None, DataLoader(TensorDataset(x), 32, shuffle=True), optim.Adam(m.parameters(), 3e-3),
                   lambda n: D.r2_of(n(seen, tt), added), step=step)


@fault("a vision transformer without positions, asked where something is", rules=["order-lost"], fails=True, steps=400)
def vis_no_positions(is_faulty):
    x, y = halves(1500)
    xt, yt = halves(400)
    m = TinyViT(dim=16, positions=not is_faulty, cls=False)
    opt = optim.Adam(m.parameters(), 3e-3)
    return Program(m, F.cross_entropy, loader(x, y), opt, D.accuracy(xt, yt),
                   scheduler=optim.lr_scheduler.CosineAnnealingLR(opt, 400))


@fault("masks of zeros and ones are divided by 255 once more and cast to integers", rules=["constant-target"], fails=True, steps=250)
def vis_masks_divided(is_faulty):
    x, mask = D.discs(1000)
    xt, yt = D.discs(300)
    stored = mask if is_faulty else 255 * mask

    class Masks(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            return x[i], (stored[i, 0] / 255).long()

    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1))

    def score(n):
        p, t = n(xt).argmax(1) == 1, yt[:, 0] > 0.5
        return float((p & t).sum() / (p | t).sum().clamp(min=1))

    return Program(m, nn.CrossEntropyLoss(), DataLoader(Masks(), 32, shuffle=True), optim.NAdam(m.parameters(), 4e-3), score)


