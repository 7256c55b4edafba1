"""Passes of a stage of PyTorch's layers as CUDA graphs.

Begin with `recorded_stage.py`. May import what `psgd.torch.pieces` may.
"""
