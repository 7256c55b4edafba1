"""Batch scripts for SLURM: `render` makes their text, `submit` hands one to sbatch, `command` is `psgd slurm`.

Begin with `templates.py`.
"""
