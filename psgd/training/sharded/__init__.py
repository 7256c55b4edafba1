"""psgd's own models whose gradients and parameters lie in parts on the workers: `--shard 2` and `--shard 3`.

Begin with `sharded_model`: what a run trains. `sharded_backend` computes its gradients.
"""
