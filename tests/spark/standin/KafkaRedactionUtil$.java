package org.apache.spark.kafka010;

import scala.collection.immutable.Seq;

/** The Scala object that hides passwords in log lines. The settings of a test hold none. */
public final class KafkaRedactionUtil$ {
  public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

  public <Pair> Seq<Pair> redactParams(Seq<Pair> settings) {
    return settings;
  }
}
