"""The memory that `psgd bench gpt2` needs, and what one GPU of 80 GB would need for the same batch."""

from psgd.config import configure
from psgd.estimate import activations, sharded_vectors, table, whole_run
from psgd.estimate.rank_memory import (
    ACTIVATIONS,
    BATCH,
    SHARED_GRADIENTS,
    WORKSPACE,
    Estimate,
    shared_gradients,
    workspace,
)
from psgd.launch.bench.gpt2.trial import GPT2Trial
from psgd.nn.model import Model
from psgd.nn.models import build

ONE_GPU = 80 * 10**9


def model_of(trial: GPT2Trial) -> Model:
    """The model, on no vector."""
    sizes = {"layers": trial.layers, "width": trial.width, "heads": trial.heads}
    return build("gpt", (trial.context,), trial.vocabulary, tokens=True, **sizes)


def of_trial(trial: GPT2Trial, model: Model) -> Estimate:
    """What a rank needs for its arrays: of the model as it is trained, with its recomputation.

    Args:
        trial: the options.
        model: with recomputation.
    """
    rows = sharded_vectors.of_stage(model, trial.shard, trial.ranks, state=2, steps=trial.passes)
    rows |= {
        ACTIVATIONS: activations.count(model, trial.microbatch, device=trial.device),
        SHARED_GRADIENTS: shared_gradients(model),
        WORKSPACE: workspace(trial.device),
        BATCH: trial.microbatch * trial.context * (4 + 8),
    }
    return Estimate("worker", trial.ranks, rows, trial.device)


def recomputing(trial: GPT2Trial, model: Model) -> Model:
    """The same with all layers recomputed."""
    return activations.recomputed(model, "all", trial.microbatch, trial.device)


def lines(trial: GPT2Trial) -> list[str]:
    """Both estimates as text."""
    model = model_of(trial)
    config = configure(model="gpt", strategy="allreduce", optimizer="adam", device="cuda", batch_size=trial.batch_size)
    alone = whole_run.of_model(config, model, 0, 1)
    said = alone.verdict(ONE_GPU, "cuda")
    ours = of_trial(trial, recomputing(trial, model))
    how = f"{trial.ranks} ranks, --shard {trial.shard} --recompute all, {trial.passes} passes of {trial.microbatch}"
    return [
        f"{model.layout.size:,} parameters; a batch of {trial.batch_size} on one GPU of {table.text(ONE_GPU)}:",
        *table.lines(alone.ranks),
        *(said or ["fits"]),
        f"\n{how}:",
        *table.lines([ours]),
    ]
