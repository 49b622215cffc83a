import copy

import torch
import torch.nn.functional as F
from osq_common import acc, digits, gen, loader, r2
from program import Program, fault, sound
from torch import nn
from torch.distributions import Categorical, Normal
from torch.func import functional_call


def frozen_call(module, *args):
    return functional_call(module, {k: v.detach() for k, v in module.named_parameters()}, args)


@fault("the policy's logits go through a softmax before Categorical(logits=...) takes another",
       rules=("output-loss-mismatch",), fails=True, steps=500)
def osq_bandit_policy_softmax_twice(is_faulty):
    xt, yt, xv, yv = digits()

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
            self.pi = nn.Linear(64, 10)

        def forward(self, s):
            out = self.pi(self.body(s))
            return torch.softmax(out, -1) if is_faulty else out

    def step(model, batch):
        s, y = batch
        dist = Categorical(logits=model(s))
        a = dist.sample()
        reward = (a == y).float()
        return -(dist.log_prob(a) * (reward - reward.mean())).mean()

    def score(model):
        return float(Categorical(logits=model(xv)).probs.gather(1, yv[:, None]).mean())

    m = Policy()
    return Program(m, None, loader(xt, yt, bs=128), torch.optim.Adam(m.parameters(), 5e-3), score, step=step)


def reward_table(n, seed):
    g = gen(seed)
    s = torch.randn(n, 4, generator=g)
    w = torch.randn(4, 5, generator=gen(99))
    return s, torch.tanh(s @ w)


@fault("an entropy bonus of 5 where rewards are of order 1", rules=("term-dominates",), fails=True, steps=400)
def osq_a2c_entropy_weight(is_faulty):
    s, r = reward_table(2000, 1)
    sv, rv = reward_table(500, 2)

    class ActorCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
            self.actor = nn.Linear(48, 5)
            self.critic = nn.Linear(48, 1)

        def forward(self, s):
            h = self.body(s)
            return self.actor(h), self.critic(h).squeeze(-1)

    beta = 5.0 if is_faulty else 0.01

    def step(model, batch):
        s, r = batch
        logits, v = model(s)
        dist = Categorical(logits=logits)
        a = dist.sample()
        got = r.gather(1, a[:, None]).squeeze(1)
        adv = (got - v).detach()
        return -(dist.log_prob(a) * adv).mean() + 0.5 * F.mse_loss(v, got) - beta * dist.entropy().mean()

    def score(model):
        p = model(sv)[0].softmax(-1)
        return float(((p * rv).sum(1) - rv.mean(1)).mean() / (rv.max(1).values - rv.mean(1)).mean())

    m = ActorCritic()
    return Program(m, None, loader(s, r, bs=128), torch.optim.Adam(m.parameters(), 3e-3), score, step=step)


def returns(n, seed):
    s = torch.randn(n, 6, generator=gen(seed))
    return s, torch.sin(s[:, 0] * 1.2) + 0.5 * s[:, 1] * s[:, 2] + 0.6 * s[:, 3]


@fault("Monte-Carlo returns in the thousands are regressed as they are", rules=("unscaled-target", "learning-rate-too-low"),
       fails=False, steps=500)
def osq_value_raw_returns(is_faulty):
    s, f = returns(2000, 3)
    sv, fv = returns(500, 4)
    ret, retv = 2500 + 900 * f, 2500 + 900 * fv
    mid, scale = (0.0, 1.0) if is_faulty else (2500.0, 900.0)
    m = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))

    def step(model, batch):
        s, ret = batch
        return F.smooth_l1_loss(model(s), (ret - mid) / scale)

    return Program(m, None, loader(s, ret, bs=64), torch.optim.Adam(m.parameters(), 2e-3),
                   lambda model: r2(model(sv) * scale + mid, retv), step=step)


@fault("a critic's (B, 1) is compared with returns of (B,), which broadcasts", rules=("output-loss-mismatch",),
       fails=True, steps=400)
def osq_critic_broadcast(is_faulty):
    s, f = returns(2000, 5)
    sv, fv = returns(500, 6)
    act = (s[:, 4] > 0).long()

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
            self.critic = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

        def forward(self, s):
            return self.actor(s), self.critic(s)

    def step(model, batch):
        s, a, ret = batch
        logits, value = model(s)
        if not is_faulty:
            value = value.squeeze(-1)
        clone = F.cross_entropy(logits, a)
        return clone + 0.5 * ((ret - value) ** 2).mean()

    m = Agent()
    return Program(m, None, loader(s, act, f, bs=64), torch.optim.Adam(m.parameters(), 2e-3),
                   lambda model: r2(model(sv)[1].squeeze(-1), fv), step=step)


def ddpg_data(n, seed):
    g = gen(seed)
    s = torch.randn(n, 3, generator=g)
    a = torch.rand(n, 2, generator=g) * 2 - 1
    best = 0.7 * torch.tanh(torch.stack([s[:, 0] - s[:, 1], s[:, 2]], 1))
    return s, a, -(a - best).pow(2).sum(1), best


class DDPG(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, s):
        return self.actor(s)


@fault("the actor acts under no_grad in its own loss", rules=("no-gradient",), layers=("actor",), fails=True, steps=500)
def osq_ddpg_actor_no_grad(is_faulty):
    s, a, r, _ = ddpg_data(3000, 7)
    sv, _, _, best = ddpg_data(500, 8)

    def step(model, batch):
        s, a, r = batch
        critic_loss = F.mse_loss(model.critic(torch.cat([s, a], 1)).squeeze(1), r)
        with torch.set_grad_enabled(not is_faulty):
            action = model.actor(s)
        return critic_loss - frozen_call(model.critic, torch.cat([s, action], 1)).mean()

    m = DDPG()
    return Program(m, None, loader(s, a, r, bs=64), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: r2(model(sv), best), step=step)


@fault("a dueling network with no activation in its trunk", rules=("no-nonlinearity",), layers=("trunk", "value", "advantage"),
       fails=True, steps=500)
def osq_dueling_linear_trunk(is_faulty):
    g = gen(9)
    def q_of(s):
        return torch.stack([s[:, 0] * s[:, 1], s[:, 0].abs() - 0.8, torch.cos(2 * s[:, 1])], 1)
    s, sv = torch.randn(3000, 2, generator=g), torch.randn(500, 2, generator=g)
    a = torch.randint(0, 3, (3000,), generator=g)
    r = q_of(s).gather(1, a[:, None]).squeeze(1)

    class Dueling(nn.Module):
        def __init__(self):
            super().__init__()
            act = nn.Identity if is_faulty else nn.ReLU
            self.trunk = nn.Sequential(nn.Linear(2, 64), act(), nn.Linear(64, 64), act())
            self.value = nn.Linear(64, 1)
            self.advantage = nn.Linear(64, 3)

        def forward(self, s):
            h = self.trunk(s)
            adv = self.advantage(h)
            return self.value(h) + adv - adv.mean(1, keepdim=True)

    def step(model, batch):
        s, a, r = batch
        return F.huber_loss(model(s).gather(1, a[:, None]).squeeze(1), r)

    m = Dueling()
    return Program(m, None, loader(s, a, r, bs=128), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda model: r2(model(sv), q_of(sv)), step=step)


@fault("a transformer over trajectories whose attention runs over the batch: (B, T, D) with batch_first=False",
       rules=("mixed-examples",), layers=("encoder",), fails=True, steps=300)
def osq_trajectory_transformer_axes(is_faulty):
    def data(n, seed):
        g = gen(seed)
        cue = torch.randint(0, 4, (n,), generator=g)
        obs = 0.5 * torch.randn(n, 8, 6, generator=g)
        obs[torch.arange(n), 0, cue] += 2.0
        return obs, cue
    x, y = data(2000, 10)
    xv, yv = data(500, 11)

    class Decision(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(6, 24)
            self.place = nn.Parameter(0.02 * torch.randn(8, 24))
            layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=not is_faulty)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.act = nn.Linear(24, 4)

        def forward(self, obs):
            return self.act(self.encoder(self.embed(obs) + self.place)[:, -1])

    def step(model, batch):
        obs, action = batch
        return F.cross_entropy(model(obs), action)

    m = Decision()
    return Program(m, None, loader(x, y, bs=32), torch.optim.AdamW(m.parameters(), 2e-3),
                   lambda model: acc(model(xv), yv), step=step)


@fault("a policy cast to bfloat16, whose weights hold no step of SGD", rules=("lost-updates", "learning-rate-too-low"),
       fails=False, steps=500)
def osq_clone_in_bfloat16(is_faulty):
    xt, yt, xv, yv = digits(5.0)
    kind = torch.bfloat16 if is_faulty else torch.float32
    m = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).to(kind)

    def step(model, batch):
        s, a = batch
        return F.cross_entropy(model(s.to(kind)).float(), a)

    return Program(m, None, loader(xt, yt, bs=64), torch.optim.SGD(m.parameters(), 0.01),
                   lambda model: float(model(xv.to(kind)).float().softmax(-1).gather(1, yv[:, None]).mean()), step=step)


@sound("REINFORCE: a loss about 0 that does not fall", steps=500, least=0.6)
def osq_s_reinforce():
    xt, yt, xv, yv = digits()

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
            self.baseline = nn.Linear(64, 1)

    def step(model, batch):
        s, y = batch
        dist = Categorical(logits=model.policy(s))
        a = dist.sample()
        reward = 2 * (a == y).float() - 1
        b = model.baseline(s).squeeze(-1)
        return -(dist.log_prob(a) * (reward - b).detach()).mean() + 0.5 * F.mse_loss(b, reward)

    m = Agent()
    return Program(m, None, loader(xt, yt, bs=128), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda model: acc(model.policy(xv), yv), step=step)


@sound("DQN with a frozen target network that is averaged within the step", steps=600, least=0.7)
def osq_s_dqn_target():
    # a corridor of 7 cells; left and right; 1 for reaching the right end
    def q_star():
        v = torch.zeros(7)
        q = torch.zeros(7, 2)
        for _ in range(100):
            for c in range(6):
                for a, d in ((0, -1), (1, 1)):
                    n = max(0, c + d)
                    q[c, a] = 1.0 if n == 6 else 0.8 * v[n]
            v = q.max(1).values
            v[6] = 0
        return q[:6]

    g = gen(12)
    c = torch.randint(0, 6, (4000,), generator=g)
    a = torch.randint(0, 2, (4000,), generator=g)
    n = (c + 2 * a - 1).clamp(min=0)
    done = (n == 6).float()
    eye = torch.eye(7)

    class DQN(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 2))
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, s):
            return self.online(s)

    def step(model, batch):
        s, a, r, n, done = batch
        with torch.no_grad():
            for p, q in zip(model.target.parameters(), model.online.parameters()):
                p.lerp_(q, 0.05)
            goal = r + 0.8 * (1 - done) * model.target(n).max(1).values
        return F.smooth_l1_loss(model(s).gather(1, a[:, None]).squeeze(1), goal)

    m = DQN()
    return Program(m, None, loader(eye[c], a, done, eye[n], done, bs=64), torch.optim.Adam(m.online.parameters(), 3e-3),
                   lambda model: r2(model(eye[:6]), q_star()), step=step)


@sound("PPO on logged actions, with ratios, clipping and a frozen behaviour policy", steps=400, least=0.6)
def osq_s_ppo_clip():
    s, r = reward_table(3000, 13)
    sv, rv = reward_table(500, 14)
    g = gen(15)
    a = torch.randint(0, 5, (3000,), generator=g)
    reward = r.gather(1, a[:, None]).squeeze(1)

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh())
            self.pi = nn.Linear(64, 5)
            self.v = nn.Linear(64, 1)
            nn.init.normal_(self.pi.weight, std=0.01)
            nn.init.zeros_(self.pi.bias)

        def forward(self, s):
            h = self.body(s)
            return self.pi(h), self.v(h).squeeze(-1)

    def step(model, batch):
        s, a, reward = batch
        logits, v = model(s)
        dist = Categorical(logits=logits)
        ratio = dist.probs.gather(1, a[:, None]).squeeze(1) / 0.2
        adv = (reward - v).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        gain = torch.minimum(ratio * adv, ratio.clamp(0.0, 4.0) * adv)
        return -gain.mean() + 0.5 * F.mse_loss(v, reward) - 0.01 * dist.entropy().mean()

    def score(model):
        p = model(sv)[0].softmax(-1)
        return float(((p * rv).sum(1) - rv.mean(1)).mean() / (rv.max(1).values - rv.mean(1)).mean())

    m = Agent()
    return Program(m, None, loader(s, a, reward, bs=128), torch.optim.Adam(m.parameters(), 3e-3), score, step=step)


@sound("an actor and two critics, whose parameters the actor's loss leaves alone", steps=500, least=0.6)
def osq_s_twin_critics():
    s, a, r, _ = ddpg_data(3000, 16)
    sv, _, _, best = ddpg_data(500, 17)

    class TD3(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2), nn.Tanh())
            self.q1 = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
            self.q2 = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def step(model, batch):
        s, a, r = batch
        sa = torch.cat([s, a], 1)
        td = F.mse_loss(model.q1(sa).squeeze(1), r) + F.mse_loss(model.q2(sa).squeeze(1), r)
        new = torch.cat([s, model.actor(s)], 1)
        return td - torch.minimum(frozen_call(model.q1, new), frozen_call(model.q2, new)).mean()

    m = TD3()
    return Program(m, None, loader(s, a, r, bs=64), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: r2(model.actor(sv), best), step=step)


@sound("a Gaussian policy with a learned, state-free standard deviation, cloned by likelihood: a loss that goes below 0",
       trained=300, steps=500, least=0.7)
def osq_s_gaussian_policy():
    g = gen(18)
    def data(n):
        s = torch.randn(n, 5, generator=g)
        m = torch.stack([torch.tanh(s[:, 0] + s[:, 1]), 0.5 * s[:, 2]], 1)
        return s, m + 0.05 * torch.randn(n, 2, generator=g)
    s, a = data(2000)
    sv, av = data(400)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 2))
            self.log_std = nn.Parameter(torch.zeros(2))

        def forward(self, s):
            return Normal(self.mean(s), self.log_std.exp())

    m = Policy()
    return Program(m, None, loader(s, a, bs=64), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda model: r2(model(sv).mean, av),
                   step=lambda model, batch: -model(batch[0]).log_prob(batch[1]).sum(-1).mean())
