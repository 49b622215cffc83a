"""Scale on a GPU: prices by precision, faults of precision, asserts of the device, and verdicts next to the CPU's.

    python -m benchmarks.scale_cuda --device cuda --out scale_cuda.json                  # all parts
    python -m benchmarks.scale_cuda --device cuda --out prices.json --part prices --only GPT-2
    python -m benchmarks.scale_cuda --part prices --only "ViT-B, bf" "GPT-2, bf" --tasks max_lr conditioning
    python -m benchmarks.scale_cuda --device cpu --out small.json --small                # tiny sizes, to try it

It needs torch and numpy. An entry that fails says why, and the file is written after each. Verdict cases on data of
scikit-learn need `--data FILE`, which `--write-data FILE` writes where scikit-learn is installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import wellcond as wc
from benchmarks.large_networks import (
    GPT2,
    GPT2Config,
    ResNetConfig,
    ViT,
    ViTConfig,
    cross_entropy,
    resnet50,
)
from benchmarks.precision_cases import FAULTS, SOUND, trained
from benchmarks.timing import environment

Entry = tuple[str, Callable[[], dict[str, Any]]]


# prices


class ResNet20(nn.Sequential):
    """The ResNet of CIFAR-10 with 20 layers."""

    def __init__(self, width: int = 16) -> None:
        def block(a: int, b: int, stride: int) -> nn.Module:
            return _Residual(a, b, stride)

        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        for stage in range(3):
            for i in range(3):
                before = width * 2 ** max(stage - (i == 0), 0)
                layers.append(block(before, width * 2**stage, 2 if stage and not i else 1))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


class _Residual(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
            nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b),
        )  # fmt: skip
        self.short = nn.Identity() if a == b else nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


def _images(count: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(0, classes, (count,))


def _tokens(count: int, length: int, words: int) -> tuple[Tensor, Tensor]:
    whole = torch.randint(0, words, (count, length + 1))
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def _networks(small: bool) -> dict[str, Callable[[], tuple[nn.Module, list[tuple[Tensor, Tensor]]]]]:
    """Model and two batches; small ones to try the script."""
    if small:
        gpt = GPT2Config(width=32, depth=2, heads=2, vocabulary=100, positions=32)
        vit = ViTConfig(width=32, depth=2, heads=2, image=32, patch=8, classes=10)
        return {
            "MLP": lambda: (_mlp(16), [(torch.randn(32, 16), torch.randint(0, 10, (32,))) for _ in range(2)]),
            "ResNet-20": lambda: (ResNet20(4), [_images(8, 16, 10) for _ in range(2)]),
            "ResNet-50": lambda: (resnet50(ResNetConfig((1, 1, 1, 1), 4, 10)), [_images(4, 32, 10) for _ in range(2)]),
            "ViT-B": lambda: (ViT(vit), [_images(4, 32, 10) for _ in range(2)]),
            "GPT-2": lambda: (GPT2(gpt), [_tokens(4, 16, 100) for _ in range(2)]),
        }
    return {
        "MLP": lambda: (_mlp(784), [(torch.randn(128, 784), torch.randint(0, 10, (128,))) for _ in range(8)]),
        "ResNet-20": lambda: (ResNet20(), [_images(128, 32, 10) for _ in range(8)]),
        "ResNet-50": lambda: (resnet50(ResNetConfig()), [_images(32, 224, 1000) for _ in range(4)]),
        "ViT-B": lambda: (ViT(ViTConfig()), [_images(16, 224, 1000) for _ in range(4)]),
        "GPT-2": lambda: (GPT2(GPT2Config()), [_tokens(8, 512, 50257) for _ in range(4)]),
    }


def _mlp(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


PRECISIONS: dict[str, tuple[bool, torch.dtype | None]] = {
    "float32": (False, None), "TF32": (True, None), "bfloat16": (True, torch.bfloat16),
}  # fmt: skip
"""Whether float32 products may be TF32, and the dtype of autocast."""


def _set_tf32(allowed: bool) -> None:
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


TASKS = ("diagnose", "conditioning", "max_lr", "suggest_lr")
WARM_UP, TIMED = 4, 12
"""Steps of the script itself that are taken, and of which the median is a training step."""


class Meter:
    """Seconds, u and peak memory of calls, next to those of the script's own training step."""

    def __init__(self, model: nn.Module, batches: list[tuple[Tensor, Tensor]], device: str, dtype: Any) -> None:
        self.device, self.is_cuda = device, device.startswith("cuda")
        optimizer = AdamW(model.parameters(), 1e-4)

        def step(batch: tuple[Tensor, Tensor]) -> None:
            optimizer.zero_grad()
            with torch.autocast(torch.device(device).type, dtype or torch.bfloat16, enabled=dtype is not None):
                loss = cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()

        before = {name: value.clone() for name, value in model.state_dict().items()}
        for i in range(WARM_UP):
            step(batches[i % len(batches)])
        self._reset()
        seconds = []
        for i in range(TIMED):  # one after another, as in training: no memory is freed in between
            began = time.perf_counter()
            step(batches[i % len(batches)])
            self._wait()
            seconds.append(time.perf_counter() - began)
        self.peak = self._peak()
        self.step_seconds = statistics.median(seconds)
        optimizer.zero_grad()
        model.load_state_dict(before)

    def __call__(self, function: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
        gc.collect()
        self._reset()
        began = time.perf_counter()
        result = function()
        self._wait()
        seconds, peak = time.perf_counter() - began, self._peak()
        numbers = {"seconds": seconds, "u": seconds / self.step_seconds, "peak_GiB": peak / 2**30}
        return numbers | {"peak_over_step": peak / self.peak if self.peak else None}, result

    def diagnosed(self, problem: wc.Problem, optimizer: Any, **options: Any) -> tuple[dict[str, Any], wc.Diagnosis]:
        """A diagnosis with the cost of its parts, and the highest memory until the end of each, over a step's."""
        peaks: dict[str, float] = {}

        def note(so_far: wc.Diagnosis) -> None:
            if so_far.parts:
                peaks[so_far.parts[-1].name] = round(self._peak() / max(self.peak, 1), 2)

        numbers, result = self(lambda: wc.diagnose(problem, optimizer, on_part=note, **options))
        numbers["parts"] = {p.name: [round(p.seconds, 3), p.outcome, round(p.cost.u, 1)] for p in result.parts}
        numbers["highest_over_step"] = peaks
        numbers["peak_over_step"] = max([numbers["peak_over_step"] or 0, *peaks.values()])  # a plan resets the count
        numbers["findings"] = [f"{f.severity} {f.rule} {f.layer}" for f in result.findings[:4]]
        numbers["failed"] = {str(k): v[:200] for k, v in result.failed.items()}
        return numbers, result

    def _reset(self) -> None:
        if self.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()

    def _wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self.is_cuda else 0


def prices(device: str, small: bool, _data: str | None, tasks: Collection[str] = TASKS) -> Iterator[Entry]:
    for network, make in _networks(small).items():
        for precision in PRECISIONS:
            yield f"{network}, {precision}", lambda m=make, p=precision: _priced(m, p, device, small, tasks)  # type: ignore[misc]
    yield "GPT 1.3B, bfloat16", lambda: _billion(device, small)


def _priced(
    make: Callable[[], Any], precision: str, device: str, small: bool, chosen: Collection[str]
) -> dict[str, Any]:
    allowed, dtype = PRECISIONS[precision]
    torch.manual_seed(0)
    model, batches = make()
    model, batches = model.to(device), [(x.to(device), y.to(device)) for x, y in batches]
    try:
        _set_tf32(allowed)
        meter = Meter(model, batches, device, dtype)
        row: dict[str, Any] = {
            "parameters": sum(p.numel() for p in model.parameters()), "step_seconds": meter.step_seconds,
            "step_peak_GiB": meter.peak / 2**30,
        }  # fmt: skip
        tasks: dict[str, Callable[[wc.Problem, Any], Any]] = {
            "diagnose": meter.diagnosed,
            "conditioning": lambda p, _: meter(lambda: wc.conditioning(p)),
            "max_lr": lambda p, o: meter(lambda: wc.max_lr(p, o, confidence=None, max_matvecs=10)),
            "suggest_lr": lambda p, o: meter(lambda: wc.suggest_lr(p, o, steps=100, max_steps=50 if not small else 24)),
        }
        for task, run in tasks.items():
            if task not in chosen:
                continue
            problem = wc.Problem(model, cross_entropy, batches, autocast=dtype)
            try:
                numbers, result = run(problem, AdamW(model.parameters(), 1e-4))
            except Exception as error:
                row[task] = {"error": _first_line(error)}
                continue
            notes = [*getattr(result, "notes", ()), *getattr(getattr(result, "limit", None), "notes", ())]
            numbers["notes"] = [note for note in notes if "GPU" in note]
            numbers["counted_u"] = result.cost.u if hasattr(result, "cost") else None
            row[task] = numbers
            del result
        return row
    finally:
        _set_tf32(False)
        del model, batches


def _billion(device: str, small: bool) -> dict[str, Any]:
    """GPT-3 XL: 24 layers of width 2048."""
    config = GPT2Config(width=64 if small else 2048, depth=2 if small else 24, heads=4 if small else 16)
    torch.manual_seed(0)
    with torch.device(device):
        model = GPT2(config)
    batches = [tuple(t.to(device) for t in _tokens(1, 32 if small else 512, 50257)) for _ in range(2)]
    meter = Meter(model, batches, device, torch.bfloat16)  # type: ignore[arg-type]
    problem = wc.Problem(model, cross_entropy, batches, autocast=torch.bfloat16)
    optimizer = AdamW(model.parameters(), 1e-4)
    layers = ["blocks.0", f"blocks.{config.depth - 1}"]
    numbers, result = meter.diagnosed(problem, optimizer, layers=layers)
    numbers["counted_u"] = result.cost.u
    return {
        "parameters": problem.size, "step_seconds": meter.step_seconds, "step_peak_GiB": meter.peak / 2**30,
        "diagnose": numbers,
    }  # fmt: skip


# precision


def precision(device: str, small: bool, _data: str | None) -> Iterator[Entry]:
    steps = 60 if small else 300
    for fault in FAULTS:
        yield f"fault: {fault.name}", lambda f=fault: _fault(f, device, steps)  # type: ignore[misc]
    for name, make in SOUND.items():
        yield f"sound: {name}", lambda m=make: _sound(m, device, steps)  # type: ignore[misc]


def _fault(fault: Any, device: str, steps: int) -> dict[str, Any]:
    losses = {form: trained(fault.build(device, form == "repaired"), steps) for form in ("faulty", "repaired")}
    setup = fault.build(device, False)
    findings = _findings(wc.diagnose(setup.problem(), setup.optimizer))
    repaired = fault.build(device, True)
    return losses | {
        "is_shown": losses["repaired"] < 0.9 * losses["faulty"],
        "expected": fault.rules,
        "is_right_first": bool(findings) and findings[0].split()[1] in fault.rules,
        "findings": findings,
        "findings_of_repaired": _findings(wc.diagnose(repaired.problem(), repaired.optimizer)),
    }


def _sound(make: Callable[[str], Any], device: str, steps: int) -> dict[str, Any]:
    loss = trained(make(device), steps)
    setup = make(device)
    findings = _findings(wc.diagnose(setup.problem(), setup.optimizer))
    return {"loss": loss, "is_accused": any(each.startswith("severe") for each in findings), "findings": findings}


def _findings(diagnosis: wc.Diagnosis) -> list[str]:
    return [f"{f.severity} {f.rule} {f.layer}: {f.summary[:160]}" for f in diagnosis.findings]


# asserts


class _Gathers(nn.Module):
    """Picks entries by an index of its own making, which may be too large."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        index = torch.full((len(x), 1), 9, device=x.device)
        if self.how == "gather":
            x = x + x.gather(1, index)
        elif self.how == "index":
            x = x + x[:, index[0]]
        else:
            x = x + x.index_select(1, index[0])
        result: Tensor = self.layer(x)
        return result


class _Sigmoid(nn.Module):
    """A sigmoid from -1 to 3."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = 4 * self.layer(x).sigmoid() - 1
        return result


def _assert_cases() -> dict[str, Callable[[], tuple[nn.Module, Any, Tensor, Tensor]]]:
    x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
    words = torch.randint(0, 10, (64, 6))
    plain = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))  # noqa: E731
    table = lambda: nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(48, 4))  # noqa: E731
    one_hot = lambda f, t: F.mse_loss(f, F.one_hot(t, 4).float())  # noqa: E731
    return {
        "labels from 1 to 4": lambda: (plain(), nn.CrossEntropyLoss(), x, y + 1),
        "a label of -1": lambda: (plain(), nn.CrossEntropyLoss(), x, y - 1),
        "labels out of range of NLLLoss": lambda: (
            nn.Sequential(plain(), nn.LogSoftmax(1)), nn.NLLLoss(), x, y + 1,
        ),
        "a word beyond the embedding": lambda: (table(), nn.CrossEntropyLoss(), words + 1, y),
        "a padding index of -1": lambda: (table(), nn.CrossEntropyLoss(), words - 1, y),
        "BCELoss of more than 1": lambda: (_Sigmoid(), nn.BCELoss(), x, (y % 2).float()[:, None]),
        "BCELoss of logits": lambda: (nn.Linear(8, 1), nn.BCELoss(), x, (y % 2).float()[:, None]),
        "BCELoss with targets of 2": lambda: (
            nn.Sequential(nn.Linear(8, 1), nn.Sigmoid()), nn.BCELoss(), x, (y % 3).float()[:, None],
        ),
        "one_hot of labels that are too large": lambda: (plain(), one_hot, x, y + 1),
        "gather": lambda: (_Gathers("gather"), nn.CrossEntropyLoss(), x, y),
        "an index in brackets": lambda: (_Gathers("index"), nn.CrossEntropyLoss(), x, y),
        "index_select": lambda: (_Gathers("index_select"), nn.CrossEntropyLoss(), x, y),
        "labels in float32": lambda: (plain(), nn.CrossEntropyLoss(), x, y.float()),
        "a bad label in the last batch": lambda: (
            plain(), nn.CrossEntropyLoss(), x, torch.cat([y[:-1], torch.tensor([7])]),
        ),
    }  # fmt: skip


def asserts(device: str, _small: bool, _data: str | None) -> Iterator[Entry]:
    for name, make in _assert_cases().items():
        yield name, lambda m=make: _asserted(m, device)  # type: ignore[misc]


def _asserted(make: Callable[[], Any], device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model, loss, x, y = make()
    model = model.to(device)
    batches = list(zip(x.split(16), y.split(16), strict=True))
    row: dict[str, Any] = {}
    try:
        row["findings"] = _findings(wc.diagnose(wc.Problem(model, loss, batches), AdamW(model.parameters(), 1e-3)))
    except Exception as error:
        row["error"] = _first_line(error)
    row["is_found"] = bool(row.get("findings")) or "error" in row
    alive = torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)
    row["is_alive"] = float(alive.sum()) == 512.0
    return row


# verdicts


def verdicts(device: str, _small: bool, data: str | None) -> Iterator[Entry]:
    from benchmarks.verdicts import data as of_verdicts
    from benchmarks.verdicts.cases import CASES

    if data is not None:
        stored = np.load(data)
        of_verdicts.embedded = lambda name: (  # type: ignore[assignment]
            torch.from_numpy(stored[f"{name}_x"]).float(), torch.from_numpy(stored[f"{name}_y"]),
        )  # fmt: skip
    known = json.loads((Path(__file__).parent / "results" / "verdicts_cpu.json").read_text())["results"]["cases"]
    first = {row["name"]: [f["rule"] for f in row["wellcond"]["findings"][:1]] for row in known if "wellcond" in row}
    for name, case in CASES.items():
        yield name, lambda c=case, n=name: _verdict(c, first.get(n), device)  # type: ignore[misc]


def _verdict(case: Any, stored: list[str] | None, device: str) -> dict[str, Any]:
    findings = _of_program(case, device)
    row = {"first": findings[:1], "rules": case.rules, "stored": stored}
    if findings[:1] == stored:
        return row | {"is_same": True}
    on_cpu = _of_program(case, "cpu")
    return row | {"cpu": on_cpu[:1], "is_same": findings[:1] == on_cpu[:1]}


def _of_program(case: Any, device: str) -> list[str]:
    program = case.build(True)
    program.model.to(device)
    if isinstance(program.loss, nn.Module):
        program.loss.to(device)
    problem = wc.Problem(program.model, program.loss, program.loader)
    diagnosis = wc.diagnose(problem, program.optimizer, scheduler=program.scheduler)
    return [finding.rule for finding in diagnosis.findings if finding.severity != "note"]


PARTS: dict[str, Callable[[str, bool, str | None], Iterator[Entry]]] = {
    "precision": precision,
    "asserts": asserts,
    "prices": prices,
    "verdicts": verdicts,
}


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def write_data(path: str) -> None:
    """The data sets of scikit-learn that verdict cases use."""
    from benchmarks.verdicts.data import embedded

    arrays = {}
    for name in ("iris", "wine", "breast_cancer", "diabetes", "digits"):
        x, y = embedded(name)
        arrays |= {f"{name}_x": x.numpy(), f"{name}_y": y.numpy()}
    np.savez_compressed(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", default="scale_cuda.json")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--only", nargs="*", default=[], help="entries whose names contain one of these")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS), help="which calls have a price")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further entry after this time")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--data")
    parser.add_argument("--write-data")
    options = parser.parse_args()
    if options.write_data:
        write_data(options.write_data)
        return
    results: dict[str, Any] = {"environment": environment(options.device)}
    begin = time.perf_counter()
    for part in options.part:
        results[part] = {}
        of_part = [options.tasks] if part == "prices" else []
        for name, entry in PARTS[part](options.device, options.small, options.data, *of_part):
            if options.only and not any(word in name for word in options.only):
                continue
            if time.perf_counter() - begin > options.seconds:
                break
            began = time.perf_counter()
            try:
                row = entry()
            except Exception as error:  # one entry must not end the others
                row = {"error": _first_line(error)}
            row["entry_seconds"] = round(time.perf_counter() - began, 2)
            results[part][name] = row
            print(part, "|", name, "|", json.dumps(row, default=str)[:600], flush=True)
            Path(options.out).write_text(json.dumps(results, indent=1, default=str))
            gc.collect()


if __name__ == "__main__":
    main()
