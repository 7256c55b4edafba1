"""A rank's stages: their links with neighbours, their microbatches, and the loop that runs a schedule.

Begin with `chunk.py`, one stage on one rank, and `executor.py`, the loop. `links.py` says who sends what to whom;
`shared_slots.py` and `messages.py` are the two ways. May import what `psgd.parallel` may, and `schedules`.
"""
