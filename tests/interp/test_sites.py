"""How heads are written, and what is refused."""

import pytest

from interp import Head, parse_head
from models import DecoderConfig
from models.errors import InputError

CFG = DecoderConfig(n_layers=3, d_model=8, n_heads=2, d_vocab=5, n_ctx=4)


@pytest.mark.parametrize("written", ["L2H1", "l2h1", " L2H1 ", "2.1", (2, 1), Head(2, 1)])
def test_every_notation_names_the_same_head(written: object) -> None:
    assert parse_head(written, CFG) == Head(2, 1)  # type: ignore[arg-type]


def test_a_head_is_shown_as_it_is_written() -> None:
    assert str(Head(5, 1)) == f"{Head(5, 1)}" == "L5H1"


@pytest.mark.parametrize(
    ("written", "message"),
    [("L3H0", "layer 3 .* layers 0 to 2"), ("0.2", "head 2 .* heads 0 to 1"), ((-1, 0), "layer -1 .* layers 0 to 2")],
)
def test_a_head_out_of_range_is_refused_with_the_range(written: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        parse_head(written, CFG)  # type: ignore[arg-type]
    assert "L0H0 to L2H1" in str(raised.value)


@pytest.mark.parametrize("written", ["H1L2", "2", "L2", "2.1.0", "", (1,), (1.0, 2), (True, 0), 3, None])
def test_another_notation_is_refused_with_the_right_one(written: object) -> None:
    with pytest.raises(InputError, match=r"write it as 'L5H1', '5\.1'"):
        parse_head(written, CFG)  # type: ignore[arg-type]
