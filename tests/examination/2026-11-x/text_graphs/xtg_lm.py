"""Faults: language models and generators."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel
from xtg_data import accuracy, chain, chain2, loader


def gpt(vocab, spread=0.02, layers=1):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab,
            n_positions=16,
            n_embd=48,
            n_layer=layers,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=spread,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def next_token(m, x):
    return accuracy(m(input_ids=x[:, :-1]).logits, x[:, 1:]) / 0.86


@fault(
    "labels are shifted by the data set, and GPT2LMHeadModel shifts them once more",
    rules=["label-shift"],
    fails=True,
    steps=300,
)
def xtg_shifted_twice(is_faulty):
    x = chain(900, 14, 24)
    train, held = x[:800], x[800:]
    if is_faulty:
        rows = [{"input_ids": r[:-1], "labels": r[1:]} for r in train]
    else:
        rows = [{"input_ids": r[:-1], "labels": r[:-1]} for r in train]
    model = gpt(24)
    return Program(
        model,
        None,
        DataLoader(rows, batch_size=16, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01),
        lambda m: next_token(m, held),
        step=lambda m, batch: m(**batch).loss,
    )


@fault(
    "initializer_range=1.0 in the config of a GPT-2 (the usual one is 0.02)",
    rules=["bad-initialisation", "saturated-output", "attention-saturation", "activation-drift"],
    fails=False,
    steps=300,
)
def xtg_wide_initializer(is_faulty):
    x = chain(900, 14, 40)
    model = gpt(40, spread=1.0 if is_faulty else 0.02, layers=1)
    held = x[800:]
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.logits.flatten(0, 1), y.flatten()),
        [({"input_ids": x[i : i + 20, :-1]}, x[i : i + 20, 1:]) for i in range(0, 800, 20)],
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda m: next_token(m, held),
    )


class TwoWay(nn.Module):
    def __init__(self, vocab, both):
        super().__init__()
        self.inp = nn.Embedding(vocab, 32)
        self.rnn = nn.GRU(32, 32 if both else 64, batch_first=True, bidirectional=both)
        self.readout = nn.Linear(64, vocab)

    def forward(self, x):
        return self.readout(self.rnn(self.inp(x))[0])


@fault(
    "a language model with a bidirectional GRU: its backward half reads the next token",
    rules=["future-seen"],
    layers=["rnn"],
    fails=False,
    steps=400,
)
def xtg_reads_backwards_too(is_faulty):
    x = chain2(1200, 18, 10)
    train, held = x[:1000], x[1000:]
    model = TwoWay(10, is_faulty)

    def score(m):
        hits = [accuracy(m(held[:, :k])[:, -1], held[:, k]) for k in range(4, 18)]
        return sum(hits) / len(hits) / 0.9

    return Program(
        model,
        lambda z, y: F.cross_entropy(z[:, :-1].reshape(-1, 10), y[:, 1:].reshape(-1)),
        loader(train, train),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        score,
    )


class SequenceVae(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(8, 16)
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(96, 64), nn.Tanh())
        self.mu, self.logvar = nn.Linear(64, 16), nn.Linear(64, 16)
        self.dec = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 48))

    def forward(self, x):
        h = self.enc(self.emb(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z).view(-1, 6, 8), mu, logvar


@fault(
    "a VAE of short strings: the divergence is summed over a code, the reconstruction is a mean over tokens",
    rules=["term-dominates"],
    fails=True,
    steps=500,
)
def xtg_divergence_outweighs(is_faulty):
    first = torch.randint(8, (1500, 3))
    x = torch.cat([first, (first + torch.tensor([1, 3, 5])) % 8], 1)
    model = SequenceVae()

    def loss(out, y):
        logits, mu, logvar = out
        wrong = F.cross_entropy(logits.transpose(1, 2), y)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        return wrong + (kl if is_faulty else 0.01 * kl)

    return Program(
        model,
        loss,
        loader(x[:1300], x[:1300]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[1300:])[0], x[1300:]),
    )


