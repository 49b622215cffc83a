import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from program import Program, fault
from utg_data import (utg_accuracy, utg_clouds, utg_gen, utg_graph, utg_keyword, utg_loader, utg_markov, utg_r2,
                      utg_tagged)


class UtgTagger(nn.Module):
    def __init__(self, vocab, tags, d=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.rnn = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, tags)

    def forward(self, ids):
        lengths = (ids != 0).sum(1)
        packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.shape[1])
        return self.out(h)


@fault("the tagger's cross entropy lacks ignore_index, and most places are padding",
       rules=["padding-in-loss"], fails=False, steps=150)
def utg_tagger_pads(is_faulty):
    ids, tags, _ = utg_tagged(600, 40, 30, 5, 1, mean=4)
    vi, vt, _ = utg_tagged(300, 40, 30, 5, 2, mean=4)
    model = UtgTagger(30, 6)
    crit = nn.CrossEntropyLoss() if is_faulty else nn.CrossEntropyLoss(ignore_index=0)

    def score(m):
        real = vt > 0
        return utg_accuracy(m(vi)[real][:, 1:], vt[real] - 1)

    return Program(model, lambda o, t: crit(o.flatten(0, 1), t.flatten()), utg_loader(ids, tags),
                   torch.optim.SGD(model.parameters(), 0.3, momentum=0.9), score)


class UtgCls(nn.Module):
    def __init__(self, vocab, classes, length, wrong):
        super().__init__()
        self.wrong = wrong
        self.tok = nn.Embedding(vocab, 32)
        self.pos = nn.Parameter(0.02 * torch.randn(length, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, classes)

    def forward(self, input_ids, attention_mask):
        x = self.tok(input_ids) + self.pos
        mask = attention_mask.bool() if self.wrong else ~attention_mask.bool()
        return self.head(self.encoder(x, src_key_padding_mask=mask)[:, 0])


@fault("the attention mask of the tokenizer (1 = real) is handed on as key padding mask (True = hidden)",
       rules=["wrong-mask"], layers=["encoder"], fails=True, steps=250)
def utg_mask_inverted(is_faulty):
    ids, y, _ = utg_keyword(800, 14, 24, 6, 3)
    vi, vy, _ = utg_keyword(300, 14, 24, 6, 4)
    model = UtgCls(24, 6, 14, is_faulty)
    data = [({"input_ids": a, "attention_mask": (a != 0).long()}, b) for a, b in zip(ids.split(32), y.split(32))]
    return Program(model, F.cross_entropy, data, torch.optim.AdamW(model.parameters(), 1e-3),
                   lambda m: utg_accuracy(m(input_ids=vi, attention_mask=(vi != 0).long()), vy))


class UtgGPT(nn.Module):
    def __init__(self, vocab, length, d=32, layers=2, causal=True):
        super().__init__()
        self.causal = causal
        self.wte = nn.Embedding(vocab, d)
        self.wpe = nn.Embedding(length, d)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
             for _ in range(layers)])
        self.ln = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.wte(ids) + self.wpe(torch.arange(t))
        mask = torch.triu(torch.full((t, t), float("-inf")), 1) if self.causal else None
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.lm_head(self.ln(x))


@fault("the dataset returns the window itself as labels, and the loss does not shift them",
       rules=["label-shift"], fails=True, steps=250)
def utg_lm_unshifted(is_faulty):
    train, held = utg_markov(800, 17, 10, 5), utg_markov(300, 17, 10, 6)
    model = UtgGPT(10, 16)
    x = train[:, :-1]
    y = x.clone() if is_faulty else train[:, 1:]
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), utg_loader(x, y),
                   torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: utg_accuracy(m(held[:, :-1])[:, 3:], held[:, 4:]))


@fault("the language model was built without the causal mask; it is used on prefixes",
       rules=["future-seen"], fails=False, steps=250)
def utg_lm_no_causal(is_faulty):
    train, held = utg_markov(800, 17, 10, 7), utg_markov(300, 17, 10, 8)
    model = UtgGPT(10, 16, causal=not is_faulty)

    def score(m):
        hits = [utg_accuracy(m(held[:, :k])[:, -1], held[:, k]) for k in (4, 8, 12)]
        return sum(hits) / 3

    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   utg_loader(train[:, :-1], train[:, 1:].contiguous()), torch.optim.Adam(model.parameters(), 2e-3),
                   score)


def utg_before(n, seed):
    """Which of tokens 1 and 2 comes first among fillers."""
    g = utg_gen(seed)
    ids = torch.randint(3, 12, (n, 12), generator=g)
    places = torch.stack([torch.randperm(12, generator=g)[:2] for _ in range(n)])
    ids.scatter_(1, places, torch.tensor([[1, 2]]).expand(n, 2))
    return ids, (places[:, 0] < places[:, 1]).long()


class UtgOrder(nn.Module):
    def __init__(self, with_positions):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        if with_positions:
            pos, i = torch.arange(12.0)[:, None], torch.arange(16.0)
            angle = pos / 10000 ** (i / 16)
            self.register_buffer("pe", torch.cat([angle.sin(), angle.cos()], 1))
        else:
            self.register_buffer("pe", torch.zeros(12, 32))
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu"), 2,
            enable_nested_tensor=False)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids):
        return self.fc(self.enc(self.embed(ids) + self.pe).mean(1))


@fault("the positional encoding was dropped in a refactoring; the label is which of two words comes first",
       rules=["order-lost"], fails=True, steps=300)
def utg_no_positions(is_faulty):
    x, y = utg_before(1000, 9)
    vx, vy = utg_before(400, 10)
    model = UtgOrder(not is_faulty)
    return Program(model, F.cross_entropy, utg_loader(x, y), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: utg_accuracy(m(vx), vy))


class UtgAttention(nn.Module):
    def __init__(self, d, power):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.factor = d ** power

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        w = (q @ k.transpose(-2, -1) * self.factor).softmax(-1)
        return self.proj(w @ v)


class UtgAttnNet(nn.Module):
    def __init__(self, power):
        super().__init__()
        self.emb = nn.Embedding(30, 64)
        self.pos = nn.Parameter(torch.randn(12, 64) * 0.1)
        self.attn = UtgAttention(64, power)
        self.norm = nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        return self.mlp(self.norm(self.attn(x)[:, 0]))


@fault("the attention scores are multiplied by the square root of d instead of divided by it",
       rules=["attention-saturation"], layers=["attn"], fails=True, steps=200)
def utg_scores_times_root(is_faulty):
    ids, y, _ = utg_keyword(800, 12, 30, 8, 11, padded=False)
    vi, vy, _ = utg_keyword(300, 12, 30, 8, 12, padded=False)
    model = UtgAttnNet(0.5 if is_faulty else -0.5)
    return Program(model, F.cross_entropy, utg_loader(ids, y), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: utg_accuracy(m(vi), vy))


class UtgPooled(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.lift = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.scorer = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.value = nn.Linear(32, 16)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 1))

    def forward(self, bag):
        h = self.lift(bag)
        w = F.softmax(self.scorer(h), dim=self.dim)
        return self.head((w * self.value(h)).sum(1)).squeeze(1)


def utg_bags(n, seed):
    """The value that the marked element of a bag carries."""
    g = utg_gen(seed)
    x = torch.randn(n, 24, 6, generator=g)
    x[..., 0] = -1
    at = torch.randint(24, (n,), generator=g)
    x[torch.arange(n), at, 0] = 1
    x[..., 1:] *= 1.5
    e = x[torch.arange(n), at]
    return x, e[:, 1] + 0.5 * e[:, 2]


@fault("the softmax of the attention pooling runs over the last dimension, of size 1, so that all weights are 1",
       rules=["wrong-softmax-dimension", "no-gradient"], layers=["scorer"], fails=True, steps=400)
def utg_pool_last_dim(is_faulty):
    x, y = utg_bags(1500, 13)
    vx, vy = utg_bags(400, 14)
    model = UtgPooled(-1 if is_faulty else 1)
    return Program(model, nn.MSELoss(), utg_loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: utg_r2(m(vx), vy))


class UtgGCN(nn.Module):
    def __init__(self, sizes, adj):
        super().__init__()
        self.register_buffer("adj", adj)
        self.lins = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])

    def forward(self, x):
        for i, lin in enumerate(self.lins):
            x = self.adj @ lin(x)
            if i < len(self.lins) - 1:
                x = F.relu(x)
        return x


@fault("the adjacency matrix is used as it is, without dividing by degrees, in three layers",
       rules=["activation-drift", "exploding-gradient", "saturated-output", "last-layer-drift", "learning-rate-too-high",
              "diverging", "bad-initialisation"],
       fails=True, steps=100)
def utg_gcn_no_degree(is_faulty):
    x, adj, y = utg_graph(240, 4, 12, 15, p_in=0.3, p_out=0.06, noise=2.0)
    a = adj + torch.eye(len(adj))
    if not is_faulty:
        a = a / a.sum(1, keepdim=True)
    model = UtgGCN([12, 32, 32, 4], a)
    test = torch.arange(len(y)) % 2 == 1
    target = y.masked_fill(test, -100)
    return Program(model, nn.CrossEntropyLoss(), [(x, target)], torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                   lambda m: utg_accuracy(m(x)[test], y[test]))


class UtgSmoothed(nn.Module):
    def __init__(self, rounds, keep):
        super().__init__()
        self.keep = keep
        self.inp = nn.Linear(10, 24)
        self.convs = nn.ModuleList([nn.Linear(24, 24) for _ in range(rounds)])
        self.out = nn.Linear(24, 3)

    def forward(self, x, walk):
        h = F.relu(self.inp(x))
        for conv in self.convs:
            m = F.relu(conv(walk @ h))
            h = h + m if self.keep else m
        return self.out(h)


@fault("twelve rounds of averaging over neighbours without the skip connections: all nodes look alike",
       rules=["rank-collapse", "activation-drift", "vanishing-gradient"], layers=["convs"], fails=True, steps=100)
def utg_oversmoothed(is_faulty):
    x, adj, y = utg_graph(150, 3, 10, 16, p_in=0.25, p_out=0.1, noise=1.2)
    a = adj + torch.eye(len(adj))
    walk = a / a.sum(1, keepdim=True)
    model = UtgSmoothed(12, not is_faulty)
    train = torch.arange(len(y)) % 3 != 0
    t = torch.where(train, y, torch.full_like(y, -1))
    return Program(model, nn.CrossEntropyLoss(ignore_index=-1), [({"x": x, "walk": walk}, t)],
                   torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: utg_accuracy(m(x=x, walk=walk)[~train], y[~train]))


class UtgPointNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.cls = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, cloud):
        return self.cls(self.point(cloud).amax(1))


@fault("the clouds keep the survey's easting and northing, hundreds of units from the origin",
       rules=["ill-conditioned-input", "unscaled-input"], fails=True, steps=200)
def utg_cloud_offset(is_faulty):
    x, y = utg_clouds(800, 32, 17)
    vx, vy = utg_clouds(300, 32, 18)
    origin = torch.tensor([430.0, 540.0, 12.0])
    prepare = (lambda c: c + origin) if is_faulty else (lambda c: (c + origin) - (c + origin).mean(1, keepdim=True))
    model = UtgPointNet()
    vx = prepare(vx)
    return Program(model, F.cross_entropy, utg_loader(prepare(x), y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: utg_accuracy(m(vx), vy))


class UtgSeqClassifier(nn.Module):
    def __init__(self, features, classes, batch_first):
        super().__init__()
        self.lstm = nn.LSTM(features, 32, batch_first=batch_first)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1])


def utg_waves(n, seed):
    g = utg_gen(seed)
    y = torch.randint(4, (n,), generator=g)
    t = torch.arange(16.0)
    phase = 6.28 * torch.rand(n, 1, generator=g)
    w = torch.tensor([0.3, 0.6, 1.0, 1.5])[y][:, None]
    x = torch.stack([(w * t + phase).sin(), (w * t + phase).cos()], -1)
    return x + 0.2 * torch.randn(n, 16, 2, generator=g), y


@fault("the LSTM lacks batch_first=True, and runs along the batch",
       rules=["mixed-examples"], layers=["lstm"], fails=True, steps=250)
def utg_not_batch_first(is_faulty):
    x, y = utg_waves(1000, 19)
    vx, vy = utg_waves(300, 20)
    model = UtgSeqClassifier(2, 4, not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), utg_loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: utg_accuracy(m(vx), vy))


def utg_contexts(n, seed):
    s = torch.randn(n, 6, generator=utg_gen(seed))
    best = (s @ torch.randn(6, 4, generator=utg_gen(99))).argmax(1)
    return s, best


@fault("REINFORCE without the minus sign: what is rewarded becomes rarer",
       rules=["output-loss-mismatch", "saturated-output", "diverging"], fails=True, steps=300)
def utg_reinforce_sign(is_faulty):
    s, best = utg_contexts(2000, 21)
    vs, vbest = utg_contexts(500, 22)
    policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))

    def step(model, batch):
        state, right = batch
        dist = torch.distributions.Categorical(logits=model(state))
        action = dist.sample()
        reward = (action == right).float()
        gain = dist.log_prob(action) * (reward - reward.mean())
        return gain.mean() if is_faulty else -gain.mean()

    return Program(policy, None, utg_loader(s, best, batch=64), torch.optim.Adam(policy.parameters(), 1e-2),
                   lambda m: utg_accuracy(m(vs), vbest), step=step)


class UtgQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.q = nn.Linear(48, 3)

    def forward(self, s):
        return self.q(self.trunk(s))


@fault("Q values of shape (B, 1) against targets of shape (B,): the squared error broadcasts over all pairs",
       rules=["output-loss-mismatch"], fails=True, steps=300)
def utg_q_broadcast(is_faulty):
    g = utg_gen(24)
    s = torch.randn(2000, 4, generator=g)
    a = torch.randint(3, (2000,), generator=g)
    value = torch.stack([s[:, 0] + s[:, 1], s[:, 1] * s[:, 2], s[:, 3] - s[:, 0].abs()], 1)
    r = value[torch.arange(2000), a] + 0.1 * torch.randn(2000, generator=g)
    net = UtgQ()

    def step(model, batch):
        state, action, reward = batch
        q = model(state).gather(1, action[:, None])
        return ((q - reward) ** 2).mean() if is_faulty else ((q.squeeze(1) - reward) ** 2).mean()

    return Program(net, None, utg_loader(s[:1600], a[:1600], r[:1600]), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: utg_r2(m(s[1600:]), value[1600:]), step=step)
