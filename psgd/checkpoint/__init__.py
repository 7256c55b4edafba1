"""A run's state on the disk: whole or not there, whatever is killed and whenever.

    directory/
        step-000001200/            complete: named so only when everything in it is on the disk
            server-0.safetensors   one rank's `State`: tensors, and facts as JSON in its metadata
            server-0.json          its size and SHA-256
            worker-0.safetensors
            worker-0.json
            manifest.json          written last: step, samples, version, what ran, layout, each shard's size and SHA-256
        step-000001400.5f3a.part/  being written by the run whose key is 5f3a, or left by one that died

To save, every rank has a `writer.Writer(directory, key, name)`, rank 0's with the names of all; `save(step, state)`
copies and returns, a thread writes; rank 0's gets a `manifest.Manifest` too and publishes when all shards are there.
A failure to write is raised as a CheckpointError at the next `save`, `check` or `wait`; older checkpoints stay.

To start, rank 0 takes the directory, `folder.claim(directory)`, before anyone writes: that removes what dead runs left.

To resume, rank 0 takes the first of `folder.complete(directory, warn)` and broadcasts its path, and each rank reads:
`folder.open_checkpoint(path)` gives the manifest, `Checkpoint.state(name)` one State. `vectors.assemble` joins the
servers' parts of vectors.

A model that several ranks hold together is saved in pieces (`pieces/`): `pipe1tensor0worker-0.safetensors` and so on.

Nothing of the format imports MPI; nothing is unpickled; sizes and names from files are checked before they are used.
Begin with `state.py`, then `folder.py`.
"""
