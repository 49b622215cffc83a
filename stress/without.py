"""Takes mends out, one at a time, and demands that the suite finds each: `python -m stress.without [NAME …]`."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stress.named import NAMED

ROOT = Path(__file__).parents[1]
TIME = 300
"""Seconds that a named case may take without its mend; one that takes longer has found something too."""


@dataclass(frozen=True)
class Mend:
    """A mend and how to take it out.

    Attributes:
        file: In src/wellcond.
        text: A part of it that occurs once.
        replacement: What brings the defect back.
        found_by: The named case that must fail.
    """

    file: str
    text: str
    replacement: str
    found_by: str

    def take_out_of(self, source: Path) -> None:
        path = source / "wellcond" / self.file
        before = path.read_text()
        if before.count(self.text) != 1:
            raise SystemExit(f"{self.file} has {before.count(self.text)} times, not once: {self.text!r}")
        path.write_text(before.replace(self.text, self.replacement))


MENDS: dict[str, Mend] = {
    # of the user's state
    "no autocast": Mend(
        "network/isolation/arithmetic.py", "if torch.is_autocast_enabled(kind):", "if False:", "autocast"
    ),
    "one thread at a time": Mend(
        "network/isolation/arithmetic.py", "while self._owner not in (None, me) and not _is_worker_of_autograd():",
        "while False:", "two_threads",
    ),
    "no gradient hooks": Mend(
        "network/isolation/isolation.py", "        stack.enter_context(gradient_hooks_off(modules))\n", "",
        "gradient_hooks",
    ),
    "norms by hand": Mend(
        "network/isolation/isolation.py", "isinstance(module, _NormBase) or module in norms",
        "isinstance(module, _BatchNorm)", "norms_by_hand",
    ),
    "what is put back": Mend(
        "network/isolation/snapshot.py", "        snapshot.put_back()\n", "        pass\n", "odd_state_is_put_back"
    ),
    "a graph that is no longer true": Mend(
        "curvature/curvature_operator.py", "not self._kept[0].is_same_as(self._state(held, is_passing=True))",
        "False", "stale_problem",
    ),
    # of layers and examples
    "calls under no_grad": Mend(
        "network/taps.py", "if torch.is_grad_enabled() < with_grad:", "if False:", "layers_that_are_not_what_they_seem"
    ),
    "own forward": Mend(
        "curvature/kronecker/factor_pass.py", "for name, module in self.modules.items() if has_own_forward(module)",
        "for name, module in self.modules.items() if False", "layers_that_are_not_what_they_seem",
    ),
    "squares in float64": Mend(
        "curvature/kronecker/rows.py", "not bool(((largest > 1e-25) & (largest < 1e25)).all())", "False",
        "signals_of_any_size",
    ),
    "smaller side": Mend(
        "curvature/kronecker/second_moment.py",
        "if self._total is None and (stored < self.dimension or not self._matrix_fits):",
        "if False:", "wide_layer",
    ),
    "coupled examples": Mend(
        "curvature/coupling.py", "return bool((off <= _tolerance(first) * size + torch.finfo(first.dtype).tiny).all())",
        "return bool((off[:1] <= _tolerance(first) * size[:1]).all())", "coupling_of_later_examples",
    ),
    "coupled labels": Mend(
        "curvature/kronecker/factor_pass.py", "self._shared |= coupling.shared_outputs(passes, len(outputs))", "pass",
        "coupled_labels",
    ),
    # of losses
    "tokens are terms": Mend(
        "problem/loss/terms.py", "self._positions = averaged_dims(batch, gradients)", "self._positions = ()",
        "tokens_are_terms",
    ),
    "weights of batches": Mend("problem/loss/terms.py", "weight = unit / share", "weight = count", "batches_add_up"),
    "ignored labels": Mend(
        "problem/evaluation.py", "and (not is_new or agrees(self.likelihood, loss_at, outputs, targets))", "",
        "ignored_labels_at_equal_outputs",
    ),
    "likelihoods in float64": Mend(
        "problem/loss/losses.py", "wide = outputs.detach().double(),", "wide = outputs.detach(),", "nearly_a_likelihood"
    ),
    # of bounds
    "sizes of float32": Mend(
        "curvature/spectra/lanczos.py", "self._multiplied(q) if self.diagonal else self._first_product(q)",
        "self._multiplied(q)", "sizes_of_float32",
    ),
    "hidden eigenvalues": Mend(
        "curvature/spectra/ritz.py", "errors = np.array([self._hiding_distance(*one) for one in each])",
        "errors = self.residuals", "several_eigenvalues",
    ),
    "unseen copies": Mend(
        "curvature/spectra/ritz.py", "or float(self._odds_within_tol().sum()) <= 1 - self.confidence", "or True",
        "several_eigenvalues",
    ),
    "all that both ends have": Mend(
        "curvature/spectra/eigenvalues.py", "if m < count or", "if m < k or", "both_ends_of_the_identity"
    ),
    "spread of all entries": Mend(  # of the sums of the probes instead, as it was
        "curvature/spectra/trace_block.py", "float(change @ (entries - mean))",
        "float(change.sum() * (entries - mean).sum()) / 2", "trace_of_small_layers",
    ),
    # of the rest
    "lists of eigenvalues": Mend(
        "curvature/spectra/condition.py", "values.detach().cpu() if isinstance(values, Tensor) else _as_tensor(values)",
        "torch.tensor(values)", "eigenvalues_as_numbers",
    ),
    "special files": Mend(
        "results/files.py", "return status is not None and not stat.S_ISREG(status.st_mode) and not",
        "return False and not", "files_keep_what_they_are",
    ),
}  # fmt: skip


def run(source: Path, name: str) -> tuple[int, str]:
    """The exit status and the output of one named case on a copy of the sources."""
    command = [sys.executable, "-m", "stress", "--only", name]
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIME, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"named case {name} takes more than {TIME} s"
    return done.returncode, done.stdout + done.stderr


@functools.cache
def passes(name: str) -> bool:
    """Whether a named case passes with all mends."""
    status, output = run(ROOT / "src", name)
    if status:
        print(f"{name} fails with all mends in place\n{output}", flush=True)
    return status == 0


def is_found(name: str) -> bool:
    """Whether the suite passes with the mend, and fails without it with the case that is meant to find it."""
    mend = MENDS[name]
    if not passes(mend.found_by):
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        mend.take_out_of(source)
        status, output = run(source, mend.found_by)
    result = status != 0 and f"named case {mend.found_by}" in output
    first = next((line for line in output.splitlines() if "named case" in line), "nothing failed")
    print(f"{'found' if result else 'NOT FOUND'}: without {name!r}, {first}", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress.without", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MENDS, []], help="; ".join(MENDS))
    names = parser.parse_args().names or list(MENDS)
    assert all(mend.found_by in NAMED for mend in MENDS.values())
    results = [is_found(name) for name in names]
    print(f"{sum(results)} of {len(results)} mends are missed when they are out")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
