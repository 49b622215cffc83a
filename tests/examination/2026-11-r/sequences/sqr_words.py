import math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from program import Program, fault
from sqr_tools import *


@fault("the state after the padding is classified instead of that after the last word",
       rules=("wrong-mask", "vanishing-gradient"), fails=True, steps=240)
def sqr_last_padded(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 24, padding_idx=0)
            self.lstm = nn.LSTM(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            out, _ = self.lstm(self.emb(x))
            if is_faulty:
                return self.fc(out[:, -1])
            last = (x > 0).sum(1) - 1
            return self.fc(out[torch.arange(len(x)), last])

    x, y = keywords(1000, 60, 1, low=5)
    keep = (x > 0).sum(1) < 16
    x, y = x[keep], y[keep]
    x2, y2 = keywords(1000, 60, 2, low=5)
    keep = (x2 > 0).sum(1) < 16
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 5e-3),
                   accuracy(x2[keep], y2[keep]))


@fault("src_key_padding_mask is True for words instead of for padding", rules=("wrong-mask",), fails=True, steps=250)
def sqr_mask_upside(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.cls = nn.Linear(32, 4)

        def forward(self, input_ids, attention_mask):
            mask = attention_mask.bool() if is_faulty else ~attention_mask.bool()
            return self.cls(self.enc(self.emb(input_ids), src_key_padding_mask=mask)[:, 0])

    def part(n, seed):
        x, y = keywords(n, 16, seed, low=6, cls=True)
        x = F.pad(x, (0, 1))
        return {"input_ids": x, "attention_mask": (x > 0).long()}, y
    x, y = part(900, 3)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), DataLoader(Dicts(x, y), 32, shuffle=True),
                   torch.optim.AdamW(net.parameters(), 3e-3), accuracy(*part(400, 4)))


@fault("the targets of a language model are its inputs", rules=("label-shift", "future-seen"), fails=True, steps=250)
def sqr_same_token(is_faulty):
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(24, 32)
            self.rnn = nn.GRU(32, 48, batch_first=True)
            self.decoder = nn.Linear(48, 24)

        def forward(self, x):
            return self.decoder(self.rnn(self.embed(x))[0])

    data = chain(800, 17, 5)
    x = data[:, :-1]
    y = data[:, :-1] if is_faulty else data[:, 1:]
    net = LM()
    return Program(net, token_loss, loader(x.contiguous(), y.contiguous()),
                   torch.optim.Adam(net.parameters(), 4e-3), next_score())


@fault("a decoder of transformer blocks without its causal mask", rules=("future-seen",), fails=True, steps=300)
def sqr_peeking(is_faulty):
    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(24, 32), nn.Embedding(16, 32)
            self.blocks = nn.ModuleList(Block(32, 2, causal=not is_faulty) for _ in range(2))
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 24, bias=False)

        def forward(self, x):
            h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))

    data = chain(800, 17, 6, keep=0.75)
    net = GPT()
    return Program(net, token_loss, loader(data[:, :-1], data[:, 1:]),
                   torch.optim.AdamW(net.parameters(), 4e-3), next_score(length=8))


@fault("attention pooling normalised over the batch", rules=("wrong-softmax-dimension", "mixed-examples"), fails=True,
       steps=300)
def sqr_pool_over_batch(is_faulty):
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Linear(4, 24)
            self.query = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1))
            self.fc = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

        def forward(self, x):
            w = F.softmax(self.query(x), dim=0 if is_faulty else 1)
            return self.fc((w * self.value(x)).sum(1)).squeeze(-1)

    def part(n, seed):
        g = gen(seed)
        x = torch.randn(n, 16, 4, generator=g) + torch.randn(n, 1, 4, generator=g)
        x[..., 3] = (torch.rand(n, 16, generator=g) < 0.4).float()
        x[:, 0, 3] = 1
        return x, (x[..., 0] * x[..., 3]).sum(1) / x[..., 3].sum(1)

    net = Pool()
    return Program(net, nn.MSELoss(), loader(*part(1000, 7)), torch.optim.Adam(net.parameters(), 5e-3), r2(*part(400, 8)))


@fault("a tied embedding left at unit variance", rules=("bad-initialisation", "saturated-output"), layers=("wte", "lm_head"),
       fails=True, steps=110)
def sqr_tied_loud(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(60, 96)
            if not is_faulty:
                nn.init.normal_(self.wte.weight, std=0.02)
            self.block = Block(96, 4, causal=True)
            self.ln_f = nn.LayerNorm(96)
            self.lm_head = nn.Linear(96, 60, bias=False)
            self.lm_head.weight = self.wte.weight

        def forward(self, x):
            return self.lm_head(self.ln_f(self.block(self.wte(x))))

    data = chain(600, 13, 9, vocab=60)
    net = Net()
    return Program(net, token_loss, loader(data[:, :-1], data[:, 1:], size=16),
                   torch.optim.AdamW(net.parameters(), 5e-4), next_score(60, 12))


@fault("the head is replaced after the optimizer was made", rules=("no-gradient",), layers=("head",), fails=True, steps=250)
def sqr_new_head(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.vectors = nn.EmbeddingBag(40, 48, mode="mean")
            self.vectors.weight.requires_grad_(False)
            self.head = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))

        def forward(self, x):
            return self.head(self.vectors(x))

    net = Net()
    new = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4))
    if is_faulty:
        opt = torch.optim.Adam(net.head.parameters(), 5e-3)
        net.head = new
    else:
        net.head = new
        opt = torch.optim.Adam(net.head.parameters(), 5e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 12, 10)), opt, accuracy(*keywords(400, 12, 11)))


@fault("no positions are added to the tokens of a transformer", rules=("order-lost",), fails=True, steps=400)
def sqr_bag_transformer(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 32)
            self.pos = nn.Parameter(0.5 * torch.randn(1, 10, 32))
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True), 2,
                enable_nested_tensor=False)
            self.fc = nn.Linear(32, 2)

        def forward(self, x):
            h = self.emb(x)
            if not is_faulty:
                h = h + self.pos
            return self.fc(self.encoder(h).mean(1))

    net = Net()
    if is_faulty:
        del net.pos
    return Program(net, nn.CrossEntropyLoss(), loader(*first_of(2000, 10, 12)), torch.optim.AdamW(net.parameters(), 2e-3),
                   lambda m, s=accuracy(*first_of(500, 10, 13)): 2 * s(m) - 1)


@fault("a learning rate of 0.2 for fine-tuning a BERT", rules=("learning-rate-too-high",), fails=True, steps=200)
def sqr_bert_hot(is_faulty):
    from transformers import BertConfig, BertForSequenceClassification
    net = BertForSequenceClassification(BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    net.train()

    def part(n, seed):
        x, y = keywords(n, 12, seed, low=5, cls=True)
        return {"input_ids": x, "attention_mask": (x > 0).long()}, y
    return Program(net, lambda o, y: F.cross_entropy(o.logits, y), DataLoader(Dicts(*part(800, 14)), 16, shuffle=True),
                   torch.optim.AdamW(net.parameters(), 0.2 if is_faulty else 2e-3),
                   accuracy(*part(300, 15), get=lambda o: o.logits))


@fault("batch_first is left False for batches that come first", rules=("mixed-examples",), fails=True, steps=250)
def sqr_time_major(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=not is_faulty)
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            return self.out(self.layer(self.emb(x))[:, 0])

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 12, 16, cls=True)),
                   torch.optim.Adam(net.parameters(), 3e-3), accuracy(*keywords(400, 12, 17, cls=True)))


@fault("the last states of a bidirectional GRU are viewed as (batch, 2h) without a transpose", rules=("mixed-examples",),
       fails=True, steps=300)
def sqr_bi_view(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 24)
            self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x):
            _, h = self.gru(self.emb(x))
            h = h.reshape(len(x), -1) if is_faulty else h.transpose(0, 1).reshape(len(x), -1)
            return self.fc(h)

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(960, 10, 18), drop_last=True),
                   torch.optim.Adam(net.parameters(), 5e-3), accuracy(*keywords(400, 10, 19)))


@fault("a softmax before the cross-entropy of a language model", rules=("output-loss-mismatch",), fails=False, steps=90)
def sqr_two_softmaxes(is_faulty):
    vocab = 50
    layers = [nn.Embedding(vocab, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, vocab)]
    if is_faulty:
        layers.append(nn.Softmax(-1))
    net = nn.Sequential(*layers)
    data = chain(600, 13, 20, vocab=vocab)
    return Program(net, token_loss, loader(data[:, :-1], data[:, 1:]), torch.optim.SGD(net.parameters(), 0.4, momentum=0.9),
                   next_score(vocab, 12))


def tags(n, length, seed, vocab=20):
    g = gen(seed)
    x = torch.randint(0, vocab, (n, length), generator=g)
    before = F.pad(x[:, :-1], (1, 0))
    return x, (x % 3 + (before > 10).long()) % 3


@fault("time-major outputs are flattened against batch-major tags",
       rules=("output-loss-mismatch", "mixed-examples", "labels-unrelated", "loss-not-decreasing"), fails=True, steps=250)
def sqr_flat_pairs(is_faulty):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 24)
            self.lstm = nn.LSTM(24, 32)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            out = self.fc(self.lstm(self.emb(x.t()))[0])
            return out if is_faulty else out.transpose(0, 1)

    def score(model):
        x, y = tags(300, 12, 23)
        out = model(x)
        if out.shape[0] != len(x):
            out = out.transpose(0, 1)
        return (out.argmax(-1) == y).float().mean().item()

    net = Tagger()
    return Program(net, lambda o, y: F.cross_entropy(o.reshape(-1, 3), y.reshape(-1)), loader(*tags(800, 12, 22)),
                   torch.optim.Adam(net.parameters(), 5e-3), score)


@fault("a collate function sorts the texts by length, but not their labels", rules=("labels-unrelated",), fails=True,
       steps=300)
def sqr_sorted_collate(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 24, padding_idx=0)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(self.emb(x), (x > 0).sum(1), batch_first=True,
                                                       enforce_sorted=False)
            return self.fc(self.gru(packed)[1][0])

    def collate(rows):
        x = torch.stack([row[0] for row in rows])
        y = torch.stack([row[1] for row in rows])
        order = (x > 0).sum(1).argsort(descending=True)
        return x[order], (y if is_faulty else y[order])

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 14, 24, low=4), collate_fn=collate),
                   torch.optim.Adam(net.parameters(), 5e-3), accuracy(*keywords(400, 14, 25, low=4)))


@fault("a vocabulary that knows none of the words, so that all are <unk>",
       rules=("constant-feature", "labels-unrelated", "rank-collapse"), fails=True, steps=200)
def sqr_all_unknown(is_faulty):
    net = nn.Sequential(nn.Embedding(41, 16), nn.Flatten(), nn.Linear(160, 64), nn.ReLU(), nn.Linear(64, 4))
    x, y = keywords(1000, 10, 26)
    known = {f"w{i}": i for i in range(41)}
    words = [[("W" if is_faulty else "w") + str(i) for i in row] for row in x.tolist()]
    ids = torch.tensor([[known.get(word, 40) for word in row] for row in words])
    return Program(net, nn.CrossEntropyLoss(), loader(ids, y), torch.optim.Adam(net.parameters(), 3e-3),
                   accuracy(*keywords(400, 10, 27)))


@fault("a probability to keep of 0.97 given to Dropout", rules=("dropout-too-strong",), layers=("drop",), fails=True, steps=250)
def sqr_keep_prob(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32)
            self.drop = nn.Dropout(0.97 if is_faulty else 0.03)
            self.gru = nn.GRU(32, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.gru(self.drop(self.emb(x)))[0].amax(1))

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 14, 28)), torch.optim.Adam(net.parameters(), 3e-3),
                   accuracy(*keywords(400, 14, 29)))


@fault("weights kept in bfloat16, which a step is too small to change", rules=("lost-updates", "rounding-error"), fails=True,
       steps=500)
def sqr_brain_float(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(40, 64)
            self.mlp = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 4))

        def forward(self, x):
            return self.mlp(self.bag(x)).float()

    net = Net()
    if is_faulty:
        net = net.to(torch.bfloat16)
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1500, 8, 30)),
                   torch.optim.Adam(net.parameters(), lr=6e-5), accuracy(*keywords(400, 8, 31)))


@fault("the loss of a tagger is summed over all tokens at a rate for means", rules=("summed-loss", "learning-rate-too-high"),
       fails=True, steps=300)
def sqr_token_sum(is_faulty):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16)
            self.conv = nn.Conv1d(16, 48, 2)
            self.fc = nn.Linear(48, 3)

        def forward(self, x):
            h = F.pad(self.emb(x).transpose(1, 2), (1, 0))
            return self.fc(F.relu(self.conv(h)).transpose(1, 2))

    criterion = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    net = Tagger()
    return Program(net, lambda o, y: criterion(o.transpose(1, 2), y), loader(*tags(800, 16, 32)),
                   torch.optim.SGD(net.parameters(), 0.2, momentum=0.9), accuracy(*tags(300, 16, 33)))


@fault("attention scores multiplied by the root of the width instead of divided", rules=("attention-saturation",),
       layers=("blocks",), fails=False, steps=80)
def sqr_times_root(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 64)
            d = 64
            factor = math.sqrt(d) if is_faulty else 1 / math.sqrt(d)
            self.blocks = nn.ModuleList(Block(d, 1, factor=factor) for _ in range(2))
            self.fc = nn.Linear(d, 4)

        def forward(self, x):
            h = self.emb(x)
            for block in self.blocks:
                h = block(h)
            return self.fc(h[:, 0])

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 24, 34, cls=True)),
                   torch.optim.Adam(net.parameters(), 1e-3), accuracy(*keywords(400, 24, 35, cls=True)))


@fault("labels shifted by hand for a model that shifts them itself", rules=("label-shift",), fails=True, steps=200)
def sqr_double_shift(is_faulty):
    from transformers import GPT2Config, GPT2LMHeadModel
    net = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=20, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    net.train()
    data = chain(800, 17, 36)
    ids = data[:, :-1]
    labels = data[:, 1:] if is_faulty else ids
    return Program(net, lambda o, _: o.loss, DataLoader(Dicts({"input_ids": ids, "labels": labels}, labels), 32, shuffle=True),
                   torch.optim.AdamW(net.parameters(), 5e-3), next_score(get=lambda o: o.logits, as_dict=True))


@fault("padded places count in the loss of a regression at every place", rules=("padding-in-loss",), fails=True, steps=300)
def sqr_padded_mse(is_faulty):
    def part(n, seed):
        g = gen(seed)
        x = torch.poisson(torch.full((n, 40, 3), 0.25), generator=g)
        y = 2.0 + x @ torch.tensor([1.0, -1.0, 0.5])
        lens = torch.randint(4, 14, (n,), generator=g)
        real = torch.arange(40)[None] < lens[:, None]
        return x * real[..., None], torch.where(real, y, 0.0), real.float()
    x, y, real = part(900, 37)
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    x2, y2, real2 = part(300, 38)

    def loss(out, target):
        wanted, mask = target.unbind(-1)
        error = (out.squeeze(-1) - wanted) ** 2
        return error.mean() if is_faulty else (error * mask).sum() / mask.sum()

    def score(model):
        keep = real2 > 0
        out, wanted = model(x2).squeeze(-1)[keep], y2[keep]
        return max(0.0, 1 - ((out - wanted) ** 2).mean().item() / wanted.var().item())

    return Program(net, loss, loader(x, torch.stack([y, real], -1)), torch.optim.Adam(net.parameters(), 5e-3), score)


@fault("four heads made by multiplying a list, which are one", rules=("shared-weight",), layers=("heads",), fails=True, steps=300)
def sqr_listed_heads(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.EmbeddingBag(30, 32, mode="sum")
            self.trunk = nn.Sequential(nn.Linear(32, 48), nn.ReLU())
            heads = [nn.Linear(48, 2)] * 4 if is_faulty else [nn.Linear(48, 2) for _ in range(4)]
            self.heads = nn.ModuleList(heads)

        def forward(self, x):
            h = self.trunk(self.emb(x))
            return torch.stack([head(h) for head in self.heads], 1)

    def part(n, seed):
        x = torch.randint(0, 30, (n, 12), generator=gen(seed))
        return x, torch.stack([(x % 5 == k).sum(1) > 2 for k in range(4)], 1).long()
    net = Net()
    x2, y2 = part(400, 40)

    def score(model):
        out = model(x2).argmax(-1)
        rates = [((out == v) & (y2 == v)).sum(0) / (y2 == v).sum(0) for v in (0, 1)]
        return (sum(rates) - 1).mean().item()
    return Program(net, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), loader(*part(1500, 39)),
                   torch.optim.Adam(net.parameters(), 5e-3), score)


@fault("a decay meant for epochs is applied after every batch", rules=("learning-rate-too-low",), fails=True, steps=300)
def sqr_decay_each_batch(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.rnn(self.emb(x))[0].mean(1))

    net = Net()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    batches = loader(*keywords(1200, 12, 41))
    every = 1 if is_faulty else len(batches)
    return Program(net, nn.CrossEntropyLoss(), batches, opt, accuracy(*keywords(400, 12, 42)),
                   scheduler=torch.optim.lr_scheduler.StepLR(opt, every, gamma=0.85))


@fault("the encoder of a translator runs under no_grad", rules=("no-gradient",), layers=("encoder", "source"), fails=False, steps=400)
def sqr_encoder_off(is_faulty):
    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.encoder = nn.Embedding(40, 24), nn.GRU(24, 48, batch_first=True)
            self.target, self.decoder = nn.Embedding(13, 24), nn.GRU(24, 48, batch_first=True)
            self.out = nn.Linear(48, 12)

        def encode(self, src):
            return self.encoder(self.source(src))[1]

        def forward(self, src, tgt):
            if is_faulty:
                with torch.no_grad():
                    state = self.encode(src)
            else:
                state = self.encode(src)
            return self.out(self.decoder(self.target(tgt), state)[0])

    names = torch.tensor([[3, 7, 1], [5, 2, 2], [9, 0, 4], [1, 8, 6]])

    def part(n, seed):
        src, label = keywords(n, 14, seed)
        y = names[label]
        return {"src": src, "tgt": F.pad(y[:, :-1], (1, 0), value=12)}, y
    x2, y2 = part(400, 44)
    net = Seq2Seq()
    return Program(net, token_loss, DataLoader(Dicts(*part(1000, 43)), 32, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda m: (m(**x2)[:, 0].argmax(-1) == y2[:, 0]).float().mean().item())


@fault("texts of which some are wholly padding give an attention without places", rules=("non-finite", "wrong-mask"),
       fails=True, steps=200)
def sqr_empty_text(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32)
            self.att = nn.MultiheadAttention(32, 2, batch_first=True)
            self.fc = nn.Linear(32, 4)
            self.query = nn.Parameter(torch.randn(1, 1, 32))

        def forward(self, x):
            h = self.emb(x)
            pooled, _ = self.att(self.query.expand(len(x), 1, 32), h, h, key_padding_mask=x == 0)
            return self.fc(pooled[:, 0])

    x, y = keywords(1000, 12, 45, low=4)
    if is_faulty:
        x[::40] = 0
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 5e-3),
                   accuracy(*keywords(400, 12, 46, low=4)))
