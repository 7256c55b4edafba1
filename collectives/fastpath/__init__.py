"""Blocking calls of plain arrays among the ranks of one node, without a `Call` and without generators.

Those cost more than a small collective. The fast path means what the general path means (`arguments.parse`, `dispatch`,
`algorithms.intranode`): arguments that are not plain take the general path, and so do all wrong ones, so there are no
errors of its own for them. Both publish the same descriptor: ranks on different paths meet.

May import every room. Begin with `fast_call.py`.
"""
