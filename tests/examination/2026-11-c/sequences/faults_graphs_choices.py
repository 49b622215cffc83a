"""Graphs, recommenders, retrieval, reinforcement learning."""
import torch
import torch.nn.functional as F
from data import accuracy, community, gen, loader, r2, ratings, seed, views
from program import Program, fault
from torch import nn


def small_graphs(n, k):
    """Graphs of 8 coloured nodes; is an edge more often between equal colours than not?"""
    g = gen(k)
    graphs = []
    while len(graphs) < n:
        colour = torch.randint(2, (8,), generator=g)
        bias = 0.25 if len(graphs) % 2 else 0.75
        pairs = torch.combinations(torch.arange(8))
        same = colour[pairs[:, 0]] == colour[pairs[:, 1]]
        keep = torch.rand(len(pairs), generator=g) < 0.5 * torch.where(same, bias, 1 - bias)
        edges = pairs[keep]
        if len(edges) > 3:
            share = same[keep].float().mean()
            if (share - 0.5).abs() > 0.15:
                graphs.append((F.one_hot(colour, 2).float(), torch.cat([edges, edges.flip(1)]), int(share > 0.5)))
    return graphs


def collate(graphs, offsets=True):
    x, edges, owner, y, start = [], [], [], [], 0
    for i, (nodes, e, label) in enumerate(graphs):
        x.append(nodes)
        edges.append(e + start)
        owner.append(torch.full((len(nodes),), i))
        y.append(label)
        if offsets:
            start += len(nodes)
    return {"x": torch.cat(x), "edges": torch.cat(edges), "owner": torch.cat(owner)}, torch.tensor(y)


class GraphNet(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(2, d)
        self.message = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(2))
        self.update = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(2))
        self.readout = nn.Linear(d, 2)

    def forward(self, x, edges, owner):
        h = F.relu(self.inp(x))
        src, dst = edges.t()
        for msg, upd in zip(self.message, self.update):
            m = F.relu(msg(torch.cat([h[src], h[dst]], 1)))
            h = h + F.relu(upd(torch.cat([h, torch.zeros_like(h).index_add_(0, dst, m)], 1)))
        pooled = torch.zeros(int(owner.max()) + 1, h.size(1)).index_add_(0, owner, h) / 8
        return self.readout(pooled)


@fault("graphs are put together into a batch without adding the nodes' offsets to the edges: all edges end in the first graph",
       rules=("mixed-examples", "labels-unrelated"), fails=True, steps=300)
def edges_without_offsets(is_faulty):
    graphs = small_graphs(600, 40)
    test, want = collate(small_graphs(200, 41))
    seed(40)
    model = GraphNet()
    batches = torch.utils.data.DataLoader(graphs, batch_size=20, shuffle=True, collate_fn=lambda g: collate(g, not is_faulty))
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: accuracy(m(**test), want))


class GCN(nn.Module):
    """Dense adjacency as a buffer; the input is the matrix of node features."""

    def __init__(self, a, d, layers, residual=True):
        super().__init__()
        self.register_buffer("a", a)
        self.residual = residual
        self.first = nn.Linear(12, d)
        self.weights = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(d, d)) for _ in range(layers))
        self.last = nn.Linear(d, 3)

    def forward(self, x):
        h = F.relu(self.first(x))
        for w in self.weights:
            out = F.relu(self.a @ h @ w)
            h = h + out if self.residual else out
        return self.last(h)


def node_program(a, layers, residual, lr=5e-3):
    _, x, y = community()
    train = torch.arange(120) % 5 < 2
    model = GCN(a, 24, layers, residual)

    def loss(out, t):
        return F.cross_entropy(out[train], t[train])

    return Program(model, loss, [(x, y)], torch.optim.Adam(model.parameters(), lr=lr, weight_decay=5e-4), lambda m: accuracy(m(x)[~train], y[~train]))


def normalised(a):
    a = a + torch.eye(len(a))
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None]


@fault("twelve graph convolutions without skip connections: all nodes get the same features",
       rules=("rank-collapse", "vanishing-gradient", "activation-drift"), layers=("weights", "last"), fails=True, steps=100)
def oversmoothed(is_faulty):
    seed(41)
    return node_program(normalised(community()[0]), 12, not is_faulty)


class Factors(nn.Module):
    def __init__(self, users, items, rank, constant):
        super().__init__()
        self.user, self.item = nn.Embedding(users, rank), nn.Embedding(items, rank)
        for table in (self.user, self.item):
            if constant:
                nn.init.constant_(table.weight, 0.1)
            else:
                nn.init.normal_(table.weight, 0.0, 0.1)

    def forward(self, pairs):
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(1)


@fault("all user and item factors start at 0.1: the eight factors stay copies of one",
       rules=("symmetric-initialisation",), layers=("user", "item"), fails=False, steps=400)
def factors_all_equal(is_faulty):
    pairs, y, test, want = ratings()
    seed(42)
    model = Factors(60, 50, 8, is_faulty)
    return Program(model, nn.MSELoss(), loader(pairs, y, batch=100), torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4), lambda m: r2(m(test), want))


class NCF(nn.Module):
    def __init__(self, users, items, act):
        super().__init__()
        self.user, self.item = nn.Embedding(users, 16), nn.Embedding(items, 16)
        self.mlp = nn.Sequential(nn.Linear(32, 64), act(), nn.Linear(64, 32), act(), nn.Linear(32, 1))

    def forward(self, user, item):
        return self.mlp(torch.cat([self.user(user), self.item(item)], -1)).squeeze(-1)


@fault("the recommender's MLP has no activations: user and item can only add up, never interact",
       rules=("no-nonlinearity",), layers=("mlp",), fails=True, steps=400)
def tower_without_activations(is_faulty):
    pairs, y, test, want = ratings(50, 40, 1, k=6)
    seed(43)
    model = NCF(50, 40, nn.Identity if is_faulty else nn.ReLU)
    batches = [({"user": p[:, 0], "item": p[:, 1]}, t) for p, t in zip(pairs.split(64), y.split(64))]
    return Program(model, nn.MSELoss(), batches, torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5), lambda m: r2(m(test[:, 0], test[:, 1]), want))


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
        self.doc = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, q, d):
        q, d = F.normalize(self.query(q), dim=-1), F.normalize(self.doc(d), dim=-1)
        return q @ d.t() / 0.1


@fault("in-batch retrieval with MoCo's labels: the right document is said to be number 0 for every query",
       rules=("labels-unrelated", "constant-target", "output-loss-mismatch"), fails=True, steps=300)
def labels_of_moco(is_faulty):
    (q, d), (tq, td) = views(1000, k=42), views(100, k=43)
    seed(44)
    model = TwoTower()

    def step(m, batch):
        logits = m(*batch)
        labels = torch.zeros(len(logits), dtype=torch.long) if is_faulty else torch.arange(len(logits))
        return F.cross_entropy(logits, labels)

    return Program(model, None, loader(q, d, batch=50), torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: accuracy(m(tq, td), torch.arange(100)), step=step)


class Siamese(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.fc1, self.fc2 = nn.Linear(20, 64), nn.Linear(64, 16)

    def embed(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))

    def forward(self, pair):
        a, b = self.embed(pair[:, 0]), self.embed(pair[:, 1])
        return torch.sqrt(((a - b) ** 2).sum(1) + self.eps)


@fault("the distance of a Siamese net is a square root without an epsilon, and some pairs are duplicates",
       rules=("non-finite",), fails=True, steps=300)
def root_of_zero(is_faulty):
    g = gen(44)
    centres = torch.randn(6, 20, generator=g)
    kind = torch.randint(6, (1200, 2), generator=g)
    kind[::2, 1] = kind[::2, 0]
    x = centres[kind] + 1.0 * torch.randn(1200, 2, 20, generator=g)
    x[::60, 1] = x[::60, 0]
    same = (kind[:, 0] == kind[:, 1]).float()
    seed(45)
    model = Siamese(0.0 if is_faulty else 1e-6)

    def contrastive(d, s):
        return (s * d**2 + (1 - s) * F.relu(2.0 - d) ** 2).mean()

    return Program(model, contrastive, loader(x[:900], same[:900]), torch.optim.Adam(model.parameters(), lr=1e-3),
                   lambda m: ((m(x[900:]) < 1.0) == same[900:].bool()).float().mean().item())


class Policy(nn.Module):
    def __init__(self, obs, actions, soft=False):
        super().__init__()
        self.soft = soft
        self.l1, self.l2, self.l3 = nn.Linear(obs, 48), nn.Linear(48, 48), nn.Linear(48, actions)

    def forward(self, obs):
        out = self.l3(torch.tanh(self.l2(torch.tanh(self.l1(obs)))))
        return torch.softmax(out, dim=-1) if self.soft else out


@fault("policy gradient without the minus sign: the policy learns to avoid rewards",
       rules=("diverging", "output-loss-mismatch"), fails=True, steps=300)
def reward_is_minimised(is_faulty):
    g = gen(46)
    rule = torch.randn(8, 3, generator=g)
    obs = torch.randn(3000, 8, generator=g)
    best = (obs @ rule).argmax(1)
    seed(46)
    model = Policy(8, 3)

    def step(m, batch):
        o, right = batch
        dist = torch.distributions.Categorical(logits=m(o))
        action = dist.sample()
        reward = (action == right).float()
        advantage = reward - reward.mean()
        objective = (dist.log_prob(action) * advantage).mean()
        return objective if is_faulty else -objective

    def score(m):
        return m(obs[2500:]).softmax(-1).gather(1, best[2500:, None]).mean().item()

    return Program(model, None, loader(obs[:2500], best[:2500], batch=64), torch.optim.Adam(model.parameters(), lr=3e-3), score, step=step)


@fault("the policy ends in a softmax, and its probabilities are given to Categorical as logits: no action can become likely",
       rules=("output-loss-mismatch",), fails=True, steps=300)
def probabilities_as_logits(is_faulty):
    seed(47)
    model = Policy(10, 5, soft=is_faulty)  # a ring of ten places; move by -2 ... 2; the goal is place 0
    moves = torch.tensor([-2, -1, 0, 1, 2])

    def play(m, start, steps=4):
        place, logs, total = start, [], []
        for _ in range(steps):
            dist = torch.distributions.Categorical(logits=m(F.one_hot(place, 10).float()))
            a = dist.sample()
            place = (place + moves[a]) % 10
            logs.append(dist.log_prob(a))
            total.append((place == 0).float())
        return torch.stack(logs), torch.stack(total)

    def step(m, start):
        logs, rewards = play(m, start)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
        return -(logs * advantage.detach()).mean()

    def score(m):  # how often it stands on the goal in the end
        state = torch.get_rng_state()
        torch.manual_seed(0)
        rewards = play(m, torch.arange(10).repeat(40))[1]
        torch.set_rng_state(state)
        return rewards[-1].mean().item()

    batches = [torch.randint(10, (64,), generator=gen(i)) for i in range(50)]
    return Program(model, None, batches, torch.optim.Adam(model.parameters(), lr=5e-3), score, step=step)
