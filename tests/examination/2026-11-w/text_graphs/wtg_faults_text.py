"""Faults: texts, language models, transformers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from program import Program, fault
from wtg_data import (
    DictSet,
    wtg_accuracy,
    wtg_before,
    wtg_chain,
    wtg_loader,
    wtg_padded,
    wtg_topic_text,
)


class ClsEncoder(nn.Module):
    def __init__(self, vocab, classes, flipped, dim=32, length=17):
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
        self.tok = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(1, length, dim) * 0.1)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(dim, classes)
        self.flipped = flipped

    def forward(self, input_ids, attention_mask):
        x = torch.cat([self.cls.expand(len(input_ids), -1, -1), self.tok(input_ids)], 1) + self.pos
        mask = torch.cat([torch.ones_like(attention_mask[:, :1]), attention_mask], 1)
        # attention_mask is 1 for words, as of the tokenizer
        ignored = mask.bool() if self.flipped else mask == 0
        x = self.encoder(x, src_key_padding_mask=ignored)
        return self.out(x[:, 0])


@fault(
    "the tokenizer's mask (1 = word) is passed as torch's key padding mask (True = ignore)",
    rules=["wrong-mask"],
    fails=True,
    steps=250,
)
def wtg_mask_of_tokenizer(is_faulty):
    x, y = wtg_topic_text(1000, 16)
    x, lengths = wtg_padded(x, 9)
    x[:, -1] = 0
    m = (x != 0).long()
    model = ClsEncoder(60, 5, is_faulty)
    data = DictSet(y[:700], input_ids=x[:700], attention_mask=m[:700])
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(data, batch_size=32, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda net: wtg_accuracy(net(x[700:], m[700:]), y[700:]),
    )


@fault(
    "labels are shifted by hand for a Hugging Face model that shifts them itself",
    rules=["label-shift"],
    fails=True,
    steps=300,
)
def wtg_shift_twice(is_faulty):
    x, table = wtg_chain(700, 17, noise=0.3)
    config = GPT2Config(
        vocab_size=8, n_positions=24, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    if is_faulty:
        ids, labels = x[:, :-1], x[:, 1:]
    else:
        ids, labels = x, x
    loader = wtg_loader(ids[:500].contiguous(), labels[:500].contiguous(), size=16)

    def step(net, batch):
        input_ids, y = batch
        return net(input_ids=input_ids, labels=y).loss

    def score(net):
        logits = net(input_ids=x[500:, :-1]).logits[:, 1:]
        return wtg_accuracy(logits, table[x[500:, :-2], x[500:, 1:-1]])

    return Program(model, None, loader, torch.optim.AdamW(model.parameters(), lr=5e-3), score, step=step)


class CharModel(nn.Module):
    def __init__(self, vocab, causal):
        super().__init__()
        self.tok = nn.Embedding(vocab, 32)
        self.pos = nn.Embedding(32, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.ln = nn.LayerNorm(32)
        self.head = nn.Linear(32, vocab, bias=False)
        self.causal = causal

    def forward(self, idx):
        h = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1]) if self.causal else None
        return self.head(self.ln(self.blocks(h, mask=mask)))


@fault(
    "a language model of TransformerEncoder layers without a causal mask",
    rules=["future-seen"],
    fails=True,
    steps=250,
)
def wtg_encoder_as_decoder(is_faulty):
    x, table = wtg_chain(600, 20, noise=0.3)
    model = CharModel(8, not is_faulty)
    train, test = x[:400], x[400:]

    def criterion(logits, target):
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    def score(net):
        right = [wtg_accuracy(net(test[:, :k])[:, -1], table[test[:, k - 2], test[:, k - 1]]) for k in (5, 9, 12, 16)]
        return sum(right) / 4

    return Program(
        model,
        criterion,
        wtg_loader(train[:, :-1], train[:, 1:], size=16),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        score,
    )


class SelfAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(F.scaled_dot_product_attention(q, k, v))


class WhoCameFirst(nn.Module):
    def __init__(self, has_places):
        super().__init__()
        self.word = nn.Embedding(20, 32)
        self.place = nn.Embedding(12, 32) if has_places else None
        self.attention = SelfAttention(32)
        self.norm = nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, ids):
        x = self.word(ids)
        if self.place is not None:
            x = x + self.place(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(x + self.attention(x))
        return self.mlp(x.mean(1))


@fault("a transformer without position embeddings, on a task of order", rules=["order-lost"], fails=True, steps=500)
def wtg_no_positions(is_faulty):
    x, y = wtg_before(3000, 12)
    model = WhoCameFirst(not is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        wtg_loader(x[:2500], y[:2500], size=64),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda net: 2 * wtg_accuracy(net(x[2500:]), y[2500:]) - 1,
    )


class IntentNet(nn.Module):
    def __init__(self, viewed):
        super().__init__()
        self.emb = nn.Embedding(60, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(32, 5)
        self.viewed = viewed

    def forward(self, ids):
        _, (h, _) = self.lstm(self.emb(ids))
        if self.viewed:
            h = h.view(ids.shape[0], -1)
        else:
            h = torch.cat([h[0], h[1]], 1)
        return self.fc(h)


@fault(
    "h_n of a bidirectional LSTM is viewed as (batch, -1) without a transpose",
    rules=["mixed-examples", "labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def wtg_viewed_states(is_faulty):
    x, y = wtg_topic_text(1200, 10)
    model = IntentNet(is_faulty)
    return Program(
        model,
        F.cross_entropy,
        wtg_loader(x[:900], y[:900], size=30),
        torch.optim.RMSprop(model.parameters(), lr=3e-3),
        lambda net: wtg_accuracy(net(x[900:]), y[900:]),
    )


@fault(
    "a small BERT trained at a rate for multilayer perceptrons and SGD",
    rules=["learning-rate-too-high", "diverging"],
    fails=True,
    steps=200,
)
def wtg_hot_bert(is_faulty):
    x, y = wtg_topic_text(900, 12)
    x, _ = wtg_padded(x, 6)
    m = (x != 0).long()
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    model.train()
    rows = DictSet(y[:600], input_ids=x[:600], attention_mask=m[:600])
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.logits, y),
        DataLoader(rows, batch_size=16, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=0.1 if is_faulty else 2e-3),
        lambda net: wtg_accuracy(net(input_ids=x[600:], attention_mask=m[600:]).logits, y[600:]),
    )


@fault(
    "a warm-up of 30000 steps, copied from pre-training, in a run of some hundred",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=250,
)
def wtg_endless_warmup(is_faulty):
    x, y = wtg_topic_text(1000, 14)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(60, 24)
            self.conv = nn.Conv1d(24, 32, 3, padding=1)
            self.out = nn.Linear(32, 5)

        def forward(self, ids):
            h = F.gelu(self.conv(self.words(ids).transpose(1, 2)))
            return self.out(h.amax(-1))

    model = Bag()
    warmup = 30000 if is_faulty else 30
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warmup))
    return Program(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.05),
        wtg_loader(x[:700], y[:700]),
        optimizer,
        lambda net: wtg_accuracy(net(x[700:]), y[700:]),
        scheduler=scheduler,
    )


@fault(
    "the files of a corpus are read class by class and the loader does not shuffle",
    rules=["sorted-batches"],
    fails=True,
    steps=168,
)
def wtg_folder_by_folder(is_faulty):
    x, y = wtg_topic_text(1200, 12, classes=6, hits=1)
    train = y[:900].argsort()  # as os.walk finds them

    class FastText(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(60, 24, mode="mean")
            self.hidden = nn.Linear(24, 32)
            self.output = nn.Linear(32, 6)

        def forward(self, ids):
            return self.output(torch.relu(self.hidden(self.bag(ids))))

    model = FastText()
    loader = DataLoader(
        list(zip(x[:900][train], y[:900][train])), batch_size=32, shuffle=not is_faulty, drop_last=False
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader,
        torch.optim.Adam(model.parameters(), lr=3e-2),
        lambda net: wtg_accuracy(net(x[900:]), y[900:]),
    )


class Stateful(nn.Module):
    """Carries its state from one piece of the text to the next."""

    def __init__(self, cut):
        super().__init__()
        self.embed = nn.Embedding(8, 16)
        self.cell = nn.GRU(16, 32, batch_first=True)
        self.decode = nn.Linear(32, 8)
        self.cut, self.state = cut, None

    def forward(self, ids):
        state = self.state
        if not self.training or state is None or state.shape[1] != len(ids):
            state = torch.zeros(1, len(ids), 32)
        out, state = self.cell(self.embed(ids), state)
        if self.training:
            self.state = state.detach() if self.cut else state
        return self.decode(out)


@fault(
    "truncated backpropagation through time without the truncation: the state that is carried on is not detached",
    rules=["model-fails"],
    fails=True,
    steps=300,
)
def wtg_state_carried_on(is_faulty):
    text, table = wtg_chain(16, 16 * 40 + 1, noise=0.3)
    test, _ = wtg_chain(100, 17, noise=0.3, table=table)
    pieces = [(text[:, s : s + 16], text[:, s + 1 : s + 17]) for s in range(0, 16 * 40, 16)]
    model = Stateful(not is_faulty)
    return Program(
        model,
        lambda logits, y: F.cross_entropy(logits.transpose(1, 2), y),
        pieces,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda net: wtg_accuracy(net(test[:, :-1])[:, 1:], table[test[:, :-2], test[:, 1:-1]]),
    )


class BareAttention(nn.Module):
    def __init__(self, dim, heads, faulty):
        super().__init__()
        self.heads, self.faulty = heads, faulty
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.merge = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        scores = q @ k.transpose(-1, -2)
        width = d // self.heads
        scores = scores * math.sqrt(width) if self.faulty else scores / math.sqrt(width)
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -1e9)
        return self.merge((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class BareLM(nn.Module):
    def __init__(self, faulty, vocab=10, dim=64):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.places = nn.Embedding(20, dim)
        self.attention = BareAttention(dim, 2, faulty)
        nn.init.xavier_uniform_(self.attention.to_q.weight, 1.5)
        nn.init.xavier_uniform_(self.attention.to_k.weight, 1.5)
        self.feed = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, vocab))

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.feed(x + self.attention(x))


@fault(
    "scores of attention are multiplied by the root of the width instead of divided by it",
    rules=["attention-saturation"],
    layers=["attention"],
    fails=False,
    steps=110,
)
def wtg_scores_times_root(is_faulty):
    # asked for at each place: the word three places back
    x = torch.randint(0, 10, (900, 16))
    y = torch.cat([torch.full((900, 3), -100), x[:, :-3]], 1)
    model = BareLM(is_faulty)
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100),
        wtg_loader(x[:700], y[:700]),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda net: wtg_accuracy(net(x[700:])[:, 3:], y[700:, 3:]),
    )


class HalfText(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 32)
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 5)

    def forward(self, ids):
        h = self.norm(self.embed(ids).mean(1))
        return self.down(F.silu(self.up(h))).float()


@fault(
    "weights are kept in bfloat16, and most of the steps are lost in rounding",
    rules=["lost-updates"],
    fails=False,
    steps=500,
)
def wtg_weights_in_bfloat16(is_faulty):
    x, y = wtg_topic_text(1200, 12)
    model = HalfText()
    if is_faulty:
        model.to(torch.bfloat16)
    return Program(
        model,
        F.cross_entropy,
        wtg_loader(x[:900], y[:900]),
        torch.optim.AdamW(model.parameters(), lr=3e-4),
        lambda net: wtg_accuracy(net(x[900:]), y[900:]),
    )
