"""PyTorch's modules in pieces: a `nn.Sequential` in stages on several ranks, and linear layers and attention by tensor.

Begin with `module_pipeline.py` for stages, and with `cut_linears.py` for tensors. May import what `psgd.torch` may.
"""
