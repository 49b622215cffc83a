"""Tables of one epoch of ResNet-20 on a GPU: its time, what bounds it, what probes add, and how well it learns."""

from __future__ import annotations

from committed import read, seconds, table, u


def epoch_time() -> str:
    """Seconds of an epoch in every mode, and milliseconds of the parts of a step."""
    rows = []
    for mode, arm in read("epoch")["results"]["time"]["arms"].items():
        profile = arm["profile_forward_backward"]
        rows.append(
            [
                mode,
                f"{arm['s_per_epoch']:.2f} s",
                f"{arm['first_epoch_s'] + arm['before_s']:.1f} s",
                f"{arm['forward_backward_ms']:.1f} ms",
                f"{profile['kernel_ms']:.1f} ms in {profile['kernels']:.0f}",
                f"{profile['launches']:.0f}",
                f"{arm['activation_ms_at_that_bandwidth']:.2f} ms",
                f"{arm['optimizer_ms']:.2f} ms",
                seconds(arm["data_s_per_epoch"]),
            ]
        )
    head = ["mode", "epoch", "first epoch", "passes of a step", "their kernels alone", "launches",
            "their traffic at copy speed", "optimizer step", "data of an epoch"]  # fmt: skip
    return table(head, rows)


def epoch_probes() -> str:
    """What each probe costs."""
    costs = dict(read("epoch")["results"]["time"]["probes"])
    costs.pop("u_ms")
    return table(["probe", "time", "u"], [[f"`{n}`", f"{c['ms']:.0f} ms", u(c["u"])] for n, c in costs.items()])


def epoch_accuracy() -> str:
    """Test accuracy on CIFAR-10 of every run."""
    rows = [
        [str(run["epochs"]), f"{run['weight_decay']:g}", str(run["seed"]), f"{run['seconds']:.0f} s",
         f"{100 * run['test_accuracy']:.2f} %"]
        for run in read("epoch")["results"]["accuracy"]
    ]  # fmt: skip
    return table(["epochs", "weight decay", "seed", "time", "test accuracy"], rows)
