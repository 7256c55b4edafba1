import pytest

from psgd.launch import outcome


def test_report_is_read_back_and_leaves_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "outcome"
    monkeypatch.setenv(outcome.VARIABLE, str(path))
    for code in (2, 0):
        assert outcome.report(code)
        assert outcome.read(path) == code
    assert [entry.name for entry in tmp_path.iterdir()] == ["outcome"]


def test_without_a_launcher_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(outcome.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert not outcome.report(0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"exit": true}', '{"exit": "0"}', '{"exit": null}'])
def test_what_is_no_report_reads_as_none(text, tmp_path):
    path = tmp_path / "outcome"
    if text is not None:
        path.write_text(text)
    assert outcome.read(path) is None
