import pytest

from psgd.launch.output import exit_status


def test_report_is_read_back_and_leaves_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "outcome"
    monkeypatch.setenv(exit_status.VARIABLE, str(path))
    exit_status.prepare(path)
    assert exit_status.read(path) is None
    for code in (2, 0):
        assert exit_status.report(code)
        assert exit_status.read(path) == code
    assert [entry.name for entry in tmp_path.iterdir()] == ["outcome"]


def test_without_a_launcher_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(exit_status.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert not exit_status.report(0)
    assert not list(tmp_path.iterdir())


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(exit_status.VARIABLE, str(tmp_path / "missing" / "outcome"))
    assert not exit_status.report(0)
    said = capsys.readouterr().err
    assert said.startswith("psgd: error: ") and said.endswith(": the launcher will not know how this run ended\n")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"exit": true}', '{"exit": "0"}', '{"exit": null}'])
def test_what_is_no_report_reads_as_none(text, tmp_path):
    path = tmp_path / "outcome"
    if text is not None:
        path.write_text(text)
    assert exit_status.read(path) is None


def test_a_run_says_that_it_has_begun(tmp_path, monkeypatch):
    path = tmp_path / "outcome"
    exit_status.prepare(path)
    monkeypatch.setenv(exit_status.VARIABLE, str(path))
    assert not exit_status.has_begun(path)
    exit_status.report_begun()
    assert exit_status.has_begun(path) and exit_status.read(path) is None
    assert exit_status.report(4) and exit_status.read(path) == 4
