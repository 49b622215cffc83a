"""`wellcond diagnose file.py:build`."""

from __future__ import annotations

from dataclasses import replace

from wellcond.cli.output import AsJson, Out, Output, Target
from wellcond.diagnosis.diagnose import diagnose as measure
from wellcond.report.terminal import show


def diagnose(target: Target, out: Out = None, as_json: AsJson = False) -> None:
    """Measure your own network and print what is where.

    FUNCTION takes no arguments and returns a [bold]wellcond.Problem[/bold], or a pair
    (problem, optimizer): the optimizer's learning rate is then shown beside
    the largest stable one. Nothing of yours is changed.

    [bold]Example[/bold], in train.py:

    [cyan]import torch, wellcond as wc[/cyan]

    [cyan]def build():[/cyan]
    [cyan]    model = torch.nn.Linear(784, 10)[/cyan]
    [cyan]    images, labels = torch.rand(256, 784), torch.randint(10, (256,))[/cyan]
    [cyan]    return wc.Problem(model, torch.nn.CrossEntropyLoss(), (images, labels))[/cyan]

    and then:

    [cyan]wellcond diagnose train.py:build[/cyan]
    [cyan]wellcond diagnose train.py:build --out report.html --out rows.csv[/cyan]
    [cyan]wellcond diagnose train.py:build --json[/cyan]
    """
    output = Output(out, as_json)
    with output.problem(target) as (problem, optimizer, progress):
        diagnosis = measure(problem, optimizer, progress=progress)
    about = diagnosis.about | {"model": f"{diagnosis.about['model']} of {target}"}
    output.finish(replace(diagnosis, about=about), lambda console: show(diagnosis, console))
