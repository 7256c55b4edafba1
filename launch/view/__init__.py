"""Runs as text: `psgd top`, a job that is running, and `psgd trace`, what each rank did. Begin with `top.py`."""
