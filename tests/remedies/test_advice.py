"""What a finding advises is what `treat` applies: on real faults, from the diagnosis to the trained network."""

from __future__ import annotations

import pytest
import torch
from script import Script, assert_same, described
from setups import start_of_arm, treated

import wellcond as wc
from benchmarks.verdicts.cases import CASES
from benchmarks.verdicts.repair import repair_case
from benchmarks.verdicts.repair_cases import REPAIRS
from wellcond.remedies import Setup
from wellcond.training.optimizers import largest_lr

ADVISED = {
    "iris-sigmoid": "logits",
    "houses-raw": "scale-inputs",
    "log-of-logits": "cross-entropy",
    "adam-too-high": "rate",
    "bits-sigmoids": "batchnorm",
    "strong-decay": "less-weight-decay",
    "broadcast-targets": "match-shapes",
    "constant-weights": "he-init",
}
"""Remedy of the first finding, by case."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ADVISED)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_the_advice_of_the_first_finding_is_what_treat_applies(name: str) -> None:
    program = CASES[name].build(faulty=True)
    # under the names that lines usually have
    model, loss, loader, optimizer = program.model, program.loss, list(program.loader), program.optimizer
    problem = wc.Problem(model, loss, loader)
    finding = wc.diagnose(problem, optimizer).findings[0]
    assert finding.treatment == ADVISED[name]

    own = Setup.of(problem, optimizer)
    script, arm = Script(own), Script(own)
    script.paste(finding.remedy)
    remedied = treated(finding.treatment, own)
    treated_model, treated_optimizer = start_of_arm(remedied, largest_lr(script.names["optimizer"]))
    arm.names |= {"model": treated_model, "optimizer": treated_optimizer, "loss": remedied.problem.loss}

    assert_same(script.names["model"].state_dict(), treated_model.state_dict())
    script.train()
    arm.train()
    assert_same(script.names["model"].state_dict(), treated_model.state_dict())
    assert described(script.names["model"], script.names["optimizer"]) == described(treated_model, treated_optimizer)
    x, y = problem.batches[0]
    losses = [each.names["loss"](each.names["model"].eval()(x), y) for each in (script, arm)]
    torch.testing.assert_close(*losses)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large-biases", "dead-relus", "full-relus", "repeated-layer"])
def test_lines_pasted_as_they_are_repair_the_network(name: str) -> None:
    assert repair_case(REPAIRS[name])["outcome"] == "repaired"
