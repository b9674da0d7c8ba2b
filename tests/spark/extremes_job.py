"""What `make spark-extremes` submits: so many tasks, or so many bytes in one Arrow batch, into a topic."""

import sys

from pyspark.sql import SparkSession

bootstrap, topic, rows, tasks, row_bytes, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.appName("extremes")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "0")  # Spark sets no limit then: a task is one batch
    .config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
    .getOrCreate()
)
values = spark.range(0, int(rows), 1, int(tasks)).selectExpr(
    "cast(null as binary) as key",
    f"cast(concat(cast(id as string), ' ', repeat('x', {row_bytes})) as binary) as value",
)
(
    values.write.format("oncelog")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", topic)
    .option("txnAppId", checkpoint)
    .option("txnVersion", "1")
    .mode("append")
    .save()
)
