"""The capture-size policy against its published vectors."""

import pytest

from npu_compile.errors import AscendFiaError
from npu_compile.runtime.capture_sizes import capture_sizes, select_size

BY_16 = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)


@pytest.mark.parametrize(
    ("max_batch", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (20, (1, 2, 4, 8, 16, 20)),
        (64, (1, 2, 4, 8, 16, 32, 48, 64)),
        (100, (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 100)),
        (300, (1, 2, 4, 8, 16, *BY_16, 300)),
        (512, (1, 2, 4, 8, 16, *BY_16, 512)),
    ],
)
def test_policy(max_batch: int, sizes: tuple[int, ...]) -> None:
    assert capture_sizes(max_batch) == sizes
    assert capture_sizes(max_batch) == sizes, "a second call must give the same"


def test_user_sizes_come_first() -> None:
    assert capture_sizes(100, [8, 2, 2]) == (2, 8)


@pytest.mark.parametrize(
    ("batch", "size"), [(1, 1), (2, 2), (3, 4), (17, 20), (20, 20), (21, None), (5, 8), (9, 16)]
)
def test_smallest_size_that_holds_the_batch(batch: int, size: int | None) -> None:
    assert select_size((1, 2, 4, 8, 16, 20), batch) == size


@pytest.mark.parametrize("max_batch", [0, -3, 2.0, "4", True, None])
def test_bad_max_batch(max_batch: object) -> None:
    with pytest.raises(AscendFiaError, match=r"max_batch=.*int of at least 1"):
        capture_sizes(max_batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [[4, 0], [-1], [2.5], ["2"], [True]])
def test_bad_user_sizes(sizes: list[object]) -> None:
    with pytest.raises(AscendFiaError, match="capture_sizes="):
        capture_sizes(8, sizes)  # type: ignore[arg-type]


def test_no_user_sizes() -> None:
    with pytest.raises(AscendFiaError, match="at least one"):
        capture_sizes(8, [])
