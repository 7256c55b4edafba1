"""`psgd bench offload`: a step whose optimizer or layers are on the host beside what it consists of.

Begin with `command.py`.
"""
