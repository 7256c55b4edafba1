"""What `psgd bench train` prints for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from psgd.launch.bench import markdown
from psgd.launch.bench.train.settings import AGAINST


def table(rows: Sequence[Mapping[str, Any]], target: float) -> str:
    """Aligned columns, a line for each row; seconds to the target only where there is one."""
    head = ["name", "samples/s", "accuracy", "95 %", f"s to {target:g}", "waited", "against", "ratio", "options"]
    lines = [head, *(_cells(row) for row in rows)]
    if not target:
        lines = [line[:4] + line[5:] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([*map(str.rjust, line[:-1], widths), line[-1]]).rstrip() for line in lines)


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each strategy, with its peer beside it."""
    peers = {row["name"]: row for row in rows}
    names = ("", "samples/s", "accuracy, 95 %", "PyTorch's peer", "its samples/s", "ratio")
    lines = [markdown.head(names)]
    for row in rows:
        name, speed, accuracy, interval, *_ = _cells(row)
        if row["name"] in AGAINST:
            theirs = peers.get(row["against"])
            peer = ("-", "-") if theirs is None else (_cells(theirs)[0], _cells(theirs)[1])
            lines.append(
                markdown.line([f"`{name}`", speed, f"{accuracy} {interval}", *peer, _or_dash(row["ratio"], "{:.2f}")])
            )
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["name"],
        f"{row['samples_per_second']:,.0f}",
        f"{row['test_accuracy']:.4f}",
        _or_dash(row["test_accuracy_interval"], "± {:.4f}"),
        _or_dash(row["seconds_to_accuracy"], "{:.2f}"),
        _or_dash(row["waited_share"], "{:.0%}"),
        row["against"] or "-",
        _or_dash(row["ratio"], "{:.2f}"),
        row["options"],
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
