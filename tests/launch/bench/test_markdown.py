"""Rows of Markdown tables."""

from psgd.launch.bench import markdown


def test_rows_under_their_head():
    assert markdown.head(["", "a b"]) == "|  | a b |\n|---|---|"
    assert markdown.line(["1", "2 µs"]) == "| 1 | 2 µs |"
