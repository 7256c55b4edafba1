import pytest

from psgd.parallel import untried


@pytest.mark.parametrize(("value", "tries"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_it_is_refused_unless_it_is_asked_for(value, tries, monkeypatch):
    if value is None:
        monkeypatch.delenv("PSGD_UNTRIED", raising=False)
    else:
        monkeypatch.setenv("PSGD_UNTRIED", value)
    assert untried.wanted() == tries
    said = untried.complaint("--pipe-schedule pipedream on GPUs")
    assert (said is None) == tries
    assert tries or (said.startswith("--pipe-schedule pipedream on GPUs: ") and "PSGD_UNTRIED=1" in said)
