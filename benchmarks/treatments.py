"""Does what `treat` says after few steps still hold after ten times more, on data that it has not seen?

python -m benchmarks.treatments                  # measures, and writes benchmarks/results/treatments_cpu.json
python -m benchmarks.treatment_tables            # judges what is there: the tables of the guide, and its picture

Sick set-ups are the faulty forms of `benchmarks.verdicts`, healthy ones are its controls, chosen before the first run:
every fault that training shows and whose step takes at most 7 ms on one core; and of every family of controls whose
step takes at most 10 ms, and of BERT, one stage of training in rotation, of the six fastest families the next one too.

A fifth of the examples is taken off as a test. `treat` gets the others, as a user has them. Then the untreated network,
the random control and, where something helps, the winner and the second best arm are trained ten times longer, with
other seeds and at the rates that `treat` names, and judged by the test. The second part is BNP with Adam, and with SGD,
on small networks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from benchmarks.rates import data
from benchmarks.rates.tasks import TASKS
from benchmarks.timing import environment
from benchmarks.verdicts.case import Program
from benchmarks.verdicts.cases import CASES
from benchmarks.verdicts.controls import FAMILIES
from wellcond.problem.held_out import HeldOut
from wellcond.training.optimizers import DEFAULT_MOMENTUM
from wellcond.treatment.arm import Arm
from wellcond.treatment.arm_job import ArmJob
from wellcond.treatment.conditions import Conditions
from wellcond.treatment.treatment import Treatment

SICK = (
    "adam-too-high", "adam-too-low", "batch-of-one", "bits-sigmoids", "branch-not-added", "broadcast-targets",
    "constant-weights", "eval-mode", "grown-attention", "houses-raw", "iris-sigmoid", "linear-stack", "log-of-logits",
    "medical-raw", "mnist-raw", "negative-rate", "relu-logit", "relu-probability", "saturated-discriminator",
    "shared-weight", "shuffled-features", "sign-flip", "strong-decay", "too-few-epochs", "wrong-dimension", "xor-mae",
)  # fmt: skip
HEALTHY = (
    "BERT, AdamW, initialization", "CNN, RMSprop, half-trained", "DCGAN discriminator, Adam, trained",
    "LSTM, Adam, initialization", "MLP, Adagrad, half-trained", "MLP, momentum, trained",
    "VAE, AdamW, trained", "VAE, Adam, initialization", "autoencoder, Adam, initialization",
    "autoencoder, AdamW, half-trained", "embedding bag, Adam, half-trained", "embedding bag, RMSprop, trained",
    "logistic regression, Nesterov, trained", "logistic regression, SGD, initialization",
    "regression, momentum, initialization", "regression, SGD, half-trained",
)  # fmt: skip
SEEDS = (0, 1, 2)
"""Of BNP; `treat` has its own."""
LONG_SEEDS = (10, 11, 12)
STEPS, LONGER = 100, 10
LEAST_EXAMPLES = 40
"""Of fewer examples no test is taken off: then the losses are of the training data."""
BNP_TASKS = {
    "gpt adam": ("gpt adamw", Adam), "vae adam": ("vae adam", Adam), "lstm adam": ("lstm sgd", Adam),
    "bert adam": ("", Adam), "mlp adam": ("mlp sgd", Adam), "mlp sgd": ("mlp sgd", SGD),
    "cnn adam": ("cnn momentum", Adam), "cnn sgd": ("cnn momentum", SGD),
}  # fmt: skip
"""A task of `benchmarks.rates` and an optimizer."""
RESULTS = Path(__file__).parent / "results" / "treatments_cpu.json"


# measuring


def program_of(name: str) -> Program:
    """The faulty form of a case, or a control at its stage."""
    return CASES[name].build(faulty=True) if name in CASES else FAMILIES[name].build()


def without_test(loader: DataLoader[Any]) -> tuple[DataLoader[Any], list[Any]]:
    """The loader over four fifths of its examples, and the others in batches."""
    tensors = loader.dataset.tensors  # type: ignore[attr-defined]
    count = len(tensors[0])
    if count < LEAST_EXAMPLES:
        return loader, 2 * list(loader)  # to choose by, and to judge by
    order = torch.randperm(count, generator=torch.Generator().manual_seed(2026))
    test, rest = order[: count // 5], order[count // 5 :]
    trained = DataLoader(
        TensorDataset(*(t[rest] for t in tensors)), batch_size=loader.batch_size, shuffle=True, drop_last=True
    )
    return trained, [tuple(t[part] for t in tensors) for part in test.tensor_split(16)]


def treated(name: str, steps: int) -> dict[str, Any]:
    """What `treat` says of a set-up, its arms, and what some of them do ten times longer."""
    program = program_of(name)
    loader, test = without_test(program.loader)
    problem = wc.Problem(program.model, program.loss, loader)
    begin = time.process_time()
    treatment = wc.treat(problem, program.optimizer, steps=steps)
    seconds = time.process_time() - begin
    arms = {
        arm.name: {
            "screened": arm.screened, "lr": arm.best_lr, "finals": _finals(arm), "found_by": list(arm.found_by),
            "change": treatment.change(arm), "helps": treatment.helps(arm),
        }
        for arm in treatment.arms.values()
        if arm.refused is None
    }  # fmt: skip
    conditions = Conditions(
        problem, HeldOut(loader, tuple(test), ""), program.optimizer, DEFAULT_MOMENTUM, LONGER * steps, 0
    )
    return {
        "winner": None if treatment.best is None else treatment.best.name,
        "random": None if treatment.random is None else treatment.random.name,
        "steps": steps, "cost": treatment.cost.u, "planned": treatment.planned, "seconds": seconds,
        "uninformed": treatment.uninformed_loss, "arms": arms, "verdict": treatment.verdict(), "code": treatment.code,
        "fits": treatment.fits, "refused": treatment.refused, "judged_by": treatment.judged_by,
        "long": {arm.name: _longer(conditions, arm) for arm in chosen(treatment)},
    }  # fmt: skip


def chosen(treatment: Treatment) -> list[Arm]:
    """The untreated network and the control; and where something helps, the winner and the next best."""
    arms = [treatment.untreated, treatment.random]
    if treatment.best is not treatment.untreated:
        trained = [arm for arm in treatment.arms.values() if arm.best_lr is not None]
        others = [arm for arm in trained if arm not in (treatment.best, treatment.untreated) and not arm.is_random]
        arms += [treatment.best, *others[:1]]
    return list({arm.name: arm for arm in arms if arm is not None and arm.runs}.values())


def _longer(conditions: Conditions, arm: Arm) -> dict[str, Any]:
    """Losses of the test, by seed and batch; none where it diverges."""
    lr = next(iter(arm.runs)) if arm.best_lr is None else arm.best_lr
    judged, training = [], []
    for seed in LONG_SEEDS:
        job = ArmJob(conditions, Arm(arm.name), "repeat", seed, lr)
        ended = job.run(lambda _what, _share: None)
        run = ended.arm.runs[lr][seed] if ended.arm is not None and lr in ended.arm.runs else None
        judged.append([] if run is None else list(run.judged))
        training.append(None if run is None else run.final)
    return {"lr": lr, "judged": judged, "training": training}


def _finals(arm: Arm) -> list[float | None]:
    runs = {} if arm.best_lr is None else arm.runs[arm.best_lr]
    return [sum(run.judged) / len(run.judged) for run in runs.values() if run.judged]


def bnp(task: str, steps: int) -> dict[str, Any]:
    """BNP with the optimizer of a task, compared with the optimizer alone, each at its own best rate."""
    model, loss, loader, optimizer = _bert() if task == "bert adam" else _network(*BNP_TASKS[task])
    treatment = wc.treat(wc.Problem(model, loss, loader), optimizer, steps=steps, seeds=SEEDS, remedies=["rate", "bnp"])
    arms = {name: treatment.arms[name] for name in ("rate", "bnp")}
    return {
        "steps": steps,
        "finals": {name: _finals(arm) for name, arm in arms.items()},
        "lr": {name: arm.best_lr for name, arm in arms.items()},
        "refused": arms["bnp"].refused,
        "change": arms["bnp"].change_from(arms["rate"]),
    }


def _network(task: str, optimizer: type[torch.optim.Optimizer]) -> tuple[Any, Any, Any, torch.optim.Optimizer]:
    chosen = TASKS[task]
    model = chosen.start(0)
    return model, chosen.loss, chosen.loader(), optimizer(model.parameters(), lr=1e-3)


class Bert(nn.Module):
    """A masked language model of two post-norm layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, "gelu", batch_first=True)
        self.symbols, self.places = nn.Embedding(data.SYMBOLS + 1, width), nn.Embedding(data.LENGTH + 1, width)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, data.SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.symbols(x) + self.places.weight[: x.shape[1]]))
        return logits


def _bert() -> tuple[Any, Any, Any, torch.optim.Optimizer]:
    torch.manual_seed(1000)
    model, symbols = Bert(), data.text()
    hidden = torch.rand(symbols.shape) < 0.15
    inputs, labels = symbols.masked_fill(hidden, data.SYMBOLS), symbols.masked_fill(~hidden, -100)
    batches = list(zip(inputs.split(16), labels.split(16), strict=True))
    return model, data.per_symbol, batches, Adam(model.parameters(), lr=1e-3)


def _job(job: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kind, name, steps = job
    try:
        return job, {"treated": treated, "bnp": bnp}[kind](name, int(steps))
    except Exception as error:  # a job that fails is reported in the results; the others continue
        return job, {"error": repr(error)}


def measure(processes: int, steps: int, names: Sequence[str], tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
    """All results so far after every job, on this many processes of one thread each."""
    known = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]["bnp"] if RESULTS.exists() else {}
    results: dict[str, Any] = {"steps": steps, "longer": LONGER, "set-ups": {}, "bnp": known}
    begin = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        jobs = [("treated", name, str(steps)) for name in names]
        jobs += [("bnp", task, str(4 * steps)) for task in tasks]
        for job, result in pool.imap_unordered(_job, jobs):
            print(f"{time.perf_counter() - begin:5.0f} s  {' '.join(job)}: {result.get('winner')}", flush=True)
            results["bnp" if job[0] == "bnp" else "set-ups"][job[1]] = result
            yield results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--steps", type=int, default=STEPS, help="of a treatment; long runs have ten times this number")
    parser.add_argument("--only", nargs="*", default=[*HEALTHY, *SICK], choices=[*HEALTHY, *SICK], metavar="SET-UP")
    parser.add_argument("--bnp", nargs="*", default=[], choices=BNP_TASKS, metavar="TASK")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = environment("cpu")
    for results in measure(options.processes, options.steps, options.only, options.bnp):
        content = {"environment": about, "results": results}
        options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
