"""Vectors of one layout, put together from pieces: any ranges of them have the elements of the whole."""

import numpy as np

from psgd.checkpoint import shards
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.pieces.assembled import Assembled
from psgd.checkpoint.pieces.overlaps import overlaps
from psgd.checkpoint.pieces.stored import Stored
from psgd.nn.layout import Layout

WHOLE = Layout([("a", (4, 6)), ("b", (6,)), ("c", (5, 3))], align=8)
PIECES = {
    "one": Layout([("a", (4, 2)), ("b", (6,))], parts={"a": ((4, 6), (0, 0))}),
    "two": Layout([("a", (4, 4)), ("c", (5, 3))], parts={"a": ((4, 6), (0, 2))}),
}


def test_ranges_are_those_of_the_whole(tmp_path):
    vector = np.zeros(WHOLE.size, np.float32)
    for name, view in WHOLE.views(vector).items():
        view[...] = np.random.default_rng(len(name)).standard_normal(view.shape)
    views, files = WHOLE.views(vector), []
    for piece, layout in PIECES.items():
        own = np.full(layout.size, np.nan, np.float32)
        for parameter in layout.parameters:
            layout.views(own)[parameter.name][...] = views[parameter.name][parameter.slices]
        files.append(shards.write(tmp_path, f"{piece}worker-0", {"params": own}, "{}"))
    manifest = Manifest(1, 1, layout=WHOLE, pieces=PIECES, shards=tuple(files))
    sources = {piece: Stored(tmp_path, manifest, piece, "worker-0", layout.size) for piece, layout in PIECES.items()}
    made = Assembled(WHOLE, overlaps(WHOLE, PIECES, {}), sources, {"params": np.float32})
    np.testing.assert_array_equal(made.read("params", None), vector)
    rng = np.random.default_rng(1)
    for _ in range(30):
        ends = np.sort(rng.integers(0, WHOLE.size + 1, 6))
        wanted = [range(*ends[at : at + 2]) for at in (0, 2, 4)]
        expected = np.concatenate([vector[each.start : each.stop] for each in wanted])
        np.testing.assert_array_equal(made.read("params", wanted), expected)
    assert made.read("params", []).size == 0
