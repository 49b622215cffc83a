import torch
import torch.nn.functional as F
from torch import nn
from program import Program, sound
from kit import G, acc, groups, loader, manifold, mlp, r2, smooth
from f1 import VAE, LoRA, transitions
from f3 import Denoiser, den_score, noised


@sound("KL summed over latents, averaged over the batch", steps=400, least=0.7)
def vae_ordinary():
    x, t = manifold(1024, 1), manifold(300, 2)

    def step(m, b):
        r, mu, lv = m(b[0])
        kl = -0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()
        return ((r - b[0]) ** 2).sum(1).mean() + 0.3 * kl

    m = VAE()
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 2e-3), lambda m: r2(m(t)[0], t), step=step)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = mlp(4, 64, 64, 3)
        self.target = mlp(4, 64, 64, 3).requires_grad_(False)
        self.target.load_state_dict(self.q.state_dict())

    def forward(self, s):
        return self.q(s)


@sound("A frozen target network within the model, moved by averaging", steps=400, least=0.6)
def dqn_target():
    s, a, r, s2 = transitions(2048, 1)
    ts, ta, tr, ts2 = transitions(400, 2)

    def step(m, b):
        s, a, r, s2 = b
        with torch.no_grad():
            for p, q in zip(m.target.parameters(), m.q.parameters()):
                p.lerp_(q, 0.05)
            y = r + 0.3 * m.target(s2).max(1).values
        return F.smooth_l1_loss(m(s).gather(1, a[:, None]).squeeze(1), y)

    def score(m):
        y = tr + 0.3 * m(ts2).max(1).values
        return r2(m(ts).gather(1, ta[:, None])[:, 0], y)

    m = DQN()
    return Program(m, None, loader(s, a, r, s2, bs=64), torch.optim.Adam(m.q.parameters(), 2e-3), score, step=step)


@sound("Adapters whose second factor begins at zero; everything else is frozen", steps=300, least=0.8)
def lora_b_zero():
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    m = mlp(10, 64, 64, 5)
    for i in (0, 2, 4):
        m[i] = LoRA(m[i], 5)
    return Program(m, F.cross_entropy, loader(x, y), torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 5e-3), lambda m: acc(m(tx), ty))


@sound("A warm-up that begins near 0", steps=300, least=0.8)
def warm_up():
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)
    m = mlp(8, 64, 64, 1, act=nn.GELU)
    o = torch.optim.AdamW(m.parameters(), 5e-3)
    return Program(m, F.mse_loss, loader(x, y), o, lambda m: r2(m(tx), ty), scheduler=torch.optim.lr_scheduler.LambdaLR(o, lambda i: min(1.0, (i + 1) / 50)))


@sound("A critic with a hinge loss, betas (0, 0.9), spectral norm", steps=300, least=0.7)
def hinge_critic():
    sn = nn.utils.parametrizations.spectral_norm
    r, f = torch.randn(1024, 8, generator=G(1)) + 0.8, torch.randn(1024, 8, generator=G(2)) - 0.8
    tr, tf = torch.randn(200, 8, generator=G(3)) + 0.8, torch.randn(200, 8, generator=G(4)) - 0.8

    def step(m, b):
        return F.relu(1 - m(b[0])).mean() + F.relu(1 + m(b[1])).mean()

    m = nn.Sequential(sn(nn.Linear(8, 32)), nn.LeakyReLU(0.2), sn(nn.Linear(32, 32)), nn.LeakyReLU(0.2), sn(nn.Linear(32, 1)))
    return Program(m, None, loader(r, f), torch.optim.Adam(m.parameters(), 2e-3, betas=(0.0, 0.9)), lambda m: ((m(tr) > 0).float().mean() + (m(tf) < 0).float().mean() - 1).item(), step=step)


@sound("Noise prediction with the noise drawn in the step", steps=400, least=0.6)
def diffusion():
    x = manifold(1024, 1, d=8, k=2)

    def step(m, b):
        t, e = torch.rand(len(b[0])), torch.randn_like(b[0])
        return F.mse_loss(m(noised(b[0], t, e), t), e)

    m = Denoiser()
    return Program(m, None, loader(x, bs=64), torch.optim.Adam(m.parameters(), 2e-3), den_score, step=step)


@sound("bfloat16 weights with steps that are large enough", steps=300, least=0.8)
def bf16_weights():
    x, y = groups(1024, 1)
    tx, ty = groups(400, 2)
    m = mlp(10, 64, 5).bfloat16()
    return Program(m, None, loader(x, y), torch.optim.AdamW(m.parameters(), 5e-3), lambda m: acc(m(tx.bfloat16()).float(), ty), step=lambda m, b: F.cross_entropy(m(b[0].bfloat16()).float(), b[1]))


@sound("Autocast to bfloat16 within the step", steps=300, least=0.8)
def autocast_bf16():
    x, y = smooth(1024, 1)
    tx, ty = smooth(400, 2)

    def step(m, b):
        with torch.autocast("cpu", torch.bfloat16):
            o = m(b[0])
        return F.mse_loss(o.float(), b[1])

    m = mlp(8, 64, 64, 1)
    return Program(m, None, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), lambda m: r2(m(tx), ty), step=step)
