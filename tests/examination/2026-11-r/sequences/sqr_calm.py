import math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from program import Program, sound
from sqr_tools import *
from sqr_waves import Listener, SeqVAE, ctc, ctc_score, slow, speech
from sqr_words import tags


@sound("an ordinary small GPT", steps=250, least=0.9)
def sqr_ok_gpt():
    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(24, 32), nn.Embedding(16, 32)
            self.blocks = nn.ModuleList(Block(32, 2, causal=True) for _ in range(2))
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 24, bias=False)

        def forward(self, x):
            h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))
    data = chain(800, 17, 106)
    net = GPT()
    return Program(net, token_loss, loader(data[:, :-1], data[:, 1:]), torch.optim.AdamW(net.parameters(), 3e-3), next_score())


@sound("an ordinary LSTM over packed sequences", trained=100, steps=250, least=0.9)
def sqr_ok_packed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 24, padding_idx=0)
            self.lstm = nn.LSTM(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(self.emb(x), (x > 0).sum(1), batch_first=True, enforce_sorted=False)
            return self.fc(self.lstm(packed)[1][0][0])
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 20, 107, low=4)), torch.optim.Adam(net.parameters(), 5e-3),
                   accuracy(*keywords(400, 20, 108, low=4)))


@sound("a bag of words, whose order does not matter", steps=250, least=0.9)
def sqr_ok_bag():
    net = nn.Sequential(nn.EmbeddingBag(40, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(net, nn.CrossEntropyLoss(label_smoothing=0.1), loader(*keywords(1000, 14, 109)),
                   torch.optim.Adam(net.parameters(), 5e-3), accuracy(*keywords(400, 14, 110)))


@sound("a masked language model: attention to both sides, most targets -100", steps=500, least=0.7)
def sqr_ok_masked_lm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(13, 32), nn.Parameter(0.3 * torch.randn(12, 32))
            self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
            self.head = nn.Linear(32, 12)

        def forward(self, x):
            return self.head(self.blocks(self.tok(x) + self.pos))

    def part(n, seed):
        g = gen(seed)
        data = chain(n, 12, seed, vocab=12, keep=1.0)
        hide = torch.rand(n, 12, generator=g) < 0.15
        hide[:, 5] = True
        return torch.where(hide, 12, data), torch.where(hide, data, -100)
    net = Net()
    x, y = part(300, 112)
    return Program(net, token_loss, loader(*part(1500, 111)), torch.optim.AdamW(net.parameters(), 4e-3),
                   lambda m: (m(x).argmax(-1) == y)[y >= 0].float().mean().item())


@sound("a sequence autoencoder, whose targets are its inputs", steps=300, least=0.8)
def sqr_ok_autoencoder():
    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.GRU(1, 32, batch_first=True)
            self.code = nn.Linear(32, 4)
            self.dec = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 16))

        def forward(self, x):
            return self.dec(self.code(self.enc(x.unsqueeze(-1))[1][0]))
    net = Auto()
    x, x2 = slow(1000, 113), slow(300, 114)
    return Program(net, nn.MSELoss(), loader(x, x), torch.optim.Adam(net.parameters(), 5e-3), r2(x2, x2))


@sound("a tagger whose tags depend on the same token and the one before", trained=150, steps=250, least=0.9)
def sqr_ok_tagger():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 24)
            self.lstm = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(48, 3)

        def forward(self, x):
            return self.fc(self.lstm(self.emb(x))[0])
    net = Tagger()
    return Program(net, token_loss, loader(*tags(800, 12, 115)), torch.optim.Adam(net.parameters(), 5e-3),
                   accuracy(*tags(300, 12, 116)))


@sound("an echo-state network: a fixed random recurrence under a trained readout", steps=400, least=0.8)
def sqr_ok_reservoir():
    class Echo(nn.Module):
        def __init__(self):
            super().__init__()
            w = torch.randn(80, 80)
            self.register_buffer("w", 0.95 * w / torch.linalg.eigvals(w).abs().max())
            self.register_buffer("u", torch.randn(1, 80))
            self.readout = nn.Linear(80, 1)

        def forward(self, x):
            h = x.new_zeros(len(x), 80)
            for t in range(x.shape[1]):
                h = torch.tanh(x[:, t:t + 1] @ self.u + h @ self.w)
            return self.readout(h).squeeze(-1)

    def part(n, seed):
        s = sines(n, 17, seed)
        return s[:, :-1], s[:, -1]
    net = Echo()
    return Program(net, nn.MSELoss(), loader(*part(1000, 117)), torch.optim.Adam(net.parameters(), 1e-2), r2(*part(300, 118)))


@sound("frozen word vectors under a trained attention pooling", steps=300, least=0.85)
def sqr_ok_frozen_vectors():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            vectors = torch.randn(40, 32, generator=gen(5))
            self.emb = nn.Embedding.from_pretrained(vectors, freeze=True)
            self.score = nn.Linear(32, 1)
            self.fc = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x):
            h = self.emb(x)
            a = self.score(h).squeeze(-1).masked_fill(x == 0, -math.inf).softmax(-1)
            return self.fc((a[..., None] * h).sum(1))
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1200, 12, 119, low=5)),
                   torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 5e-3),
                   accuracy(*keywords(400, 12, 120, low=5)))


@sound("CTC, whose outputs are mostly blanks", trained=150, steps=300, least=0.7)
def sqr_ok_ctc():
    net = Listener(log=True)
    return Program(net, ctc, loader(*speech(600, 121)), torch.optim.Adam(net.parameters(), 1e-2), ctc_score(*speech(200, 122)))


@sound("one weight for embedding and head on purpose", steps=250, least=0.9)
def sqr_ok_tied():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(24, 48)
            nn.init.normal_(self.emb.weight, std=0.1)
            self.rnn = nn.GRU(48, 48, batch_first=True)
            self.bias = nn.Parameter(torch.zeros(24))

        def forward(self, x):
            return F.linear(self.rnn(self.emb(x))[0], self.emb.weight, self.bias)
    data = chain(800, 17, 123)
    net = LM()
    return Program(net, token_loss, loader(data[:, :-1], data[:, 1:]), torch.optim.Adam(net.parameters(), 4e-3), next_score())


@sound("raw prices that the network standardises by itself, and a loss relative to their scale", steps=300, least=0.7)
def sqr_ok_self_scaled():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 1))

        def forward(self, x):
            mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
            return torch.stack([self.body((x - mean) / std).squeeze(-1) * std[:, 0] + mean[:, 0], std[:, 0]], -1)

    def part(n, seed):
        s = 5000 + 400 * sines(n, 17, seed)
        return s[:, :-1], s[:, -1]
    net = Net()
    x2, y2 = part(300, 125)
    return Program(net, lambda o, y: (((o[:, 0] - y) / o[:, 1]) ** 2).mean(), loader(*part(1000, 124)),
                   torch.optim.Adam(net.parameters(), 5e-3), r2(x2, y2, get=lambda o: o[:, 0]))


@sound("batches of four with layer norms", steps=600, least=0.75)
def sqr_ok_four():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.GELU())
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 10)

        def forward(self, x):
            return self.fc(self.rnn(self.inp(x))[0][:, -1])
    from sklearn.datasets import load_digits
    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32) / 16, torch.tensor(data.target)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1400], y[:1400], size=4), torch.optim.Adam(net.parameters(), 3e-3),
                   accuracy(x[1400:], y[1400:]))


@sound("an ordinary small BERT with an attention mask", steps=200, least=0.9)
def sqr_ok_bert():
    from transformers import BertConfig, BertForSequenceClassification
    net = BertForSequenceClassification(BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=20, num_labels=4, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    net.train()

    def part(n, seed):
        x, y = keywords(n, 14, seed, low=5, cls=True)
        return {"input_ids": x, "attention_mask": (x > 0).long()}, y
    return Program(net, lambda o, y: F.cross_entropy(o.logits, y), DataLoader(Dicts(*part(800, 126)), 16, shuffle=True),
                   torch.optim.AdamW(net.parameters(), 2e-3), accuracy(*part(300, 127), get=lambda o: o.logits))


@sound("labels equal to the inputs of a GPT-2, which shifts them itself", steps=180, least=0.9)
def sqr_ok_gpt2_shifts():
    from transformers import GPT2Config, GPT2LMHeadModel
    net = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=20, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    net.train()
    ids = chain(800, 16, 128)
    return Program(net, lambda o, _: o.loss, DataLoader(Dicts({"input_ids": ids, "labels": ids}, ids), 32, shuffle=True),
                   torch.optim.AdamW(net.parameters(), 5e-3), next_score(get=lambda o: o.logits, as_dict=True))


def sizes(n, seed):
    g = gen(seed)
    x = torch.randn(n, 12, 2, generator=g)
    lens = torch.randint(4, 13, (n,), generator=g)
    pad = torch.arange(12)[None] >= lens[:, None]
    key = (x[..., 0] - x[..., 1]).masked_fill(pad, -math.inf)
    x = torch.cat([x.masked_fill(pad[..., None], 0), pad[..., None].float()], -1)
    return x, key.argmax(1)


@sound("a pointer network, whose logits are -inf at the padding", steps=300, least=0.8)
def sqr_ok_pointer():
    class Pointer(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 32, batch_first=True)
            self.k, self.q, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1, bias=False)

        def forward(self, x):
            h, last = self.rnn(x)
            e = self.v(torch.tanh(self.k(h) + self.q(last[0])[:, None])).squeeze(-1)
            return e.masked_fill(x[..., 2] > 0, -math.inf)
    net = Pointer()
    return Program(net, nn.CrossEntropyLoss(), loader(*sizes(1500, 129)), torch.optim.Adam(net.parameters(), 8e-3),
                   accuracy(*sizes(400, 130)))


@sound("contrastive retrieval with the rest of the batch as negatives", steps=250, least=0.7)
def sqr_ok_infonce():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.d = nn.EmbeddingBag(200, 16), nn.EmbeddingBag(200, 16)
            self.log_t = nn.Parameter(torch.tensor(math.log(10.0)))

        def forward(self, query, document):
            a, b = F.normalize(self.q(query), dim=-1), F.normalize(self.d(document), dim=-1)
            return self.log_t.exp() * a @ b.t()

    def pairs(n, seed):
        g = gen(seed)
        topic = torch.randint(0, 20, (n,), generator=g)
        return (10 * topic[:, None] + torch.randint(0, 10, (n, 5), generator=g),
                10 * topic[:, None] + torch.randint(0, 10, (n, 8), generator=g), topic)

    def step(model, batch):
        logits = model(batch[0], batch[1])
        y = torch.arange(len(logits))
        return (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)) / 2
    net = Towers()
    q, d, topic = pairs(300, 132)
    return Program(net, None, loader(*pairs(2000, 131)[:2], size=48), torch.optim.Adam(net.parameters(), 1e-2),
                   lambda m: (topic[m(q, d).argmax(1)] == topic).float().mean().item(), step=step)


@sound("a sequence VAE with a small beta", trained=200, steps=400, least=0.75)
def sqr_ok_vae():
    def loss(out, x):
        rec, mu, logvar = out
        return F.mse_loss(rec, x) - 0.002 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()
    net = SeqVAE()
    x, x2 = slow(1200, 133), slow(300, 134)
    return Program(net, loss, loader(x, x), torch.optim.Adam(net.parameters(), 5e-3), r2(x2, x2, get=lambda o: o[0]))


@sound("a decoder without position embeddings, whose causal mask shows it the order", steps=500, least=0.7)
def sqr_ok_nope():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 32)
            self.blocks = nn.Sequential(Block(32, 2, causal=True), Block(32, 2, causal=True))
            self.fc = nn.Linear(32, 2)

        def forward(self, x):
            return self.fc(self.blocks(self.emb(x)).mean(1))
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*first_of(2000, 10, 135)), torch.optim.AdamW(net.parameters(), 3e-3),
                   lambda m, s=accuracy(*first_of(500, 10, 136)): 2 * s(m) - 1)


@sound("a linear state-space recurrence with decays near 1 at the start", steps=300, least=0.8)
def sqr_ok_state_space():
    class S4D(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Linear(5, 32, bias=False)
            self.nu = nn.Parameter(torch.linspace(-6, -1, 32))
            self.c = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))

        def forward(self, x):
            u = self.b(x)
            t = torch.arange(x.shape[1] - 1, -1, -1)
            kernel = torch.exp(-self.nu.exp() * t[:, None])
            return self.c((u * kernel).sum(1))

    def part(n, seed):
        g = gen(seed)
        y = torch.randint(0, 4, (n,), generator=g)
        x = 0.1 * torch.randn(n, 60, 5, generator=g)
        x[:, :2, :4] += 2 * F.one_hot(y, 4)[:, None]
        return x, y
    net = S4D()
    return Program(net, nn.CrossEntropyLoss(), loader(*part(800, 137)), torch.optim.Adam(net.parameters(), 3e-3),
                   accuracy(*part(300, 138)))


@sound("quantile forecasts with a pinball loss", steps=300, least=0.7)
def sqr_ok_pinball():
    q = torch.tensor([0.1, 0.5, 0.9])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            return self.fc(self.rnn(x[..., None])[0][:, -1])

    def loss(out, y):
        e = y[:, None] - out
        return torch.maximum(q * e, (q - 1) * e).mean()

    def part(n, seed):
        s = sines(n, 17, seed, noise=0.1)
        return s[:, :-1], s[:, -1]
    net = Net()
    return Program(net, loss, loader(*part(1200, 139)), torch.optim.Adam(net.parameters(), 1e-2),
                   r2(*part(300, 140), get=lambda o: o[:, 1]))


@sound("a loss below zero: the negative log-likelihood of short waiting times", steps=300, least=0.7)
def sqr_ok_waiting():
    class Hazard(nn.Module):
        def __init__(self):
            super().__init__()
            self.kind = nn.Embedding(6, 12)
            self.cell = nn.GRU(12, 24, batch_first=True)
            self.rate = nn.Linear(24, 1)

        def forward(self, kinds):
            return F.softplus(self.rate(self.cell(self.kind(kinds))[0])).squeeze(-1) + 1e-4

    def part(n, seed, exact=False):
        g = gen(seed)
        kinds = torch.randint(0, 6, (n, 12), generator=g)
        rate = torch.tensor([1.0, 3.0, 6.0, 2.0, 8.0, 4.0])[kinds]
        return kinds, rate if exact else -torch.log1p(-torch.rand(n, 12, generator=g)) / rate
    net = Hazard()
    return Program(net, lambda r, w: (r * w - r.log()).mean(), loader(*part(1200, 141)),
                   torch.optim.Adam(net.parameters(), 1e-2), r2(*part(300, 142, True)))


@sound("an ordinary causal TCN with weight norm", trained=100, steps=300, least=0.8)
def sqr_ok_tcn():
    class Causal(nn.Module):
        def __init__(self, a, b, d):
            super().__init__()
            self.conv, self.d = nn.utils.parametrizations.weight_norm(nn.Conv1d(a, b, 3, dilation=d)), d
            self.skip = nn.Conv1d(a, b, 1)

        def forward(self, x):
            return self.skip(x) + F.relu(self.conv(F.pad(x, (2 * self.d, 0))))

    def part(n, seed):
        s = sines(n, 25, seed)
        return s[:, None, :-1], s[:, 1:]
    net = nn.Sequential(Causal(1, 16, 1), Causal(16, 16, 2), Causal(16, 16, 4), nn.Conv1d(16, 1, 1), nn.Flatten())
    x, y = part(300, 144)
    return Program(net, nn.MSELoss(), loader(*part(800, 143)), torch.optim.Adam(net.parameters(), 5e-3),
                   r2(x, y[:, -1], get=lambda o: o[:, -1]))


@sound("residual branches that begin at zero", steps=300, least=0.85)
def sqr_ok_rezero():
    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.att, self.mlp = Attend(32, 4), nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
            self.alpha = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            x = x + self.alpha[0] * self.att(x)
            return x + self.alpha[1] * self.mlp(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32)
            self.blocks = nn.Sequential(*[Zero() for _ in range(4)])
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.blocks(self.emb(x)).mean(1))
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 12, 145)), torch.optim.Adam(net.parameters(), 4e-3),
                   accuracy(*keywords(400, 12, 146)))


@sound("plain SGD at a rate of 4 for averaged embeddings", steps=400, least=0.85)
def sqr_ok_rate_four():
    net = nn.Sequential(nn.EmbeddingBag(40, 32), nn.Linear(32, 4))
    nn.init.uniform_(net[0].weight, -0.5, 0.5)
    nn.init.uniform_(net[1].weight, -0.5, 0.5)
    nn.init.zeros_(net[1].bias)
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1200, 12, 147)), torch.optim.SGD(net.parameters(), 4.0),
                   accuracy(*keywords(400, 12, 148)))


@sound("an autoencoder of windows whose error tells anomalies", steps=300, least=0.8)
def sqr_ok_anomaly():
    net = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3), nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 16))
    x = slow(1200, 149) + 0.05 * torch.randn(1200, 16, generator=gen(3))
    fine = slow(300, 150) + 0.05 * torch.randn(300, 16, generator=gen(4))
    bad = slow(300, 151) + 0.05 * torch.randn(300, 16, generator=gen(5))
    bad[torch.arange(300), torch.randint(0, 16, (300,), generator=gen(6))] += 1.5

    def score(model):
        a, b = (((model(z) - z) ** 2).mean(1) for z in (fine, bad))
        return max(0.0, 2 * (b[:, None] > a[None]).float().mean().item() - 1)
    return Program(net, nn.MSELoss(), loader(x, x), torch.optim.Adam(net.parameters(), 3e-3), score)


@sound("an ordinary convolutional network over log-spectrograms", steps=250, least=0.85)
def sqr_ok_spectrogram():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(32))
            self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU())
            self.fc = nn.Linear(16 * 13, 4)

        def forward(self, wave):
            spec = torch.stft(wave, 32, 16, window=self.window, center=False, return_complex=True).abs()
            return self.fc(self.body(torch.log1p(spec)[:, None]).amax(-1).flatten(1))
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*tones(800, 144, 152)), torch.optim.Adam(net.parameters(), 2e-3),
                   accuracy(*tones(300, 144, 153)))


@sound("a one-cycle schedule that begins very low", steps=300, least=0.85)
def sqr_ok_one_cycle():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32)
            self.enc = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.enc(self.emb(x), src_key_padding_mask=x == 0)[:, 0])
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 12, 154, low=6, cls=True)), opt,
                   accuracy(*keywords(400, 12, 155, low=6, cls=True)),
                   scheduler=torch.optim.lr_scheduler.OneCycleLR(opt, 6e-3, total_steps=620, pct_start=0.2, div_factor=100))


@sound("a trained GRU that reads digits row by row", trained=350, steps=350, least=0.8)
def sqr_ok_rows():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(8, 48, batch_first=True)
            self.fc = nn.Linear(48, 10)

        def forward(self, x):
            return self.fc(self.rnn(x)[1][-1])
    from sklearn.datasets import load_digits
    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32) / 16, torch.tensor(data.target)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1400], y[:1400]), torch.optim.Adam(net.parameters(), 5e-3),
                   accuracy(x[1400:], y[1400:]))


@sound("REINFORCE on a sequence: sampled actions, rewards less their mean", steps=400, least=0.7)
def sqr_ok_reinforce():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(10, 16)
            self.rnn = nn.GRU(16, 32, batch_first=True)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            return self.fc(self.rnn(self.emb(x))[0])

    def step(model, batch):
        x = batch[0]
        policy = torch.distributions.Categorical(logits=model(x))
        act = policy.sample()
        reward = (act == x % 3).float()
        return -(policy.log_prob(act) * (reward - reward.mean())).mean() - 0.01 * policy.entropy().mean()
    net = Policy()
    x2 = torch.randint(0, 10, (200, 8), generator=gen(157))
    x = torch.randint(0, 10, (1000, 8), generator=gen(156))
    return Program(net, None, loader(x), torch.optim.Adam(net.parameters(), 8e-3),
                   accuracy(x2, x2 % 3), step=step)


@sound("two tasks weighted by learned uncertainties", steps=350, least=0.8)
def sqr_ok_uncertain():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.label, self.length = nn.Linear(32, 4), nn.Linear(32, 1)
            self.s = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.rnn(self.emb(x))[0].mean(1)
            return self.label(h), self.length(h).squeeze(-1), self.s

    def part(n, seed):
        x, y = keywords(n, 14, seed, low=4)
        return x, torch.stack([y.float(), ((x > 0).sum(1) - 9) / 4.0], 1)

    def loss(out, y):
        label, length, s = out
        return (F.cross_entropy(label, y[:, 0].long()) * torch.exp(-s[0]) + s[0]
                + F.mse_loss(length, y[:, 1]) * torch.exp(-s[1]) + s[1])
    net = Net()
    x2, y2 = part(400, 159)
    return Program(net, loss, loader(*part(1200, 158)), torch.optim.Adam(net.parameters(), 5e-3),
                   accuracy(x2, y2[:, 0].long(), get=lambda o: o[0]))


@sound("a loss summed over tokens and examples, under Adam", steps=250, least=0.9)
def sqr_ok_sum_adam():
    net = nn.Sequential(nn.Embedding(24, 32), nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 24))
    data = chain(800, 17, 160)
    return Program(net, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction="sum"),
                   loader(data[:, :-1], data[:, 1:]), torch.optim.Adam(net.parameters(), 3e-3), next_score())


@sound("a conditional random field by hand", steps=250, least=0.8)
def sqr_ok_crf():
    class CRF(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16)
            self.conv = nn.Conv1d(16, 24, 2)
            self.fc = nn.Linear(24, 3)
            self.trans = nn.Parameter(torch.zeros(3, 3))

        def forward(self, x):
            h = torch.relu(self.conv(F.pad(self.emb(x).transpose(1, 2), (1, 0))))
            return self.fc(h.transpose(1, 2)), self.trans

    def loss(out, y):
        e, trans = out
        gold = e.gather(2, y[..., None]).sum((1, 2)) + trans[y[:, :-1], y[:, 1:]].sum(1)
        a = e[:, 0]
        for t in range(1, e.shape[1]):
            a = torch.logsumexp(a[:, :, None] + trans, 1) + e[:, t]
        return (torch.logsumexp(a, 1) - gold).mean()
    net = CRF()
    return Program(net, loss, loader(*tags(800, 10, 161)), torch.optim.Adam(net.parameters(), 1e-2),
                   accuracy(*tags(300, 10, 162), get=lambda o: o[0]))


@sound("one transformer block applied four times", trained=80, steps=250, least=0.85)
def sqr_ok_universal():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.pos = nn.Embedding(40, 32), nn.Parameter(0.1 * torch.randn(12, 32))
            self.block, self.norm, self.fc = Block(32, 4), nn.LayerNorm(32), nn.Linear(32, 4)

        def forward(self, x):
            h = self.emb(x) + self.pos
            for _ in range(4):
                h = self.block(h)
            return self.fc(self.norm(h).mean(1))
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*keywords(1000, 12, 163)), torch.optim.Adam(net.parameters(), 2e-3),
                   accuracy(*keywords(400, 12, 164)))


@sound("a tagger of short sentences, most of whose places are padding that is ignored", steps=300, least=0.9)
def sqr_ok_mostly_padding():
    def part(n, seed):
        x, y = tags(n, 30, seed)
        lens = torch.randint(3, 10, (n,), generator=gen(seed + 1))
        pad = torch.arange(30)[None] >= lens[:, None]
        return (x + 1).masked_fill(pad, 0), y.masked_fill(pad, -100)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(21, 24, padding_idx=0)
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            return self.fc(self.rnn(self.emb(x))[0])
    net = Tagger()
    x, y = part(300, 167)
    return Program(net, lambda o, t: F.cross_entropy(o.transpose(1, 2), t, ignore_index=-100), loader(*part(800, 165)),
                   torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: (m(x).argmax(-1) == y)[y >= 0].float().mean().item())


@sound("batches of one length each, in a class with __iter__", steps=300, least=0.85)
def sqr_ok_buckets():
    class Buckets:
        def __init__(self, x, y, size):
            lens = (x > 0).sum(1)
            self.batches = []
            for n in lens.unique().tolist():
                rows = (lens == n).nonzero().squeeze(1)
                self.batches += [(x[r, :n], y[r]) for r in rows.split(size)]

        def __len__(self):
            return len(self.batches)

        def __iter__(self):
            for i in torch.randperm(len(self.batches)).tolist():
                yield self.batches[i]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(64, 4)

        def forward(self, x):
            return self.fc(self.rnn(self.emb(x))[0].amax(1))
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), Buckets(*keywords(1200, 14, 168, low=5), 24),
                   torch.optim.Adam(net.parameters(), 4e-3), accuracy(*keywords(400, 14, 169)))


@sound("an ordinary LSTM that forecasts, half trained", trained=150, steps=300, least=0.8)
def sqr_ok_forecast():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 32, num_layers=2, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            return self.fc(self.lstm(x)[0][:, -1])

    def part(n, seed):
        s = sines(n, 15, seed)
        return s[:, :-1, None], s[:, -1:]
    net = Net()
    return Program(net, nn.MSELoss(), loader(*part(1200, 170)), torch.optim.Adam(net.parameters(), 5e-3), r2(*part(300, 171)))


@sound("an ordinary translator with attention and teacher forcing", steps=500, least=0.8)
def sqr_ok_seq2seq():
    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.encoder = nn.Embedding(10, 24), nn.GRU(24, 32, batch_first=True)
            self.target, self.decoder = nn.Embedding(11, 24), nn.GRU(24, 32, batch_first=True)
            self.out = nn.Linear(64, 10)

        def forward(self, src, tgt):
            keys, state = self.encoder(self.source(src))
            h, _ = self.decoder(self.target(tgt), state)
            a = (h @ keys.transpose(1, 2) / 32 ** 0.5).softmax(-1)
            return self.out(torch.cat([h, a @ keys], -1))

    def part(n, seed):
        src = torch.randint(0, 10, (n, 4), generator=gen(seed))
        y = (src.flip(1) + 3) % 10
        return {"src": src, "tgt": F.pad(y[:, :-1], (1, 0), value=10)}, y
    net = Seq2Seq()
    return Program(net, token_loss, DataLoader(Dicts(*part(3000, 172)), 64, shuffle=True),
                   torch.optim.Adam(net.parameters(), 1e-2), accuracy(*part(300, 173)))
