"""Ids and counts are whole numbers, and nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.checks import as_ids, whole_number
from models.errors import InputError


@pytest.mark.parametrize(
    "given",
    [
        [[1, 2], [3, 4]],
        ((1, 2), (3, 4)),
        np.array([[1, 2], [3, 4]], dtype=np.uint16),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
        [torch.tensor([1, 2]), torch.tensor([3, 4])],
        [np.array([1, 2]), range(3, 5)],
    ],
)
def test_whole_numbers_of_any_kind_are_ids(given):
    ids = as_ids(given, "ids")
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[1, 2], [3, 4]]


def test_one_number_is_an_id():
    assert [as_ids(one, "id").item() for one in (3, np.int8(3), torch.tensor(3))] == [3, 3, 3]
    assert as_ids([], "ids").tolist() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3.0, "answers is 3.0; expected integers"),
        ([1, 2.5], r"answers is \[1, 2.5\]; expected integers"),
        (float("nan"), "answers is nan; expected integers"),
        (True, "answers is True; expected integers"),
        (torch.tensor([1.0]), "a tensor of torch.float32; expected integers"),
        (torch.tensor([True]), "a tensor of torch.bool"),
        ("3", "answers is '3'; expected an int, or a list"),
        (["3"], r"answers is \['3'\]; expected integers"),
        (None, "answers is None; expected an int"),
        ((i for i in range(2)), "answers is .*generator.*; expected an int"),
        ([[1, 2], [3]], "with rows of equal length"),
    ],
)
def test_what_is_no_whole_number_is_no_id(given, message):
    with pytest.raises(InputError, match=message):
        as_ids(given, "answers")


@pytest.mark.parametrize("given", [2.0, "2", None, True, float("nan"), np.float32(2), 0, 4])
def test_a_count_is_a_whole_number_in_its_range(given):
    with pytest.raises(InputError, match=r"n is .*; expected a whole number, 1 to 3 \(groups\)"):
        whole_number(given, "n", 1, 3, "groups")
    assert [whole_number(one, "n", 1, 3) for one in (1, np.int64(3))] == [1, 3]
