"""`psgd bench parallel`: a model cut over ranks against the same model on one of them.

Begin with `command.py`.
"""
