"""What each layer of a sequence costs on this machine: seconds by trying it, bytes by what autograd keeps of it."""

import copy
import time

import torch

from psgd.parallel.cuts.partition import LayerCost
from psgd.torch.pieces import own_layers
from psgd.torch.pieces.sequential_stages import NamedLayer, SequentialStages

_REPEATS = 5


def measure(whole: SequentialStages, samples: int, state_vectors: int = 0) -> list[LayerCost]:
    """Returns the cost of each layer. Makes one layer's tensors at a time; the module and the generator stay as is.

    Args:
        whole: on the CPU or the meta device.
        samples: of a microbatch.
        state_vectors: that the update rule keeps, each as long as the parameters.
    """
    costs = []
    with torch.random.fork_rng(devices=[]):
        for number, (layer, shape) in enumerate(zip(whole.layers, whole.shapes, strict=True)):
            x = torch.zeros((samples, *shape), dtype=whole.sample.dtype if number == 0 else whole.gives)
            costs.append(_of_layer(layer, number, x, state_vectors))
    return costs


def _of_layer(layer: NamedLayer, number: int, x: torch.Tensor, state_vectors: int) -> LayerCost:
    module = copy.deepcopy(layer.module)
    own_layers.fill(module, number, None, 0)
    x.requires_grad_(number > 0 and x.is_floating_point())
    copies = any(getattr(part, "inplace", False) for part in module.modules())
    trained = [p for p in module.parameters() if p.requires_grad]
    known = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def passes() -> float:
        began = time.perf_counter()
        y = module(x.clone() if copies else x)
        if y.requires_grad:
            torch.autograd.backward(y, torch.zeros_like(y))
        return time.perf_counter() - began

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        passes()
    seconds = min(passes() for _ in range(_REPEATS))
    return LayerCost(seconds, (2 + state_vectors) * sum(p.nbytes for p in trained), sum(kept.values()))
