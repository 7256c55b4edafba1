"""`psgd bench peers`: each peer as its own users run it, beside the same peer in psgd's benchmarks.

The other files are scripts of a screenful that import nothing of psgd. Begin with `command.py`.
"""
