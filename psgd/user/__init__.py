"""A user's own Python files, which the command line names as `FILE.py:FUNCTION`: a model, a dataset.

Owns what such a name is and what can be said of the file without running it (`reference`), and running it (`script`).
Such files are the user's program: they are executed on every rank, by design. Nothing that a checkpoint holds is. May
import `kernels` alone; importing `reference` loads no NumPy. Begin with `reference.py`.
"""
