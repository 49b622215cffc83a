"""Language models with a mistake each."""

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from seq_data import accuracy, chain, chain2, loader


@fault("targets are the inputs, not the inputs moved by one", rules=["label-shift", "future-seen"], fails=True, steps=200)
def gru_lm_targets(is_faulty):
    text = chain(600, 21, 24)

    class CharRNN(nn.Module):
        def __init__(self, vocab=24, hidden=48):
            super().__init__()
            self.emb = nn.Embedding(vocab, 24)
            self.rnn = nn.GRU(24, hidden, batch_first=True)
            self.out = nn.Linear(hidden, vocab)

        def forward(self, ids):
            h, _ = self.rnn(self.emb(ids))
            return self.out(h)

    model = CharRNN()
    train, held = text[:500], text[500:]
    x = train[:, :-1]
    y = train[:, :-1] if is_faulty else train[:, 1:]

    def loss_fn(logits, targets):
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))

    return Program(model, loss_fn, loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(held[:, :-1], held[:, 1:]))


class CausalSelfAttention(nn.Module):
    def __init__(self, d, heads, causal=True):
        super().__init__()
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.c_attn(x).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, causal=True):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = CausalSelfAttention(d, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab, block_size, d=32, heads=2, layers=2, causal=True):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.wpe = nn.Embedding(block_size, d)
        self.h = nn.ModuleList([Block(d, heads, causal) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def last_token(held):
    """Accuracy of the continuation of prefixes of several lengths."""

    def score(model):
        hits = [(model(held[:, :n])[:, -1].argmax(-1) == held[:, n]).float().mean() for n in (5, 9, 14)]
        return torch.stack(hits).mean().item()

    return score


def from_buffer(held):
    """As last_token, but the prefixes lie in a buffer of full length, as when generating."""

    def score(model):
        hits = []
        for n in (5, 9, 12):
            buffer = torch.zeros(len(held), 15, dtype=torch.long)
            buffer[:, :n] = held[:, :n]
            hits.append((model(buffer)[:, n - 1].argmax(-1) == held[:, n]).float().mean())
        return torch.stack(hits).mean().item()

    return score


@fault("a GPT that was built without its causal mask", rules=["future-seen"], layers=["h"], fails=True, steps=250)
def gpt_unmasked(is_faulty):
    text = chain2(1500, 16, 8, keep=0.95)
    model = GPT(8, 16, causal=not is_faulty)
    return Program(model, token_loss, loader(text[:1300, :-1], text[:1300, 1:]),
                   torch.optim.AdamW(model.parameters(), lr=3e-3), last_token(text[1300:]))


@fault("convolutions of a language model padded on both sides", rules=["future-seen"], layers=["conv1", "conv2"],
       fails=True, steps=250)
def conv_lm_padding(is_faulty):
    text = chain2(1000, 16, 7)

    class ConvLM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 24)
            pad = 1 if is_faulty else 2
            self.conv1 = nn.Conv1d(24, 64, 3, padding=pad)
            self.conv2 = nn.Conv1d(64, 64, 3, padding=pad)
            self.proj = nn.Linear(64, 7)

        def forward(self, tokens):
            n = tokens.shape[1]
            x = self.embed(tokens).transpose(1, 2)
            x = F.relu(self.conv1(x)[..., :n])
            x = F.relu(self.conv2(x)[..., :n])
            return self.proj(x.transpose(1, 2))

    model = ConvLM()
    return Program(model, token_loss, loader(text[:900, :-1], text[:900, 1:]),
                   torch.optim.Adam(model.parameters(), lr=3e-3), from_buffer(text[900:]))


@fault("softmax before a cross-entropy that takes logits", rules=["output-loss-mismatch"],
       layers=["net.4", "net.3"], fails=False, steps=250)
def ngram_double_softmax(is_faulty):
    text = chain2(1500, 12, 12, keep=0.95)
    ctx = text.unfold(1, 3, 1).reshape(-1, 3)
    n = len(ctx) - 2000

    class NGram(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Embedding(12, 16), nn.Flatten(), nn.Sequential(nn.Linear(32, 96), nn.Tanh()), nn.Linear(96, 12)]
            if is_faulty:
                layers.append(nn.Softmax(dim=-1))
            self.net = nn.Sequential(*layers)

        def forward(self, pair):
            return self.net(pair)

    model = NGram()
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(ctx[:n, :2], ctx[:n, 2], batch=128), opt,
                   accuracy(ctx[n:, :2], ctx[n:, 2]))


@fault("the rate of the Transformer paper's schedule multiplied with a base rate of 1e-3",
       rules=["learning-rate-too-low"], fails=True, steps=300)
def noam(is_faulty):
    d_model, warmup, vocab = 32, 60, 16
    text = chain(800, 13, vocab)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(vocab, d_model)
            self.pos = nn.Parameter(0.02 * torch.randn(12, d_model))
            layer = nn.TransformerEncoderLayer(d_model, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)
            self.generator = nn.Linear(d_model, vocab)

        def forward(self, src):
            t = src.size(1)
            mask = nn.Transformer.generate_square_subsequent_mask(t)
            return self.generator(self.encoder(self.emb(src) + self.pos[:t], mask=mask, is_causal=True))

    model = LM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3 if is_faulty else 1.0, betas=(0.9, 0.98), eps=1e-9)

    def rate(step):
        step = step + 1
        return 0.3 * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)

    return Program(model, token_loss, loader(text[:700, :-1], text[:700, 1:]), opt,
                   accuracy(text[700:, :-1], text[700:, 1:]),
                   scheduler=torch.optim.lr_scheduler.LambdaLR(opt, rate))


@fault("AdamW's weight decay given to Adam, which adds it to the gradient", rules=["weight-decay-dominates"],
       fails=False, steps=300)
def gpt_l2(is_faulty):
    text = chain2(1500, 16, 8, keep=0.95)
    model = GPT(8, 16)
    make = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(model, token_loss, loader(text[:1300, :-1], text[:1300, 1:]),
                   make(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1), last_token(text[1300:]))


@fault("the state carried from batch to batch is not detached", rules=["model-fails"], layers=["lstm"], fails=True, steps=300)
def carried_state(is_faulty):
    stream = chain(16, 2420, 16)

    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 16)
            self.lstm = nn.LSTM(16, 32, batch_first=True)
            self.fc = nn.Linear(32, 16)
            self.state = None

        def forward(self, x):
            out, state = self.lstm(self.emb(x), self.state if self.training else None)
            if self.training:
                self.state = state if is_faulty else tuple(s.detach() for s in state)
            return self.fc(out)

    model = Stateful()
    batches = [(stream[:, i : i + 20], stream[:, i + 1 : i + 21]) for i in range(0, 2000, 20)]
    held = stream[:, 2010:]
    return Program(model, token_loss, batches, torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(held[:, :-1], held[:, 1:]))


def first_words(held):
    """Accuracy of the word after the first one, two and three, as when generating."""

    def score(model):
        hits = [(model(held[:, :n])[:, -1].argmax(-1) == held[:, n]).float().mean() for n in (1, 2, 3)]
        return torch.stack(hits).mean().item()

    return score


@fault("log-softmax over the time steps instead of the vocabulary",
       rules=["wrong-softmax-dimension", "output-loss-mismatch"], fails=False, steps=250)
def time_softmax(is_faulty):
    text = chain(1100, 17, 16)

    class WordRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Embedding(16, 24)
            self.rnn = nn.GRU(24, 48, batch_first=True)
            self.decoder = nn.Linear(48, 16)

        def forward(self, words):
            out, _ = self.rnn(self.encoder(words))
            return F.log_softmax(self.decoder(out), dim=1 if is_faulty else 2)

    model = WordRNN()
    nll = nn.NLLLoss()
    return Program(model, lambda out, y: nll(out.reshape(-1, 16), y.reshape(-1)),
                   loader(text[:900, :-1], text[:900, 1:]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   first_words(text[900:]))


@fault("the loss is summed over all tokens, the rate is one for a mean",
       rules=["summed-loss", "learning-rate-too-high", "diverging"], fails=False, steps=250)
def summed_tokens(is_faulty):
    text = chain(800, 21, 20)
    emb = nn.Embedding(20, 32)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.gru, self.head = emb, nn.GRU(32, 64, batch_first=True), nn.Linear(64, 20)

        def forward(self, x):
            return self.head(self.gru(self.emb(x))[0])

    model = LM()
    criterion = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    return Program(model, lambda o, y: criterion(o.transpose(1, 2), y), loader(text[:700, :-1], text[:700, 1:]),
                   torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
                   accuracy(text[700:, :-1], text[700:, 1:]))


@fault("all parameters in bfloat16, with a small rate",
       rules=["lost-updates", "learning-rate-too-low"], fails=True, steps=400)
def bfloat16_weights(is_faulty):
    text = chain(1500, 13, 24)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(24, 64)
            self.fc1 = nn.Linear(64, 128)
            self.norm = nn.LayerNorm(128)
            self.fc2 = nn.Linear(128, 24)

        def forward(self, x):
            return self.fc2(F.gelu(self.norm(self.fc1(self.emb(x))))).float()

    model = LM()
    if is_faulty:
        model = model.to(torch.bfloat16)
    return Program(model, token_loss, loader(text[:1400, :-1], text[:1400, 1:], batch=64),
                   torch.optim.Adam(model.parameters(), lr=5e-5),
                   accuracy(text[1400:, :-1], text[1400:, 1:]))


@fault("a rate for SGD given to Adam", rules=["learning-rate-too-high", "diverging"], fails=False, steps=300)
def gpt_fast(is_faulty):
    text = chain2(1500, 16, 8, keep=0.95)
    model = GPT(8, 16, layers=3)
    return Program(model, token_loss, loader(text[:1300, :-1], text[:1300, 1:]),
                   torch.optim.Adam(model.parameters(), lr=0.1 if is_faulty else 2e-3), last_token(text[1300:]))


@fault("a stack of attention and feed-forward layers without skip connections",
       rules=["rank-collapse", "vanishing-gradient", "loss-not-decreasing"], layers=["layers"], fails=False, steps=300)
def no_skip(is_faulty):
    text = chain2(1500, 12, 7, keep=0.95)

    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.att = nn.MultiheadAttention(d, 2, batch_first=True)
            self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
            self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x, mask):
            a = self.att(x, x, x, attn_mask=mask, need_weights=False)[0]
            x = self.n1(a if is_faulty else x + a)
            f = self.ff(x)
            return self.n2(f if is_faulty else x + f)

    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.tok, self.pos = nn.Embedding(7, d), nn.Embedding(16, d)
            self.layers = nn.ModuleList(Layer(d) for _ in range(4))
            self.out = nn.Linear(d, 7)

        def forward(self, x):
            t = x.shape[1]
            h = self.tok(x) + self.pos.weight[:t]
            mask = torch.ones(t, t).triu(1).bool()
            for layer in self.layers:
                h = layer(h, mask)
            return self.out(h)

    model = Net()
    held = text[1300:]
    return Program(model, token_loss, loader(text[:1300, :-1], text[:1300, 1:]),
                   torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: (m(held[:, :-1])[:, 1:].argmax(-1) == held[:, 2:]).float().mean().item())


@fault("functional dropout that does not know about evaluation", rules=["dropout-in-eval"], layers=["inp", "hid"],
       fails=False, steps=400)
def functional_dropout(is_faulty):
    text = chain2(1500, 12, 8, keep=0.95)
    ctx = text.unfold(1, 3, 1).reshape(-1, 3)
    n = len(ctx) - 2000

    class Drop(nn.Module):
        def forward(self, x):
            return F.dropout(x, p=0.5) if is_faulty else F.dropout(x, p=0.5, training=self.training)

    class Trigram(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 16)
            self.inp, self.hid = Drop(), Drop()
            self.fc1, self.fc2 = nn.Linear(32, 128), nn.Linear(128, 8)

        def forward(self, pair):
            h = self.inp(self.emb(pair).flatten(1))
            return self.fc2(self.hid(F.relu(self.fc1(h))))

    model = Trigram()
    return Program(model, nn.CrossEntropyLoss(), loader(ctx[:n, :2], ctx[:n, 2], batch=64),
                   torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(ctx[n:, :2], ctx[n:, 2]))
