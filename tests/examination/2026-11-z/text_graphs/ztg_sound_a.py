"""Sound classifiers, taggers and language models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from ztg_data import Rows, accuracy, before, cut, first, fit, loader, next_score, rng, stream, tagged, topics

ce = F.cross_entropy


def token_loss(logits, targets):
    return ce(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)


def adam(model, lr=3e-3, **more):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr, **more)


class Mean(nn.Module):
    def __init__(self, vocab=120, classes=4, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim, padding_idx=0)
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, ids):
        return self.net(self.bag(ids))


class Recurrent(nn.Module):
    def __init__(self, kind, vocab, classes, is_tagger=False, is_both_ways=False, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = kind(dim, dim, batch_first=True, bidirectional=is_both_ways)
        self.out = nn.Linear(dim * (2 if is_both_ways else 1), classes)
        self.is_tagger = is_tagger

    def forward(self, ids):
        h = self.rnn(self.embed(ids))[0]
        return self.out(h if self.is_tagger else h[:, -1])


class Decoder(nn.Module):
    def __init__(self, vocab=24, dim=32, layers=1, length=16, is_causal=True, is_one_layer=False):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        blocks = [nn.TransformerEncoderLayer(dim, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
                  for _ in range(1 if is_one_layer else layers)]
        self.blocks = nn.ModuleList(blocks * (layers if is_one_layer else 1))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)
        self.is_causal = is_causal

    def forward(self, ids):
        time = ids.shape[1]
        h = self.wte(ids) + self.wpe(torch.arange(time))
        mask = nn.Transformer.generate_square_subsequent_mask(time) if self.is_causal else None
        for block in self.blocks:
            h = block(h, src_mask=mask)
        return self.head(self.norm(h))


@sound("Ordinary: averaged word vectors and two layers.", steps=250, least=0.9)
def ztg_averaged_words():
    model = Mean()
    return Program(model, ce, loader(*topics(1200)), adam(model), accuracy(*topics(400, seed=1)))


@sound("Ordinary: a GRU that finds out what came first.", steps=400, least=0.9)
def ztg_gru_order():
    model = Recurrent(nn.GRU, 20, 2)
    return Program(model, ce, loader(*before(1500)), adam(model, 5e-3), accuracy(*before(300, seed=1)))


@sound("Ordinary: a small causal transformer as language model.", steps=300, least=0.9)
def ztg_small_gpt():
    ids = stream(1000)
    model = Decoder()
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16), adam(model), next_score())


@sound("The same language model, half trained.", trained=60, steps=300, least=0.9)
def ztg_small_gpt_half_trained():
    ids = stream(1000)
    model = Decoder()
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16), adam(model, 2e-3), next_score())


@sound("Ordinary: an LSTM tagger; padding is left out of the loss although there is much of it.", steps=350, least=0.9)
def ztg_lstm_tagger_padded():
    ids, tags = tagged(800)
    ids, _, mask = cut(ids, 3, most=12)
    wide = F.pad(ids, (0, 12))
    labels = F.pad(tags.masked_fill(~mask, -100), (0, 12), value=-100)
    model = Recurrent(nn.LSTM, 30, 8, is_tagger=True)
    return Program(model, token_loss, loader(wide, labels), adam(model, 8e-3), accuracy(*tagged(200, seed=1)))


@sound("A tagger that reads both ways sees all words, but no tags.", steps=300, least=0.9)
def ztg_tagger_both_ways():
    model = Recurrent(nn.GRU, 30, 8, is_tagger=True, is_both_ways=True)
    return Program(model, token_loss, loader(*tagged(800), batch=16), adam(model, 5e-3), accuracy(*tagged(200, seed=1)))


@sound("A masked language model has no causal mask and predicts tokens at their own places.", steps=400, least=0.7)
def ztg_masked_model():
    def data(n, seed):
        ids = stream(n, noise=0.0, seed=seed)
        hidden = torch.rand(ids.shape, generator=rng(seed + 50)) < 0.2
        return ids.masked_fill(hidden, 24), ids.masked_fill(~hidden, -100)

    model = Recurrent(nn.GRU, 25, 25, is_tagger=True, is_both_ways=True)
    xt, yt = data(200, 1)

    def score(m):
        return (m(xt).argmax(-1) == yt)[yt >= 0].float().mean().item()

    return Program(model, token_loss, loader(*data(1200, 0), batch=16), adam(model, 5e-3), score)


@sound("A denoiser: most targets equal the inputs, which is how it is meant.", steps=400, least=0.7)
def ztg_typo_corrector():
    def data(n, seed):
        clean = stream(n, noise=0.0, seed=seed)
        g = rng(seed + 30)
        wrong = torch.rand(clean.shape, generator=g) < 0.15
        return torch.where(wrong, torch.randint(24, clean.shape, generator=g), clean), clean

    model = Recurrent(nn.GRU, 24, 24, is_tagger=True, is_both_ways=True)
    xt, yt = data(300, 1)

    def score(m):
        return (m(xt).argmax(-1) == yt)[xt != yt].float().mean().item()

    return Program(model, token_loss, loader(*data(1500, 0), batch=16), adam(model, 6e-3), score)


@sound("Output and embedding share one table on purpose.", steps=300, least=0.9)
def ztg_tied_table():
    class Net(Decoder):
        def __init__(self):
            super().__init__()
            nn.init.normal_(self.wte.weight, std=0.05)
            self.head.weight = self.wte.weight

    ids = stream(1000)
    model = Net()
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16), adam(model, 5e-3), next_score())


@sound("One layer is used three times on purpose, as in ALBERT.", steps=300, least=0.9)
def ztg_one_layer_three_times():
    ids = stream(1000)
    model = Decoder(layers=3, is_one_layer=True)
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16), adam(model, 2e-3), next_score())


class Adapter(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 4 * F.linear(F.linear(x, self.a), self.b)


@sound("LoRA: the model is frozen and one factor of each adapter begins at zero.", steps=300, least=0.85)
def ztg_lora():
    x, y = topics(1200)
    model = fit(Mean(), x, y, 150)
    model.requires_grad_(False)
    model.net[0], model.net[2] = Adapter(model.net[0]), Adapter(model.net[2])
    xt, yt = topics(300, seed=1)
    return Program(model, ce, loader(x, (y + 1) % 4), adam(model, 5e-3), accuracy(xt, (yt + 1) % 4))


@sound("Fine-tuning of a network that is good already, with a small rate, to a shifted kind of text.", steps=500,
       least=0.85)
def ztg_gentle_fine_tuning():
    model = fit(Mean(), *topics(1200, share=0.7, seed=5), 25, 3e-3)
    return Program(model, ce, loader(*topics(1200, share=0.4)), adam(model, 5e-4), accuracy(*topics(400, share=0.4,
                   seed=1)))


@sound("A bag of words needs no order; there are no places on purpose.", steps=300, least=0.9)
def ztg_attention_without_places():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(120, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
            self.head = nn.Linear(32, 4)

        def forward(self, ids):
            return self.head(self.layer(self.embed(ids)).mean(1))

    model = Net()
    return Program(model, ce, loader(*topics(1200)), adam(model, 2e-3), accuracy(*topics(400, seed=1)))


@sound("The loss is a sum over the batch, and the rate is chosen for it.", steps=400, least=0.9)
def ztg_sum_with_small_rate():
    model = Mean()
    opt = torch.optim.SGD(model.parameters(), lr=0.5 / 32, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(reduction="sum"), loader(*topics(1200)), opt,
                   accuracy(*topics(400, seed=1)))


@sound("Random word vectors stay frozen, as hashed features; only what is above them learns.", steps=350, least=0.85)
def ztg_frozen_random_words():
    model = Mean(dim=96)
    model.bag.weight.requires_grad_(False)
    return Program(model, ce, loader(*topics(1500, share=0.45)), adam(model),
                   accuracy(*topics(400, share=0.45, seed=1)))


@sound("A rate of 3 for a linear model of word frequencies, which are small numbers.", steps=400, least=0.85)
def ztg_large_rate_small_features():
    def counts(ids):
        return F.one_hot(ids, 120).float().mean(1)

    (x, y), (xt, yt) = topics(1500), topics(400, seed=1)
    model = nn.Linear(120, 4)
    return Program(model, ce, loader(counts(x), y), torch.optim.SGD(model.parameters(), 3.0), accuracy(counts(xt), yt))


@sound("Batches are of texts of one length, from short to long; classes are mixed.", steps=300, least=0.85)
def ztg_length_buckets():
    x, y = topics(1600)
    x, lengths, _ = cut(x, 6)
    order = lengths.argsort()
    x, y = x[order], y[order]
    model = Mean()
    return Program(model, ce, loader(x, y, shuffle=False), adam(model), accuracy(*topics(400, seed=1)))


@sound("Rare labels, 3 % positive each, and an output bias of -3.5 which says so.", steps=500, least=0.7)
def ztg_rare_labels():
    def data(n, seed):
        ids = torch.randint(2, 260, (n, 12), generator=rng(seed))
        y = torch.stack([((ids >= 2 + 3 * k) & (ids < 5 + 3 * k)).any(1) for k in range(6)], 1)
        y[:, :] &= ids[:, :1] % 4 != 0
        return ids, y.float()

    model = Mean(260, 6, 48)
    nn.init.constant_(model.net[2].bias, -3.5)
    xt, yt = data(600, 1)

    def score(m):
        hit = (m(xt) > -1.0).float()
        return (2 * (hit * yt).sum() / (hit.sum() + yt.sum())).item()

    return Program(model, F.binary_cross_entropy_with_logits, loader(*data(3000, 0)), adam(model, 8e-3), score)


@sound("ReZero: gates of all residual branches, and the head, begin at zero.", steps=350, least=0.9)
def ztg_rezero():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.gate * self.down(F.relu(self.up(x)))

    model = nn.Sequential(nn.EmbeddingBag(120, 32), *[Block() for _ in range(6)], nn.Linear(32, 4))
    nn.init.zeros_(model[-1].weight)
    return Program(model, ce, loader(*topics(1200)), adam(model), accuracy(*topics(400, seed=1)))


@sound("Half of a wide layer is dropped, which it can spare.", steps=350, least=0.9)
def ztg_wide_dropout():
    model = nn.Sequential(nn.EmbeddingBag(120, 64), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 4))
    return Program(model, ce, loader(*topics(1200)), adam(model, 2e-3), accuracy(*topics(400, seed=1)))


@sound("Computes in bfloat16 under autocast, with weights in float32.", steps=300, least=0.9)
def ztg_autocast():
    class Net(Mean):
        def forward(self, ids):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(ids).float()

    model = Net()
    return Program(model, ce, loader(*topics(1200)), adam(model), accuracy(*topics(400, seed=1)))


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(120, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, ids, mask):
        words = self.embed(ids)
        seen, _ = self.attention(words, words, words, key_padding_mask=~mask)
        return self.head((seen * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


@sound("Three quarters of all places are padding, which is masked as it should be.", steps=350, least=0.85)
def ztg_much_padding():
    def data(n, seed):
        ids, y = topics(n, length=12, share=0.5, seed=seed)
        ids, _, mask = cut(ids, 6, seed)
        return {"ids": F.pad(ids, (0, 28)), "mask": F.pad(mask, (0, 28))}, y

    model = Attentive()
    batches = torch.utils.data.DataLoader(Rows(*data(1200, 0)), 32, shuffle=True)
    return Program(model, ce, batches, adam(model), accuracy(*data(300, 1)))


@sound("A state-space layer whose decays are all close to 1.", steps=300, least=0.9)
def ztg_slow_states():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 32)
            self.decay = nn.Parameter(torch.linspace(4, 6, 48))
            self.b, self.c = nn.Linear(32, 48), nn.Linear(48, 32)
            self.head = nn.Sequential(nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 6))

        def forward(self, ids):
            powers = torch.sigmoid(self.decay) ** torch.arange(ids.shape[1] - 1, -1, -1.0)[:, None]
            return self.head(self.c((powers * self.b(self.embed(ids))).sum(1)))

    model = Net()
    return Program(model, ce, loader(*first(1500)), adam(model, 3e-3), accuracy(*first(300, seed=1)))


@sound("A fifth of the labels are wrong, by careless annotators; the rest is learned.", steps=300, least=0.85)
def ztg_careless_annotators():
    x, y = topics(2000, share=0.45)
    g = rng(9)
    y = torch.where(torch.rand(len(y), generator=g) < 0.2, torch.randint(4, y.shape, generator=g), y)
    model = Mean()
    return Program(model, ce, loader(x, y), adam(model, 2e-3), accuracy(*topics(400, share=0.45, seed=1)))


@sound("Betas (0.9, 0.98), epsilon 1e-9 and a warm-up of 100 steps, as in 'Attention is all you need'.", steps=400,
       least=0.9)
def ztg_noam():
    ids = stream(1000)
    model = Decoder(layers=2)
    opt = adam(model, 1.0, betas=(0.9, 0.98), eps=1e-9)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 32**-0.5 * min((s + 1) ** -0.5, (s + 1) * 100**-1.5) * 0.2)
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16), opt, next_score(), scheduler=plan)


@sound("Trained to the end: hardly anything is left to learn.", trained=400, steps=500, least=0.95)
def ztg_trained_tagger():
    model = Recurrent(nn.GRU, 30, 8, is_tagger=True)
    return Program(model, token_loss, loader(*tagged(800), batch=16), adam(model, 5e-3), accuracy(*tagged(200, seed=1)))


@sound("Language model of a stream of which half the tokens are noise: its loss stays high.", steps=400, least=0.9)
def ztg_noisy_stream():
    ids = stream(1500, noise=0.5)
    model = Recurrent(nn.GRU, 24, 24, is_tagger=True)
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16), adam(model, 5e-3), next_score())
