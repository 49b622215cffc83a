"""Faults in training steps of one's own."""
import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from yts_data import Stream, loader, mlp, r2, surface


@fault("The entropy bonus has a weight of 5 where rewards are within 1, and keeps the policy near uniform.",
       rules=["term-dominates"], fails=True, steps=500)
def yts_policy_entropy(is_faulty):
    taste = torch.randn(6, 5)

    def reward(state, action):
        return torch.sigmoid(2 * (state @ taste)).gather(1, action[:, None]).squeeze(1)

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 64), nn.Tanh())
            self.actor, self.critic = nn.Linear(64, 5), nn.Linear(64, 1)

        def forward(self, s):
            h = self.body(s)
            return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)

    def step(agent, state):
        policy, value = agent(state)
        action = policy.sample()
        got = reward(state, action)
        advantage = got - value.detach()
        return (-(policy.log_prob(action) * advantage).mean() + 0.5 * F.mse_loss(value, got)
                - (5.0 if is_faulty else 0.005) * policy.entropy().mean())

    test = torch.randn(1000, 6)
    worth = torch.sigmoid(2 * (test @ taste))

    def regret(agent):
        got = (agent(test)[0].probs * worth).sum(1).mean()
        idle, best = worth.mean(), worth.max(1).values.mean()
        return max(0.0, float((got - idle) / (best - idle)))

    agent = Agent()
    return Program(agent, None, Stream(lambda: torch.randn(256, 6)), torch.optim.Adam(agent.parameters(), 5e-3), regret,
                   step=step)


@fault("kl_div is given the student's probabilities where it takes their logarithms.",
       rules=["output-loss-mismatch"], fails=True, steps=400)
def yts_distil_probabilities(is_faulty):
    teacher = mlp(10, 32, 6, act=nn.Tanh)
    for p in teacher.parameters():
        p.data *= 2.2
        p.requires_grad_(False)
    student = mlp(10, 48, 48, 6)

    def step(model, batch):
        (x,) = batch
        with torch.no_grad():
            soft = F.softmax(teacher(x), dim=-1)
        own = F.softmax(model(x), dim=-1) if is_faulty else F.log_softmax(model(x), dim=-1)
        return F.kl_div(own, soft, reduction="batchmean")

    xt = torch.randn(800, 10)
    return Program(student, None, loader(torch.randn(4000, 10), size=100), torch.optim.Adam(student.parameters(), 3e-3),
                   lambda m: r2(m(xt).softmax(-1), teacher(xt).softmax(-1)), step=step)


class Imputer(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.encode = nn.Linear(2 * columns, 64)
        self.hidden = nn.Linear(64, 64)
        self.decode = nn.Linear(64, columns)

    def forward(self, x, missing):
        return self.decode(F.relu(self.hidden(F.relu(self.encode(torch.cat([x, missing], 1))))))


@fault("The cells that are to be filled in are marked, but not blanked: the network copies them.",
       rules=["future-seen"], fails=False, steps=500)
def yts_imputer_copies(is_faulty):
    load = torch.randn(3, 12)

    def rows(n):
        z = torch.randn(n, 3)
        x = z @ load
        return (x + 0.5 * torch.sin(2 * x) + 0.1 * torch.randn_like(x)) / 2

    def step(model, batch):
        x = batch["rows"]
        missing = (torch.rand_like(x) < 0.3).float()
        seen = x if is_faulty else x * (1 - missing)
        return (((model(seen, missing) - x) ** 2) * missing).sum() / missing.sum()

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.x = rows(4000)

        def __len__(self):
            return 4000

        def __getitem__(self, i):
            return {"rows": self.x[i]}

    data = Rows()
    xt = rows(800)
    gone = (torch.rand(800, 12) < 0.3).float()
    model = Imputer(12)
    return Program(model, None, torch.utils.data.DataLoader(data, 128, shuffle=True),
                   torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: r2(m(xt * (1 - gone), gone)[gone.bool()], xt[gone.bool()]), step=step)


class Mixture(nn.Module):
    def __init__(self, parts, spread):
        super().__init__()
        self.means = nn.Parameter(spread * torch.randn(parts, 2))
        self.log_scales = nn.Parameter(torch.zeros(parts, 2))
        self.logits = nn.Parameter(torch.zeros(parts))

    def forward(self, x):
        each = torch.distributions.Normal(self.means, self.log_scales.exp()).log_prob(x[:, None]).sum(-1)
        return torch.logsumexp(each + F.log_softmax(self.logits, 0), 1)


@fault("All components of the mixture start at the same place, and stay together.",
       rules=["symmetric-initialisation"], layers=["means"], fails=True, steps=500)
def yts_mixture_one_place(is_faulty):
    angle = torch.arange(5) * 2 * torch.pi / 5
    centres = 3 * torch.stack([angle.cos(), angle.sin()], 1)

    def points(n):
        return centres[torch.randint(0, 5, (n,))] + 0.4 * torch.randn(n, 2)

    x, xt = points(3000), points(1000)
    true = torch.distributions.Normal(centres, torch.full((5, 2), 0.4)).log_prob(xt[:, None]).sum(-1)
    best = float((torch.logsumexp(true, 1) - torch.tensor(5.0).log()).mean())
    one = float(torch.distributions.Normal(x.mean(0), x.std(0)).log_prob(xt).sum(-1).mean())
    model = Mixture(12, 0.0 if is_faulty else 2.0)
    return Program(model, None, loader(x, size=128), torch.optim.Adam(model.parameters(), 3e-2),
                   lambda m: max(0.0, (float(m(xt).mean()) - one) / (best - one)),
                   step=lambda m, batch: -m(batch[0]).mean())


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.gate = nn.Linear(8, 6)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(6))

    def forward(self, x):
        share = torch.softmax(self.gate(x), dim=self.dim)
        return (share * torch.cat([e(x) for e in self.experts], 1)).sum(1), share


@fault("The gate's softmax runs over the batch instead of over the experts.",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["gate"], fails=True, steps=600)
def yts_gate_over_batch(is_faulty):
    def rows(n):
        x = torch.randn(n, 8)
        return x, torch.where(x[:, 5] > 0, surface(x), -surface(x.flip(1))) + 0.5

    def step(model, batch):
        x, y = batch
        out, share = model(x)
        use = share.mean(0)
        return F.mse_loss(out, y) + 0.01 * ((use - use.mean()) ** 2).sum()

    (x, y), (xt, yt) = rows(4000), rows(1000)
    model = Experts(0 if is_faulty else 1)
    return Program(model, None, loader(x, y, size=32), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(xt)[0], yt), step=step)


class Towers(nn.Module):
    def __init__(self, shares):
        super().__init__()
        self.user_norm = nn.BatchNorm1d(8)
        self.item_norm = nn.BatchNorm1d(8)
        if shares:
            self.item_norm = self.user_norm
        self.user, self.item = mlp(8, 48, 16), mlp(8, 48, 16)

    def forward(self, u, i):
        return (self.user(self.user_norm(u)) * self.item(self.item_norm(i))).sum(1) / 4


@fault("Both towers pass through one BatchNorm, whose running statistics are of neither input.",
       rules=["shared-weight", "batchnorm-mode-gap"], layers=["user_norm", "item_norm"], fails=True, steps=500)
def yts_towers_one_norm(is_faulty):
    taste = torch.randn(8, 8) / 4

    def pairs(n):
        u, i = torch.randn(n, 8), torch.randn(n, 8)
        return 6 + 2 * u, 0.5 * i - 3, torch.tanh(u[:, 0] * i[:, 0]) + ((u @ taste) * i).sum(1) / 2

    u, i, y = pairs(5000)
    ut, it, yt = pairs(1000)
    model = Towers(is_faulty)
    optimizer = torch.optim.AdamW([{"params": model.user.parameters()}, {"params": model.item.parameters()},
                                   {"params": model.user_norm.parameters(), "weight_decay": 0.0}], lr=5e-3)

    def step(model, batch):
        a, b, liked = batch
        return F.smooth_l1_loss(model(a, b), liked)

    if not is_faulty:
        optimizer.add_param_group({"params": model.item_norm.parameters(), "weight_decay": 0.0})
    return Program(model, None, loader(u, i, y, size=128), optimizer, lambda m: r2(m(ut, it), yt), step=step)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Linear(48, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 30))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * torch.exp(log_var / 2) if self.training else mean
        return self.decoder(z), mean, log_var


@fault("The reconstruction is a mean over columns and the KL a sum over latents, which so collapses them.",
       rules=["term-dominates"], fails=True, steps=500)
def yts_vae_collapses(is_faulty):
    load = torch.randn(3, 30) / 1.7

    def rows(n):
        return torch.randn(n, 3) @ load + 0.1 * torch.randn(n, 30)

    def step(model, batch):
        (x,) = batch
        again, mean, log_var = model(x)
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
        error = (again - x) ** 2
        return (error.mean(1) if is_faulty else error.sum(1)).mean() + kl

    xt = rows(500)
    model = VAE()
    return Program(model, None, loader(rows(3000)), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt)[0], xt), step=step)


@fault("Distances of all pairs by a plain square root, whose gradient at the zeros of the diagonal is not finite.",
       rules=["non-finite"], fails=True, steps=400)
def yts_map_by_square_root(is_faulty):
    def things(n):
        z = torch.randn(n, 2)
        return torch.cat([z, torch.sin(2 * z), z**2 / 2, torch.randn(n, 4) * 0.3], 1), z

    def distances(z):
        square = ((z[:, None] - z[None]) ** 2).sum(-1)
        return torch.sqrt(square if is_faulty else square + 1e-6)

    def step(model, batch):
        x, z = batch
        with torch.no_grad():
            wanted = torch.cdist(z, z)
        return (distances(model(x)) - wanted).pow(2).mean()

    x, z = things(3000)
    xt, zt = things(300)
    model = nn.Sequential(nn.Linear(10, 64), nn.Softplus(), nn.Linear(64, 2))
    return Program(model, None, loader(x, z), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(torch.cdist(m(xt), m(xt)).flatten(), torch.cdist(zt, zt).flatten()), step=step)


class LitRegressor(nn.Module):
    def __init__(self, freezes):
        super().__init__()
        self.freezes = freezes
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 2), nn.LayerNorm(2, elementwise_affine=False))
        self.head = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.head(self.encoder(x)).squeeze(-1)

    def training_step(self, batch, _):
        x, y = batch
        with torch.set_grad_enabled(not self.freezes):
            z = self.encoder(x)
        return F.mse_loss(self.head(z).squeeze(-1), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)


@fault("The step of the module calls its encoder without gradients, as the script for a pretrained one did.",
       rules=["no-gradient"], layers=["encoder"], fails=True, steps=500)
def yts_module_encoder_without_grad(is_faulty):
    way = torch.randn(24, 1) / 5

    def rows(n):
        x = torch.randn(n, 24)
        return x, torch.tanh(2 * (x @ way)[:, 0]) + 0.05 * torch.randn(n)

    (x, y), (xt, yt) = rows(4000), rows(700)
    lit = LitRegressor(is_faulty)
    optimizer, schedule = lit.configure_optimizers()
    return Program(lit, None, loader(x, y), optimizer, lambda m: r2(m(xt), yt), scheduler=schedule,
                   step=lambda m, batch: m.training_step(batch, 0))


@fault("Adam's betas are given in the wrong order, (0.999, 0.9).",
       rules=["optimizer-setting"], fails=True, steps=300)
def yts_q_swapped_betas(is_faulty):
    gains = torch.randn(4, 3) / 2

    def reward(s):
        return torch.sin(2 * s @ gains)

    def transitions(n):
        s, a = torch.randn(n, 4), torch.randint(0, 3, (n,))
        return s, a, reward(s).gather(1, a[:, None]).squeeze(1), torch.randn(n, 4)

    def td(q, batch):
        s, a, r, after = batch
        with torch.no_grad():
            goal = r + 0.5 * q(after).max(1).values
        return F.smooth_l1_loss(q(s).gather(1, a.unsqueeze(1)).squeeze(1), goal)

    st = torch.randn(2000, 4)
    truth = reward(st) + reward(st).max(1).values.mean()
    q = mlp(4, 96, 96, 3)
    return Program(q, None, loader(*transitions(8000), size=128),
                   torch.optim.Adam(q.parameters(), lr=4e-3, betas=(0.999, 0.9) if is_faulty else (0.9, 0.999)),
                   lambda m: r2(m(st), truth), step=td)
