"""`psgd bench ddp`: PyTorch's DistributedDataParallel with our hook, and our own training, against DDP over Gloo.

Begin with `command.py`.
"""
