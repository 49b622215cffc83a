import math
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, sound
from sqs_data import *
from sqs_fault_one import HandRNN, Lookup, flagged, lookups, first_symbol, lm_loss
from sqs_fault_two import DiagSSM, Forecaster, PosNet, TagNet


@sound("Noam schedule on a base rate of 1", steps=250, least=0.8)
def sqs_ok_noam():
    (x, _, y), (tx, _, ty) = chats(800, 16, 60, 33, 16), chats(300, 16, 60, 34, 16)
    m = PosNet(60, 16, layers=1)
    opt = torch.optim.Adam(m.parameters(), 1.0, betas=(0.9, 0.98), eps=1e-9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 32 ** -0.5 * min((s + 1) ** -0.5, (s + 1) * 1000 ** -1.5))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(tx, ty), scheduler=sched)


class RevIn(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        x = x[..., 0]
        mu, sd = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        return self.core((x - mu) / sd) * sd + mu


@sound("prices in dollars, normalised per window inside the model, loss relative", steps=350, least=0.7)
def sqs_ok_revin_prices():
    (x, y), (tx, ty) = series(800, 20, 31), series(200, 20, 32)
    p = lambda z: 4000 + 500 * z
    m = RevIn()
    return Program(m, lambda o, t: ((o - t) / 500).square().mean(), loader(p(x), p(y)), torch.optim.Adam(m.parameters(), 5e-3), r2(p(tx), p(ty)))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(60, 32, padding_idx=0)
        nn.init.uniform_(self.emb.weight, -0.5, 0.5)
        self.fc = nn.Linear(32, 2)
        nn.init.uniform_(self.fc.weight, -0.5, 0.5)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        return self.fc(self.emb(x))


@sound("EmbeddingBag with SGD at a rate of 5, as in torchtext's tutorial", steps=300, least=0.8)
def sqs_ok_sgd_five():
    (x, _, y), (tx, _, ty) = chats(900, 16, 60, 35), chats(300, 16, 60, 36)
    m = Bag()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.SGD(m.parameters(), 5.0), accuracy(tx, ty))


class Imputer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0])[..., 0]


@sound("imputation: missing readings are 0 with a flag, and only they count in the loss", steps=350, least=0.6)
def sqs_ok_imputation():
    def data(n, seed):
        x, _ = series(n, 20, seed, 0.03)
        hide = torch.rand(n, 20, generator=gen(seed + 1)) < 0.25
        v = x[..., 0]
        return torch.stack([v.masked_fill(hide, 0), hide.float()], -1), torch.where(hide, v, torch.nan)
    (x, y), (tx, ty) = data(700, 41), data(200, 51)
    m = Imputer()

    def loss(o, t):
        seen = ~t.isnan()
        return F.mse_loss(o[seen], t[seen])

    def score(m):
        k = ~ty.isnan()
        return (1 - (m(tx)[k] - ty[k]).square().mean() / ty[k].var()).item()
    return Program(m, loss, loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), score)


class SeqAE(nn.Module):
    def __init__(self, k=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, k))
        self.dec = nn.Sequential(nn.Linear(k, 48), nn.Tanh(), nn.Linear(48, 32), nn.Unflatten(1, (32, 1)))

    def forward(self, x):
        return self.dec(self.enc(x))


@sound("autoencoder of normal beats, inputs are targets, anomalies told by the error", steps=350, least=0.75)
def sqs_ok_beat_autoencoder():
    x, y = ecg(1500, 32, 15, 0.05)
    tx, ty = ecg(300, 32, 16, 0.05)
    x = x[y == 0]
    m = SeqAE()

    def auc(m):
        e = (m(tx) - tx).square().mean((1, 2))
        a, b = e[ty > 0], e[ty == 0]
        return (a[:, None] > b[None]).float().mean().item()
    return Program(m, nn.MSELoss(), loader(x, x), torch.optim.Adam(m.parameters(), 3e-3), auc)


class Pick(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 24, batch_first=True)
        self.pi = nn.Linear(24, 4)

    def forward(self, x):
        return self.pi(self.rnn(x)[0][:, -1])


@sound("REINFORCE on a recurrent policy: the loss hovers about 0 and does not fall", steps=400, least=0.7)
def sqs_ok_policy():
    def data(n, seed):
        a = torch.randint(0, 4, (n, 5), generator=gen(seed))
        return F.one_hot(a, 4).float(), (a[:, -1] + a[:, -2]) % 4
    (x, y), (tx, ty) = data(1000, 1), data(300, 2)
    m = Pick()

    def step(m, batch):
        s, best = batch
        d = torch.distributions.Categorical(logits=m(s))
        act = d.sample()
        r = (act == best).float()
        return -(d.log_prob(act) * (r - r.mean())).mean() - 0.01 * d.entropy().mean()
    return Program(m, None, loader(x, y, bs=64), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty), step=step)


@sound("diagonal state space with poles near 1", steps=350, least=0.7)
def sqs_ok_ssm():
    (x, y), (tx, ty) = waves(640, 40, 4, 33, 0.1), waves(200, 40, 4, 34, 0.1)
    m = DiagSSM(-1.0)
    del m.C
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


@sound("key-value lookup, trained: attention is rightly one-hot", trained=350, steps=350, least=0.8)
def sqs_ok_sharp_lookup():
    (x, y), (tx, ty) = lookups(1200, 11), lookups(300, 12)
    m = Lookup(0.1)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


class Delay(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 40, batch_first=True)
        self.fc = nn.Linear(40, 12)

    def forward(self, x):
        return self.fc(self.rnn(self.emb(x))[0])


@sound("echo task: the target is the token before the last", steps=400, least=0.8)
def sqs_ok_echo_one():
    def data(n, seed):
        x = torch.randint(0, 12, (n, 12), generator=gen(seed))
        return x, torch.cat([torch.full((n, 1), -100), x[:, :-1]], 1)
    (x, y), (tx, ty) = data(1000, 1), data(200, 2)
    m = Delay()
    return Program(m, lm_loss, loader(x, y), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: (m(tx).argmax(-1) == ty)[:, 1:].float().mean().item())


class ReZero(nn.Module):
    def __init__(self, f=16, n=8):
        super().__init__()
        self.inp = nn.Conv1d(1, f, 7)
        self.convs = nn.ModuleList(nn.Conv1d(f, f, 3, padding=1) for _ in range(n))
        self.gates = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(n))
        self.fc = nn.Linear(f, 5)

    def forward(self, x):
        h = self.inp(x.transpose(1, 2)).relu()
        for c, g in zip(self.convs, self.gates):
            h = h + g * c(h).relu()
        return self.fc(h.mean(2))


@sound("ReZero: gates start at 0, so that the blocks have no gradient at first", steps=250, least=0.75)
def sqs_ok_rezero():
    (x, y), (tx, ty) = waves(640, 40, 5, 35), waves(200, 40, 5, 36)
    m = ReZero()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@sound("a sum over the batch, divided by a constant", steps=300, least=0.8)
def sqs_ok_token_sum():
    def data(n, seed):
        x = torch.randint(0, 30, (n, 12), generator=gen(seed))
        t = torch.randint(0, 6, (30,), generator=gen(58))
        return x, (t[x] + (F.pad(x, (1, 0))[:, :-1] > 15).long()) % 6
    (x, y), (tx, ty) = data(600, 1), data(200, 2)
    m = TagNet()
    return Program(m, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), reduction="sum") / 32, loader(x, y),
                   torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@sound("click counts with a Poisson loss, which is negative", steps=350, least=0.6)
def sqs_ok_poisson_clicks():
    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 10, 3, generator=g)
        rate = (1.5 + 0.8 * x[:, -3:, 0].sum(1) / 1.5 + 0.4 * x[:, -1, 1]).exp()
        return x, torch.poisson(rate, generator=g)[:, None], rate[:, None]
    (x, y, _), (tx, _, tr) = data(800, 1), data(300, 2)
    m = Forecaster(3)

    def score(m):
        a, b = m(tx), tr.log()
        return torch.corrcoef(torch.cat([a, b], 1).T)[0, 1].item() ** 2
    return Program(m, nn.PoissonNLLLoss(log_input=True), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), score)


class LoRA(nn.Module):
    def __init__(self, base, r=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T * 4


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 48).requires_grad_(False)
        self.l1 = LoRA(nn.Linear(48, 64))
        self.l2 = LoRA(nn.Linear(64, 64))
        self.head = nn.Linear(64, 2)

    def forward(self, ids):
        return self.head(self.l2(self.l1(self.emb(ids)).relu()).relu().mean(1))


@sound("LoRA: frozen weights, adapters whose second factor starts at 0", steps=300, least=0.75)
def sqs_ok_lora_chat():
    (x, _, y), (tx, _, ty) = chats(900, 14, 60, 45, 14), chats(300, 14, 60, 46, 14)
    m = Adapted()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 3e-3), accuracy(tx, ty))


@sound("pinball loss for three quantiles of a forecast", steps=350, least=0.6)
def sqs_ok_quantiles():
    (x, y), (tx, ty) = series(700, 20, 61), series(200, 20, 62)
    m = nn.Sequential(nn.Flatten(), nn.Linear(20, 48), nn.SiLU(), nn.Linear(48, 3))
    q = torch.tensor([0.1, 0.5, 0.9])
    loss = lambda o, t: torch.maximum(q * (t - o), (q - 1) * (t - o)).mean()
    return Program(m, loss, loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), lambda m: r2(tx, ty)(lambda z: m(z)[:, 1:2]))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 12, 7), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(12, 8))

    def forward(self, x):
        return F.normalize(self.net(x.transpose(1, 2)), dim=1)


@sound("triplets through one shared encoder", steps=300, least=0.75)
def sqs_ok_triplets():
    (x, y), (tx, ty) = waves(640, 40, 4, 65), waves(150, 40, 4, 66)
    m = Siamese()

    def step(m, batch):
        s, c = batch
        e = m(s)
        d = torch.cdist(e, e)
        same = c[:, None] == c[None]
        far = (d + 10.0 * ~same).masked_fill(torch.eye(len(c), dtype=torch.bool), 0)
        pos = torch.where(same, d, 0.0).amax(1)
        neg = torch.where(same, 9.0, d).amin(1)
        return (pos - neg + 0.3).relu().mean()

    def apart(m):
        e = m(tx)
        d, same = torch.cdist(e, e), ty[:, None] == ty[None]
        return (d[same].quantile(0.9) + 0.2 < d[~same]).float().mean().item()
    return Program(m, None, loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), apart, step=step)


@sound("hand-written RNN with an orthogonal recurrence over 20 steps, half trained", trained=80, steps=250, least=0.8)
def sqs_ok_hand_rnn():
    (x, y), (tx, ty) = first_symbol(600, 20, 4, 11), first_symbol(200, 20, 4, 12)
    m = HandRNN(4, 32, 4, 1.0)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 2e-3), accuracy(tx, ty))


class Seq2Seq(nn.Module):
    def __init__(self, V=11, d=40):
        super().__init__()
        self.V = V
        self.emb = nn.Embedding(V, d)
        self.pos = nn.Embedding(16, d)
        self.net = nn.Transformer(d, 2, 1, 1, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.fc = nn.Linear(d, V)

    def forward(self, src, tgt):
        place = self.pos(torch.arange(16))
        s, t = self.emb(src) + place[: src.shape[1]], self.emb(tgt) + place[: tgt.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return self.fc(self.net(s, t, tgt_mask=mask, tgt_is_causal=True))


@sound("translation with teacher forcing: the decoder is given the targets, one place later", steps=500, least=0.7)
def sqs_ok_translation():
    word = torch.randperm(10, generator=gen(4)) + 1

    def data(n, seed):
        s = torch.randint(1, 11, (n, 6), generator=gen(seed))
        return s, word[s.flip(1) - 1]
    (s, t), (ts, tt) = data(1500, 1), data(200, 2)
    m = Seq2Seq()

    class Pairs:
        def __iter__(self):
            for i in torch.randperm(len(s)).split(48):
                yield {"src": s[i], "tgt": F.pad(t[i], (1, 0))[:, :-1]}, t[i]

        def __len__(self):
            return 32
    return Program(m, lm_loss, Pairs(), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda m: (m(ts, F.pad(tt, (1, 0))[:, :-1]).argmax(-1) == tt).float().mean().item())


class Rare(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1]).squeeze(1)


@sound("one session in fifteen buys; pos_weight, and most batches hold few of them", steps=350, least=0.7)
def sqs_ok_rare_purchase():
    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 8, 3, generator=g)
        z = x[:, -4:, 0].sum(1) + x[:, -1, 1]
        return x, (z > 3.4).float()
    (x, y), (tx, ty) = data(1500, 1), data(600, 2)
    m = Rare()

    def auc(m):
        p = m(tx)
        return 2 * (p[ty > 0][:, None] > p[ty == 0][None]).float().mean().item() - 1
    return Program(m, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(14.0)), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), auc)
