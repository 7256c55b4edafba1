import subprocess
import sys

import numpy as np

from psgd.kernels.jit import kernel


def test_a_kernel_that_cannot_be_cached_is_compiled_all_the_same():
    scope = {}
    exec("def twice(x):\n    for i in range(x.size):\n        x[i] *= 2\n", scope)  # no file, so no place for a cache
    values = np.arange(4.0)
    kernel(scope["twice"])(values)
    np.testing.assert_array_equal(values, [0, 2, 4, 6])


def test_a_lazy_kernel_loads_numba_with_its_first_call(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport numpy as np\nfrom psgd.kernels.jit import lazy_kernel\n"
        "@lazy_kernel\ndef twice(x):\n    for i in range(x.size):\n        x[i] *= 2\n"
        "before, values = 'numba' in sys.modules, np.arange(4.0)\ntwice(values)\n"
        "print(before, 'numba' in sys.modules, values.tolist(), twice.__name__)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False True [0.0, 2.0, 4.0, 6.0] twice"
