from psgd.collectives.mpi.tags import Tag


def test_tags_stay_below_the_bound_that_the_standard_promises():
    assert all(0 <= tag <= 32767 for tag in Tag)
    assert len({int(tag) for tag in Tag}) == len(Tag)
