import math

import torch
import torch.nn.functional as F
from torch import nn

from program import Program, sound
from utg_data import utg_accuracy, utg_clouds, utg_gen, utg_graph, utg_loader, utg_markov, utg_r2, utg_tagged
from utg_faults_a import utg_contexts, utg_waves
from utg_faults_b import UtgNormedGNN, UtgProto, utg_episodes, utg_graph_batches, utg_mlp, utg_small_graphs, utg_topics


class UtgActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.ReLU())
        self.actor, self.critic = nn.Linear(48, 4), nn.Linear(48, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)
        nn.init.zeros_(self.actor.bias)

    def forward(self, s):
        h = self.body(s)
        return self.actor(h), self.critic(h).squeeze(-1)


@sound("PPO's clipped objective on a recorded roll-out, its policy head started at a gain of 0.01", steps=200, least=0.7)
def utg_ok_ppo():
    s, best = utg_contexts(2048, 133)
    vs, vbest = utg_contexts(500, 134)
    g = utg_gen(135)
    action = torch.randint(4, (2048,), generator=g)
    reward = (action == best).float() + 0.1 * torch.randn(2048, generator=g)
    model = UtgActorCritic()

    def step(m, batch):
        state, a, r = batch
        logits, value = m(state)
        adv = r - value.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        ratio = (logits.log_softmax(-1).gather(1, a[:, None]).squeeze(1) - math.log(0.25)).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        return -surrogate + 0.5 * F.mse_loss(value, r) - 0.005 * entropy

    return Program(model, None, utg_loader(s, action, reward, batch=256),
                   torch.optim.Adam(model.parameters(), 2e-3, eps=1e-5), lambda m: utg_accuracy(m(vs)[0], vbest), step=step)


class UtgTwin(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
        self.target = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
        self.target.load_state_dict(self.q.state_dict())
        self.target.requires_grad_(False)

    def forward(self, s):
        return self.q(s)


@sound("Q-learning with a target network that has no gradient and follows slowly", steps=500, least=0.75)
def utg_ok_dqn():
    g = utg_gen(136)
    s = 2 * torch.rand(3000, 2, generator=g) - 1
    a = torch.randint(2, (3000,), generator=g)
    move = torch.where(a == 1, 0.3, -0.3)
    nxt = torch.stack([(s[:, 0] + move).clamp(-1, 1), s[:, 1]], 1)
    reward = -(nxt[:, 0] - 0.8 * s[:, 1]).abs()
    model = UtgTwin()

    def step(m, batch):
        state, action, r, after = batch
        with torch.no_grad():
            for p, t in zip(m.q.parameters(), m.target.parameters()):
                t.lerp_(p, 0.05)
            wanted = r + 0.6 * m.target(after).amax(1)
        return F.smooth_l1_loss(m.q(state).gather(1, action[:, None]).squeeze(1), wanted)

    def score(m):
        greedy = m(s[2500:]).argmax(1)
        x, y = s[2500:, 0], s[2500:, 1]
        clear = (x - 0.8 * y).abs() > 0.3
        return ((greedy == 1) == (0.8 * y > x))[clear].float().mean().item() * 2 - 1

    return Program(model, None, utg_loader(s[:2500], a[:2500], reward[:2500], nxt[:2500], batch=64),
                   torch.optim.Adam(model.q.parameters(), 1e-3), score, step=step)


@sound("MAML: gradients through a step of gradient descent on each of four tasks", steps=400, least=0.6)
def utg_ok_maml():
    net = utg_mlp([1, 40, 40, 1])

    def tasks(n, seed):
        g = utg_gen(seed)
        amp, phase = 0.5 + 1.5 * torch.rand(n, 1, 1, generator=g), 1.5 * torch.rand(n, 1, 1, generator=g)
        x = 4 * torch.rand(n, 30, 1, generator=g) - 2
        return x, amp * (x + phase).sin()

    def adapted(m, x, y, create):
        params = dict(m.named_parameters())
        for _ in range(2):
            inner = F.mse_loss(torch.func.functional_call(m, params, (x[:10],)), y[:10])
            grads = torch.autograd.grad(inner, list(params.values()), create_graph=create)
            params = {n: p - 0.1 * d for (n, p), d in zip(params.items(), grads)}
        return torch.func.functional_call(m, params, (x[10:],)), y[10:]

    def step(m, batch):
        return sum(F.mse_loss(*adapted(m, x, y, True)) for x, y in zip(*batch)) / len(batch[0])

    vx, vy = tasks(40, 139)

    def score(m):
        with torch.enable_grad():
            pairs = [adapted(m, x, y, False) for x, y in zip(vx, vy)]
        return utg_r2(torch.stack([p.detach() for p, _ in pairs]), torch.stack([y for _, y in pairs]))

    x, y = tasks(800, 140)
    return Program(net, None, utg_loader(x, y, batch=4), torch.optim.Adam(net.parameters(), 2e-3), score, step=step)


@sound("PINN for a second-order equation; both starting values weighted 10", steps=500, least=0.9)
def utg_ok_pinn():
    net = utg_mlp([1, 32, 32, 1])
    grid = torch.linspace(0, 1.5, 100)[:, None]

    def step(model, t):
        t = t.clone().requires_grad_()
        u = model(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), t, create_graph=True)[0]
        zero = torch.zeros(1, 1, requires_grad=True)
        u0 = model(zero)
        v0 = torch.autograd.grad(u0.sum(), zero, create_graph=True)[0]
        return (ddu + 4 * u).square().mean() + 10 * ((u0 - 1) ** 2 + v0 ** 2).mean()

    return Program(net, None, [1.5 * torch.rand(64, 1, generator=utg_gen(i)) for i in range(16)],
                   torch.optim.Adam(net.parameters(), 5e-3), lambda m: utg_r2(m(grid), (2 * grid).cos()), step=step)


class UtgSine(nn.Module):
    def forward(self, x):
        return torch.sin(20 * x)


@sound("SIREN: sines of 20 times their input, with its own small initialisation", steps=300, least=0.9)
def utg_ok_siren():
    model = nn.Sequential(nn.Linear(2, 48), UtgSine(), nn.Linear(48, 48), UtgSine(), nn.Linear(48, 1))
    with torch.no_grad():
        nn.init.uniform_(model[0].weight, -1 / 2, 1 / 2)
        for k in (2, 4):
            bound = math.sqrt(6 / 48) / 20
            nn.init.uniform_(model[k].weight, -bound, bound)
    g = utg_gen(141)
    p = 2 * torch.rand(2500, 2, generator=g) - 1
    v = (4 * p[:, :1]).sin() * (3 * p[:, 1:]).cos() + 0.5 * (6 * p[:, :1] * p[:, 1:]).sin()
    return Program(model, F.mse_loss, utg_loader(p[:2000], v[:2000], batch=128), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: utg_r2(m(p[2000:]), v[2000:]))


class UtgCRF(nn.Module):
    def __init__(self, vocab, tags):
        super().__init__()
        self.emb = nn.Embedding(vocab, 24)
        self.out = nn.Linear(24, tags)
        self.trans = nn.Parameter(torch.zeros(tags, tags))

    def forward(self, ids):
        return self.out(torch.tanh(self.emb(ids)))

    def nll(self, ids, y):
        e = self(ids)
        gold = e.gather(2, y[..., None]).squeeze(2).sum(1) + self.trans[y[:, :-1], y[:, 1:]].sum(1)
        a = e[:, 0]
        for t in range(1, e.shape[1]):
            a = torch.logsumexp(a[:, :, None] + self.trans, 1) + e[:, t]
        return (torch.logsumexp(a, 1) - gold).mean()

    def decode(self, ids):
        e = self(ids)
        a, back = e[:, 0], []
        for t in range(1, e.shape[1]):
            best, where = (a[:, :, None] + self.trans).max(1)
            back.append(where)
            a = best + e[:, t]
        tag = a.argmax(1)
        path = [tag]
        for where in reversed(back):
            tag = where.gather(1, tag[:, None]).squeeze(1)
            path.append(tag)
        return torch.stack(path[::-1], 1)


@sound("a CRF tagger: the loss is a sum over a sequence, transitions start at zero", steps=200, least=0.75)
def utg_ok_crf():
    def make(n, seed):
        g = utg_gen(seed)
        y = torch.zeros(n, 10, dtype=torch.long)
        y[:, 0] = torch.randint(4, (n,), generator=g)
        for t in range(1, 10):
            y[:, t] = (y[:, t - 1] + (torch.rand(n, generator=g) < 0.4).long()) % 4
        ids = y * 6 + torch.randint(6, (n, 10), generator=g)
        return torch.where(torch.rand(n, 10, generator=g) < 0.3, torch.randint(24, (n, 10), generator=g), ids), y

    x, y = make(800, 142)
    vx, vy = make(300, 143)
    model = UtgCRF(24, 4)
    return Program(model, None, utg_loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: (m.decode(vx) == vy).float().mean().item(), step=lambda m, b: m.nll(*b))


class UtgTwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16))
        self.right = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 16))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, pair):
        a, b = F.normalize(self.left(pair[0]), dim=-1), F.normalize(self.right(pair[1]), dim=-1)
        return self.logit_scale.exp() * a @ b.T


@sound("CLIP's loss: the other examples of a batch are the negatives, cosines are divided by 0.07", steps=300, least=0.7)
def utg_ok_clip():
    g = utg_gen(144)
    z = torch.randn(2200, 5, generator=g)
    a = (z @ torch.randn(5, 16, generator=g)).tanh() + 0.1 * torch.randn(2200, 16, generator=g)
    b = (z @ torch.randn(5, 12, generator=g)).relu() + 0.1 * torch.randn(2200, 12, generator=g)
    model = UtgTwoTowers()

    def step(m, batch):
        logits = m(batch)
        t = torch.arange(len(logits))
        return (F.cross_entropy(logits, t) + F.cross_entropy(logits.T, t)) / 2

    def score(m):
        parts = [m((a[k:k + 20], b[k:k + 20])) for k in range(2000, 2200, 20)]
        return sum(utg_accuracy(p, torch.arange(20)) for p in parts) / len(parts)

    return Program(model, None, utg_loader(a[:2000], b[:2000], batch=64), torch.optim.AdamW(model.parameters(), 2e-3),
                   score, step=step)


class UtgEcho(nn.Module):
    """An echo state network: the recurrent weights are random and stay so."""

    def __init__(self, size=80):
        super().__init__()
        w = torch.randn(size, size)
        self.register_buffer("w", 0.9 * w / torch.linalg.eigvals(w).abs().max())
        self.register_buffer("v", 0.5 * torch.randn(2, size))
        self.read = nn.Linear(size, 4)

    def forward(self, x):
        h = x.new_zeros(len(x), self.w.shape[0])
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ self.v + h @ self.w)
        return self.read(h * h.roll(1, 1) * 5)


class UtgGAT(nn.Module):
    def __init__(self, a, b, c):
        super().__init__()
        self.w, self.src, self.dst = nn.Linear(a, b), nn.Linear(b, 1, bias=False), nn.Linear(b, 1, bias=False)
        self.out = nn.Linear(b, c)

    def forward(self, x, adj):
        h = self.w(F.dropout(x, 0.3, self.training))
        e = F.leaky_relu(self.src(h) + self.dst(h).T, 0.2).masked_fill(adj == 0, float("-inf"))
        return self.out(F.elu(e.softmax(1) @ h))


class UtgReZero(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.emb = nn.Embedding(12, 32)
        self.layers = nn.ModuleList([nn.Conv1d(32, 32, 3, padding=1) for _ in range(depth)])
        self.alpha = nn.Parameter(torch.zeros(depth))
        self.head = nn.Linear(32, 3)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        for a, layer in zip(self.alpha, self.layers):
            h = h + a * F.gelu(layer(h))
        return self.head(h.mean(2))


@sound("ReZero: every branch starts multiplied by zero, so that its weights have no gradient at first", steps=300, least=0.8)
def utg_ok_rezero():
    def make(n, seed):
        g = utg_gen(seed)
        ids = torch.randint(12, (n, 14), generator=g)
        y = torch.randint(3, (n,), generator=g)
        at = torch.randint(0, 12, (n,), generator=g)
        motif = torch.tensor([[1, 2, 3], [3, 2, 1], [2, 1, 3]])
        for k in range(3):
            ids[torch.arange(n), at + k] = motif[y, k]
        return ids, y

    x, y = make(2000, 148)
    vx, vy = make(400, 149)
    model = UtgReZero()
    return Program(model, nn.CrossEntropyLoss(), utg_loader(x, y, batch=64), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: utg_accuracy(m(vx), vy))


@sound("two tasks: counts with a Poisson loss that goes below zero, and classes, weighted 1 to 0.5", steps=300, least=0.65)
def utg_ok_two_tasks():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
            self.kind, self.rate = nn.Linear(48, 3), nn.Linear(48, 1)

        def forward(self, x):
            h = self.body(x)
            return {"kind": self.kind(h), "log_rate": self.rate(h).squeeze(1)}

    g = utg_gen(150)
    x = torch.randn(2400, 8, generator=g)
    kind = (x @ torch.randn(8, 3, generator=g)).argmax(1)
    log_rate = 1.5 + x[:, 0] * 0.6 + 0.5 * x[:, 1]
    count = torch.poisson(log_rate.exp(), generator=g)
    model = Net()

    def loss(out, target):
        k, c = target.T
        return F.poisson_nll_loss(out["log_rate"], c) + 0.5 * F.cross_entropy(out["kind"], k.long())

    def score(m):
        out = m(x[2000:])
        return (utg_accuracy(out["kind"], kind[2000:]) + utg_r2(out["log_rate"], log_rate[2000:])) / 2

    return Program(model, loss, utg_loader(x[:2000], torch.stack([kind.float(), count], 1)[:2000]),
                   torch.optim.NAdam(model.parameters(), 2e-3), score)


@sound("graphs with BatchNorm over their nodes, half-trained", trained=100, steps=200, least=0.8)
def utg_ok_gnn_half():
    x, adj, y = utg_small_graphs(600, 154)
    vx, va, vy = utg_small_graphs(300, 155)
    model = UtgNormedGNN(False)
    return Program(model, F.cross_entropy, utg_graph_batches(x, adj, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: utg_accuracy(m(vx, va), vy))


@sound("CTC: most outputs become blank, and outputs are longer than their targets", steps=500, least=0.6)
def utg_ok_ctc():
    def make(n, seed):
        g = utg_gen(seed)
        y = torch.randint(1, 5, (n, 3), generator=g)
        x = torch.zeros(n, 12, 5)
        start = torch.arange(3)[None] * 4 + torch.randint(0, 2, (n, 3), generator=g)
        for k in range(2):
            x[torch.arange(n)[:, None], start + k, y] = 1
        return x + 0.15 * torch.randn(n, 12, 5, generator=g), y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(48, 5)

        def forward(self, x):
            return self.fc(self.rnn(x)[0]).log_softmax(-1)

    x, y = make(640, 156)
    vx, vy = make(200, 157)
    model = Net()

    def loss(out, target):
        n = len(out)
        return F.ctc_loss(out.transpose(0, 1), target, torch.full((n,), 12), torch.full((n,), 3))

    def score(m):
        right = 0
        for row, t in zip(m(vx).argmax(-1).tolist(), vy.tolist()):
            right += [c for k, c in enumerate(row) if c and (k == 0 or row[k - 1] != c)] == t
        return right / len(vy)

    return Program(model, loss, utg_loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), score)


@sound("graph attention with -inf masks and rare classes weighted up in the loss", steps=200, least=0.8)
def utg_ok_gat():
    x, adj, y = utg_graph(180, 3, 10, 147, p_in=0.2, p_out=0.03, noise=1.5)
    adj = adj + torch.eye(180)
    train = torch.arange(180) % 2 == 0
    count = torch.bincount(y[train], minlength=3).float()
    model = UtgGAT(10, 24, 3)
    return Program(model, nn.CrossEntropyLoss(weight=count.sum() / (3 * count), ignore_index=-1),
                   [({"x": x, "adj": adj}, torch.where(train, y, -1))], torch.optim.Adam(model.parameters(), 5e-3, weight_decay=5e-4),
                   lambda m: utg_accuracy(m(x, adj)[~train], y[~train]))
