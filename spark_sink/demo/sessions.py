"""Clicks become sessions: what a user clicked with less than half a minute between, one record when it is over.

    oncelog topic create clicks --partitions 4
    oncelog topic create sessions --partitions 4
    python sessions.py localhost:9092 /tmp/sessions-checkpoint
    echo 'anna:/pears' | oncelog produce clicks --key-sep :
    oncelog consume sessions -f '%k %s\\n'

Kill it whenever you like, and start it again with the same checkpoint: no session comes twice, and none is cut in two.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

bootstrap, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.appName("sessions")
    .config("spark.sql.shuffle.partitions", "4")  # the default of 200 is for large clusters
    .getOrCreate()
)

clicks = (
    spark.readStream.format("oncelog")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", "clicks")
    .option("startingOffsets", "earliest")
    .load()
)

# A session is over when half a minute passed without a click, and a minute more for clicks that come late. Time is what
# the records say, not when they are read: the same clicks make the same sessions, also after a crash.
sessions = (
    clicks.withWatermark("timestamp", "1 minute")
    .groupBy(F.col("key").cast("string").alias("user"), F.session_window("timestamp", "30 seconds").alias("session"))
    .agg(F.count("*").alias("clicks"))
)

# Spark keeps the open sessions in its checkpoint, and each batch's sessions are one transaction: so they agree.
query = (
    sessions.select(
        F.col("user").alias("key"),
        F.to_json(F.struct("user", "session.start", "session.end", "clicks")).alias("value"),
    )
    .writeStream.format("oncelog")
    .outputMode("append")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "sessions")
    .option("checkpointLocation", checkpoint)
    .trigger(processingTime="1 second")
    .start()
)
query.awaitTermination()
