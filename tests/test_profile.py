"""What holds for every property test."""

from hypothesis import settings


def test_no_example_has_a_deadline():
    """On a busy machine one example may take any time, which says nothing about the code."""
    assert settings().deadline is None
    assert settings(max_examples=1).deadline is None
