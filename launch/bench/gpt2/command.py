"""`psgd bench gpt2`: a GPT-2 that no single GPU of 80 GB holds, on several, beside PyTorch's FSDP2."""

import json
from typing import Any

import click

from psgd.kernels.errors import UsageError
from psgd.launch.whole_numbers import Whole


@click.command()
@click.option("--layers", type=Whole(1), default=48, show_default=True, help="Layers of the model.")
@click.option("--width", type=Whole(1), default=1600, show_default=True, help="Features of a token.")
@click.option("--heads", type=Whole(1), default=25, show_default=True, help="Heads of attention.")
@click.option("--context", type=Whole(1), default=1024, show_default=True, help="Tokens of a sample.")
@click.option("--vocabulary", type=Whole(256), default=50257, show_default=True, help="Tokens that the model knows.")
@click.option("--batch-size", type=Whole(1), default=32, show_default=True, help="Samples of a step, of all ranks.")
@click.option("--microbatch", type=Whole(1), default=4, show_default=True, help="Samples of a rank and pass.")
@click.option("--shard", type=click.Choice(["2", "3"]), default="3", show_default=True, help="Stage of sharding.")
@click.option("--lr", type=float, default=3e-5, show_default=True, help="Learning rate of Adam.")
@click.option("--steps", type=Whole(2), default=8, show_default=True, help="Steps of each contender; the first warms.")
@click.option("--ranks", type=Whole(2), default=2, show_default=True, help="Number of ranks.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True, help="One GPU a rank.")
@click.option("--peak", type=float, default=66.9, show_default=True, help="TFLOP/s of a GPU in float32.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Train PyTorch's FSDP2 too, on GPUs.")
@click.option("--estimate", is_flag=True, help="Print what it needs, and start nothing.")
def gpt2(*, ranks: int, device: str, peer: bool, estimate: bool, peak: float, shard: str, **chosen: Any) -> int:
    """Train GPT-2 in float32 with --shard 3, recomputation and accumulation, then the same with PyTorch's FSDP2.

    Tokens are the bytes of the text genesis, whatever the vocabulary. Prints one JSON object: losses, the most memory
    of a GPU beside its estimate, tokens a second, and the share of the GPUs' float32 peak (without TensorFloat-32) that
    the products take, those of recomputation included.
    """
    from psgd.launch.bench.gpt2.trial import GPT2Trial

    trial = GPT2Trial(ranks=ranks, device=device, shard=int(shard), **chosen)
    each = trial.ranks * trial.microbatch
    if trial.batch_size % each:
        raise UsageError(
            f"--batch-size {trial.batch_size}: expected a multiple of {each}: {ranks} ranks x --microbatch"
        )
    if estimate:
        from psgd.launch.bench.gpt2 import expected

        click.echo("\n".join(expected.lines(trial)))
        return 0
    from psgd.launch.bench import job

    def rank(first: bool) -> None:
        from psgd.launch import startup
        from psgd.runtime.fail_together import guard

        comm = startup.start()
        from psgd.launch.bench.gpt2 import ranks as bodies

        job.check("gpt2", ranks, comm.size, "ranks")
        with guard(comm):
            found = bodies.measure(comm, trial, peak, peer and device == "cuda")
            if first:
                click.echo(json.dumps(found))

    return job.run("gpt2", ranks, rank, what="ranks", bind=device == "cpu")
