"""GPUs: whether there are any, whether CuPy reaches them, and how they reach each other."""

import json
import os
import shutil
from pathlib import Path

from psgd.launch.doctor import child
from psgd.launch.doctor.check import Check

CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_ASK = """
import json
import cupy
runtime, count = cupy.cuda.runtime, cupy.cuda.runtime.getDeviceCount()
devices = [runtime.getDeviceProperties(d) for d in range(count)]
names = [f"{p['name'].decode()} ({p['totalGlobalMem'] >> 30} GiB)" for p in devices]
reach = [[a == b or bool(runtime.deviceCanAccessPeer(a, b)) for b in range(count)] for a in range(count)]
memory = cupy.arange(4, dtype=cupy.float32)
try:
    runtime.ipcGetMemHandle(memory.data.ptr)
    ipc = ""
except Exception as error:
    ipc = str(error)
print(json.dumps({"names": names, "reach": reach, "ipc": ipc, "sum": float(memory.sum())}))
"""


def installed() -> str | None:
    """CuPy's version, or None."""
    return next(filter(None, map(child.installed, CUPY)), None)


def checks(wanted: bool | None = None) -> list[Check]:
    """The GPUs of this host.

    Args:
        wanted: whether to train on GPUs; None takes an installed CuPy for a yes.
    """
    cupy = installed()
    wanted = cupy is not None if wanted is None else wanted
    cause = missing()
    if not wanted:
        return [
            Check("gpus", f"none: {cause}" if cause else "found, but CuPy is not installed: training runs on the CPU")
        ]
    if cause:
        fix = "in a container: docker run --gpus all, apptainer exec --nv; in a job: request one (--gpus-per-node); "
        fix += "or check without a GPU: --device cpu"
        return [Check("gpus", f"none: {cause}", "wrong", fix)]
    if cupy is None:
        fix = "pip install 'psgd[cuda13]', or psgd[cuda12] for a driver before 580"
        return [Check("gpus", "found, but CuPy is not installed", "wrong", fix)]
    try:
        facts = json.loads(child.output(_ASK, timeout_s=60) or "")
    except ValueError:
        fix = "python -c 'import cupy; cupy.arange(3).sum()' shows why: CuPy may need another CUDA driver"
        return [Check("gpus", f"found, but CuPy {cupy} cannot use them", "wrong", fix)]
    return [Check("gpus", f"{', '.join(facts['names'])}; CuPy {cupy}"), *_between(facts)]


def _between(facts: dict[str, object]) -> list[Check]:
    reach, ipc = facts["reach"], facts["ipc"]
    assert isinstance(reach, list)
    found = [Check("gpu ipc", "yes")]
    if ipc:
        fix = "ranks of a node exchange GPU data through the host; docker run --ipc=host"
        found = [Check("gpu ipc", f"no: {ipc}", "warning", fix)]
    if len(reach) > 1:
        apart = [f"{a}-{b}" for a, row in enumerate(reach) for b, fine in enumerate(row) if a < b and not fine]
        links = nvlinks()
        value = f"all reach each other, {links}" if not apart else f"GPUs {', '.join(apart[:8])} do not, {links}"
        fix = (
            "these exchange data through the host; request GPUs of one socket, without --gpus-per-task=1"
            if apart
            else ""
        )
        found.append(Check("gpu peers", value, "warning" if apart else "ok", fix))
    return found


def nvlinks() -> str:
    """What nvidia-smi says of NVLink."""
    if shutil.which("nvidia-smi") is None:
        return "NVLink unknown: no nvidia-smi"
    listed = child.printed(["nvidia-smi", "nvlink", "--status"])
    if listed is None:
        return "NVLink unknown: nvidia-smi fails"
    active = sum("GB/s" in line for line in listed.splitlines())
    return f"{active} NVLinks active" if active else "no NVLink"


def missing(devices: str = "/dev", driver: str = "/proc/driver/nvidia/version") -> str:
    """Why no GPU can be used here, or nothing where there is one."""
    files = [file for file in Path(devices).glob("nvidia*") if file.name[6:].isdecimal()]
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles"):
        return "CUDA_VISIBLE_DEVICES hides them all"
    if not Path(driver).exists() and not files:
        return "no NVIDIA driver here"
    if not files:
        return "the NVIDIA driver is loaded, but no /dev/nvidia0 is here: the container or the job was given no GPU"
    if not any(os.access(file, os.R_OK | os.W_OK) for file in files):
        return f"{files[0]} cannot be opened: the job was given no GPU"
    return ""
