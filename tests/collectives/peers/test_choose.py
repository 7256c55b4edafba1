"""Which kernel a size takes, and that its slots are large enough for it."""

import pytest

from psgd.collectives.peers import choose

MEGA = 1 << 20


@pytest.mark.parametrize("ranks", range(2, 9))
def test_every_size_fits_its_slots(ranks):
    place = choose.layout(ranks)
    for nbytes in sorted({0, 1, 7, 8, *(2**k + d for k in range(10, 34) for d in (-1, 0, 1))}):
        shape = choose.reduction(ranks, nbytes)
        assert 1 <= shape.blocks <= 512 and 1 <= shape.threads <= 512
        if shape.kernel == "flagged":
            assert 0 < nbytes <= 8 * place["FLAGGED_WORDS"]
            assert (shape.blocks - 1) * shape.threads < -(-nbytes // 8)  # each block's first thread has a word
        elif shape.kernel == "pulled":
            assert nbytes <= place["PULLED_BYTES"]
        else:
            assert shape.blocks * shape.piece <= choose.row_packs(ranks)
    assert place["PULLED_AT"] + 2 * place["PULLED_BYTES"] == choose.region_bytes(ranks)
    assert all(value % 16 == 0 for name, value in place.items() if name != "FLAGGED_WORDS")


def test_kernels_by_size():
    def kernels(ranks):
        return [choose.reduction(ranks, n).kernel for n in (4096, MEGA // 4, MEGA, 4 * MEGA, 16 * MEGA)]

    assert kernels(2) == ["flagged", "flagged", "pulled", "pulled", "staged"]
    assert kernels(4) == ["flagged", "flagged", "staged", "staged", "staged"]
    assert choose.reduction(2, 0).kernel == "pulled"  # no word, so no word could carry the call's number


def test_memory_does_not_grow_with_ranks():
    assert max(choose.wide_bytes(ranks) for ranks in range(2, 9)) <= 208 * MEGA
    assert max(choose.region_bytes(ranks) for ranks in range(2, 9)) <= 14 * MEGA
