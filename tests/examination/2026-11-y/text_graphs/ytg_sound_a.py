"""Sound set-ups."""
import math
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, sound
from ytg_data import *


@sound("labels are the inputs, which GPT2LMHeadModel shifts itself; the head is tied to the embedding", steps=200, least=0.9)
def ytg_gpt_tied():
    from transformers import GPT2Config, GPT2LMHeadModel

    ids, table = ytg_chain(1000, 16, 24, 0.05)
    test, _ = ytg_chain(200, 16, 24, 0.0, table)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    return Program(model, None, ytg_loader(ids), torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1),
                   lambda m: ytg_accuracy(m(input_ids=test[:, :-1]).logits, test[:, 1:]), step=lambda m, b: m(input_ids=b[0], labels=b[0]).loss)


@sound("a set of points, whose order is of no matter, and no positions", steps=300, least=0.85)
def ytg_deep_sets():
    class Sets(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.rho = nn.Linear(32, 1)

        def forward(self, x):
            return self.rho(self.phi(x).mean(1))

    x = torch.randn(1500, 10, 2) + 0.3 * torch.randn(1500, 1, 2)
    y = x.norm(dim=-1).mean(1, keepdim=True)
    y = (y - y.mean()) / y.std()
    model = Sets()
    return Program(model, nn.MSELoss(), ytg_loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3), lambda m: ytg_r2(m(x[1200:]), y[1200:]))


@sound("B of LoRA is zero, so that A gets no gradient at first; most weights are frozen", steps=400, least=0.85)
def ytg_lora_as_it_should_be():
    from ytg_faults_more import ytg_Low, ytg_pretrained

    model = ytg_pretrained()
    model.requires_grad_(False)
    model.fc1, model.fc2 = ytg_Low(model.fc1, 8, True), ytg_Low(model.fc2, 8, True)
    ids, y, mood = ytg_mood(3000, 8, 40)
    ti, ty, _ = ytg_mood(500, 8, 40, mood)
    return Program(model, F.cross_entropy, ytg_loader(ids, y), torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), 5e-3), lambda m: ytg_accuracy(m(ti), ty))


@sound("one block is applied four times, as in ALBERT", steps=300, least=0.85)
def ytg_universal_block():
    class Universal(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 32)
            self.place = nn.Embedding(12, 32)
            self.block = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
            self.norm = nn.LayerNorm(32)
            self.head = nn.Linear(32, 2)

        def forward(self, ids):
            x = self.embed(ids) + self.place.weight
            for _ in range(3):
                x = self.block(x)
            return self.head(self.norm(x).mean(1))

    ids, y = ytg_before(2000)
    ti, ty = ytg_before(400)
    model = Universal()
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), ytg_loader(ids, y), torch.optim.AdamW(model.parameters(), 2e-3), lambda m: ytg_accuracy(m(ti), ty))


@sound("in-batch negatives: the loss of an example depends on the others", steps=300, least=0.8)
def ytg_in_batch_negatives():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.EmbeddingBag(100, 48, mode="mean")
            self.proj = nn.Linear(48, 32)
            self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

        def forward(self, a, b):
            a, b = (F.normalize(self.proj(self.emb(t)), dim=-1) for t in (a, b))
            return self.log_scale.exp() * a @ b.t()

    synonym = torch.randperm(50) + 50
    q = torch.stack([torch.randperm(50)[:6] for _ in range(2200)])
    d = synonym[q]
    d = torch.where(torch.rand(d.shape) < 0.1, torch.randint(50, 100, d.shape), d)

    def step(m, batch):
        s = m(*batch)
        y = torch.arange(len(s))
        return (F.cross_entropy(s, y) + F.cross_entropy(s.t(), y)) / 2

    model = Siamese()
    return Program(model, None, ytg_loader(q[:2000], d[:2000], drop=True), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: ytg_accuracy(m(q[2000:], d[2000:]), torch.arange(200)), step=step)


@sound("word vectors are frozen, and the tagger reads both ways", steps=300, least=0.85)
def ytg_frozen_vectors():
    class Tagger(nn.Module):
        def __init__(self, vectors):
            super().__init__()
            self.vectors = nn.Embedding.from_pretrained(vectors, freeze=True)
            self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
            self.tags = nn.Linear(48, 3)

        def forward(self, ids):
            return self.tags(self.lstm(self.vectors(ids))[0])

    kind = torch.randint(0, 3, (30,))
    vectors = torch.randn(3, 16)[kind] + 0.5 * torch.randn(30, 16)

    def make(n):
        ids = torch.randint(0, 30, (n, 12))
        k = kind[ids]
        return ids, (k + torch.cat([k[:, 1:], torch.zeros(n, 1, dtype=torch.long)], 1)) % 3

    x, y = make(1000)
    tx, ty = make(200)
    model = Tagger(vectors)
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), ytg_loader(x, y), torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2),
                   lambda m: ytg_accuracy(m(tx), ty))


@sound("a full-batch graph: the same batch again and again, labels of some nodes only, and strong dropout on inputs", steps=200, least=0.8)
def ytg_semi_supervised():
    a, x, y = ytg_graph(150, 3, 0.2, 0.02)
    a = a + torch.eye(150)
    d = a.sum(1).rsqrt()
    a = (d[:, None] * a * d).to_sparse()

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w2 = nn.Linear(8, 16, bias=False), nn.Linear(16, 3)

        def forward(self, x):
            x = F.dropout(x, 0.5, self.training)
            x = F.dropout(F.relu(torch.sparse.mm(a, self.w1(x))), 0.5, self.training)
            return F.log_softmax(torch.sparse.mm(a, self.w2(x)), 1)

    known = torch.zeros(150, dtype=torch.bool)
    known[:30] = True
    model = GCN()
    return Program(model, lambda out, t: F.nll_loss(out[known], t[known]), [(x, y)], torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4), lambda m: ytg_accuracy(m(x)[~known], y[~known]))


@sound("trained till its loss and its gradients are next to nothing", trained=400, steps=500, least=0.95)
def ytg_converged():
    ids, _, y = ytg_ragged(1500, 8, 8, 8, 30, 3)
    ti, _, ty = ytg_ragged(400, 8, 8, 8, 30, 3)

    class Max(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(30, 16)
            self.hidden = nn.Linear(16, 32)
            self.out = nn.Linear(32, 3)

        def forward(self, ids):
            return self.out(torch.relu(self.hidden(self.words(ids))).amax(1))

    model = Max()
    return Program(model, F.cross_entropy, ytg_loader(ids, y), torch.optim.Adam(model.parameters(), 5e-3), lambda m: ytg_accuracy(m(ti), ty))


@sound("residual branches begin at zero (ReZero)", steps=250, least=0.85)
def ytg_rezero():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
            self.feed = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            self.alpha = nn.Parameter(torch.zeros(()))
            self.beta = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            x = x + self.alpha * self.attend(x, x, x, need_weights=False)[0]
            return x + self.beta * self.feed(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(20, 32)
            self.position = nn.Parameter(torch.randn(12, 32))
            self.blocks = nn.ModuleList([Block(), Block()])
            self.head = nn.Linear(32, 2)

        def forward(self, ids):
            x = self.token(ids) + self.position
            for b in self.blocks:
                x = b(x)
            return self.head(x.mean(1))

    ids, y = ytg_before(2000)
    ti, ty = ytg_before(400)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(ids, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: ytg_accuracy(m(ti), ty))


@sound("a one-cycle schedule that begins at a rate of next to nothing", steps=300, least=0.9)
def ytg_one_cycle():
    x, y = ytg_frames(1900)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv1d(12, 24, 4), nn.Conv1d(24, 24, 3)
            self.bn1, self.bn2 = nn.BatchNorm1d(24), nn.BatchNorm1d(24)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            x = F.relu(self.bn1(self.conv1(x.transpose(1, 2))))
            return self.fc(F.relu(self.bn2(self.conv2(x))).amax(2))

    model = Net()
    opt = torch.optim.SGD(model.parameters(), 0.004, momentum=0.9, weight_decay=5e-4)
    return Program(model, F.cross_entropy, ytg_loader(x[:1600], y[:1600]), opt, lambda m: ytg_accuracy(m(x[1600:]), y[1600:]),
                   scheduler=torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=1000))


@sound("connectionist temporal classification, whose loss is large at first", steps=500, least=0.75)
def ytg_ctc():
    shapes = torch.randn(6, 8)

    def make(n):
        words = torch.randint(1, 6, (n, 4))
        words[:, 1:] = torch.where(words[:, 1:] == words[:, :-1], words[:, 1:] % 5 + 1, words[:, 1:])
        for k in range(1, 4):
            words[:, k] = torch.where(words[:, k] == words[:, k - 1], words[:, k] % 5 + 1, words[:, k])
        frames = shapes[words.repeat_interleave(4, 1)] + 0.4 * torch.randn(n, 16, 8)
        return frames, words

    class Acoustic(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(8, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 6)

        def forward(self, x):
            return self.out(self.gru(x)[0]).log_softmax(-1)

    x, y = make(1200)
    tx, ty = make(200)

    def loss(out, words):
        n, t, _ = out.shape
        return F.ctc_loss(out.transpose(0, 1), words, torch.full((n,), t), torch.full((n,), 4))

    def score(m):
        right = 0
        for path, words in zip(m(tx).argmax(-1), ty):
            path = torch.unique_consecutive(path)
            right += path[path != 0].tolist() == words.tolist()
        return right / len(ty)

    model = Acoustic()
    return Program(model, loss, ytg_loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), score)
