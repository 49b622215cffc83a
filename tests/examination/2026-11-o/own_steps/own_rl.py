"""Reinforcement learning: DQN on a grid, policies of bandits, actor-critic, behaviour cloning."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from program import Program, fault, sound
from torch.distributions import Categorical
from torch.utils.data import DataLoader, TensorDataset

# ---------------------------------------------------------------- a 5 x 5 grid with a goal and a pit

SIZE, ACTIONS, GAMMA = 5, 4, 0.8
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]
GOAL, PIT = (4, 4), (2, 2)


def grid_step(s, a):
    r, c = divmod(s, SIZE)
    nr, nc = min(SIZE - 1, max(0, r + MOVES[a][0])), min(SIZE - 1, max(0, c + MOVES[a][1]))
    reward = 1.0 if (nr, nc) == GOAL else -1.0 if (nr, nc) == PIT else 0.0
    return nr * SIZE + nc, reward, (nr, nc) in (GOAL, PIT)


def optimal_q():
    q = torch.zeros(SIZE * SIZE, ACTIONS)
    for _ in range(100):
        new = torch.zeros_like(q)
        for s in range(SIZE * SIZE):
            for a in range(ACTIONS):
                n, r, d = grid_step(s, a)
                new[s, a] = r + (0.0 if d else GAMMA * q[n].max().item())
        if torch.allclose(new, q):
            break
        q = new
    return q


QSTAR = optimal_q()
LIVE = [s for s in range(SIZE * SIZE) if divmod(s, SIZE) not in (GOAL, PIT)]


class Replay:
    """Transitions of a random walk; an epoch is `n` samples of it."""

    def __init__(self, n=50, batch=64, size=4000):
        self.n, self.batch = n, batch
        s = torch.tensor(LIVE)[torch.randint(len(LIVE), (size,))]
        a = torch.randint(ACTIONS, (size,))
        after = [grid_step(i, j) for i, j in zip(s.tolist(), a.tolist())]
        self.s, self.a = F.one_hot(s, SIZE * SIZE).float(), a
        self.r = torch.tensor([x[1] for x in after])
        self.n_s = F.one_hot(torch.tensor([x[0] for x in after]), SIZE * SIZE).float()
        self.d = torch.tensor([float(x[2]) for x in after])

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            i = torch.randint(len(self.s), (self.batch,))
            yield self.s[i], self.a[i], self.r[i], self.n_s[i], self.d[i]


def q_score(scale=1.0):
    eye = torch.eye(SIZE * SIZE)[LIVE]

    def score(model):
        q = model(eye) / scale
        want = QSTAR[LIVE]
        return max(0.0, 1 - (F.mse_loss(q, want) / want.var()).item())

    return score


class QNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.fc1 = nn.Linear(SIZE * SIZE, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, ACTIONS)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.out(x)


def polyak(target, net, tau):
    with torch.no_grad():
        for t, p in zip(target.parameters(), net.parameters()):
            t.lerp_(p, tau)


@fault(
    "the rewards of the grid are points, in the thousands, as the game shows them",
    rules=["unscaled-target", "output-loss-mismatch"],
    fails=True,
    steps=500,
)
def dqn_rewards_in_points(is_faulty):
    net = QNet()
    target = copy.deepcopy(net)
    points = 5000.0 if is_faulty else 1.0

    def step(model, batch):
        s, a, r, n, d = batch
        with torch.no_grad():
            y = points * r + GAMMA * (1 - d) * target(n).max(1).values
        polyak(target, model, 0.05)
        return F.mse_loss(model(s).gather(1, a[:, None]).squeeze(1), y)

    return Program(net, None, Replay(), torch.optim.Adam(net.parameters(), lr=2e-3), q_score(points), step=step)


@fault(
    "the Q values that gather returns have a last dimension of one, the targets have not, so that each meets each",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=400,
)
def dqn_gather_without_squeeze(is_faulty):
    policy_net = QNet(48)
    target_net = copy.deepcopy(policy_net)
    for p in target_net.parameters():
        p.requires_grad_(False)

    def step(model, transition):
        state, action, reward, next_state, done = transition
        q = model(state).gather(1, action.unsqueeze(1))
        if not is_faulty:
            q = q.squeeze(1)
        with torch.no_grad():
            expected = reward + GAMMA * target_net(next_state).max(dim=1)[0] * (1 - done)
        polyak(target_net, model, 0.1)
        return F.smooth_l1_loss(q, expected)

    return Program(
        policy_net, None, Replay(batch=48), torch.optim.AdamW(policy_net.parameters(), lr=3e-3), q_score(), step=step
    )


# ---------------------------------------------------------------- contextual bandits


def best_arm(x):
    """One of four arms, by the signs of two products."""
    return (x[:, 0] * x[:, 1] > 0).long() * 2 + (x[:, 2] + x[:, 3] > 0).long()


class Contexts:
    def __init__(self, n=100, batch=128, dim=6, scale=1.0):
        self.n, self.batch, self.dim, self.scale = n, batch, dim, scale

    def __iter__(self):
        for _ in range(self.n):
            yield self.scale * torch.randn(self.batch, self.dim)

    def __len__(self):
        return self.n


class Policy(nn.Module):
    def __init__(self, dim=6, hidden=64, arms=4, gain=0.01):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, arms)
        for layer in (self.body[0], self.body[2]):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)
        nn.init.orthogonal_(self.head.weight, gain)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(self.body(x))


def arm_score(model):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(1000, 6, generator=g)
    return model(x).softmax(-1).gather(1, best_arm(x)[:, None]).mean().item()


@fault(
    "the entropy bonus has coefficient 1 where 0.01 was meant, and the policy stays as random as it can",
    rules=["term-dominates"],
    fails=False,
    steps=500,
)
def policy_entropy_bonus(is_faulty):
    policy = Policy()
    coef = 1.0 if is_faulty else 0.01

    def step(model, x):
        dist = Categorical(logits=model(x))
        arm = dist.sample()
        reward = (arm == best_arm(x)).float()
        advantage = reward - reward.mean()
        return -(dist.log_prob(arm) * advantage).mean() - coef * dist.entropy().mean()

    return Program(policy, None, Contexts(), torch.optim.Adam(policy.parameters(), lr=3e-3), arm_score, step=step)


@fault(
    "the last layer of a policy starts with orthogonal gain 100 where 0.01 was meant: it never tries another arm",
    rules=["saturated-output", "bad-initialisation"],
    layers=["head"],
    fails=False,
    steps=500,
)
def policy_starts_certain(is_faulty):
    policy = Policy(gain=100 if is_faulty else 0.01)

    def step(model, x):
        dist = Categorical(logits=model(x))
        arm = dist.sample()
        reward = (arm == best_arm(x)).float()
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        return -(dist.log_prob(arm) * advantage).mean() - 0.005 * dist.entropy().mean()

    return Program(policy, None, Contexts(), torch.optim.Adam(policy.parameters(), lr=2e-3), arm_score, step=step)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4))
        self.critic = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.actor(x), self.critic(x).squeeze(-1)


def worth(x):
    """What a context pays whatever is done."""
    return 2 * torch.sin(2 * x[:, 4]) + x[:, 5].abs()


def actor_critic_score(model):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(1000, 6, generator=g)
    logits, value = model(x)
    p = logits.softmax(-1).gather(1, best_arm(x)[:, None]).squeeze(1)
    true = worth(x) + p
    r2 = 1 - ((value - true) ** 2).mean() / true.var()
    return 0.5 * (p.mean().item() + max(0.0, r2.item()))


def actor_critic_step(model, x):
    logits, value = model(x)
    dist = Categorical(logits=logits)
    action = dist.sample()
    ret = worth(x) + (action == best_arm(x)).float() + 0.1 * torch.randn(len(x))
    advantage = (ret - value).detach()
    policy_loss = -(dist.log_prob(action) * advantage).mean()
    value_loss = F.mse_loss(value, ret)
    return policy_loss + 0.5 * value_loss - 0.005 * dist.entropy().mean()


@fault(
    "the optimizer was given the actor's parameters only; the critic stays as it was made",
    rules=["no-gradient"],
    layers=["critic"],
    fails=True,
    steps=500,
)
def critic_left_out(is_faulty):
    net = ActorCritic()
    params = net.actor.parameters() if is_faulty else net.parameters()
    return Program(
        net, None, Contexts(batch=128), torch.optim.Adam(params, lr=5e-3), actor_critic_score, step=actor_critic_step
    )


@fault(
    "a reward model of three linear layers with nothing between them",
    rules=["no-nonlinearity"],
    layers=["0", "1", "2"],
    fails=True,
    steps=400,
)
def reward_model_linear(is_faulty):
    # outputs: a reward for each arm; only that of the arm that was pulled is known
    def payoff(x):
        return torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs() - 1, torch.cos(2 * x[:, 3])], 1)

    x = torch.randn(3000, 4)
    arm = torch.randint(3, (3000, 1))
    reward = payoff(x).gather(1, arm) + 0.05 * torch.randn(3000, 1)
    loader = DataLoader(TensorDataset(x, torch.cat([arm.float(), reward], 1)), batch_size=64, shuffle=True)
    if is_faulty:
        net = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 3))
    else:
        net = nn.Sequential(
            nn.Sequential(nn.Linear(4, 64), nn.ReLU()), nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 3)
        )

    def loss(out, target):
        return F.mse_loss(out.gather(1, target[:, :1].long()), target[:, 1:])

    def score(model):
        x = torch.randn(1000, 4, generator=torch.Generator().manual_seed(1))
        want = payoff(x)
        return max(0.0, 1 - (F.mse_loss(model(x), want) / want.var()).item())

    return Program(net, loss, loader, torch.optim.Adam(net.parameters(), 3e-3), score)


# ---------------------------------------------------------------- behaviour cloning


def demos(n, seed=None):
    """A cart: position in metres, speed in m/s, heading in rad, fuel in litres; the driver's pedal and wheel."""
    g = torch.Generator().manual_seed(seed) if seed is not None else None
    z = torch.randn(n, 4, generator=g)
    act = torch.stack([torch.tanh(2 * z[:, 0] * z[:, 1]), torch.sin(z[:, 2] * 2) * torch.sigmoid(z[:, 3])], 1)
    return z, act


UNITS = torch.tensor([800.0, 25.0, 1.0, 40.0])
OFFSET = torch.tensor([2000.0, 90.0, 0.0, 50.0])


def r2(pred, want):
    return max(0.0, 1 - (F.mse_loss(pred, want) / (want - want.mean(0)).pow(2).mean()).item())


@fault(
    "a driver is cloned from what the sensors give in their own units, hundreds of metres next to radians",
    rules=["unscaled-input", "saturated-activation", "ill-conditioned-input", "bad-initialisation"],
    layers=["fc1"],
    fails=True,
    steps=500,
)
def cloning_raw_sensors(is_faulty):
    class Driver(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(4, 64)
            self.fc2 = nn.Linear(64, 64)
            self.mu = nn.Linear(64, 2)

        def forward(self, obs):
            h = torch.tanh(self.fc1(obs))
            h = torch.tanh(self.fc2(h))
            return self.mu(h)

    def sense(z):
        obs = z * UNITS + OFFSET
        return obs if is_faulty else (obs - OFFSET) / UNITS

    z, act = demos(4000)
    net = Driver()

    def score(model):
        z, act = demos(1000, seed=3)
        return r2(model(sense(z)), act)

    loader = DataLoader(TensorDataset(sense(z), act), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=3e-3), score)


@fault(
    "the actor ends in tanh, the actions of the demonstrations run from -5 to 5",
    rules=["output-loss-mismatch", "unscaled-target", "saturated-output"],
    layers=["net.4", "net.5"],
    fails=False,
    steps=400,
)
def actor_bounded(is_faulty):
    class Actor(nn.Module):
        def __init__(self, max_action):
            super().__init__()
            self.max_action = max_action
            self.net = nn.Sequential(
                nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2), nn.Tanh()
            )

        def forward(self, obs):
            return self.max_action * self.net(obs)

    z, act = demos(4000)
    net = Actor(1.0 if is_faulty else 5.0)
    loader = DataLoader(TensorDataset(z, 5 * act), batch_size=64, shuffle=True)

    def score(model):
        z, act = demos(1000, seed=3)
        return r2(model(z), 5 * act)

    return Program(net, F.smooth_l1_loss, loader, torch.optim.Adam(net.parameters(), lr=2e-3), score)


@fault(
    "the value of the last five observations depends on their order, and is read from their mean",
    rules=["order-lost"],
    fails=True,
    steps=500,
)
def history_in_any_order(is_faulty):
    class Recall(nn.Module):
        """Attention over a short history, with a learned embedding of how long ago."""

        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(3, 32)
            self.ago = None if is_faulty else nn.Parameter(torch.randn(5, 32) * 0.3)
            self.attn = nn.MultiheadAttention(32, 2, batch_first=True)
            self.ff = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
            self.value = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, history):
            h = self.embed(history)
            if self.ago is not None:
                h = h + self.ago
            h = h + self.attn(h, h, h, need_weights=False)[0]
            h = h + self.ff(h)
            return self.value(h.mean(1)).squeeze(-1)

    def make(n, seed=None):
        g = torch.Generator().manual_seed(seed) if seed is not None else None
        x = torch.randn(n, 5, 3, generator=g)
        return x, x[:, 4, 0] - x[:, 0, 0] + x[:, 3, 1] - x[:, 2, 1]  # has it got closer?

    net = Recall()
    x, y = make(6000)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

    def score(model):
        x, y = make(800, seed=2)
        return r2(model(x), y)

    def step(model, batch):
        obs, ret = batch
        return 0.5 * (model(obs) - ret).pow(2).mean()

    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step)


# ---------------------------------------------------------------- sound


@sound("a double DQN whose target net is a frozen part of the model", steps=500, least=0.8)
def double_dqn_with_target():
    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = QNet()
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, s):
            return self.online(s)

    def step(agent, batch):
        s, a, r, n, d = batch
        q = agent.online(s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            best = agent.online(n).argmax(1, keepdim=True)
            y = r + GAMMA * (1 - d) * agent.target(n).gather(1, best).squeeze(1)
        polyak(agent.target, agent.online, 0.05)
        return F.smooth_l1_loss(q, y)

    agent = Agent()
    return Program(
        agent, None, Replay(), torch.optim.Adam(agent.online.parameters(), lr=2e-3), q_score(), step=step
    )


@sound("a dueling DQN in the middle of its training", trained=250, steps=600, least=0.8)
def dueling_dqn_half_way():
    class Dueling(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Linear(SIZE * SIZE, 64), nn.ReLU())
            self.value = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
            self.advantage = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, ACTIONS))

        def forward(self, x):
            h = self.features(x)
            a = self.advantage(h)
            return self.value(h) + a - a.mean(1, keepdim=True)

    net = Dueling()
    old = copy.deepcopy(net)

    def step(model, batch):
        s, a, r, n, d = batch
        with torch.no_grad():
            y = r + GAMMA * (1 - d) * old(n).max(1).values
        polyak(old, model, 0.05)
        return F.mse_loss(model(s).gather(1, a[:, None]).squeeze(1), y)

    return Program(net, None, Replay(), torch.optim.Adam(net.parameters(), lr=2e-3), q_score(), step=step)


@sound("REINFORCE, whose loss stays near 0 while the policy gets better", steps=500, least=0.8)
def reinforce_flat_loss():
    policy = Policy()

    def step(model, x):
        dist = Categorical(logits=model(x))
        arm = dist.sample()
        reward = (arm == best_arm(x)).float()
        return -(dist.log_prob(arm) * (reward - reward.mean())).mean()

    return Program(policy, None, Contexts(), torch.optim.Adam(policy.parameters(), lr=3e-3), arm_score, step=step)


@sound("an actor-critic with two losses and an entropy bonus", steps=500, least=0.75)
def actor_critic_ordinary():
    net = ActorCritic()
    return Program(
        net, None, Contexts(batch=128), torch.optim.Adam(net.parameters(), 5e-3), actor_critic_score,
        step=actor_critic_step,
    )


@sound("a driver that steers full left or full right: its tanh is flat where it is right", trained=300, steps=500,
       least=0.75)
def bang_bang_actor():
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2), nn.Tanh())

    def make(n, seed=None):
        z, _ = demos(n, seed)
        return z, torch.stack([z[:, 0] * z[:, 1], z[:, 2] - z[:, 3]], 1).sign()

    x, y = make(5000)

    def score(model):
        x, y = make(1000, 3)
        return r2(model(x), y)

    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=2e-3), score)


@sound("a critic of quantiles, whose outputs do not agree on purpose", steps=500, least=0.8)
def quantile_critic():
    taus = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))

    def width(x):
        return 0.3 + torch.sigmoid(2 * x[:, 1])

    x = torch.randn(5000, 3)
    y = torch.sin(2 * x[:, 0]) * 2 + x[:, 2] + width(x) * torch.randn(5000)

    def pinball(out, target):
        diff = target[:, None] - out
        return torch.maximum(taus * diff, (taus - 1) * diff).mean()

    def score(model):
        x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(8))
        middle = torch.sin(2 * x[:, 0]) * 2 + x[:, 2]
        want = middle[:, None] + width(x)[:, None] * torch.distributions.Normal(0.0, 1.0).icdf(taus)
        return r2(model(x), want)

    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    return Program(net, pinball, loader, torch.optim.Adam(net.parameters(), lr=2e-3), score)


@sound("a clipped policy gradient (PPO) on what an old policy did, whose net starts with small logits", steps=600,
       least=0.7)
def ppo_on_old_data():
    net = Policy()
    x = torch.randn(6000, 6)
    arm = torch.randint(4, (6000,))
    reward = (arm == best_arm(x)).float()
    advantage = (reward - reward.mean()) / reward.std()
    old = torch.full((6000,), 0.25).log()

    def step(model, batch):
        x, arm, adv, old = batch
        dist = Categorical(logits=model(x))
        ratio = (dist.log_prob(arm) - old).exp()
        return -torch.min(ratio * adv, ratio.clamp(0.0, 3.6) * adv).mean()

    loader = DataLoader(TensorDataset(x, arm, advantage, old), batch_size=100, shuffle=True, drop_last=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), arm_score, step=step)
