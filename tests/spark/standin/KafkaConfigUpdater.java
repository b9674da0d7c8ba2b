package org.apache.spark.kafka010;

import java.util.LinkedHashMap;
import java.util.Map;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The connector builds the settings of its Kafka clients with this. Spark's own also adds delegation tokens; here nobody
 * has one, so the two methods that would add them leave the settings as they are.
 */
public final class KafkaConfigUpdater {
  private final Map<String, Object> settings;

  public KafkaConfigUpdater(String whose, scala.collection.immutable.Map<String, Object> given) {
    settings = new LinkedHashMap<>(CollectionConverters.asJava(given));
  }

  public KafkaConfigUpdater set(String name, Object value) {
    settings.put(name, value);
    return this;
  }

  public KafkaConfigUpdater setIfUnset(String name, Object value) {
    settings.putIfAbsent(name, value);
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
    return this;
  }

  public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<?> cluster) {
    return this;
  }

  public Map<String, Object> build() {
    return settings;
  }
}
