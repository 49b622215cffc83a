"""Transformers and PEFT: a plain loop sees what is recorded, and the training is the one without us."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain import Clock, assert_recorded, assert_same, plain_loop
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import wellcond as wc
from wellcond.remedies import Setup, lines_for


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    pytest.importorskip("accelerate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def integration(transformers: Any) -> Any:
    return wc.integrations.transformers


class Classifier(nn.Module):
    """A model that returns its loss, as those of the library do."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 10))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(inputs)
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def language_model(transformers: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **drops, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def sentences(count: int = 24) -> list[dict[str, Tensor]]:
    tokens = torch.randint(0, 32, (count, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": each, "labels": each} for each in tokens]


def digits(count: int = 192) -> list[dict[str, Tensor]]:
    inputs, labels = wc.digits()
    return [{"inputs": x, "labels": y} for x, y in zip(inputs[:count], labels[:count], strict=True)]


def made(transformers: Any, folder: Path, model: nn.Module, data: Any, kind: Any = None, **settings: Any) -> Any:
    """A trainer that goes over the data in their order."""
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 16,
        "num_train_epochs": 2,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "learning_rate": 0.05,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = transformers.TrainingArguments(str(folder), **usual | settings)
    trainer = (kind or transformers.Trainer)(model, args, train_dataset=data, eval_dataset=data[:16])
    trainer._get_train_sampler = torch.utils.data.SequentialSampler
    return trainer


def train(trainer: Any, callback: Any = None) -> dict[str, Any]:
    """All that a training has changed; the clock of the callback's recorder goes on with each batch."""
    original = type(trainer).training_step
    if callback is not None:
        trainer.add_callback(callback)

    def ticking(*args: Any, **kwargs: Any) -> Any:
        if callback is not None:
            callback._options["clock"].now += 1.0
        return original(trainer, *args, **kwargs)

    trainer.training_step = ticking
    result = trainer.train()
    assert trainer.training_step is ticking
    return {
        "weights": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "random numbers": torch.get_rng_state(),
        "loss": result.training_loss,
    }


def in_batches(data: list[dict[str, Tensor]], size: int) -> list[dict[str, Tensor]]:
    groups = [data[start : start + size] for start in range(0, len(data), size)]
    return [{name: torch.stack([each[name] for each in group]) for name in group[0]} for group in groups]


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_over_the_tokens_of_several_batches(
    transformers: Any, integration: Any, tmp_path: Path, accumulate: int
) -> None:
    """The trainer tells a language model how many tokens there are in all, so that its losses add up."""
    model = language_model(transformers)
    plain = copy.deepcopy(model)
    settings = {"gradient_accumulation_steps": accumulate, "per_device_train_batch_size": 4, "max_grad_norm": 0.5}
    trainer = made(transformers, tmp_path, model, sentences(), **settings)
    callback = integration.RecorderCallback(trainer, budget=1.0, clock=Clock())
    train(trainer, callback)
    batches = in_batches(sentences(), 4)
    items = trainer._get_num_items_in_batch(batches[:1], torch.device("cpu"))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)

    def loss_of(batch: Any) -> Any:
        return plain(**batch, num_items_in_batch=items).loss

    losses, norms = plain_loop(plain, optimizer, loss_of, batches * 2, accumulate, clip=0.5)
    assert_recorded(callback.recorder, losses, norms)


@pytest.mark.slow
def test_the_training_is_bit_for_bit_the_one_without_us(transformers: Any, integration: Any, tmp_path: Path) -> None:
    def trainer() -> Any:
        return made(
            transformers, tmp_path, Classifier(0.3), digits(), gradient_accumulation_steps=2, optim="adamw_torch"
        )

    recorded = trainer()
    callback = integration.RecorderCallback(recorded, budget=1.0, clock=Clock())
    assert_same(train(recorded, callback), train(trainer()))
    assert callback.recorder.problems == []
    for quantity in ("max_lr", "beta"):  # there were probes, which run the model
        assert len(callback.recorder.history.series(quantity))
    assert callback.recorder.history.layers("input_lambda_max")
    assert not any(each._forward_hooks for each in recorded.model.modules())


@pytest.mark.slow
def test_a_loss_of_the_trainer(transformers: Any, integration: Any, tmp_path: Path) -> None:
    """One that is passed to it, and one of its class, which takes the labels out of the batch."""

    def smoothed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return cross_entropy(outputs["logits"], labels, label_smoothing=0.1)

    class Own(transformers.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            labels = inputs.pop("labels")
            return smoothed(model(**inputs), labels)

    for kind in (Own, functools.partial(transformers.Trainer, compute_loss_func=smoothed)):
        trainer = made(transformers, tmp_path, Classifier(), digits(), kind, label_names=["labels"])
        callback = integration.RecorderCallback(trainer, budget=1.0, clock=Clock())
        assert not {"layers", "trial"} & integration.diagnose(trainer).failed.keys()
        train(trainer, callback)
        plain, batches = Classifier(), in_batches(digits(), 16) * 2

        def loss_of(batch: Any, plain: Classifier = plain) -> Any:
            return smoothed(plain(batch["inputs"]), batch["labels"])

        assert_recorded(
            callback.recorder, *plain_loop(plain, torch.optim.SGD(plain.parameters(), lr=0.05), loss_of, batches, 1)
        )


@pytest.mark.slow
def test_a_training_goes_on_from_a_checkpoint(transformers: Any, integration: Any, tmp_path: Path) -> None:
    for checkpoint, steps in ((None, 8), (tmp_path / "checkpoint-8", 24)):
        settings = {"max_steps": steps, "save_strategy": "steps", "save_steps": 8, "eval_strategy": "epoch"}
        trainer = made(transformers, tmp_path, Classifier(), digits(), **settings)
        trainer.add_callback(integration.RecorderCallback(trainer, tmp_path / "run"))
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    run = wc.read_run(tmp_path / "run")
    assert run.history.series("training_loss").steps.tolist() == [*range(1, 25)]
    assert run.history.series("validation_loss").steps.tolist() == [8, 12, 24]


@pytest.mark.slow
def test_a_verdict_before_training(transformers: Any, integration: Any, tmp_path: Path) -> None:
    """From what the trainer has, which is as it was."""
    model = language_model(transformers)
    settings = {"learning_rate": 1.0, "lr_scheduler_type": "linear", "warmup_steps": 3}
    trainer = made(transformers, tmp_path, model, sentences(), per_device_train_batch_size=4, **settings)
    weights, attributes = copy.deepcopy(model.state_dict()), dict(vars(trainer))
    loaders, state = list(trainer.accelerator._dataloaders), torch.get_rng_state()
    plan = integration.planned(trainer)
    assert (plan.steps, type(plan.optimizer).__name__, type(plan.scheduler).__name__) == (12, "SGD", "LambdaLR")
    diagnosis = integration.diagnose(trainer)
    assert not diagnosis.failed
    assert diagnosis.evidence
    assert integration.suggest_lr(trainer, max_steps=40).lr > 0
    assert integration.treat(trainer, steps=4, seeds=[0], remedies=["adam"]).arms
    assert vars(trainer) == attributes
    assert trainer.accelerator._dataloaders == loaders
    assert "prepare" not in vars(trainer.accelerator)
    assert_same(dict(model.state_dict()), dict(weights))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_a_verdict_is_in_the_precision_of_the_training(transformers: Any, integration: Any, tmp_path: Path) -> None:
    """Which is float32 for fp16 on a CPU."""
    for settings, autocast in (({}, None), ({"bf16": True}, torch.bfloat16), ({"fp16": True}, None)):
        trainer = made(transformers, tmp_path, Classifier(), digits(), **settings)
        assert integration.planned(trainer).problem.precision.autocast == autocast


@pytest.mark.slow
def test_adapters(transformers: Any, integration: Any, tmp_path: Path) -> None:
    """Of a frozen model with adapters, these alone have gradients, and a verdict is about them."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], init_lora_weights="gaussian", fan_in_fan_out=True)
    models = [peft.get_peft_model(language_model(transformers), config) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    trainer = made(transformers, tmp_path, models[0], sentences(), per_device_train_batch_size=4)
    diagnosis = integration.diagnose(trainer)
    assert not diagnosis.failed
    assert not [finding for finding in diagnosis.findings if "lora" in finding.layer]
    callback = integration.RecorderCallback(trainer, budget=1.0, clock=Clock())
    train(trainer, callback)
    batches = in_batches(sentences(), 4)
    items = trainer._get_num_items_in_batch(batches[:1], torch.device("cpu"))
    optimizer = torch.optim.SGD([p for p in models[1].parameters() if p.requires_grad], lr=0.05)

    def loss_of(batch: Any) -> Any:
        return models[1](**batch, num_items_in_batch=items).loss

    losses, norms = plain_loop(models[1], optimizer, loss_of, batches * 2, 1)
    assert all("lora" in layer for layer in norms if layer)
    assert_recorded(callback.recorder, losses, norms)


def test_all_processes_of_a_sharded_model_record_and_of_another_the_first(
    transformers: Any, integration: Any, process_group: None, tmp_path: Path
) -> None:
    def recorder_of_another_process(sharded: bool) -> Any:
        model = language_model(transformers)
        callback = integration.RecorderCallback(made(transformers, tmp_path, model, sentences()))
        if sharded:
            fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = SimpleNamespace(is_world_process_zero=False)
        callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
        return callback.recorder

    assert recorder_of_another_process(sharded=False) is None
    recorder = recorder_of_another_process(sharded=True)
    assert "norms are those of whole parameters" in recorder.notes[0]
    recorder.close()


# the lines of remedies


@pytest.mark.slow
def test_a_lower_rate_is_written_into_the_arguments_of_the_trainer(
    integration: Any, transformers: Any, tmp_path: Path
) -> None:
    trainer = made(transformers, tmp_path, Classifier(), digits(), learning_rate=300.0, lr_scheduler_type="linear")
    first = integration.diagnose(trainer).findings[0]
    assert first.rule == "learning-rate-too-high"
    assert first.remedy.startswith("trainer.args.learning_rate = ")
    exec(first.remedy, {"trainer": trainer})
    assert 0 < trainer.args.learning_rate < 300
    trainer.train()
    assert trainer.optimizer.param_groups[0]["initial_lr"] == trainer.args.learning_rate


def test_lines_for_an_optimizer_have_the_trainer_create_it(integration: Any, transformers: Any, tmp_path: Path) -> None:
    runner = made(transformers, tmp_path, Classifier(), digits())
    script = integration.names_of(runner, integration.planned(runner))
    code = 'for group in optimizer.param_groups:\n    group["momentum"] = 0.5'
    exec(integration._lines("runner", script, code), {"runner": runner})
    assert [group["momentum"] for group in runner.optimizer.param_groups] == [0.5] * len(runner.optimizer.param_groups)


@pytest.mark.slow
def test_a_new_optimizer_is_the_trainers_and_its_schedule_comes_later(
    integration: Any, transformers: Any, tmp_path: Path
) -> None:
    trainer = made(transformers, tmp_path, Classifier(), digits(), lr_scheduler_type="linear")
    plan = integration.planned(trainer)
    lines = lines_for("adam", Setup.of(plan.problem, plan.optimizer), 0.002)
    exec(
        integration._lines("trainer", integration.names_of(trainer, plan), lines), {"trainer": trainer, "torch": torch}
    )
    assert type(trainer.optimizer).__name__ == "Adam"
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.002)
    trainer.train()
    assert type(trainer.lr_scheduler.optimizer).__name__ in ("Adam", "AcceleratedOptimizer")
