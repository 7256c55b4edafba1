"""Data parallelism whose workers each keep a part: the worker (`sharded_worker`), and what it is made of."""
