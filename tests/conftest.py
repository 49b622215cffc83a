from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# the tests run in several processes: more threads than cores make small operations up to fifty times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")
# modules and tests are compiled once, also where the shell says to write no bytecode
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import torch

sys.dont_write_bytecode = False
torch.set_num_threads(1)

collect_ignore_glob = ["examination/2*", "run_examination/2*", "run_examination/program.py"]
"""Cases, which `examine.py` imports one folder at a time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="the first case of every test that is not marked slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: the garbage collector does not look at it, neither now nor in the tests that call it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    first: dict[str, pytest.Item] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            first.setdefault(item.nodeid.partition("[")[0], item)
    config.hook.pytest_deselected(items=list(set(items).difference(first.values())))
    items[:] = first.values()


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library, for all tests of a process: what it finds of torchvision when it is first imported, it keeps."""
    try:
        import torchvision  # noqa: F401
    except Exception:  # broken or missing: transformers works without it if this is set before its import
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    return pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def lightning() -> Any:
    """`lightning.pytorch`. Its metrics cannot be imported if there is a torchvision that does not fit this torch."""
    try:
        import lightning.pytorch
    except Exception as error:
        pytest.skip(f"lightning cannot be imported: {error}")
    return lightning.pytorch


@pytest.fixture(autouse=True)
def nothing_compiled_is_left() -> Iterator[None]:
    """Dynamo gives up on a function after eight compilations, whichever tests of the process asked for them."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters:
        dynamo.utils.counters.clear()
        torch.compiler.reset()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """One process, for `DistributedDataParallel`."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
