"""The end of a run in a few aligned lines."""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.notice import counted


def format_nbytes(nbytes: float) -> str:
    """Writes a number of bytes with three digits: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:,.3g} TB"


def text(result: Mapping[str, Any]) -> str:
    """Returns the summary of a run.

    Args:
        result: the keys of `psgd train --json`; those that are missing or None give no line.
    """
    lines = []

    def add(name: str, key: str, form: str) -> None:
        if result.get(key) is not None:
            lines.append((name, form.format(result[key])))

    if result.get("train_samples") is not None:
        ranks = f"{counted(result['servers'], 'server')}, {counted(result['workers'], 'worker')}"
        lines.append(("run", f"{result['dataset']}, {result['model']}, {result['strategy']}, {ranks}"))
        lines.append(("samples", f"{result['train_samples']:,} to train on, {result['test_samples']:,} to test on"))
    add("accuracy", "test_accuracy", "{:.4f} on the test samples")
    if result.get("test_f1") is not None:
        form = "{test_f1:.4f}, precision {test_precision:.4f}, recall {test_recall:.4f}: means over the classes"
        lines.append(("F1", form.format_map(result)))
    if "train_loss" in result:
        lost = result["train_loss"]
        shown = "not finite: the run diverged; try a lower --lr" if lost is None else f"{lost:.4f} in training"
        lines.append(("loss", shown))
    add("perplexity", "test_perplexity", "{:.4g} per token of the test samples")
    add("samples/s", "samples_per_second", "{:,.0f}")
    add("tokens/s", "tokens_per_second", "{:,.0f}")
    add("time", "seconds", "{:.2f} s")
    if result.get("bytes_sent") is not None and result.get("bytes_received") is not None:
        sent, received = format_nbytes(result["bytes_sent"]), format_nbytes(result["bytes_received"])
        among = " between copies of the model" if result.get("bubble") else ""
        lines.append(("bytes moved", f"{sent} sent, {received} received{among}"))
    staleness = result.get("staleness")
    if staleness and staleness.get("mean") is not None:
        lines.append(("staleness", f"mean {staleness['mean']:.2f}, largest {staleness['max']}"))
    waited, computed = result.get("waited_seconds") or [0.0], result.get("computed_seconds") or [0.0]
    if any(waited):
        share, most = sum(waited) / (sum(waited) + sum(computed)), max(range(len(waited)), key=waited.__getitem__)
        lines.append(
            ("waiting", f"{100 * share:.0f} % of the workers' time, most worker {most} ({waited[most]:.2g} s)")
        )
    if bubble := result.get("bubble"):
        lines.append(("bubble", _bubble(bubble)))
    if result.get("lost_ranks"):
        lines.append(("lost ranks", ", ".join(map(str, result["lost_ranks"]))))
    add("checkpoint", "checkpoint", "{}")
    return "\n".join(f"{name:<12} {value}" for name, value in lines)


def _bubble(bubble: Mapping[str, Any]) -> str:
    """Says how much of a pipeline's time was none of its passes, beside what its schedule says for equal stages.

    Args:
        bubble: "share" of the ranks' time; "expected"; "schedule"; "ranks" and "microbatches".
    """
    measured = f"{100 * bubble['share']:.0f} % of the pipeline's time"
    stages = f"{counted(bubble['ranks'], 'rank')} and {counted(bubble['microbatches'], 'microbatch', 'es')}"
    return f"{measured}; {bubble['schedule']} with {stages}: {100 * bubble['expected']:.0f} % if all passes are equal"
