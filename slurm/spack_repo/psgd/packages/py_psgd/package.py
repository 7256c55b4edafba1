"""psgd with the cluster's own MPI, built from the checkout that this file lies in (Spack 1.0 or newer)."""

from pathlib import Path

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyPsgd(PythonPackage):
    """Distributed SGD over MPI: a parameter server and collectives, started with mpirun or srun."""

    git = Path(__file__).resolve().parents[5].as_uri()

    license("MIT")

    version("main", branch="main")

    variant("cuda", default=False, description="Train and reduce on NVIDIA GPUs, with CuPy")
    variant("plot", default=True, description="Draw plots with psgd plot")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-numba@0.59:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-safetensors@0.4:", type=("build", "run"))
    depends_on("py-tomli@2:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-cupy@13:", type=("build", "run"), when="+cuda")
    depends_on("py-matplotlib@3.7:", type=("build", "run"), when="+plot")
