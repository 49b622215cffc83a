"""Language models, translation and tagging."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def language(n, length, seed, vocab=12, order=2, noise=0.05):
    """Texts whose next token follows from the last one or two."""
    rule = torch.randint(0, vocab, (vocab, vocab), generator=torch.Generator().manual_seed(5))
    single = torch.randperm(vocab, generator=torch.Generator().manual_seed(6))
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, vocab, (n, length), generator=g)
    for t in range(2, length):
        following = rule[x[:, t - 1], x[:, t - 2]] if order == 2 else single[x[:, t - 1]]
        keep = torch.rand(n, generator=g) > noise
        x[:, t] = torch.where(keep, following, x[:, t])
    return x


@fault(
    "The data set shifts the labels, and the loss shifts them once more",
    rules=["label-shift"],
    fails=True,
    steps=300,
)
def shifted_twice(is_faulty):
    text = language(1500, 18, 1, order=1)
    test = language(200, 18, 2, order=1, noise=0.0)

    def causal_lm_loss(logits, labels):
        if is_faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    class CharRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Embedding(12, 32)
            self.rnn = nn.GRU(32, 48, batch_first=True)
            self.decoder = nn.Linear(48, 12)

        def forward(self, x):
            return self.decoder(self.rnn(self.encoder(x))[0])

    def score(model):
        return (model(test[:, :-1])[:, 3:].argmax(-1) == test[:, 4:]).float().mean().item()

    model = CharRNN()
    data = DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), batch_size=32, shuffle=True)
    return Program(model, causal_lm_loss, data, torch.optim.AdamW(model.parameters(), lr=3e-3), score)


@fault(
    "The causal mask fills with 1e-9 instead of -1e9, so that it hides nothing",
    rules=["future-seen", "wrong-mask"],
    fails=False,
    steps=500,
)
def mask_of_tiny_numbers(is_faulty):
    text = language(3000, 17, 3, vocab=8)
    test = language(200, 17, 4, vocab=8, noise=0.0)

    class SelfAttention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.register_buffer("mask", torch.tril(torch.ones(32, 32)))

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
            att = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            att = att.masked_fill(self.mask[:t, :t] == 0, 1e-9 if is_faulty else -1e9)
            return self.proj((att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(48), nn.LayerNorm(48)
            self.attn = SelfAttention(48, 4)
            self.mlp = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 48))

        def forward(self, x):
            x = x + self.attn(self.ln1(x))
            return x + self.mlp(self.ln2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(8, 48)
            self.wpe = nn.Embedding(32, 48)
            self.h = nn.Sequential(Block(), Block())
            self.head = nn.Linear(48, 8)

        def forward(self, ids):
            return self.head(self.h(self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))))

    def loss(logits, targets):
        return F.cross_entropy(logits.reshape(-1, 8), targets.reshape(-1))

    def score(model):
        right = [(model(test[:, :t])[:, -1].argmax(-1) == test[:, t]).float().mean() for t in range(4, 16)]
        return torch.stack(right).mean().item()

    model = GPT()
    data = DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), batch_size=32, shuffle=True)
    return Program(model, loss, data, torch.optim.AdamW(model.parameters(), lr=3e-3), score)


@fault(
    "The decoder is given the target that it is asked for, without a start token and a shift",
    rules=["future-seen", "label-shift"],
    fails=True,
    steps=500,
)
def decoder_given_its_target(is_faulty):
    vocab, length, start = 10, 6, 10

    def pairs(n, seed):
        """The translation has other words."""
        g = torch.Generator().manual_seed(seed)
        source = torch.randint(0, vocab, (n, length), generator=g)
        words = torch.randperm(vocab, generator=torch.Generator().manual_seed(9))
        return source, words[source]

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.src_emb = nn.Embedding(vocab + 1, 48)
            self.tgt_emb = nn.Embedding(vocab + 1, 48)
            self.pos = nn.Parameter(torch.randn(length + 1, 48) * 0.5)
            self.transformer = nn.Transformer(48, 4, 1, 1, 96, dropout=0.0, batch_first=True)
            self.generator = nn.Linear(48, vocab)

        def forward(self, src, tgt):
            s = self.src_emb(src) + self.pos[: src.shape[1]]
            t = self.tgt_emb(tgt) + self.pos[: tgt.shape[1]]
            mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
            return self.generator(self.transformer(s, t, tgt_mask=mask, tgt_is_causal=True))

    class Pairs(torch.utils.data.Dataset):
        def __init__(self):
            self.source, self.target = pairs(3000, 31)

        def __len__(self):
            return len(self.source)

        def __getitem__(self, i):
            target = self.target[i]
            if is_faulty:
                given = target
            else:
                given = torch.cat([torch.tensor([start]), target[:-1]])
            return {"src": self.source[i], "tgt": given}, target

    def score(model):
        source, target = pairs(100, 32)
        made = torch.full((100, 1), start)
        for _ in range(length):
            made = torch.cat([made, model(source, made)[:, -1:].argmax(-1)], 1)
        return (made[:, 1:] == target).float().mean().item()

    model = Seq2Seq()
    return Program(
        model,
        lambda logits, y: F.cross_entropy(logits.transpose(1, 2), y),
        DataLoader(Pairs(), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98)),
        score,
    )


def tagged(n, seed, tags=6, length=14):
    """The tag of a word depends on it and on the one before."""
    table = torch.randint(0, tags, (20, 3), generator=torch.Generator().manual_seed(13))
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 20, (n, length), generator=g)
    before = F.pad(x, (1, 0))[:, :-1] % 3
    return x, table[x, before]


class Tagger(nn.Module):
    def __init__(self, tags=6):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.lstm = nn.LSTM(32, 32, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(64, tags)

    def forward(self, sentence):
        return self.hidden2tag(self.lstm(self.embedding(sentence))[0])


@fault(
    "Logits (batch, time, tags) are brought to (batch, tags, time) by view instead of by transpose",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def viewed_not_transposed(is_faulty):
    x, y = tagged(1600, 41)
    test, test_y = tagged(200, 42)

    def loss(logits, tags):
        b, t, c = logits.shape
        logits = logits.contiguous().view(b, c, t) if is_faulty else logits.permute(0, 2, 1)
        return F.cross_entropy(logits, tags)

    model = Tagger()
    return Program(
        model,
        loss,
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: (m(test).argmax(-1) == test_y).float().mean().item(),
    )


@fault(
    "ExponentialLR with a gamma per epoch is stepped after every batch",
    rules=["learning-rate-too-low"],
    fails=False,
    steps=400,
)
def decayed_every_batch(is_faulty):
    x, y = tagged(640, 43)
    test, test_y = tagged(200, 44)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    batches = DataLoader(TensorDataset(x, y), 32, shuffle=True)
    gamma = 0.7 if is_faulty else 0.7 ** (1 / len(batches))
    return Program(
        model,
        lambda logits, tags: F.cross_entropy(logits.flatten(0, 1), tags.flatten()),
        batches,
        optimizer,
        lambda m: (m(test).argmax(-1) == test_y).float().mean().item(),
        scheduler=ExponentialLR(optimizer, gamma),
    )


@fault(
    "The schedule of 'Attention is all you need', which gives rates itself, multiplies Adam's 1e-3 instead of 1",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=400,
)
def noam_times_small_rate(is_faulty):
    text = language(2000, 17, 50, order=1)
    test = language(200, 17, 51, order=1, noise=0.0)
    width, warmup = 32, 100

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, width)
            self.pos = nn.Embedding(16, width)
            layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(width, 12)

        def forward(self, ids):
            t = ids.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(t)
            return self.head(self.body(self.embed(ids) + self.pos.weight[:t], mask=mask, is_causal=True))

    def rate(step):
        step = max(step, 1)
        return width**-0.5 * min(step**-0.5, step * warmup**-1.5)

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 if is_faulty else 1.0, betas=(0.9, 0.98), eps=1e-9)
    return Program(
        model,
        lambda logits, y: F.cross_entropy(logits.transpose(1, 2), y),
        DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), 32, shuffle=True),
        optimizer,
        lambda m: (m(test[:, :-1])[:, 3:].argmax(-1) == test[:, 4:]).float().mean().item(),
        scheduler=LambdaLR(optimizer, rate),
    )


@fault(
    "A GPT recipe's weight decay of 0.1 for AdamW is given to Adam, where it goes into the gradient",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=400,
)
def decay_inside_adam(is_faulty):
    x, y = tagged(1600, 45)
    test, test_y = tagged(200, 46)
    model = Tagger()
    make = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(
        model,
        lambda logits, tags: F.cross_entropy(logits.permute(0, 2, 1), tags),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        make(model.parameters(), lr=3e-3, weight_decay=0.1),
        lambda m: (m(test).argmax(-1) == test_y).float().mean().item(),
    )


@fault(
    "Groups for weight decay: biases and norms in one, `p.ndim > 2` (for `>= 2`) in the other; matrices are in neither",
    rules=["no-gradient"],
    fails=False,
    steps=300,
)
def groups_without_matrices(is_faulty):
    x, y = tagged(1600, 47)
    test, test_y = tagged(200, 48)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 32)
            self.rnn = nn.GRU(32, 48, batch_first=True)
            self.norm = nn.LayerNorm(48)
            self.mlp = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 6))

        def forward(self, ids):
            return self.mlp(self.norm(self.rnn(self.emb(ids))[0]))

    model = Model()
    decay = [p for p in model.parameters() if (p.ndim > 2 if is_faulty else p.ndim >= 2)]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": plain, "weight_decay": 0.0}] + ([{"params": decay, "weight_decay": 0.01}] if decay else [])
    return Program(
        model,
        lambda logits, tags: F.cross_entropy(logits.flatten(0, 1), tags.flatten()),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.AdamW(groups, lr=3e-3),
        lambda m: (m(test).argmax(-1) == test_y).float().mean().item(),
    )
