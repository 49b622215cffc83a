"""Fine-tuning, adapters, distillation, several losses, models that meet new data."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from program import Program, fault, sound
from torch.utils.data import DataLoader, TensorDataset

_g = torch.Generator().manual_seed(321)
HIDDEN = torch.randn(3, 20, generator=_g) / 3**0.5
BEND = torch.randn(3, 3, generator=_g)


def sensors(n, seed=None, shift=0.0):
    """20 readings of three causes, which are returned, too."""
    g = None if seed is None else torch.Generator().manual_seed(seed)
    z = torch.randn(n, 3, generator=g) + shift
    return z @ HIDDEN + 0.1 * torch.randn(n, 20, generator=g), z


def old_label(z):
    return (z[:, 0] * z[:, 1] > 0).long() + 2 * (z[:, 2] > 0).long()


def new_label(z):
    """Another task on the same causes."""
    return (z[:, 0].abs() > 0.7).long() + (z[:, 1] + z[:, 2] > 0).long()


def accuracy(x, y, classes):
    def score(model):
        out = model(x)
        out = out[0] if isinstance(out, tuple) else out
        return max(0.0, ((out.argmax(1) == y).float().mean().item() - 1 / classes) / (1 - 1 / classes))

    return score


def new_score(classes=3):
    x, z = sensors(1000, 8)
    return accuracy(x, new_label(z), classes)


class Backbone(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.fc1 = nn.Linear(20, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, x):
        return F.relu(self.fc2(F.relu(self.fc1(x))))


class Classifier(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(96, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(model, label, steps=200, lr=3e-3, change=lambda x: x):
    """Pretraining."""
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        x, z = sensors(128)
        opt.zero_grad()
        F.cross_entropy(model(change(x)), label(z)).backward()
        opt.step()
    opt.zero_grad()
    return model


def new_loader(n=3000, size=64):
    x, z = sensors(n)
    return DataLoader(TensorDataset(x, new_label(z)), batch_size=size, shuffle=True)


@fault(
    "the head is replaced after the optimizer was made of the parameters that were trainable then",
    rules=["no-gradient", "loss-not-decreasing"],
    layers=["head"],
    fails=True,
    steps=400,
)
def head_after_optimizer(is_faulty):
    model = fit(Classifier(), old_label)
    for p in model.backbone.parameters():
        p.requires_grad = False
    if is_faulty:
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        model.head = nn.Linear(96, 3)
    else:
        model.head = nn.Linear(96, 3)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    return Program(model, nn.CrossEntropyLoss(), new_loader(), optimizer, new_score())


class LoRA(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0, start_at_zero=False):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        if not start_at_zero:
            nn.init.kaiming_uniform_(self.A, a=5**0.5)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.A.T @ self.B.T)


def with_lora(**options):
    model = fit(Classifier(3), lambda z: (z[:, 0] > 0).long() + (z[:, 1] > 0.5).long())
    model.head.requires_grad_(False)
    model.backbone.fc1 = LoRA(model.backbone.fc1, **options)
    model.backbone.fc2 = LoRA(model.backbone.fc2, **options)
    model.head = LoRA(model.head, **options)
    return model


@fault(
    "both factors of the adapters start at 0, and each is the other's gradient",
    rules=["no-gradient", "bad-initialisation", "symmetric-initialisation", "loss-not-decreasing"],
    layers=["backbone.fc1", "backbone.fc2", "head"],
    fails=True,
    steps=500,
)
def lora_both_zero(is_faulty):
    model = with_lora(start_at_zero=is_faulty)

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)

    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return Program(model, None, new_loader(), opt, new_score(), step=step)


class Teacher:
    def __init__(self):
        self.net = fit(Classifier(), old_label, steps=150).eval().requires_grad_(False)

    def __call__(self, x):
        return self.net(x) / 2


def agreement(teacher):
    x, _ = sensors(1000, 12)
    with torch.no_grad():
        want = teacher(x).softmax(1)
        usual = (want - want.mean(0)).abs().sum(1).mean()

    def score(model):
        return max(0.0, 1 - ((model(x).softmax(1) - want).abs().sum(1).mean() / usual).item())

    return score


def small_student():
    return nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))


@fault(
    "KLDivLoss gets the student's probabilities where it takes their logarithm",
    rules=["output-loss-mismatch"],
    fails=False,
    steps=500,
)
def distil_probabilities(is_faulty):
    teacher = Teacher()
    student = small_student()
    kl = nn.KLDivLoss(reduction="batchmean")

    def loss(out, want):
        return kl(out.softmax(-1) if is_faulty else out.log_softmax(-1), want)

    x, _ = sensors(4000)
    loader = DataLoader(TensorDataset(x, teacher(x).softmax(-1)), batch_size=64, shuffle=True)
    return Program(student, loss, loader, torch.optim.Adam(student.parameters(), lr=2e-3), agreement(teacher))


@fault(
    "what the teacher says was stored in the order of a shuffling loader, and is paired with inputs in file order",
    rules=["labels-unrelated", "output-loss-mismatch", "loss-not-decreasing"],
    fails=True,
    steps=500,
)
def distil_stored_shuffled(is_faulty):
    teacher = Teacher()
    student = small_student()
    x, _ = sensors(4000)
    seen = DataLoader(TensorDataset(x), batch_size=200, shuffle=is_faulty)
    stored = torch.cat([teacher(b) for (b,) in seen])

    def step(model, batch):
        x, logits = batch
        return F.kl_div(model(x).log_softmax(1), logits.log_softmax(1), reduction="batchmean", log_target=True)

    loader = DataLoader(TensorDataset(x, stored), batch_size=64, shuffle=True)
    return Program(
        student, None, loader, torch.optim.Adam(student.parameters(), lr=2e-3), agreement(teacher), step=step
    )


@fault(
    "fine-tuning in pure bfloat16 at a small rate: weights are rounded back to what they were",
    rules=["lost-updates", "rounding-error", "learning-rate-too-low"],
    fails=False,
    steps=600,
)
def bf16_fine_tuning(is_faulty):
    dtype = torch.bfloat16 if is_faulty else torch.float32
    model = fit(Classifier(), old_label, steps=100)
    model.head = nn.Linear(96, 3)
    model.to(dtype)

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x.to(dtype)).float(), y)

    score = new_score()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    return Program(model, None, new_loader(), opt, lambda m: score(lambda x: m(x.to(dtype)).float()), step=step)


class WithNorm(nn.Module):
    def __init__(self, classes=4, norm=nn.BatchNorm1d, **options):
        super().__init__()
        self.stem = nn.Linear(20, 64)
        self.bn1 = norm(64, **options)
        self.mid = nn.Linear(64, 64)
        self.bn2 = norm(64, **options)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.stem(x)))
        x = F.relu(self.bn2(self.mid(x)))
        return self.head(x)


def freeze_norms(model):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.eval()
    return model


@fault(
    "BatchNorm with Keras' momentum of 0.99 turned into 0.0001: what is used at test time is what it began with",
    rules=["batchnorm-mode-gap"],
    layers=["bn1", "bn2"],
    fails=True,
    steps=400,
)
def norm_hardly_updates(is_faulty):
    model = WithNorm(3, momentum=1e-4 if is_faulty else 0.1)
    x, z = sensors(3000)
    held, hz = sensors(1000, 8)

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)

    loader = DataLoader(TensorDataset(x + 1, new_label(z)), batch_size=64, shuffle=True)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Program(model, None, loader, opt, accuracy(held + 1, new_label(hz), 3), step=step)


@fault(
    "batches of two for want of memory, in a net with BatchNorm",
    rules=["small-batch-batchnorm", "batchnorm-mode-gap", "mixed-examples"],
    layers=["bn1", "bn2"],
    fails=True,
    steps=600,
)
def norm_over_two(is_faulty):
    model = WithNorm(4, nn.BatchNorm1d if is_faulty else nn.LayerNorm)
    x, z = sensors(3000)

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)

    held, hz = sensors(1000, 8)
    loader = DataLoader(TensorDataset(x, old_label(z)), batch_size=2, shuffle=True)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, None, loader, opt, accuracy(held, old_label(hz), 4), step=step)


class TwoHeads(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 24), nn.ReLU())
        self.kind = nn.Linear(24, 3)
        self.price = nn.Linear(24, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.price(h).squeeze(1)


def price(z):
    return torch.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2]


@fault(
    "one trunk for a class and for a price in full units, whose squared error is simply added to the cross-entropy",
    rules=["term-dominates", "unscaled-target"],
    layers=["price"],
    fails=False,
    steps=500,
)
def price_next_to_class(is_faulty):
    net = TwoHeads()
    unit = 300.0 if is_faulty else 1.0

    def step(model, batch):
        x, kind, cost = batch
        logits, guess = model(x)
        return F.cross_entropy(logits, kind) + F.mse_loss(guess, unit * cost)

    x, z = sensors(4000)
    loader = DataLoader(TensorDataset(x, new_label(z), price(z)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=2e-3), new_score(), step=step)


def mean_teacher(weight):
    net = Classifier(3)
    ema = copy.deepcopy(net).requires_grad_(False)

    def step(model, batch):
        x, y = batch
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.lerp_(p, 0.005)
            calm = ema(x + 0.1 * torch.randn_like(x)).softmax(1)
        out = model(x)
        return F.cross_entropy(out, y) + weight * F.mse_loss(out.softmax(1), calm)

    return Program(net, None, new_loader(), torch.optim.Adam(net.parameters(), lr=2e-3), new_score(), step=step)


# ---------------------------------------------------------------- sound


@sound("a frozen backbone and a new head", steps=400, least=0.65)
def frozen_backbone():
    model = fit(Classifier(), old_label)
    model.backbone.requires_grad_(False)
    model.head = nn.Linear(96, 3)
    return Program(
        model, nn.CrossEntropyLoss(), new_loader(), torch.optim.Adam(model.head.parameters(), lr=1e-2), new_score()
    )


@sound("adapters of low rank, of which one factor starts at 0, as it should", steps=500, least=0.7)
def lora_ordinary():
    model = with_lora()

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)

    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return Program(model, None, new_loader(), opt, new_score(), step=step)


@sound("bottleneck adapters with a last layer of 0 between frozen layers", steps=500, least=0.65)
def adapters_zero_up():
    class Adapter(nn.Module):
        def __init__(self, d, r=16):
            super().__init__()
            self.down, self.up = nn.Linear(d, r), nn.Linear(r, d)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, h):
            return h + self.up(F.gelu(self.down(h)))

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.fc1, self.fc2 = base.backbone.fc1.requires_grad_(False), base.backbone.fc2.requires_grad_(False)
            self.a1, self.a2 = Adapter(96), Adapter(96)
            self.head = nn.Linear(96, 3)

        def forward(self, x):
            h = self.a1(F.relu(self.fc1(x)))
            return self.head(self.a2(F.relu(self.fc2(h))))

    model = Adapted(fit(Classifier(), old_label))
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    return Program(model, F.cross_entropy, new_loader(), opt, new_score())


@sound("distillation at temperature 4, with the factor of 16 that goes with it, next to a loss on labels", steps=500,
       least=0.75)
def distil_warm():
    teacher = fit(Classifier(), old_label).eval().requires_grad_(False)
    student = small_student()

    def step(model, batch):
        x, y = batch
        out = model(x)
        with torch.no_grad():
            want = F.softmax(teacher(x) / 4, dim=1)
        soft = F.kl_div(F.log_softmax(out / 4, dim=1), want, reduction="batchmean") * 16
        return 0.7 * soft + 0.3 * F.cross_entropy(out, y)

    x, z = sensors(4000)
    held, hz = sensors(1000, 8)
    loader = DataLoader(TensorDataset(x, old_label(z)), batch_size=64, shuffle=True)
    return Program(
        student, None, loader, torch.optim.Adam(student.parameters(), lr=2e-3), accuracy(held, old_label(hz), 4),
        step=step,
    )


@sound("fine-tuning on data like the old with the BatchNorms held, at a small rate", steps=400, least=0.7)
def frozen_norms_same_site():
    model = freeze_norms(fit(WithNorm(), old_label))
    x, z = sensors(2000, shift=0.1)
    held, hz = sensors(1000, 8, shift=0.1)
    loader = DataLoader(TensorDataset(x, old_label(z)), batch_size=64, shuffle=True)
    opt = torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader, opt, accuracy(held, old_label(hz), 4))


@sound("a half trained net goes on with labels of another meaning: its loss is high at first", trained=0, steps=400,
       least=0.7)
def new_labels_for_old_net():
    model = fit(Classifier(3), lambda z: (z[:, 0] > 0).long() + (z[:, 1] > 0.5).long(), steps=120)

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)

    return Program(model, None, new_loader(), torch.optim.Adam(model.parameters(), lr=2e-3), new_score(), step=step)


@sound("two tasks weighted by learned uncertainties, which are parameters of no layer", steps=500, least=0.7)
def uncertainty_weights():
    net = TwoHeads()
    net.log_var = nn.Parameter(torch.zeros(2))

    def step(model, batch):
        x, kind, cost = batch
        logits, guess = model(x)
        losses = torch.stack([F.cross_entropy(logits, kind), 0.5 * F.mse_loss(guess, cost)])
        return (losses * torch.exp(-model.log_var) + 0.5 * model.log_var).sum()

    x, z = sensors(4000)
    loader = DataLoader(TensorDataset(x, new_label(z), price(z)), batch_size=64, shuffle=True)
    return Program(net, None, loader, torch.optim.Adam(net.parameters(), lr=3e-3), new_score(), step=step)


@sound("a mean teacher next to the loss on labels", steps=500, least=0.7)
def mean_teacher_ordinary():
    return mean_teacher(1.0)


@sound("a classifier that is all but trained, with mixup", trained=400, steps=500, least=0.7)
def mixup_late():
    net = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 3))

    def step(model, batch):
        x, y = batch
        lam = torch.distributions.Beta(0.3, 0.3).sample()
        order = torch.randperm(len(x))
        out = model(lam * x + (1 - lam) * x[order])
        return lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[order])

    return Program(net, None, new_loader(4000), torch.optim.AdamW(net.parameters(), lr=3e-3), new_score(), step=step)
