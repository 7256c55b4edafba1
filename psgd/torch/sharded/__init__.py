"""`psgd.torch.shard`: a module of which each rank keeps a part, whose units are whole only while they are used.

Begin with `module.py`; `pass_hooks.py` has the hooks.
"""
