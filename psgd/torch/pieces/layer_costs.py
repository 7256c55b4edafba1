"""What each layer of a sequence costs on this machine: seconds by trying it, bytes by what autograd keeps of it."""

import copy
import time

import torch

from psgd.parallel.cuts.partition import LayerCost
from psgd.torch.pieces import own_layers
from psgd.torch.pieces.seeded import seeded
from psgd.torch.pieces.sequential_stages import NamedLayer, SequentialStages

_REPEATS = 5


def measure(whole: SequentialStages, samples: int, state_vectors: int = 0, device: str = "cpu") -> list[LayerCost]:
    """Returns the cost of each layer. Makes one layer's tensors at a time; module and generators stay as they are.

    Args:
        whole: on the CPU or the meta device.
        samples: of a microbatch.
        state_vectors: that the update rule keeps, each as long as the parameters.
        device: where it is to be trained: "cpu", or "cuda", the current GPU.
    """
    costs, place = [], torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", torch.cuda.current_device())
    with seeded(0, place):
        for number, (layer, shape) in enumerate(zip(whole.layers, whole.shapes, strict=True)):
            kind = whole.sample.dtype if number == 0 else whole.gives
            x = torch.zeros((samples, *shape), dtype=kind, device=place)
            costs.append(_of_layer(layer, number, x, state_vectors))
    return costs


def _of_layer(layer: NamedLayer, number: int, x: torch.Tensor, state_vectors: int) -> LayerCost:
    module = copy.deepcopy(layer.module)
    own_layers.fill(module, number, None, 0)
    module.to(x.device)
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
        _settle(x)
        began = time.perf_counter()
        y = module(x.clone() if copies else x)
        if y.requires_grad:
            with torch.autograd.set_multithreading_enabled(
                False
            ):  # another thread's first kernel takes long, and warns
                torch.autograd.backward(y, torch.zeros_like(y))
        _settle(x)
        return time.perf_counter() - began

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        passes()
    seconds = min(passes() for _ in range(_REPEATS))
    return LayerCost(seconds, (2 + state_vectors) * sum(p.nbytes for p in trained), sum(kept.values()))


def _settle(x: torch.Tensor) -> None:
    """Waits for the GPU, if it is there."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
