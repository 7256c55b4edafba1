"""`psgd bench allreduce` and the other collectives, and `psgd bench tune`. Begin with `command.py`."""
