"""`psgd bench sharded`: a training step with state, gradients and parameters in parts, beside one that has all of them.

Begin with `command.py`.
"""
