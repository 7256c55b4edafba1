"""Ranks that die while others go on: MPI's User Level Failure Mitigation, in one small vocabulary.

Owns whether this MPI has it and this job was started with it (`switch`), the calls that psgd uses of it (`deaths`),
which deaths a job survives (`tolerance`), what those that live do together though more die in it (`survivors`), and how
a job ends that has survived some (`leave`). Begin with `deaths`.
"""
