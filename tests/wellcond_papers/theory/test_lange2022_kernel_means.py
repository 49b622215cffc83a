"""lange2022, Proposition 10: one mean a channel (21) in place of one a kernel entry (19), in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import normal

from wellcond.optim.input_statistics import measure_for


def kernel_mean(h: Tensor, k: int, t: int, a: int, p: int) -> float:
    """μ_H(t, a, p), eq. (19), with its 1-based indices; h (N, c, r, s) is 0 out of bounds."""
    N, _, r, s = h.shape
    m = (k - 1) // 2
    window = [(u, v) for u in range(t - m, r + t - m) for v in range(a - m, s + a - m)]
    inside = [(u, v) for u, v in window if 1 <= u <= r and 1 <= v <= s]
    assert len(window) == r * s
    return sum(float(h[:, p, u - 1, v - 1].sum()) for u, v in inside) / (N * r * s)


def errors(h: Tensor, conv: nn.Conv2d) -> Tensor:
    """|μ_H(t, a, p) − μ(p)| as (c, k, k), through what BNP measures with means="kernel" and means="channel"."""
    output = conv(h).detach()
    of_kernel, of_channel = (measure_for(conv, means)(h, output).mean for means in ("kernel", "channel"))
    return (of_kernel.view(h.shape[1], *conv.kernel_size) - of_channel.view(-1, 1, 1)).abs()


def convolution(h: Tensor, k: int, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(h.shape[1], 1, k, **{"padding": "same"} | settings).double()


def printed(k: int, r: int, s: int) -> float:
    """The factor of max|h| in the source."""
    return (k - 1) * (1 / (2 * r) + 1 / (2 * s) - (k - 1) / (4 * r * s))


def corrected(m: int, r: int, s: int) -> float:
    """The largest share of a feature map that a window shifted by m rows and m columns leaves out."""
    return 1 - max(1 - m / r, 0) * max(1 - m / s, 0)


SIZES = [(3, 6, 5), (5, 6, 5), (7, 9, 4), (1, 3, 3), (3, 1, 4), (7, 2, 5)]
"""k, r and s, with (k − 1)/2 ≤ max(r, s)."""


@pytest.mark.parametrize(("k", "r", "s"), SIZES)
def test_the_statistics_of_kernel_entries_are_those_of_equation_19(k: int, r: int, s: int) -> None:
    h = normal(3, 2, r, s, seed=k) + 0.5
    conv = convolution(h, k)
    mean = measure_for(conv, "kernel")(h, conv(h).detach()).mean.view(2, k, k)
    for p in range(2):
        for t in range(1, k + 1):
            for a in range(1, k + 1):
                assert float(mean[p, t - 1, a - 1]) == pytest.approx(kernel_mean(h, k, t, a, p), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("k", "r", "s"), SIZES)
def test_proposition_10_bounds_the_error_of_one_mean_a_channel(k: int, r: int, s: int, seed: int) -> None:
    h = normal(4, 3, r, s, seed=seed) + seed
    bound = printed(k, r, s) * h.abs().amax((0, 2, 3))
    assert (errors(h, convolution(h, k)) <= bound.view(-1, 1, 1) + 1e-14).all()


@pytest.mark.parametrize(("k", "r", "s"), [size for size in SIZES if (size[0] - 1) // 2 <= min(size[1:])])
def test_proposition_10_is_attained_by_a_constant_map(k: int, r: int, s: int) -> None:
    h = torch.full((2, 1, r, s), -3.0, dtype=torch.float64)
    error = errors(h, convolution(h, k))[0]
    for corner in (error[0, 0], error[0, -1], error[-1, 0], error[-1, -1]):
        assert float(corner) == pytest.approx(3 * printed(k, r, s), abs=1e-14)
    assert float(error[k // 2, k // 2]) == 0


@pytest.mark.parametrize(("k", "r", "s"), [(5, 1, 1), (7, 2, 2), (9, 2, 3), (11, 1, 4)])
def test_proposition_10_as_printed_fails_for_large_kernels(k: int, r: int, s: int) -> None:
    """The corner entry sees padding alone, so the error of a constant map is all of it.

    The printed factor is 1 − (1 − m/r)(1 − m/s), m = (k − 1)/2, which falls again once both brackets are negative:
    to 0 for a 5×5 kernel on a 1×1 map. With the brackets cut off at 0 it holds for every size.
    """
    h = torch.ones(2, 1, r, s, dtype=torch.float64)
    error = float(errors(h, convolution(h, k)).max())
    assert error == pytest.approx(1, abs=1e-14)
    assert error > printed(k, r, s) + 0.2
    assert error == pytest.approx(corrected((k - 1) // 2, r, s), abs=1e-14)


@pytest.mark.parametrize(("k", "r", "s"), SIZES)
def test_proposition_10_as_printed_holds_for_kernels_that_fit(k: int, r: int, s: int) -> None:
    m = (k - 1) // 2
    if m <= min(r, s):
        assert printed(k, r, s) == pytest.approx(corrected(m, r, s), abs=1e-14)
    else:
        assert printed(k, r, s) > corrected(m, r, s)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(("k", "r", "s"), [(2, 5, 4), (4, 6, 6)])
def test_proposition_10_of_an_even_kernel_shifts_by_half_of_it(k: int, r: int, s: int) -> None:
    """The source takes k odd. "Same" padding of an even kernel is uneven: m is k/2, and (k − 1)/2 is too little."""
    h = torch.ones(2, 1, r, s, dtype=torch.float64)
    error = float(errors(h, convolution(h, k)).max())
    assert error > printed(k, r, s) + 0.05
    assert error == pytest.approx(corrected(k // 2, r, s), abs=1e-14)


@pytest.mark.parametrize(("k", "r", "s"), [(3, 6, 5), (5, 7, 8)])
def test_proposition_10_without_padding_has_another_bound(k: int, r: int, s: int) -> None:
    """Windows of r′×s′ have their own denominator: 2(1 − r′s′/rs), attained, and above the printed one."""
    windows = (r - k + 1) * (s - k + 1)
    h = -torch.ones(2, 1, r, s, dtype=torch.float64)
    h[:, :, : r - k + 1, : s - k + 1] = 1  # what the first kernel entry sees
    error = errors(h, convolution(h, k, padding=0))[0]
    assert float(error[0, 0]) == pytest.approx(2 * (1 - windows / (r * s)), abs=1e-14)
    assert float(error[0, 0]) > printed(k, r, s)
    h = normal(3, 2, r, s)
    assert errors(h, convolution(h, k, padding=0)).max() <= 2 * (1 - windows / (r * s)) * h.abs().max()


def test_proposition_10_does_not_hold_with_a_stride() -> None:
    """A 1×1 kernel with stride 2 sees one pixel in four: the printed bound is 0, the error up to 3/2 max|h|."""
    h = -torch.ones(1, 1, 6, 8, dtype=torch.float64)
    h[:, :, ::2, ::2] = 1
    assert printed(1, 6, 8) == 0
    assert float(errors(h, convolution(h, 1, stride=2, padding=0)).max()) == pytest.approx(1.5, rel=1e-14)


@pytest.mark.parametrize("k", [3, 5])
def test_proposition_10_has_no_error_with_circular_padding(k: int) -> None:
    h = normal(3, 2, 6, 5) + 1
    conv = convolution(h, k, padding=(k - 1) // 2, padding_mode="circular")
    assert errors(h, conv).max() < 1e-14
    assert errors(h, convolution(h, k)).max() > 0.1
