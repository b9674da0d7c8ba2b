"""Spark looks through every package named pyspark_* for a DefaultSource: this is how `format("oncelog")` is found."""

from spark_sink import OncelogDataSource


class DefaultSource(OncelogDataSource):
    pass
