"""Histograms count each value once, at the first bound that is not below it."""

import pytest

from gridhand.controller.metrics.histogram import Histogram

#   value: the bounds whose buckets have it
VALUES = {0.0: ["1", "2", "+Inf"], 1.0: ["1", "2", "+Inf"], 1.1: ["2", "+Inf"], 9.0: ["+Inf"]}


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_in_all_buckets_from_its_own_on(value):
    histogram = Histogram((1, 2))
    histogram.add(value)
    assert [bound for bound, count in histogram.buckets() if count] == VALUES[value]
    assert histogram.total == value


def test_equal_values_count_together():
    histogram = Histogram((1, 2))
    histogram.add(1.5, 4)
    assert (histogram.buckets(), histogram.total) == ([("1", 0), ("2", 4), ("+Inf", 4)], 6)
