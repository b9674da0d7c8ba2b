// Apache Flink copies a topic that ends with its exactly-once KafkaSink, in a cluster of this one process; the job fails
// once at each of the planted values and starts again from its last checkpoint.
// Started by tests/clients/more with bootstrap address, source, target, a folder, the name of a TransactionNamingStrategy
// and the values to fail at.

import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashSet;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public class FlinkCopies {
    public static void main(String[] words) throws Exception {
        String folder = words[3];
        HashSet<String> planted = new HashSet<>(Arrays.asList(words).subList(5, words.length));
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, planted.size());
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, Duration.ofMillis(300));
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, Path.of(folder, "checkpoints").toUri().toString());
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        flink.enableCheckpointing(500);
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(words[0])
                .setTopics(words[1])
                .setGroupId("of-" + words[1])
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setBounded(OffsetsInitializer.latest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(words[0])
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(words[4]))
                .setTransactionalIdPrefix("into-" + words[2])
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                        .setTopic(words[2])
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
                .map(value -> {
                    Thread.sleep(4);  // slow enough for several checkpoints
                    if (planted.contains(value)) failOnce(Path.of(folder, "failed-at-" + value));
                    return value;
                })
                .returns(String.class)
                .sinkTo(sink);
        flink.execute();
        System.out.println("done");
        System.exit(0);
    }

    /** The file outlives the job's attempts. */
    static void failOnce(Path mark) throws Exception {
        try {
            Files.createFile(mark);
        } catch (FileAlreadyExistsException failedBefore) {
            return;
        }
        throw new IllegalStateException("planted: " + mark.getFileName());
    }
}
