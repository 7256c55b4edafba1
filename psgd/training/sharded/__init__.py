"""`psgd train --shard`: psgd's own models by units (`sharded_model`), and where their gradients are computed."""
