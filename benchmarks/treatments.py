"""Is what `treat` chooses after few steps what training ten times longer chooses, and better than a random remedy?

python -m benchmarks.treatments                  # measures, and writes benchmarks/results/treatments_cpu.json
python -m benchmarks.treatment_tables            # judges what is there: the tables of the guide, and its picture

Ten of the faults of `benchmarks.verdicts`, chosen before the first run. `treat` is given the faulty program, as a user
has it. Then every arm that it has screened or trained is trained ten times longer with the same seeds, at a rate that a
race of its own finds for that length. The second part is BNP with Adam, and with SGD, on small networks.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

import wellcond as wc
from benchmarks.rates import data
from benchmarks.rates.tasks import TASKS
from benchmarks.timing import environment
from benchmarks.verdicts.cases import CASES
from wellcond.training.optimizers import DEFAULT_MOMENTUM
from wellcond.treatment.comparison import Comparison

FAULTS = (
    "iris-sigmoid", "houses-raw", "relu-probability", "log-of-zero", "bits-sigmoids", "linear-stack",
    "frozen-but-norms", "strong-decay", "adam-too-high", "constant-weights",
)  # fmt: skip
SEEDS = (0, 1, 2)
STEPS, LONGER = 100, 10
BNP_TASKS = {
    "gpt adam": ("gpt adamw", Adam), "vae adam": ("vae adam", Adam), "lstm adam": ("lstm sgd", Adam),
    "bert adam": ("", Adam), "mlp adam": ("mlp sgd", Adam), "mlp sgd": ("mlp sgd", SGD),
    "cnn adam": ("cnn momentum", Adam), "cnn sgd": ("cnn momentum", SGD),
}  # fmt: skip
"""A task of `benchmarks.rates` and an optimizer."""
RESULTS = Path(__file__).parent / "results" / "treatments_cpu.json"


# measuring


def treated(case: str, steps: int) -> dict[str, Any]:
    """What `treat` says of the faulty form, and its arms."""
    program = CASES[case].build(faulty=True)
    problem = wc.Problem(program.model, program.loss, program.loader)
    found = wc.treat(problem, program.optimizer, steps=steps, seeds=SEEDS)
    assert found.best is not None
    arms = {
        name: {"screened": arm.screened, "finals": _finals(arm), "found_by": list(arm.found_by)}
        for name, arm in found.arms.items()
        if arm.refused is None
    }
    random = None if found.random is None else found.random.name
    first = next((run.losses[0] for arm in found.arms.values() for runs in arm.runs.values() for run in runs.values()
                  if run.losses), math.nan)  # fmt: skip
    return {
        "winner": found.best.name, "random": random, "first": first, "steps": steps, "cost": found.cost.u, "arms": arms,
        "verdict": found.verdict(), "code": found.code, "refused": found.refused,
    }  # fmt: skip


def longer(case: str, arm: str, steps: int) -> dict[str, Any]:
    """One arm trained longer: its rate, and the final loss of every seed; None where it diverges or is refused."""
    program = CASES[case].build(faulty=True)
    problem = wc.Problem(program.model, program.loss, program.loader)
    comparison = Comparison(problem, program.optimizer, DEFAULT_MOMENTUM, steps, SEEDS, 1, lambda _what, _share: None)
    if arm == "untreated":
        comparison.train_untreated()
    else:
        comparison.train_named([arm], ())
    found = comparison.arms[arm]
    return {"lr": found.best_lr, "finals": _finals(found)}


def _finals(arm: Any) -> list[float | None]:
    runs = next(iter(arm.runs.values()), {})
    return [run.final for run in runs.values()]


def bnp(task: str, steps: int) -> dict[str, Any]:
    """BNP over the optimizer of a task beside the same optimizer, each at a rate of its own."""
    model, loss, loader, optimizer = _bert() if task == "bert adam" else _network(*BNP_TASKS[task])
    found = wc.treat(wc.Problem(model, loss, loader), optimizer, steps=steps, seeds=SEEDS, remedies=["rate", "bnp"])
    arms = {name: found.arms[name] for name in ("rate", "bnp")}
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
    kind, *arguments, steps = job
    made = {"treated": treated, "longer": longer, "bnp": bnp}[kind]
    try:
        return job, made(*arguments, int(steps))
    except Exception as error:  # one job that fails is told in the results; the others go on
        return job, {"error": repr(error)}


def measure(processes: int, steps: int, faults: Sequence[str], tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Everything, on so many processes of one thread each; what there is so far after every job."""
    results: dict[str, Any] = {"steps": steps, "longer": LONGER, "seeds": len(SEEDS), "faults": {}, "bnp": {}}
    begin = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=8) as pool:
        waiting = [pool.apply_async(_job, (("treated", case, str(steps)),)) for case in faults]
        waiting += [pool.apply_async(_job, (("bnp", task, str(4 * steps)),)) for task in tasks]
        while waiting:
            job, found = waiting.pop(0).get()
            print(f"{time.perf_counter() - begin:5.0f} s  {' '.join(job)}", flush=True)
            if job[0] == "treated":
                results["faults"][job[1]] = found | {"long": {}}
                jobs = [("longer", job[1], arm, str(LONGER * steps)) for arm in found.get("arms", ())]
                waiting += [pool.apply_async(_job, (each,)) for each in jobs]
            elif job[0] == "longer":
                results["faults"][job[1]]["long"][job[2]] = found
            else:
                results["bnp"][job[1]] = found
            yield results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--steps", type=int, default=STEPS, help="of a treatment; the long runs have ten times as many")
    parser.add_argument("--faults", nargs="*", default=FAULTS, choices=CASES, metavar="CASE")
    parser.add_argument("--bnp", nargs="*", default=list(BNP_TASKS), choices=BNP_TASKS, metavar="TASK")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = environment("cpu")
    for results in measure(options.processes, options.steps, options.faults, options.bnp):
        content = {"environment": about, "results": results}
        options.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
