"""Faults of networks on images: pixels as they are, probabilities and their logarithms, frozen layers, BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, accuracy_one_by_one, case, named, program


@case(3, "784-784-50-10 on MNIST 0..255, sigmoid outputs under cross-entropy, SGD at 1e-4",
      rules=["unscaled-input", "output-loss-mismatch"], layers=["", "fc1", "out", "sigmoid"], steps=400)  # fmt: skip
def mnist_raw(faulty: bool) -> Program:
    digits = data.mnist(scaled=not faulty)
    model = named(flatten=nn.Flatten(), fc1=nn.Linear(784, 784), act1=nn.ReLU(), fc2=nn.Linear(784, 50),
                  act2=nn.ReLU(), out=nn.Linear(50, 10), **({"sigmoid": nn.Sigmoid()} if faulty else {}))  # fmt: skip
    return program(model, nn.CrossEntropyLoss(), digits, 64, SGD, accuracy(digits), lr=1e-4 if faulty else 0.1)


def log_of_probabilities(p: Tensor, y: Tensor) -> Tensor:
    """As in many a tutorial; 0 · log 0 is NaN."""
    return -(F.one_hot(y, 10) * p.log()).sum(1).mean()


@case(6, "CNN on MNIST 0..255 whose probabilities go through a logarithm with a zero in them",
      rules=["non-finite", "output-loss-mismatch", "unscaled-input"], layers=["", "conv1", "out", "softmax"],
      steps=200)  # fmt: skip
def log_of_zero(faulty: bool) -> Program:
    digits = data.mnist(scaled=not faulty)
    model = named(conv1=nn.Conv2d(1, 8, 5, padding=2), act1=nn.ReLU(), pool1=nn.MaxPool2d(2),
                  conv2=nn.Conv2d(8, 16, 5, padding=2), act2=nn.ReLU(), pool2=nn.MaxPool2d(2), flatten=nn.Flatten(),
                  fc1=nn.Linear(784, 64), act3=nn.ReLU(), out=nn.Linear(64, 10),
                  **({"softmax": nn.Softmax(1)} if faulty else {}))  # fmt: skip
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.trunc_normal_(layer.weight, std=0.1)
            nn.init.constant_(layer.bias, 0.1)
    loss = log_of_probabilities if faulty else nn.CrossEntropyLoss()
    return program(model, loss, digits, 50, Adam, accuracy(digits), lr=1e-3)


def log_of_outputs(outputs: Tensor, y: Tensor) -> Tensor:
    return -(F.one_hot(y, 10) * outputs.log()).sum(1).mean()


@case(7, "784-512-10, weights from N(0, 1), the logarithm of raw outputs",
      rules=["non-finite", "output-loss-mismatch", "bad-initialisation"], layers=["", "fc1", "out"],
      steps=300)  # fmt: skip
def log_of_logits(faulty: bool) -> Program:
    digits = data.mnist(scaled=True)
    model = named(flatten=nn.Flatten(), fc1=nn.Linear(784, 512), act1=nn.ReLU(), out=nn.Linear(512, 10))
    for layer in (model.fc1, model.out):
        nn.init.normal_(layer.weight) if faulty else nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]
    loss = log_of_outputs if faulty else nn.CrossEntropyLoss()
    return program(model, loss, digits, 64, SGD, accuracy(digits), lr=0.05)


class HalfPrecision(nn.Sequential):
    """Takes images in float32 and computes in half precision, up to the loss."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.half()).float()


@case(8, "a half-precision convolution, and Adam's ε of 1e-8, which is 0 there",
      rules=["non-finite"], layers=["", "0", "3", "7", "0.weight", "0.bias"], steps=200)  # fmt: skip
def half_precision(faulty: bool) -> Program:
    digits = data.digit_images(16)
    model = HalfPrecision(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
                          nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)).half()  # fmt: skip
    eps = 1e-8 if faulty else 1e-4
    return program(model, nn.CrossEntropyLoss(), digits, 32, Adam, accuracy(digits), lr=1e-3, eps=eps)


@case(12, "CNN on CIFAR with dropout 0.8, unscaled pixels, and logits given to a loss for log-probabilities",
      rules=["output-loss-mismatch", "unscaled-input", "dropout-too-strong"],
      layers=["", "conv1", "out", "drop1", "drop2", "drop3"], steps=300)  # fmt: skip
def cifar_dropout(faulty: bool) -> Program:
    images = data.textures() if faulty else data.pictures()
    p = 0.8 if faulty else 0.1
    model = named(conv1=nn.Conv2d(3, 16, 3, padding=1), act1=nn.ReLU(), pool1=nn.MaxPool2d(2), drop1=nn.Dropout(p),
                  conv2=nn.Conv2d(16, 32, 3, padding=1), act2=nn.ReLU(), pool2=nn.MaxPool2d(2), drop2=nn.Dropout(p),
                  flatten=nn.Flatten(), fc1=nn.Linear(2048, 64), act3=nn.ReLU(), drop3=nn.Dropout(p),
                  out=nn.Linear(64, 10))  # fmt: skip
    loss = nn.NLLLoss() if faulty else nn.CrossEntropyLoss()
    return program(model, loss, images, 64, Adam, accuracy(images), lr=1e-3)


def batchnorm_cnn(widths: tuple[int, ...] = (16, 32, 32), inputs: int = 3) -> nn.Sequential:
    """Convolutions with BatchNorm, each followed by a pooling, then an average and a linear layer."""
    modules: dict[str, nn.Module] = {}
    for k, (before, width) in enumerate(zip((inputs, *widths), widths, strict=False), start=1):
        modules[f"conv{k}"] = nn.Conv2d(before, width, 3, padding=1, bias=False)
        modules[f"bn{k}"], modules[f"act{k}"] = nn.BatchNorm2d(width), nn.ReLU()
        modules[f"pool{k}"] = nn.MaxPool2d(2)
    return named(**modules, average=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), out=nn.Linear(widths[-1], 10))


@case(15, "everything but the BatchNorm layers is frozen",
      rules=["no-gradient"], layers=["", "conv1", "conv2", "conv3", "out", "conv1.weight"], steps=250)  # fmt: skip
def frozen_but_norms(faulty: bool) -> Program:
    images = data.pictures(16)
    model = batchnorm_cnn()
    if faulty:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("bn"))
    return program(model, nn.CrossEntropyLoss(), images, 64, Adam, accuracy(images), lr=3e-3)


class DeepNorms(nn.Sequential):
    """Ten dense layers with BatchNorm on digits."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = [nn.Flatten()]
        for _ in range(10):
            blocks += [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
        super().__init__(*blocks, nn.Linear(64, 10))


@case(22, "BatchNorm left in evaluation mode for training",
      rules=["batchnorm-mode-gap"], layers=["", *(str(3 * k + 2) for k in range(10))], steps=300)  # fmt: skip
def eval_mode(faulty: bool) -> Program:
    digits = data.digit_images(8)
    built = program(DeepNorms(), nn.CrossEntropyLoss(), digits, 64, SGD, accuracy(digits), lr=0.1)
    if faulty:
        built.model.eval()
    return built


@case(22, "BatchNorm over a batch of one",
      rules=["small-batch-batchnorm", "batchnorm-mode-gap"], layers=["", "bn1", "bn2", "bn3"], steps=600)  # fmt: skip
def batch_of_one(faulty: bool) -> Program:
    images = data.digit_images(8)
    model = batchnorm_cnn(inputs=1)
    return program(model, nn.CrossEntropyLoss(), images, 1 if faulty else 32, SGD, accuracy(images),
                   lr=0.01 if faulty else 0.05, momentum=0.9)  # fmt: skip


@case(27, "a softmax over the wrong dimension",
      rules=["output-loss-mismatch"], layers=["out", "softmax"], steps=300)  # fmt: skip
def wrong_dimension(faulty: bool) -> Program:
    digits = data.digit_images(8)
    model = named(flatten=nn.Flatten(), fc1=nn.Linear(64, 64), act1=nn.ReLU(), out=nn.Linear(64, 10),
                  softmax=nn.LogSoftmax(dim=0 if faulty else 1))  # fmt: skip
    return program(model, nn.NLLLoss(), digits, 32, Adam, accuracy_one_by_one(digits), lr=1e-3)


@case(28, "weight decay on the scales of BatchNorm that drives them to zero",
      rules=["weight-decay-dominates"], layers=["bn1", "bn2", "bn3", *(f"bn{k}.weight" for k in (1, 2, 3))],
      steps=300)  # fmt: skip
def decayed_scales(faulty: bool) -> Program:
    images = data.pictures(16)
    model = batchnorm_cnn()
    norms = [p for name, p in model.named_parameters() if name.startswith("bn")]
    others = [p for name, p in model.named_parameters() if not name.startswith("bn")]
    groups = [{"params": norms, "weight_decay": 2.0 if faulty else 0.0}, {"params": others, "weight_decay": 1e-4}]
    built = program(model, nn.CrossEntropyLoss(), images, 64, SGD, accuracy(images), lr=0.05)
    built.optimizer = SGD(groups, lr=0.05, momentum=0.9)
    return built
