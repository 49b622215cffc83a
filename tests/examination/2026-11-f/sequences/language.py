"""Language models over a small made-up language."""

import math

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

V = 20


def corpus(n, length, seed, keep=0.9):
    """Sentences of a language in which most words have one usual successor."""
    g = torch.Generator().manual_seed(7)
    follows = torch.randperm(V, generator=g)
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, V, (n,), generator=g)]
    for _ in range(length - 1):
        usual = torch.rand(n, generator=g) < keep
        rows.append(torch.where(usual, follows[rows[-1]], torch.randint(0, V, (n,), generator=g)))
    return torch.stack(rows, 1)


def next_word_accuracy(model):
    text = corpus(256, 9, 99)
    return (model(text[:, :8])[:, -1].argmax(-1) == text[:, 8]).float().mean().item()


class CausalSelfAttention(nn.Module):
    def __init__(self, d, heads, length, fill=float("-inf")):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.heads, self.fill = heads, fill
        self.register_buffer("tril", torch.tril(torch.ones(length, length)))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        w = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        w = w.masked_fill(self.tril[:t, :t] == 0, self.fill)
        return self.proj((w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, length, fill):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = CausalSelfAttention(d, heads, length, fill)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    def __init__(self, d=32, heads=4, depth=2, length=16, fill=float("-inf"), positions=True):
        super().__init__()
        self.wte = nn.Embedding(V, d)
        self.wpe = nn.Embedding(length, d) if positions else None
        self.h = nn.Sequential(*[Block(d, heads, length, fill) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, V, bias=False)

    def forward(self, idx):
        x = self.wte(idx)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(idx.size(1)))
        return self.lm_head(self.ln_f(self.h(x)))


class CharGRU(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, V)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


def flat_ce(logits, y):
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))


def lm_loader(n=1024, length=17, seed=1, batch=32):
    text = corpus(n, length, seed)
    return DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), batch_size=batch, shuffle=True, drop_last=True)


@fault(
    "the causal mask fills scores with 0 instead of -inf, so later words stay visible",
    rules=["future-seen"], fails=False, steps=250,
)
def mask_filled_with_zero(is_faulty):
    model = TinyGPT(fill=0.0 if is_faulty else float("-inf"))
    return Program(model, flat_ce, lm_loader(), torch.optim.AdamW(model.parameters(), 3e-3), next_word_accuracy)


@fault(
    "the dataset gives shifted targets already and the loss shifts once more: the word after the next is learned",
    rules=["label-shift", "output-loss-mismatch"], fails=True, steps=200,
)
def shifted_twice(is_faulty):
    model = CharGRU()

    def hf_style_loss(logits, labels):
        if is_faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return flat_ce(logits, labels)

    return Program(model, hf_style_loss, lm_loader(), torch.optim.Adam(model.parameters(), 3e-3), next_word_accuracy)


class EncoderLM(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, 32), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, V)
        self.mask = mask

    def forward(self, ids):
        t = ids.size(1)
        x = self.tok(ids) + self.pos.weight[:t]
        return self.head(self.encoder(x, mask=self.mask(t)))


@fault(
    "the boolean mask says what may be seen, where PyTorch wants what may not: the last row has nothing left to see",
    rules=["non-finite", "future-seen"], fails=True, steps=250,
)
def lower_triangle_as_mask(is_faulty):
    def mask(t):
        may_see = torch.tril(torch.ones(t, t)).bool()
        return may_see if is_faulty else ~may_see

    model = EncoderLM(mask)
    return Program(model, flat_ce, lm_loader(), torch.optim.Adam(model.parameters(), 2e-3), next_word_accuracy)


@fault(
    "the schedule of the transformer paper, meant for a rate of 1, multiplies a rate of 1e-4",
    rules=["learning-rate-too-low"], fails=True, steps=300,
)
def noam_times_small_rate(is_faulty):
    model = TinyGPT(d=32)
    opt = torch.optim.Adam(model.parameters(), lr=1e-4 if is_faulty else 1.0, betas=(0.9, 0.98), eps=1e-9)
    warm = 400
    noam = lambda s: 32**-0.5 * min((s + 1) ** -0.5, (s + 1) * warm**-1.5)  # noqa: E731
    return Program(
        model, flat_ce, lm_loader(), opt, next_word_accuracy, torch.optim.lr_scheduler.LambdaLR(opt, noam)
    )


class TiedLM(nn.Module):
    def __init__(self, d, std):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        nn.init.normal_(self.emb.weight, std=std)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.decoder = nn.Linear(d, V)
        self.decoder.weight = self.emb.weight

    def forward(self, x):
        return self.decoder(self.norm(self.rnn(self.emb(x))[0]))


@fault(
    "masked words are written into the tensor that the labels are taken from afterwards: every label is [MASK]",
    rules=["constant-target", "future-seen", "label-shift"], fails=True, steps=300,
)
def labels_alias_masked_inputs(is_faulty):
    mask_id = V
    text = corpus(1024, 12, 5, keep=0.97)
    g = torch.Generator().manual_seed(3)
    chosen = torch.rand(text.shape, generator=g) < 0.2
    labels = text if is_faulty else text.clone()
    text[chosen] = mask_id
    labels = labels.masked_fill(~chosen, -100)

    held = corpus(256, 12, 6, keep=0.97)
    hidden = held.clone()
    hidden[:, 5] = mask_id

    def score(m):
        return (m(hidden)[:, 5].argmax(-1) == held[:, 5]).float().mean().item()

    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(V + 1, 32), nn.Embedding(12, 32)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.predict = nn.Linear(32, V + 1)

        def forward(self, x):
            return self.predict(self.body(self.words(x) + self.places.weight))

    model = Bert()
    return Program(
        model, flat_ce, DataLoader(TensorDataset(text, labels), 64, shuffle=True),
        torch.optim.Adam(model.parameters(), 3e-3), score,
    )


@sound("an ordinary small GPT", steps=250, least=0.75)
def ordinary_gpt():
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    return Program(model, flat_ce, lm_loader(), opt, next_word_accuracy)


@sound("no positions: the causal mask alone shows the order", steps=250, least=0.75)
def gpt_without_positions():
    model = TinyGPT(positions=False)
    return Program(model, flat_ce, lm_loader(), torch.optim.Adam(model.parameters(), lr=2e-3), next_word_accuracy)


@sound("word vectors tied to the last layer, on purpose", steps=250, least=0.75)
def tied_vectors():
    model = TiedLM(48, 0.15)
    return Program(model, flat_ce, lm_loader(), torch.optim.Adam(model.parameters(), lr=3e-3), next_word_accuracy)


@sound("an ordinary recurrent language model, half trained", trained=120, steps=250, least=0.75)
def gru_half_way():
    model = CharGRU()
    return Program(model, flat_ce, lm_loader(), torch.optim.Adam(model.parameters(), lr=2e-3), next_word_accuracy)


@sound("masked words: all of the sentence is seen, and six places in seven are not asked for", steps=400, least=0.7)
def masked_words():
    p = labels_alias_masked_inputs(False)
    return Program(p.model, p.loss, p.batches, p.optimizer, p.score)


@sound("a rate that starts at exactly 0, rises for 80 steps and falls as a cosine", steps=300, least=0.75)
def warm_up_and_cosine():
    model = TinyGPT(depth=3)
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def rate(s):
        return s / 80 if s < 80 else 0.5 * (1 + math.cos(math.pi * min(1.0, (s - 80) / 240)))

    return Program(
        model, flat_ce, lm_loader(), opt, next_word_accuracy, torch.optim.lr_scheduler.LambdaLR(opt, rate)
    )
