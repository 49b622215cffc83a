import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel
from program import Program, sound
from sqs_data import *
from sqs_fault_one import Acoustic, CharGPT, Tagger, ctc, flagged, greedy, lm_loss, lookups, speech, tag_accuracy, tags


class Gru(nn.Module):
    def __init__(self, f, h, c):
        super().__init__()
        self.gru = nn.GRU(f, h, batch_first=True)
        self.fc = nn.Linear(h, c)

    def forward(self, x):
        return self.fc(self.gru(x)[0].mean(1))


@sound("ordinary GRU on heart beats", steps=250, least=0.8)
def sqs_ok_gru_ecg():
    (x, y), (tx, ty) = ecg(600, 24, 11), ecg(200, 24, 12)
    m = Gru(1, 24, 3)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


@sound("ordinary causal transformer", steps=200, least=0.75)
def sqs_ok_char_lm():
    ids, test = chain(600, 17, 24, 11), chain(200, 17, 24, 12)
    m = CharGPT(24)
    return Program(m, lm_loss, loader(ids[:, :-1], ids[:, 1:]), torch.optim.AdamW(m.parameters(), 3e-3, weight_decay=0.1), next_token(test))


@sound("the same, trained", trained=250, steps=250, least=0.75)
def sqs_ok_char_lm_trained():
    ids, test = chain(600, 17, 20, 13, 0.95), chain(200, 17, 20, 14, 0.95)
    m = CharGPT(20)
    return Program(m, lm_loss, loader(ids, with_next(ids)), torch.optim.AdamW(m.parameters(), 3e-3), next_token(test))


@sound("ordinary TCN with BatchNorm", steps=250, least=0.8)
def sqs_ok_tcn():
    (x, y), (tx, ty) = waves(640, 48, 4, 21), waves(200, 48, 4, 22)
    m = nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (1, 48)), nn.Conv1d(1, 16, 7, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
                      nn.Conv1d(16, 24, 5, dilation=2, bias=False), nn.BatchNorm1d(24), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@sound("BiLSTM-like tagger that sees the whole sentence, most of a batch padding, ignored", steps=300, least=0.8)
def sqs_ok_tagger():
    x, y = tags(600, 30, 30, 6, 11, 2, 9)
    tx, ty = tags(200, 30, 30, 6, 12, 2, 9)
    m = Tagger(30, 6)
    return Program(m, lambda o, t: F.cross_entropy(o.transpose(1, 2), t, ignore_index=0), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), tag_accuracy(tx, ty))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.fc = nn.Linear(24, 2)

    def forward(self, ids, lengths):
        p = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.fc(self.lstm(p)[1][0][-1])


@sound("packed sequences of unequal length", steps=250, least=0.8)
def sqs_ok_packed():
    (x, n, y), (tx, tn, ty) = chats(800, 20, 60, 21), chats(300, 20, 60, 22)
    m = Packed()

    class Batches:
        def __iter__(self):
            for i in torch.randperm(len(x)).split(32):
                yield {"ids": x[i][:, :int(n[i].max())], "lengths": n[i]}, y[i]

        def __len__(self):
            return 25
    return Program(m, nn.CrossEntropyLoss(), Batches(), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: (m(tx, tn).argmax(-1) == ty).float().mean().item())


@sound("GPT-2 that shifts its own labels", steps=220, least=0.75)
def sqs_ok_gpt2():
    ids, test = chain(600, 13, 20, 31), chain(200, 13, 20, 32)
    m = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))

    class Lm:
        def __iter__(self):
            for i in torch.randperm(len(ids)).split(32):
                yield {"input_ids": ids[i], "labels": ids[i]}, ids[i]

        def __len__(self):
            return 19
    return Program(m, lambda out, _: out.loss, Lm(), torch.optim.AdamW(m.parameters(), 5e-3), next_token(test, lambda o: o.logits))


@sound("masked language model: BERT sees both sides, -100 at most places", steps=350, least=0.6)
def sqs_ok_bert_mlm():
    V, mask = 16, 15
    ids, test = chain(2000, 12, 15, 41, 0.97), chain(200, 12, 15, 42, 0.97)
    m = BertForMaskedLM(BertConfig(vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                   max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0))

    def corrupt(b, g=None):
        hide = torch.rand(b.shape, generator=g) < 0.2
        hide[:, 5] = True
        return torch.where(hide, mask, b), torch.where(hide, b, -100)
    x, y = corrupt(ids, gen(1))
    tx, ty = corrupt(test, gen(2))

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = m

        def forward(self, ids):
            return self.bert(input_ids=ids).logits
    w = Wrapped()
    return Program(w, lm_loss, loader(x, y), torch.optim.AdamW(w.parameters(), 5e-3),
                   lambda m: (m(tx).argmax(-1) == ty)[ty >= 0].float().mean().item())


class SetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 24)
        self.att = nn.MultiheadAttention(24, 2, batch_first=True)
        self.fc = nn.Linear(24, 2)

    def forward(self, ids):
        pad = ids == 0
        x = self.emb(ids)
        x = x + self.att(x, x, x, key_padding_mask=pad, need_weights=False)[0]
        w = (~pad)[..., None].float()
        return self.fc((x * w).sum(1) / w.sum(1))


@sound("transformer without positions for words whose order is of no matter", steps=250, least=0.8)
def sqs_ok_set_attention():
    (x, _, y), (tx, _, ty) = chats(800, 20, 60, 23), chats(300, 20, 60, 24)
    m = SetNet()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(tx, ty))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding.from_pretrained(torch.randn(60, 32, generator=gen(3)), freeze=True)
        self.rnn = nn.GRU(32, 24, batch_first=True)
        self.fc = nn.Linear(24, 2)

    def forward(self, ids):
        return self.fc(self.rnn(self.emb(ids))[0].mean(1))


@sound("frozen pretrained word vectors", steps=300, least=0.75)
def sqs_ok_frozen_vectors():
    (x, _, y), (tx, _, ty) = chats(900, 12, 60, 25, 12), chats(300, 12, 60, 26, 12)
    m = Frozen()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam([p for p in m.parameters() if p.requires_grad], 3e-3), accuracy(tx, ty))


class Echo(nn.Module):
    def __init__(self, n=80):
        super().__init__()
        self.register_buffer("win", torch.randn(1, n, generator=gen(1)) * 0.5)
        w = torch.randn(n, n, generator=gen(2)) / n ** 0.5
        self.register_buffer("w", 0.9 * w)
        self.read = nn.Linear(n, 1)

    def forward(self, x):
        h = x.new_zeros(len(x), self.w.shape[0])
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ self.win + h @ self.w)
        return self.read(h)


@sound("echo state network: fixed reservoir, linear readout", steps=400, least=0.6)
def sqs_ok_reservoir():
    (x, y), (tx, ty) = series(800, 20, 21, 0.02), series(200, 20, 22, 0.02)
    m = Echo()
    return Program(m, nn.MSELoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), r2(tx, ty))


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24)
        self.fc = nn.Linear(24, 3)

    def forward(self, x):
        return self.fc(self.gru(x)[0][-1])


@sound("time comes first in batches, as torch has it", steps=300, least=0.8)
def sqs_ok_time_first():
    (x, y), (tx, ty) = ecg(640, 24, 13), ecg(200, 24, 14)
    m = TimeFirst()
    data = [(x[i:i + 32].transpose(0, 1).contiguous(), y[i:i + 32]) for i in range(0, 640, 32)]
    return Program(m, nn.CrossEntropyLoss(), data, torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx.transpose(0, 1), ty))


@sound("CTC over log-probabilities, most of whose frames turn blank", steps=250, least=0.7)
def sqs_ok_ctc():
    (x, y), (tx, ty) = speech(400, 11), speech(100, 12)
    m = Acoustic(True)
    return Program(m, ctc, loader(x, y), torch.optim.Adam(m.parameters(), 4e-3), greedy(tx, ty))


class Towers(nn.Module):
    def __init__(self, V=40, d=16):
        super().__init__()
        self.user, self.item = nn.EmbeddingBag(V, d), nn.EmbeddingBag(V, d)
        self.pu, self.pi = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, u, i):
        a, b = F.normalize(self.pu(self.user(u)), dim=-1), F.normalize(self.pi(self.item(i)), dim=-1)
        return a @ b.T / 0.05


@sound("two towers with negatives from the batch, whose outputs mix examples by design", steps=350, least=0.6)
def sqs_ok_two_towers():
    def data(n, seed):
        u = torch.randint(0, 40, (n, 4), generator=gen(seed))
        return u, torch.randperm(40, generator=gen(8))[u]
    (u, i), (tu, ti) = data(1000, 1), data(64, 2)
    m = Towers()
    batches = DataLoader(TensorDataset(u, i), batch_size=40, shuffle=True)

    def step(m, batch):
        s = m(*batch)
        t = torch.arange(len(s))
        return (F.cross_entropy(s, t) + F.cross_entropy(s.T, t)) / 2
    return Program(m, None, batches, torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: (m(tu, ti).argmax(1) == torch.arange(64)).float().mean().item(), step=step)
