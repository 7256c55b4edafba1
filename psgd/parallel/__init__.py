"""Models in pieces: stages of a pipeline on different ranks, layers cut by tensor, and meshes of ranks for both.

Begin with `schedules`: what each rank of a pipeline computes, in which order.
"""
