"""A rank's stages: their links with neighbours, their microbatches, and the loop that runs a schedule.

Begin with `chunk.py`, one stage on one rank, and `executor.py`, the loop. `links.py` says who sends what to whom;
`shared_slots.py` and `messages.py` are the two ways. On GPUs it is `device_links.py`, with `device_slots.py`, and
`captured_stage.py` makes passes CUDA graphs; only `gpu.py` imports CuPy. May import what `psgd.parallel` may, and
`schedules`.
"""
