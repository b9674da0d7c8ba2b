"""What `make spark-cluster` submits: topic to topic, in micro-batches, until all that was there is copied."""

import sys

from pyspark.sql import SparkSession

bootstrap, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("topic to topic").getOrCreate()
rows = (
    spark.readStream.format("oncelog")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "20000")
    .load()
)
query = (
    rows.select("key", "value")
    .writeStream.format("oncelog")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
