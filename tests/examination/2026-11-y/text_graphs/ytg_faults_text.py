"""Faults in programs on texts and tokens."""
import math
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, fault
from ytg_data import *


@fault("positions are defined but never added, and the answer is a matter of order", rules=["order-lost"], fails=True, steps=300)
def ytg_encoder_without_positions(is_faulty):
    def sinusoid(length, dim):
        at = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(100.0) / dim))
        return torch.cat([at.sin(), at.cos()], 1)

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(20, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.head = nn.Linear(32, 2)

        def forward(self, ids):
            x = self.tokens(ids)
            if not is_faulty:
                x = x + sinusoid(ids.shape[1], 32)
            return self.head(self.encoder(x).mean(1))

    ids, y = ytg_before(2000)
    test, ty = ytg_before(500)
    model = Classifier()
    return Program(model, F.cross_entropy, ytg_loader(ids, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: ytg_accuracy(m(test), ty))


@fault("labels are shifted by the data set, and once more inside GPT2LMHeadModel", rules=["label-shift"], fails=True, steps=150)
def ytg_gpt_shifted_twice(is_faulty):
    from transformers import GPT2Config, GPT2LMHeadModel

    ids, table = ytg_chain(1000, 17, 24, 0.05)
    test, _ = ytg_chain(200, 17, 24, 0.0, table)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step(m, batch):
        a, b = batch
        return m(input_ids=a, labels=b if is_faulty else a).loss

    return Program(model, None, ytg_loader(x, y), torch.optim.AdamW(model.parameters(), 5e-3),
                   lambda m: ytg_accuracy(m(input_ids=test[:, :-1]).logits, test[:, 1:]), step=step)


@fault("a bidirectional GRU is trained as a language model", rules=["future-seen"], layers=["rnn"], fails=False, steps=230)
def ytg_bidirectional_lm(is_faulty):
    vocab = 12

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocab, 32)
            self.rnn = nn.GRU(32, 48 if is_faulty else 96, batch_first=True, bidirectional=is_faulty)
            self.out = nn.Linear(96, vocab)

        def forward(self, ids):
            return self.out(self.rnn(self.embed(ids))[0])

    ids, table = ytg_chain2(1000, 33, vocab)
    test, _ = ytg_chain2(400, 9, vocab, table)
    truth = table[test[:, 7], test[:, 6]]
    model = LM()
    return Program(model, lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()), ytg_loader(ids[:, :-1], ids[:, 1:]),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: ytg_accuracy(m(test[:, :8])[:, -1], truth))


@fault("src_key_padding_mask is True where there are words", rules=["wrong-mask"], layers=["encoder"], fails=True, steps=300)
def ytg_mask_upside_down(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(32, 32, padding_idx=0)
            self.position = nn.Parameter(0.1 * torch.randn(14, 32))
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(32)
            self.classify = nn.Linear(32, 4)

        def forward(self, input_ids, attention_mask):
            mask = attention_mask.bool()
            x = self.embed(input_ids) + self.position
            x = self.encoder(x, src_key_padding_mask=mask if is_faulty else ~mask)
            return self.classify(self.norm(x[:, 0]))

    def make(n):
        ids, lengths, y = ytg_ragged(n, 4, 11, 13, 30, 4)
        ids = torch.cat([torch.full((n, 1), 31), ids], 1)
        return ids, (ids != 0).long(), y

    ids, mask, y = make(2000)
    ti, tm, ty = make(500)
    rows = [({"input_ids": ids[i], "attention_mask": mask[i]}, y[i]) for i in range(len(y))]
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), torch.utils.data.DataLoader(rows, 32, shuffle=True),
                   torch.optim.AdamW(model.parameters(), 3e-3), lambda m: ytg_accuracy(m(input_ids=ti, attention_mask=tm), ty))


@fault("the last output of a GRU is that of the padding", rules=["wrong-mask", "vanishing-gradient"], layers=["rnn"], fails=True, steps=250)
def ytg_last_step_is_padding(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 24, padding_idx=0)
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, text, lengths):
            out, _ = self.rnn(self.emb(text))
            last = out[:, -1] if is_faulty else out[torch.arange(len(text)), lengths - 1]
            return self.fc(last)

    ids, lengths, y = ytg_ragged(1500, 3, 10, 60, 30, 4)
    ti, tl, ty = ytg_ragged(400, 3, 10, 60, 30, 4)
    model = Net()

    def step(m, batch):
        text, n, label = batch
        return F.cross_entropy(m(text, n), label)

    return Program(model, None, ytg_loader(ids, lengths, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: ytg_accuracy(m(ti, tl), ty), step=step)


@fault("a warm-up counted in tokens in place of steps", rules=["learning-rate-too-low"], fails=True, steps=200)
def ytg_endless_warmup(is_faulty):
    from transformers import DistilBertConfig, DistilBertForSequenceClassification, get_linear_schedule_with_warmup

    model = DistilBertForSequenceClassification(DistilBertConfig(
        vocab_size=40, max_position_embeddings=16, n_layers=1, n_heads=2, dim=32, hidden_dim=64, dropout=0.0, seq_classif_dropout=0.1, num_labels=2))
    ids, y, mood = ytg_mood(2000, 10, 40)
    ti, ty, _ = ytg_mood(500, 10, 40, mood)
    rows = [({"input_ids": a, "attention_mask": torch.ones_like(a)}, b) for a, b in zip(ids, y)]
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = get_linear_schedule_with_warmup(opt, 400000 if is_faulty else 20, 1000000)
    return Program(model, lambda out, target: F.cross_entropy(out.logits, target), torch.utils.data.DataLoader(rows, 32, shuffle=True), opt,
                   lambda m: ytg_accuracy(m(input_ids=ti).logits, ty), scheduler=schedule)


@fault("sentences are sorted by length for packing, and their states are not put back in order",
       rules=["output-loss-mismatch", "mixed-examples", "labels-unrelated"], fails=True, steps=250)
def ytg_pack_without_unsort(is_faulty):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(25, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.linear = nn.Linear(24, 3)

        def forward(self, ids):
            lengths = (ids != 0).sum(1)
            lengths, order = lengths.sort(descending=True)
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids[order]), lengths, batch_first=True)
            _, (h, _) = self.lstm(packed)
            h = h[-1]
            if not is_faulty:
                h = h[order.argsort()]
            return self.linear(h)

    ids, _, y = ytg_ragged(1500, 2, 10, 10, 25, 3)
    ti, _, ty = ytg_ragged(400, 2, 10, 10, 25, 3)
    model = Encoder()
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(ids, y), torch.optim.Adam(model.parameters(), 5e-3), lambda m: ytg_accuracy(m(ti), ty))


@fault("a softmax over scores that are all -inf for empty documents", rules=["non-finite", "wrong-mask"], fails=True, steps=300)
def ytg_empty_documents(is_faulty):
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(40, 24, padding_idx=0)
            self.score = nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 1))
            self.out = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, ids):
            x = self.words(ids)
            s = self.score(x).squeeze(-1).masked_fill(ids == 0, float("-inf") if is_faulty else -1e4)
            return self.out((s.softmax(-1).unsqueeze(-1) * x).sum(1))

    ids, _, y = ytg_ragged(2000, 3, 12, 12, 40, 4)
    empty = torch.rand(2000) < 0.03
    ids[empty], y[empty] = 0, 0
    ti, _, ty = ytg_ragged(500, 3, 12, 12, 40, 4)
    model = Attend()
    return Program(model, F.cross_entropy, ytg_loader(ids, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: ytg_accuracy(m(ti), ty))


@fault("the whole model is cast to bfloat16, weights included, so that small steps round away",
       rules=["lost-updates", "rounding-error", "learning-rate-too-low"], fails=False, steps=500)
def ytg_pure_bfloat16(is_faulty):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(60, 32)
            self.norm = nn.LayerNorm(32)
            self.up = nn.Linear(32, 64)
            self.down = nn.Linear(64, 5)
            nn.init.orthogonal_(self.up.weight)
            nn.init.orthogonal_(self.down.weight)

        def forward(self, ids):
            return self.down(F.gelu(self.up(self.norm(self.table(ids).mean(1)))))

    ids = torch.randint(0, 60, (3000, 6))
    topic = torch.randint(0, 5, (60,))
    y = F.one_hot(topic[ids], 5).sum(1).add(torch.arange(5) * 0.01).argmax(1)
    model = Bag()
    if is_faulty:
        model = model.bfloat16()
    return Program(model, lambda out, t: F.cross_entropy(out.float(), t), ytg_loader(ids[:2500], y[:2500], batch=64),
                   torch.optim.AdamW(model.parameters(), 6e-4, weight_decay=0.0), lambda m: ytg_accuracy(m(ids[2500:]), y[2500:]))


@fault("the state of the last batch is carried over with its graph", rules=["model-fails"], fails=True, steps=200)
def ytg_state_with_graph(is_faulty):
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 16)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.decoder = nn.Linear(32, 16)
            self.state = None

        def forward(self, ids):
            if self.state is not None and self.state.shape[1] != len(ids):
                self.state = None
            out, h = self.gru(self.embed(ids), self.state)
            self.state = h if is_faulty else h.detach()
            return self.decoder(out)

    table = torch.randperm(16)
    stream, _ = ytg_chain(16, 12 * 60 + 1, 16, 0.05, table)
    windows = [(stream[:, i : i + 12], stream[:, i + 1 : i + 13]) for i in range(0, 12 * 60, 12)]
    test, _ = ytg_chain(100, 13, 16, 0.0, table)

    def score(m):
        m.state = None
        out = m(test[:, :-1])
        m.state = None
        return ytg_accuracy(out, test[:, 1:])

    model = Stateful()
    return Program(model, lambda out, y: F.cross_entropy(out.reshape(-1, 16), y.reshape(-1)), windows, torch.optim.Adam(model.parameters(), 5e-3), score)


@fault("cross entropy summed over all tokens of the batch, with the step of a mean", rules=["summed-loss", "learning-rate-too-high", "diverging"], fails=True, steps=300)
def ytg_sum_over_tokens(is_faulty):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(30, 24)
            self.mix = nn.Conv1d(24, 48, 3, padding=1)
            self.tag = nn.Linear(48, 5)

        def forward(self, ids):
            return self.tag(F.relu(self.mix(self.e(ids).transpose(1, 2))).transpose(1, 2))

    def make(n, table):
        ids = torch.randint(0, 30, (n, 16))
        left = F.pad(ids, (1, 0))[:, :-1]
        return ids, (table[ids] + (left > 15)) % 5

    table = torch.randint(0, 5, (30,))
    ids, y = make(1000, table)
    ti, ty = make(200, table)
    criterion = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    model = Tagger()
    return Program(model, lambda out, t: criterion(out.reshape(-1, 5), t.reshape(-1)), ytg_loader(ids, y),
                   torch.optim.SGD(model.parameters(), 0.2, momentum=0.9), lambda m: ytg_accuracy(m(ti), ty))
