"""Reading a network: taps, layers, norms, the order and the graph of a forward pass, and calling a model.

In: a bare `nn.Module` and its inputs. Out: what its layers are, receive and return; the module is left as it was.
"""
