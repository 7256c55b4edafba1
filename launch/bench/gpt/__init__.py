"""`psgd bench gpt`: the transformer on text beside PyTorch's own modules: the same losses, and speed a core.

Begin with `command.py`.
"""
