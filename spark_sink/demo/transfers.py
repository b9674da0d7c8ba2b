"""Every transfer becomes two entries, one for each account: exactly once, through any crash.

    oncelog topic create transfers --partitions 4
    oncelog topic create entries --partitions 4
    python transfers.py localhost:9092 /tmp/transfers-checkpoint
    echo '{"id": 1, "payer": "anna", "payee": "carl", "amount": 30}' | oncelog produce transfers
    oncelog consume entries -f '%k %s\\n'

Kill it whenever you like, and start it again with the same checkpoint.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

bootstrap, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.appName("transfers")
    .config("spark.sql.shuffle.partitions", "4")  # the default of 200 is for large clusters
    .getOrCreate()
)

# Records of aborted transactions are never seen, and none is seen before its transaction is committed.
records = (
    spark.readStream.format("oncelog")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", "transfers")
    .option("startingOffsets", "earliest")
    .load()
)

# The sender of a transfer may have sent it twice, to be sure. Spark remembers the ids of the last hour.
transfers = (
    records.select(
        "timestamp",
        F.from_json(F.col("value").cast("string"), "id long, payer string, payee string, amount long").alias(
            "transfer"
        ),
    )
    .select("timestamp", "transfer.*")
    .withWatermark("timestamp", "1 hour")
    .dropDuplicatesWithinWatermark(["id"])
)

# One row for each account. What is written is a key and a value; the key decides about the partition.
entries = transfers.select(
    F.explode(
        F.array(
            F.struct(F.col("payer").alias("account"), (-F.col("amount")).alias("amount")),
            F.struct(F.col("payee").alias("account"), F.col("amount").alias("amount")),
        )
    ).alias("entry")
).selectExpr("entry.account AS key", "CAST(entry.amount AS STRING) AS value")

# Each micro-batch is one transaction, however many tasks write it. The checkpoint knows how far it is.
query = (
    entries.writeStream.format("oncelog")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", "entries")
    .option("checkpointLocation", checkpoint)
    .trigger(processingTime="1 second")
    .start()
)
query.awaitTermination()
