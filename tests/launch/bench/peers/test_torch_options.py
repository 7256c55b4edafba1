import json

from psgd.launch.bench.peers.torch_options import TorchOptions


def test_they_travel_as_json():
    options = TorchOptions("ddp", "digits", "mlp", 2, 8, 0.5, 1, 3, inject="slow:0:2", evaluates=True)
    text = options.to_json()
    assert "\n" not in text
    assert TorchOptions(**json.loads(text)) == options
