// One client process on Kafka's Java client, as tests/chaos/worker.py is on others: reads a topic in a group, writes what
// it reads to another, and commits both in transactions. Its words: bootstrap, source, target, group. It is killed at any
// moment and started again; or it gives up on an error that its library calls fatal, or when a call hangs (status 3).
// Every seventh transaction is aborted on purpose.

import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Copies {
    private static final int ABORT_EVERY = 7;
    private static final long HUNG_MS = 25_000;
    private static final long STARTS_WITHIN_MS = 240_000; // on a busy machine its classes alone take half a minute
    private static final int GAVE_UP = 3;

    private static volatile long movesUntilMs = System.currentTimeMillis() + STARTS_WITHIN_MS;

    public static void main(String[] words) throws Exception {
        watch(Thread.currentThread());
        String source = words[1], target = words[2], group = words[3];
        try {
            KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(writing(words[0], group), new ByteArraySerializer(), new ByteArraySerializer());
            KafkaConsumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(reading(words[0], group), new ByteArrayDeserializer(), new ByteArrayDeserializer());
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            for (int turn = 1; true; ) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                movesUntilMs = Math.max(movesUntilMs, System.currentTimeMillis() + HUNG_MS);
                if (records.isEmpty()) continue;
                copy(records, target, producer, consumer, turn++ % ABORT_EVERY != 0);
                System.out.println("at work");
            }
        } catch (RuntimeException fatal) {
            giveUp(fatal.toString()); // as a crashed client leaves: nothing is closed
        }
    }

    /** One transaction. One that is aborted, on purpose or because it failed, is read again. */
    private static void copy(
            ConsumerRecords<byte[], byte[]> records,
            String target,
            KafkaProducer<byte[], byte[]> producer,
            KafkaConsumer<byte[], byte[]> consumer,
            boolean isToBeCommitted) {
        producer.beginTransaction();
        try {
            for (ConsumerRecord<byte[], byte[]> each : records) {
                producer.send(new ProducerRecord<>(target, each.partition(), each.key(), each.value()));
            }
            Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
            for (TopicPartition place : records.partitions()) {
                List<ConsumerRecord<byte[], byte[]>> some = records.records(place);
                read.put(place, new OffsetAndMetadata(some.get(some.size() - 1).offset() + 1));
            }
            producer.sendOffsetsToTransaction(read, consumer.groupMetadata());
            if (isToBeCommitted) {
                commit(producer);
                return;
            }
        } catch (KafkaException failure) {
            System.err.println("a transaction failed: " + failure);
        }
        producer.abortTransaction(); // throws what is fatal once more
        consumer.committed(consumer.assignment()).forEach((place, stands) -> {
            if (stands != null) consumer.seek(place, stands);
            else consumer.seekToBeginning(List.of(place));
        });
    }

    /** Whether it was committed is open until it is told: one may only ask again. */
    private static void commit(KafkaProducer<byte[], byte[]> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException untold) {
                System.err.println("not told whether it is committed: " + untold);
            }
        }
    }

    private static Properties settings(String bootstrap) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.put("request.timeout.ms", "5000");
        all.put("default.api.timeout.ms", "20000");
        return all;
    }

    private static Properties writing(String bootstrap, String group) {
        Properties all = settings(bootstrap);
        all.put("transactional.id", group);
        all.put("transaction.timeout.ms", "5000");
        all.put("delivery.timeout.ms", "10000");
        all.put("max.block.ms", "20000");
        all.put("linger.ms", "0");
        return all;
    }

    private static Properties reading(String bootstrap, String group) {
        Properties all = settings(bootstrap);
        all.put("group.id", group);
        all.put("group.protocol", "consumer");
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.put("isolation.level", "read_committed");
        all.put("max.poll.records", "20");
        return all;
    }

    /** What hangs is noticed: where goes into the log, and the process ends. */
    private static void watch(Thread main) {
        Thread thread = new Thread(() -> {
            try {
                while (System.currentTimeMillis() < movesUntilMs) Thread.sleep(500);
            } catch (InterruptedException over) {
                return;
            }
            giveUp("hung in " + Arrays.toString(main.getStackTrace()));
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void giveUp(String why) {
        System.err.println(why);
        Runtime.getRuntime().halt(GAVE_UP);
    }
}
