from dataclasses import fields, replace

import pytest

from psgd.launch.slurm.batch_options import BatchOptions

GIVEN = {"job_name": "psgd", "sbatch": (), "module": (), "launcher": "srun", "mpi": "pmix", "trial": ()}


@pytest.mark.parametrize("each", fields(BatchOptions), ids=lambda each: each.name)
def test_each_says_what_it_is_and_its_default(each):
    assert each.metadata["help"]
    assert each.default == GIVEN.get(each.name)


def test_they_are_given_by_name_and_stay_as_they_are():
    options = BatchOptions(workers=4, sbatch=("--qos=long",))
    assert (options.workers, options.servers, options.sbatch) == (4, None, ("--qos=long",))
    assert replace(options, nodes=2).nodes == 2
    with pytest.raises(AttributeError):
        options.workers = 5
