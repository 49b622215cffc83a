"""`open-gates`: gates of LSTMs and GRUs that remember for the length of the inputs."""

from __future__ import annotations

import torch
from torch import nn

from wellcond.network.calling import tensors_in
from wellcond.remedies.drawn_weights import with_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy("open-gates", "gates", rules=("vanishing-gradient",))
def open_gates(setup: Setup) -> Setup | None:
    """Biases the gates of LSTMs and GRUs to remember for 1 to T steps, the length of the inputs.

    A gate σ(b) forgets within 1/(1 − σ(b)) steps, at b = 0 half of the state in every step, and so does its gradient.
    With b = log u, u uniform in [1, T − 1], memories of all lengths up to T are there from the start (chrono
    initialization, Tallec and Ollivier 2018). One large bias for all, such as 5, is right for one length only.
    """
    sequences = [x for x in tensors_in(setup.inputs) if x.dim() == (3 if x.is_floating_point() else 2)]  # or tokens
    longest = max((x.shape[1] for x in sequences), default=0)
    if longest < 3 or not any(isinstance(module, (nn.LSTM, nn.GRU)) for module in setup.problem.model.modules()):
        return None

    def open_all(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, (nn.LSTM, nn.GRU)):
                size = module.hidden_size
                for name, bias in module.named_parameters():
                    if "bias_ih" in name:
                        bias[size : 2 * size] = torch.empty_like(bias[:size]).uniform_(1, longest - 1).log()
                        if isinstance(module, nn.LSTM):
                            bias[:size] = -bias[size : 2 * size]

    lines = f"""\
for module in model.modules():
    if isinstance(module, (nn.LSTM, nn.GRU)):
        size = module.hidden_size
        for name, bias in module.named_parameters():
            if "bias_ih" in name:  # second of its parts: the forget gate of an LSTM, the update gate of a GRU
                bias.data[size : 2 * size] = torch.empty_like(bias.data[:size]).uniform_(1, {longest - 1}).log()
                if isinstance(module, nn.LSTM):  # first part: the input gate
                    bias.data[:size] = -bias.data[size : 2 * size]"""
    return with_weights(setup, open_all, lines)
