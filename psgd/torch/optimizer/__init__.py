"""`psgd.torch.DistributedOptimizer`: rules of `torch.optim` under every strategy.

Begin with `distributed.py`, then `rule.py`.
"""
