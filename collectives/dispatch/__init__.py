"""Which steps a call takes, and carrying them out.

Owns the choice of an algorithm (`tuning`), the way from a `Call` to its steps (`dispatch`), the engine that runs the
steps, non-blocking requests, what a waiting rank looks after (`stalls`), and errors that all ranks raise alike
(`contract`, `errors`).

May import every room but `fastpath`. Begin with `dispatch.py`, then `engine.py`.
"""
