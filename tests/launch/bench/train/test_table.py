from psgd.launch.bench.train.table import table

ROW = {
    "name": "hogwild",
    "samples_per_second": 123456.7,
    "test_accuracy": 0.87654,
    "test_accuracy_interval": 0.0123,
    "seconds_to_accuracy": 1.234,
    "waited_share": 0.256,
    "against": "torch-hogwild",
    "ratio": 1.756,
    "options": "",
}
BARE = ROW | dict.fromkeys(["test_accuracy_interval", "seconds_to_accuracy", "waited_share", "against", "ratio"])


def cells(text):
    return [line.split() for line in text.splitlines()]


def test_all_is_there():
    head, full, bare = cells(table([ROW, BARE | {"options": "--period=8"}], 0.87))
    assert head == [
        "name",
        "samples/s",
        "accuracy",
        "95",
        "%",
        "s",
        "to",
        "0.87",
        "waited",
        "against",
        "ratio",
        "options",
    ]
    assert full == ["hogwild", "123,457", "0.8765", "±", "0.0123", "1.23", "26%", "torch-hogwild", "1.76"]
    assert bare == ["hogwild", "123,457", "0.8765", "-", "-", "-", "-", "-", "--period=8"]


def test_columns_are_aligned_and_the_time_is_there_only_where_there_is_a_target():
    head, row = table([ROW], 0.0).splitlines()
    assert "s to" not in head
    assert "1.23" not in row
    for name, cell in (("samples/s", "123,457"), ("ratio", "1.76"), ("against", "torch-hogwild")):
        assert head.index(name) + len(name) == row.index(cell) + len(cell)
