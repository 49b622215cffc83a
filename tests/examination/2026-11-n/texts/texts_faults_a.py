"""Language models, taggers and encoders with mistakes in shifting, masking, order and pairing."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def gen(seed):
    return torch.Generator().manual_seed(seed)


def noisy_chain(n, length, vocab, keep, seed):
    """Tokens that follow a permutation with probability keep."""
    g = gen(seed)
    perm = torch.randperm(vocab, generator=gen(7))
    x = torch.randint(0, vocab, (n, length), generator=g)
    stay = torch.rand(n, length, generator=g) < keep
    for t in range(1, length):
        x[:, t] = torch.where(stay[:, t], perm[x[:, t - 1]], x[:, t])
    return x, perm


@fault(
    "A convolutional language model whose convolutions are padded on both sides, so that they look ahead",
    rules=("future-seen",), fails=True, steps=200,
)
def tcn_same_padding(is_faulty):
    vocab, length = 20, 24
    ids, perm = noisy_chain(1500, length + 1, vocab, 0.7, 1)
    test, _ = noisy_chain(300, length, vocab, 0.7, 2)

    class Block(nn.Module):
        def __init__(self, dim, dilation):
            super().__init__()
            self.pad = 2 * dilation
            self.conv = nn.Conv1d(dim, dim, 3, dilation=dilation)
            self.norm = nn.LayerNorm(dim)

        def forward(self, x):
            pad = (self.pad // 2, self.pad // 2) if is_faulty else (self.pad, 0)
            y = self.conv(F.pad(x.transpose(1, 2), pad)).transpose(1, 2)
            return x + F.gelu(self.norm(y))

    class ConvLM(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.embed = nn.Embedding(vocab, dim)
            self.blocks = nn.Sequential(Block(dim, 1), Block(dim, 2))
            self.head = nn.Linear(dim, vocab)

        def forward(self, x):
            return self.head(self.blocks(self.embed(x)))

    def loss_fn(logits, y):
        return F.cross_entropy(logits.reshape(-1, vocab), y.reshape(-1))

    def score(model):
        hits = 0.0
        for at in (8, 14, 18):
            seen = test.clone()
            seen[:, at + 1:] = torch.randint(0, vocab, seen[:, at + 1:].shape, generator=gen(at))
            hits += (model(seen)[:, at].argmax(-1) == perm[test[:, at]]).float().mean().item()
        return hits / 3

    model = ConvLM()
    loader = DataLoader(TensorDataset(ids[:, :-1], ids[:, 1:]), batch_size=32, shuffle=True)
    return Program(model, loss_fn, loader, torch.optim.AdamW(model.parameters(), lr=3e-3), score)


@fault(
    "Masked modelling where the masked copy is thrown away (masked_fill without an assignment), so that inputs hold "
    "the tokens asked for",
    rules=("future-seen", "label-shift"), fails=False, steps=250,
)
def mlm_mask_not_assigned(is_faulty):
    vocab, mask_id, length = 16, 16, 18
    ids, _ = noisy_chain(2000, length, vocab, 0.7, 3)
    test, _ = noisy_chain(300, length, vocab, 1.0, 4)

    def collate(rows):
        inputs = torch.stack([r for (r,) in rows])
        labels = inputs.clone()
        chosen = torch.rand(inputs.shape) < 0.2
        labels[~chosen] = -100
        if is_faulty:
            inputs.masked_fill(chosen, mask_id)
        else:
            inputs = inputs.masked_fill(chosen, mask_id)
        return inputs, labels

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(vocab + 1, 32)
            self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
            self.lm_head = nn.Linear(64, vocab)

        def forward(self, input_ids):
            return self.lm_head(self.rnn(self.emb(input_ids))[0])

    def criterion(out, labels):
        return nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten(), ignore_index=-100)

    def score(model):
        x = test.clone()
        x[:, 4::5] = mask_id
        return (model(x)[:, 4::5].argmax(-1) == test[:, 4::5]).float().mean().item()

    net = Encoder()
    return Program(net, criterion, DataLoader(TensorDataset(ids), 32, shuffle=True, collate_fn=collate),
                   torch.optim.Adam(net.parameters(), lr=5e-3), score)


@fault(
    "Teacher forcing with the whole target as the decoder's input, not the target shifted by the start symbol",
    rules=("label-shift", "future-seen"), fails=True, steps=350,
)
def teacher_forcing_unshifted(is_faulty):
    vocab, bos, length = 10, 10, 4
    table = torch.randperm(vocab, generator=gen(5))

    def pairs(n, seed):
        src = torch.randint(0, vocab, (n, length), generator=gen(seed))
        return src, table[src]

    class Seq2Seq(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.src_emb = nn.Embedding(vocab, dim)
            self.tgt_emb = nn.Embedding(vocab + 1, dim)
            self.encoder = nn.GRU(dim, dim, batch_first=True)
            self.decoder = nn.GRU(dim, dim, batch_first=True)
            self.out = nn.Linear(dim, vocab)

        def forward(self, src, tgt):
            _, h = self.encoder(self.src_emb(src))
            y, _ = self.decoder(self.tgt_emb(tgt), h)
            return self.out(y)

        def greedy(self, src):
            _, h = self.encoder(self.src_emb(src))
            token = torch.full((len(src), 1), bos)
            result = []
            for _ in range(length):
                y, h = self.decoder(self.tgt_emb(token), h)
                token = self.out(y).argmax(-1)
                result.append(token)
            return torch.cat(result, 1)

    src, tgt = pairs(3000, 6)
    test_src, test_tgt = pairs(300, 7)

    def batches():
        order = torch.randperm(3000, generator=gen(8)).split(40)
        result = []
        for part in order:
            y = tgt[part]
            if is_faulty:
                decoder_in = y
            else:
                decoder_in = torch.cat([torch.full((len(y), 1), bos), y[:, :-1]], 1)
            result.append(({"src": src[part], "tgt": decoder_in}, y))
        return result

    model = Seq2Seq()
    return Program(
        model, lambda out, y: F.cross_entropy(out.transpose(1, 2), y), batches(),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: (m.greedy(test_src) == test_tgt).float().mean().item(),
    )


@fault(
    "Labels that the data set has shifted already are shifted again in the loss",
    rules=("label-shift",), fails=True, steps=150,
)
def shifted_twice(is_faulty):
    vocab = 24
    ids, perm = noisy_chain(1200, 21, vocab, 0.9, 9)
    test, _ = noisy_chain(200, 20, vocab, 0.9, 10)

    class Windows(torch.utils.data.Dataset):
        def __len__(self):
            return len(ids)

        def __getitem__(self, i):
            return {"input_ids": ids[i, :-1]}, ids[i, 1:]

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(vocab, 48)
            self.rnn = nn.LSTM(48, 48, batch_first=True)
            self.ln_f = nn.LayerNorm(48)
            self.lm_head = nn.Linear(48, vocab, bias=False)

        def forward(self, input_ids):
            return self.lm_head(self.ln_f(self.rnn(self.wte(input_ids))[0]))

    def causal_lm_loss(logits, labels):
        if is_faulty:
            logits = logits[..., :-1, :].contiguous()
            labels = labels[..., 1:].contiguous()
        return F.cross_entropy(logits.view(-1, vocab), labels.view(-1))

    model = LM()
    return Program(model, causal_lm_loss, DataLoader(Windows(), batch_size=24, shuffle=True),
                   torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01),
                   lambda m: (m(test).argmax(-1) == perm[test]).float().mean().item())


class PositionalEncoding(nn.Module):
    """As in the tutorial."""

    def __init__(self, d_model, max_len=500, batch_first=False):
        super().__init__()
        self.batch_first = batch_first
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        if self.batch_first:
            return x + self.pe[: x.size(1)].transpose(0, 1)
        return x + self.pe[: x.size(0)]


@fault(
    "The tutorial's positional encoding, made for (time, batch, features), added to (batch, time, features)",
    rules=("order-lost", "mixed-examples"), layers=("pos", "encoder"), fails=True, steps=200,
)
def encoding_along_batch(is_faulty):
    g = gen(11)
    x = torch.randint(0, 12, (1600, 16), generator=g)
    y = torch.where(torch.arange(16) < 8, x % 2, 1 - x % 2)

    class Tagger(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.embed = nn.Embedding(12, d)
            self.pos = PositionalEncoding(d, batch_first=not is_faulty)
            layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.classify = nn.Linear(d, 2)

        def forward(self, tokens):
            return self.classify(self.encoder(self.pos(self.embed(tokens))))

    model = Tagger()
    loader = DataLoader(TensorDataset(x[:1300], y[:1300]), batch_size=20, shuffle=True, drop_last=True)
    return Program(model, lambda o, t: F.cross_entropy(o.reshape(-1, 2), t.reshape(-1)), loader,
                   torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: (m(x[1300:]).argmax(-1) == y[1300:]).float().mean().item())


def reviews(n, seed, longest=20):
    """Padded token ids (0 pads) whose polarities, summed, give the label."""
    g = gen(seed)
    lengths = torch.randint(4, longest + 1, (n,), generator=g)
    polarity = torch.randn(50, generator=gen(12))
    polarity -= polarity[1:].mean()
    polarity[0] = 0
    x = torch.randint(1, 50, (n, longest), generator=g)
    x[torch.arange(longest)[None] >= lengths[:, None]] = 0
    return x, lengths, (polarity[x].sum(1) > 0).long()


@fault(
    "Sequences are sorted by length for packing, and the states are not put back in order",
    rules=("mixed-examples", "output-loss-mismatch"), fails=True, steps=250,
)
def packed_and_left_sorted(is_faulty):
    x, lengths, y = reviews(1600, 13)
    tx, tl, ty = reviews(300, 14)

    class Sentiment(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 32, padding_idx=0)
            self.lstm = nn.LSTM(32, 32, batch_first=True)
            self.fc = nn.Linear(32, 2)

        def forward(self, tokens, lengths):
            lengths, order = lengths.sort(descending=True)
            packed = pack_padded_sequence(self.embedding(tokens[order]), lengths, batch_first=True)
            _, (h, _) = self.lstm(packed)
            h = h[-1]
            if not is_faulty:
                h = h[order.argsort()]
            return self.fc(h)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            return {"tokens": x[i], "lengths": lengths[i]}, y[i]

    model = Sentiment()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(Data(), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: (m(tx, tl).argmax(1) == ty).float().mean().item())


@fault(
    "Scores of shape (batch, time, classes) brought to (batch, classes, time) by view in place of transpose",
    rules=("output-loss-mismatch",), fails=True, steps=200,
)
def view_for_transpose(is_faulty):
    tags = 5
    g = gen(15)
    kind = torch.randint(0, tags, (40,), generator=g)
    x = torch.randint(0, 40, (1500, 14), generator=g)
    y = kind[x].clone()
    y[:, 1:] = torch.where(x[:, :-1] < 5, (y[:, 1:] + 1) % tags, y[:, 1:])

    class BiTagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(40, 24)
            self.gru = nn.GRU(24, 24, bidirectional=True, batch_first=True)
            self.drop = nn.Dropout(0.1)
            self.tag = nn.Linear(48, tags)

        def forward(self, x):
            return self.tag(self.drop(self.gru(self.word(x))[0]))

    ce = nn.CrossEntropyLoss()

    def loss(scores, gold):
        b, t, c = scores.shape
        return ce(scores.view(b, c, t) if is_faulty else scores.transpose(1, 2), gold)

    model = BiTagger()
    return Program(model, loss, DataLoader(TensorDataset(x[:1200], y[:1200]), 30, shuffle=True),
                   torch.optim.RMSprop(model.parameters(), lr=3e-3),
                   lambda m: (m(x[1200:]).argmax(-1) == y[1200:]).float().mean().item())


@fault(
    "The state after the last padded step stands for the text, a long way after its last word",
    rules=("wrong-mask", "vanishing-gradient"), fails=True, steps=150,
)
def state_after_padding(is_faulty):
    longest = 70
    g = gen(16)
    lengths = torch.randint(5, 12, (1500,), generator=g)
    lengths[::50] = longest - 2
    x = torch.randint(2, 30, (1500, longest), generator=g)
    y = torch.randint(0, 2, (1500,), generator=g)
    # the word before the end of a text tells its class
    x[torch.arange(1500), lengths - 1] = 1
    x[torch.arange(1500), lengths - 2] = torch.where(y == 1, torch.randint(2, 16, (1500,), generator=g),
                                                   torch.randint(16, 30, (1500,), generator=g))
    x[torch.arange(longest)[None] >= lengths[:, None]] = 0

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 20, padding_idx=0)
            self.rnn = nn.LSTM(20, 24, batch_first=True)
            self.out = nn.Linear(24, 1)

        def forward(self, x):
            h, _ = self.rnn(self.emb(x))
            if is_faulty:
                last = h[:, -1]
            else:
                last = h[torch.arange(len(x)), (x != 0).sum(1) - 1]
            return self.out(last).squeeze(-1)

    model = Reader()
    return Program(model, nn.BCEWithLogitsLoss(), DataLoader(TensorDataset(x[:1200], y[:1200].float()), 25, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=4e-3),
                   lambda m: ((m(x[1200:]) > 0) == (y[1200:] == 1)).float().mean().item())
