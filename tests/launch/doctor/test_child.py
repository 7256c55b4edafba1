"""A process to try things in is no rank of the job."""

from pathlib import Path

from psgd.launch.doctor import child


def test_a_child_is_no_rank(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    code = "import os; print(sorted(set(os.environ) & {'PMIX_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_MCA_pml'}))"
    assert child.output(code) == "['OMPI_MCA_pml']"
    assert child.output("import time; time.sleep(60)", timeout_s=0.3) is None
    assert child.output("raise SystemExit(3)") is None
    assert child.output("import sys; print(sys.argv[1:])", "a", "b") == "['a', 'b']"
    assert Path.cwd().exists()


def test_modules_are_found_where_python_leaves_out_the_current_folder_by_itself(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("found = 'yes'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for safe in ("", "1"):
        monkeypatch.setenv("PYTHONSAFEPATH", safe)
        assert child.output("import only_here; print(only_here.found)") == "yes"
