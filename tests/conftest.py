from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# the tests run in several processes: more threads than cores make small operations up to fifty times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
