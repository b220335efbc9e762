"""Lateness in buckets whose bounds grow by one per cent, and percentiles from them, as Spark expressions.

A percentile is the smallest bucket bound (or the largest value seen in that bucket, if that is less) that at least this
share of all values does not exceed. So it is never below the exact value, and at most 1 % above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

GROWTH = 1.01
ERROR = "at most 1 % above the exact value, never below it"
# In thousandths, so that the rank is exact.
POINTS = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}


def bucket_of(value_us: Column) -> Column:
    """The bucket of a time in microseconds; what is not late at all is in bucket 0."""
    logarithm = F.ceil(F.log(value_us.cast("double")) / F.lit(math.log(GROWTH)))
    return F.when(value_us <= 0, 0).otherwise(logarithm + 1).cast("int")


def percentiles(cells: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row a key with count, early, within, max_us and p50_us to p999_us.

    `cells` has the keys, bucket, count, early, within (the SLO) and max_us of each bucket.
    """
    by_bucket = cells.groupBy(*keys, "bucket").agg(
        F.sum("count").alias("count"),
        F.sum("early").alias("early"),
        F.sum("within").alias("within"),
        F.max("max_us").alias("max_us"),
    )
    whole = Window.partitionBy(*keys) if keys else Window.partitionBy(F.lit(0))
    ranked = by_bucket.withColumn("reached", F.sum("count").over(whole.orderBy("bucket"))).withColumn(
        "total", F.sum("count").over(whole)
    )
    # The largest value of the bucket is at most its bound, and it is one that was measured.
    value = F.greatest(F.col("max_us"), F.lit(0))
    picks = [
        F.min(F.when(F.col("reached") * 1000 >= F.col("total") * share, value)).alias(f"{name}_us")
        for name, share in POINTS.items()
    ]
    sums = [F.sum(name).alias(name) for name in ("count", "early", "within")]
    return ranked.groupBy(*keys).agg(*sums, F.max("max_us").alias("max_us"), *picks)
