"""`psgd bench kernels`: kernels on a GPU beside a plain copy. Begin with `command.py`."""
