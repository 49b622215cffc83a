import math

import torch
import torch.nn.functional as F
from program import Program, sound
from sqq_lang import AttentionPool, ConvTagger, GruLM, OrderTransformer, TorchLM, lookups, prefix_score, token_loss
from sqq_setup import Bag
from sqq_tools import accuracy, before, chain, events, loader, pairs, rng, tag_accuracy, tags, topics
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

CE = nn.CrossEntropyLoss()


def next_score(held, best):
    def score(m):
        return min(1.0, (m(held[:, :-1]).argmax(-1) == held[:, 1:]).float().mean().item() / best)

    return score


@sound("Hugging Face language model: labels are the inputs, shifted inside", steps=200, least=0.9)
def sqq_ok_hf_lm():
    x, held = chain(1200, 12, 16, 101), chain(300, 13, 16, 102)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0,
                                       embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    rows = [({"input_ids": r, "labels": r}, 0) for r in x]
    return Program(model, lambda out, y: out.loss, torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True),
                   torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda m: min(1.0, (m(input_ids=held[:, :-1]).logits.argmax(-1) == held[:, 1:]).float().mean().item() / 0.906))


@sound("small BERT classifier with attention mask", steps=250, least=0.8)
def sqq_ok_bert():
    x, y = topics(1500, 20, 103, short=5, strength=0.6)
    hx, hy = topics(300, 20, 104, short=5, strength=0.6)
    model = BertForSequenceClassification(BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                                     intermediate_size=64, max_position_embeddings=24, num_labels=4))
    rows = [({"input_ids": a, "attention_mask": a.ne(0).long()}, b) for a, b in zip(x, y)]
    return Program(model, lambda out, t: CE(out.logits, t), torch.utils.data.DataLoader(rows, batch_size=24, shuffle=True),
                   torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda m: (m(input_ids=hx, attention_mask=hx.ne(0).long()).logits.argmax(-1) == hy).float().mean().item())


class Masked(nn.Module):
    def __init__(self, vocab, length, dim=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab + 1, dim), nn.Embedding(length, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.layer(self.embed(x) + self.place(torch.arange(x.shape[1]))))


@sound("masked language model: targets are the inputs, loss on masked places only", steps=600, least=0.7)
def sqq_ok_masked_lm():
    def made(n, seed):
        x = chain(n, 8, 8, seed, noise=0.0)
        hidden = torch.rand(n, 8, generator=rng(seed + 1)) < 0.2
        return x.masked_fill(hidden, 8), x.masked_fill(~hidden, -100)

    (x, y), (hx, hy) = made(2000, 105), made(400, 107)
    model = Masked(8, 8)
    return Program(model, lambda out, t: F.cross_entropy(out.transpose(1, 2), t, ignore_index=-100), loader(x, y, size=48),
                   torch.optim.Adam(model.parameters(), 3e-3), tag_accuracy(hx, hy))


@sound("bidirectional LSTM tagger", steps=200, least=0.9)
def sqq_ok_bilstm_tagger():
    x, y = tags(1000, 16, 109)
    hx, hy = tags(300, 16, 110)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 4)

        def forward(self, x):
            return self.out(self.lstm(self.embed(x))[0])

    model = Tagger()
    return Program(model, token_loss, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), tag_accuracy(hx, hy))


@sound("attention pooling with a mask over much padding", steps=200, least=0.8)
def sqq_ok_masked_pool():
    x, y = topics(1500, 60, 111, short=5)
    hx, hy = topics(400, 60, 112, short=5)
    model = AttentionPool(60, 24, 4)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))


@sound("tagger with nine tenths of padding that the loss ignores", steps=200, least=0.9)
def sqq_ok_tags_ignored():
    x, y = tags(1500, 50, 113, short=2, span=6)
    hx, hy = tags(400, 50, 114, short=2, span=6)
    model = ConvTagger(12, 16, 4)
    return Program(model, lambda out, t: F.cross_entropy(out.transpose(1, 2), t), loader(x, y),
                   torch.optim.SGD(model.parameters(), 0.2, momentum=0.8), tag_accuracy(hx, hy))


@sound("transformer without positions on sets of events, where order says nothing", steps=400, least=0.75)
def sqq_ok_set_transformer():
    x, y = events(3000, 8, 115)
    hx, hy = events(500, 8, 116)

    class Sets(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.Linear(32, 32))
            self.block = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            return self.out(self.block(self.up(x)).amax(1))

    model = Sets()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@sound("EmbeddingBag with SGD at 5, as in a known tutorial", steps=300, least=0.85)
def sqq_ok_bag_sgd_five():
    x, y = topics(1500, 20, 117)
    hx, hy = topics(400, 20, 118)

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.EmbeddingBag(60, 16)
            self.fc = nn.Linear(16, 4)
            nn.init.uniform_(self.embedding.weight, -0.5, 0.5)
            nn.init.uniform_(self.fc.weight, -0.5, 0.5)
            nn.init.zeros_(self.fc.bias)

        def forward(self, x):
            return self.fc(self.embedding(x))

    model = Text()
    return Program(model, CE, loader(x, y, size=64), torch.optim.SGD(model.parameters(), 5.0), accuracy(hx, hy))


@sound("language model with tied embedding and output", steps=300, least=0.85)
def sqq_ok_tied_lm():
    x, held = chain(1200, 13, 20, 119), chain(300, 13, 20, 120)
    model = GruLM(20, 48)
    model.out.weight = model.embed.weight
    nn.init.normal_(model.embed.weight, std=0.1)
    return Program(model, token_loss, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3), next_score(held, 0.905))


@sound("one transformer layer applied three times, as in ALBERT", steps=300, least=0.85)
def sqq_ok_albert():
    x, y = before(2000, 10, 121)
    hx, hy = before(400, 10, 122)

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Embedding(12, 32), nn.Parameter(torch.randn(10, 32))
            self.layer = nn.TransformerEncoderLayer(32, 2, 48, 0.0, batch_first=True, norm_first=True)
            self.out = nn.Linear(32, 2)

        def forward(self, x):
            h = self.embed(x) + self.place
            for _ in range(3):
                h = self.layer(h)
            return self.out(h.mean(1))

    model = Shared()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(hx, hy))


@sound("Noam schedule that begins near zero, with β₂ of 0.98 and ε of 1e-9", steps=300, least=0.85)
def sqq_ok_noam():
    x, held = pairs(1500, 16, 7, 123), pairs(300, 16, 7, 124)
    model = TorchLM(7, 16, True)
    optimizer = torch.optim.Adam(model.parameters(), 1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.4 * 32**-0.5 * min((s + 1) ** -0.5, (s + 1) * 60**-1.5))
    return Program(model, token_loss, loader(x[:, :-1], x[:, 1:]), optimizer, prefix_score(held, 0.95), scheduler=noam)


class Adapted(nn.Module):
    """A frozen layer with a low-rank correction that starts at zero."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


@sound("LoRA on a frozen network, with zero matrices at the start", steps=300, least=0.8)
def sqq_ok_lora():
    x, y = topics(1500, 20, 125)
    hx, hy = topics(400, 20, 126)
    model = Bag(32)
    model.requires_grad_(False)
    model.hidden, model.out = Adapted(model.hidden), Adapted(model.out)
    return Program(model, CE, loader(x, y), torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2), accuracy(hx, hy))


@sound("pretrained word vectors kept fixed on purpose", steps=250, least=0.8)
def sqq_ok_fixed_vectors():
    x, y = topics(1500, 20, 127)
    hx, hy = topics(400, 20, 128)
    vectors = torch.randn(60, 30, generator=rng(5))

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding.from_pretrained(vectors, freeze=True)
            self.conv = nn.Conv1d(30, 32, 2)
            self.drop = nn.Dropout(0.5)
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            return self.out(self.drop(self.conv(self.embed(x).transpose(1, 2)).relu().mean(-1)))

    model = Conv()
    return Program(model, CE, loader(x, y), torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), 5e-3), accuracy(hx, hy))


@sound("denoising autoencoder of tokens: targets are the clean inputs", steps=300, least=0.75)
def sqq_ok_denoiser():
    def made(n, seed):
        x = chain(n, 10, 10, seed, noise=0.0)
        noisy = torch.where(torch.rand(n, 10, generator=rng(seed + 1)) < 0.15, torch.randint(10, (n, 10), generator=rng(seed + 2)), x)
        return noisy, x

    (x, y), (hx, hy) = made(1500, 129), made(300, 133)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 16)
            self.net = nn.Sequential(nn.Conv1d(16, 48, 5, padding=2), nn.ReLU(), nn.Conv1d(48, 10, 3, padding=1))

        def forward(self, x):
            return self.net(self.embed(x).transpose(1, 2)).transpose(1, 2)

    model = Net()
    return Program(model, token_loss, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), tag_accuracy(hx, hy))


@sound("word2vec with negative sampling; every batch holds positive and random pairs", steps=500, least=0.8)
def sqq_ok_word_vectors():
    g = rng(135)
    def made(n):
        group = torch.randint(6, (n,), generator=g)
        a = group * 5 + torch.randint(5, (n,), generator=g)
        b = group * 5 + torch.randint(5, (n,), generator=g)
        noise = torch.rand(n, generator=g) < 0.5
        b = torch.where(noise, torch.randint(30, (n,), generator=g), b)
        return torch.stack([a, b], 1), (~noise).float()

    (x, y), (hx, hy) = made(4000), made(800)
    same = (hx[:, 0] // 5 == hx[:, 1] // 5)

    class Vectors(nn.Module):
        def __init__(self):
            super().__init__()
            self.centre, self.context = nn.Embedding(30, 12), nn.Embedding(30, 12)
            nn.init.uniform_(self.centre.weight, -0.05, 0.05)
            nn.init.zeros_(self.context.weight)

        def forward(self, x):
            return (self.centre(x[:, 0]) * self.context(x[:, 1])).sum(-1)

    model = Vectors()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y, size=64), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: ((m(hx) > 0) == same).float().mean().item())


@sound("a trained transformer classifier", trained=300, steps=450, least=0.85)
def sqq_ok_trained_transformer():
    x, y = before(2000, 10, 137)
    hx, hy = before(400, 10, 138)
    model = OrderTransformer(12, 10, 32, True)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(hx, hy))


@sound("an LSTM language model, half trained", trained=120, steps=300, least=0.8)
def sqq_ok_half_trained_lm():
    x, held = pairs(1500, 16, 7, 139), pairs(300, 16, 7, 140)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 16)
            self.lstm = nn.LSTM(16, 64, batch_first=True)
            self.drop = nn.Dropout(0.1)
            self.out = nn.Linear(64, 7)

        def forward(self, x):
            return self.out(self.drop(self.lstm(self.embed(x))[0]))

    model = LM()
    return Program(model, token_loss, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(model.parameters(), 1e-2), prefix_score(held, 0.95))


class Copyist(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(9, dim), nn.Embedding(6, dim)
        self.net = nn.Transformer(dim, 2, 1, 1, 64, 0.0, batch_first=True)
        self.out = nn.Linear(dim, 8)

    def forward(self, source, previous):
        p = self.place.weight
        causal = nn.Transformer.generate_square_subsequent_mask(previous.shape[1])
        h = self.net(self.embed(source) + p[: source.shape[1]], self.embed(previous) + p[: previous.shape[1]], tgt_mask=causal)
        return self.out(h)


@sound("nn.Transformer that writes a sequence backwards with teacher forcing", steps=450, least=0.8)
def sqq_ok_reverse():
    def made(n, seed):
        x = torch.randint(8, (n, 4), generator=rng(seed))
        y = x.flip(1)
        return x, torch.cat([torch.full((n, 1), 8), y[:, :-1]], 1), y

    x, p, y = made(3000, 141)
    hx, hp, hy = made(300, 142)
    rows = [({"source": a, "previous": b}, c) for a, b, c in zip(x, p, y)]
    model = Copyist()
    return Program(model, token_loss, torch.utils.data.DataLoader(rows, batch_size=48, shuffle=True),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: (m(hx, hp).argmax(-1) == hy).float().mean().item())


@sound("learnt look-up by attention with a sharp temperature", steps=500, least=0.85)
def sqq_ok_lookup():
    x, y = lookups(3000, 143)
    hx, hy = lookups(500, 144)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.val = nn.Embedding(9, 32), nn.Embedding(5, 32)
            self.q, self.k = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
            self.heat = nn.Parameter(torch.tensor(2.0))
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            keys = self.key(x[..., 0])
            q, k = F.normalize(self.q(keys[:, -1:]), dim=-1), F.normalize(self.k(keys[:, :-1]), dim=-1)
            w = (self.heat.exp() * q @ k.transpose(1, 2)).softmax(-1)
            return self.out((w @ self.val(x[:, :-1, 1])).squeeze(1))

    model = Net()
    return Program(model, CE, loader(x, y, size=48), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))
