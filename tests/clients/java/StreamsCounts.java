// Kafka Streams with exactly_once_v2: counts the values of one topic into another, until it is stopped or killed.
// Started by tests/clients/more with bootstrap address, application id, source, target and a folder for its state.

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;

public class StreamsCounts {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("application.id", words[1]);
        settings.put("state.dir", words[4]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "100");
        settings.put("num.stream.threads", "2");
        settings.put("auto.offset.reset", "earliest");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "1000");
        settings.put("producer.transaction.timeout.ms", "10000");
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(words[2])
                .selectKey((key, value) -> value)
                .groupByKey()
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(String::valueOf)
                .to(words[3]);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        Thread.sleep(600_000);
    }
}
