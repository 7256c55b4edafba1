"""Which reduction a caller means, what it is defined for, and its arithmetic."""

import dataclasses

import numpy as np
import pytest
from mpi4py import MPI

from psgd import collectives
from psgd.collectives.arguments import operations
from psgd.kernels.errors import UsageError

OTHERS = ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MINLOC", "MAXLOC", "REPLACE", "NO_OP")


@pytest.mark.parametrize("name", ["SUM", "PROD", "MIN", "MAX"])
def test_by_mpis_operation_and_by_name_in_any_case(name):
    found = operations.resolve(getattr(MPI, name))
    assert found.name == name and found.code >= 0 and not found.mean
    assert found.mpi == getattr(MPI, name)
    assert operations.resolve(name) is operations.resolve(name.lower()) is operations.resolve(name.title()) is found


def test_the_mean_is_a_sum_with_a_division():
    found = operations.resolve(collectives.MEAN)
    assert found is operations.resolve("mean") is operations.resolve("MEAN")
    assert found.mean and found.mpi == MPI.SUM and found.code == operations.SUM_.code
    assert found.number != operations.SUM_.number


@pytest.mark.parametrize("name", OTHERS)
def test_mpis_others_are_left_to_mpi(name):
    found = operations.resolve(getattr(MPI, name))
    assert found.name == name and found.code == -1 and found.mpi == getattr(MPI, name)
    assert operations.operation_name(found.number) == name


def test_numbers_tell_operations_apart_and_fit_into_a_byte():
    found = [*operations.ALL, *(operations.resolve(getattr(MPI, name)) for name in OTHERS)]
    numbers = [each.number for each in found]
    assert len(set(numbers)) == len(numbers) and all(0 < number < 255 for number in numbers)
    assert [operations.operation_name(number) for number in numbers] == [each.name for each in found]


def test_an_operation_of_the_program():
    own = MPI.Op.Create(lambda a, b, datatype: None, commute=False)
    try:
        found = operations.resolve(own)
        assert found.code == -1 and found.mpi == own and found.number == 255
        assert "program" in found.name and operations.operation_name(255) == found.name
    finally:
        own.Free()


@pytest.mark.parametrize("wrong", ["median", "", "sum ", None, 3, np.add, sum, MPI.OP_NULL, MPI.INT, b"sum"], ids=repr)
def test_anything_else_is_an_error_that_names_the_known_ones(wrong):
    with pytest.raises(UsageError, match=r"^op: expected.*SUM.*max, mean, min, prod, sum, got "):
        operations.resolve(wrong)


ACCEPTED = {
    "SUM": "bfloat16 complex128 complex64 float16 float32 float64 int16 int32 int64 int8 uint16 uint32 uint64 uint8",
    "MIN": "bfloat16 float16 float32 float64 int16 int32 int64 int8 uint16 uint32 uint64 uint8",
    "mean": "bfloat16 complex128 complex64 float16 float32 float64",
    "BOR": "int16 int32 int64 int8 uint16 uint32 uint64 uint8",
    "LXOR": "bool int16 int32 int64 int8 uint16 uint32 uint64 uint8",
}


@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX", "mean", "BOR", "LXOR"])
def test_dtypes(op):
    from psgd.collectives.arguments.view import BFLOAT16, KINDS

    found = operations.resolve(op if op == "mean" else getattr(MPI, op))
    row = {"PROD": "SUM", "MAX": "MIN"}.get(op, op)
    assert sorted(kind for kind in (*KINDS.values(), BFLOAT16) if found.accepts(kind)) == ACCEPTED[row].split()


def test_combine_and_finish():
    a, b = np.array([1.0, 5.0, -2.0]), np.array([4.0, 3.0, -7.0])
    for op, right in (("sum", [5, 8, -9]), ("prod", [4, 15, 14]), ("min", [1, 3, -7]), ("max", [4, 5, -2])):
        out = np.zeros(3)
        operations.resolve(op).combine(out, a, b)
        operations.resolve(op).finish(out, 3)  # nothing
        assert out.tolist() == right
    out = np.zeros(3)
    operations.MEAN_.combine(out, a, b)
    assert out.tolist() == [5, 8, -9]
    operations.MEAN_.finish(out, 2)
    assert out.tolist() == [2.5, 4, -4.5]


def test_operations_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        operations.SUM_.code = 3
