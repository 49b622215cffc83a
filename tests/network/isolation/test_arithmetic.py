"""Passes are computed in full precision, or as the user trains; settings of the process are as before afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wellcond.network.isolation.arithmetic import (
    HALF,
    half_precision_ignored,
    own_arithmetic,
    passes,
    precision_now,
    surrounding_autocast,
    trained_in,
)
from wellcond.network.isolation.precision import Precision

CPU = torch.device("cpu")
BFLOAT16 = Precision(torch.bfloat16)
by_backend = pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="since torch 2.9")


def settings() -> tuple[Any, ...]:
    backends = torch.backends
    return backends.fp32_precision, backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision


@pytest.fixture
def tf32() -> Iterator[None]:
    """TF32 as scripts turn it on."""
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")
    for matmul in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        matmul.fp32_precision = "none"


@by_backend
def test_products_are_precise_but_where_a_model_is_trained(tf32: None) -> None:
    own = settings()
    precise = "none", "ieee", "ieee"
    with own_arithmetic():
        assert settings() == precise
        with trained_in(Precision()):
            assert settings() == own
            with trained_in(Precision()):
                assert settings() == own
            assert settings() == own  # a run inside of a run leaves the outer one as it was
            with trained_in(None):
                assert settings() == precise
                with own_arithmetic():
                    assert settings() == precise
            assert settings() == own
        assert settings() == precise
    assert settings() == own
    assert torch.get_float32_matmul_precision() == "high"


@by_backend
def test_settings_are_put_back_after_an_exception(tf32: None) -> None:
    own = settings()
    with contextlib.suppress(KeyError), trained_in(None), trained_in(BFLOAT16), trained_in(None):
        raise KeyError
    assert settings() == own
    assert precision_now() is None


@by_backend
def test_a_backend_that_follows_the_setting_of_all_does_so_afterwards() -> None:
    try:
        torch.backends.fp32_precision = "tf32"
        with own_arithmetic():
            assert settings() == ("tf32", "ieee", "ieee")
        assert settings() == ("tf32", "tf32", "tf32")
        torch.backends.fp32_precision = "ieee"
        assert settings() == ("ieee", "ieee", "ieee")
    finally:
        torch.backends.fp32_precision = "none"


def test_the_autocast_of_the_call_is_known_inside_and_forgotten_afterwards() -> None:
    with torch.autocast("cpu", torch.float16), own_arithmetic():
        assert surrounding_autocast("cpu") is torch.float16
        assert not torch.is_autocast_enabled("cpu")
        with own_arithmetic():  # inside, autocast is off, and yet it is known
            assert surrounding_autocast("cpu") is torch.float16
    with own_arithmetic():
        assert surrounding_autocast("cpu") is None
        assert surrounding_autocast("cuda") is None


def dtype_in_passes() -> torch.dtype:
    with passes(CPU):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_passes_are_in_autocast_only_where_a_model_is_trained_in_it() -> None:
    assert dtype_in_passes() is torch.float32
    with trained_in(BFLOAT16):
        assert dtype_in_passes() is torch.bfloat16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32  # what is no pass stays precise
        with trained_in(None):
            assert dtype_in_passes() is torch.float32
        assert precision_now() == BFLOAT16
    with trained_in(Precision()):
        assert dtype_in_passes() is torch.float32


def test_a_second_pass_finds_no_cast_weights_of_the_first() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    with trained_in(BFLOAT16):
        for value in (1.0, 3.0):
            weight.data.fill_(value)
            with passes(CPU):
                assert float((torch.ones(1, 2) @ weight).sum().detach()) == 4 * value


def test_another_thread_waits_and_computes_in_its_own_precision() -> None:
    seen: list[torch.dtype] = []

    def other() -> None:
        with own_arithmetic():
            seen.append(dtype_in_passes())

    thread = threading.Thread(target=other)
    with trained_in(BFLOAT16):
        thread.start()
        thread.join(0.05)
        assert not seen
    thread.join(10)
    assert seen == [torch.float32]


class Casts(nn.Module):
    """All ways in which a model casts by itself."""

    def forward(self, x: Tensor) -> list[Tensor]:
        casts = [x.half(), x.bfloat16(), x.to(torch.float16), x.to(dtype=torch.bfloat16), x.type(torch.float16)]
        with torch.autocast("cpu", torch.bfloat16):
            casts += [x @ x, torch.zeros(2, dtype=torch.float16)]
        return casts


def test_nothing_is_cast_where_half_precision_is_ignored() -> None:
    x = torch.full((2, 2), 1 + 2.0**-12)  # a number that neither half precision has
    assert {t.dtype for t in Casts()(x)} == set(HALF)
    with half_precision_ignored():
        casts = Casts()(x)
    assert {t.dtype for t in casts} == {torch.float32}
    assert all(torch.equal(t, x) for t in casts[:5])
    assert {t.dtype for t in Casts()(x)} == set(HALF)


def test_autocast_works_again_after_a_model_that_raises() -> None:
    with contextlib.suppress(KeyError), half_precision_ignored():
        raise KeyError
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("cpu")
