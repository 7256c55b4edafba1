"""What every rank needs to know of the others: who is who, what all agree on, and how all end together.

Owns the mesh of ranks and the placement of servers, agreement between ranks, the alarm that reaches all ranks after an
error, ending a job when a rank fails, injected faults, the launcher's environment, keyed random numbers, checks of
single arguments, and what an option of a run is (`option`). May import `psgd.collectives` and `psgd.kernels` only.
Begin with `mesh.py`.
"""
