// What Apache Flink does to a transaction around a restart, through its own producer, which sets producer id and epoch
// by reflection: resume and commit what a process that is gone had prepared, commit it a second time, take ids from a
// pool, be fenced, be aborted by an administrator.
// Started by tests/clients/more with the bootstrap address and a topic of two partitions.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import org.apache.flink.connector.kafka.sink.internal.FlinkKafkaInternalProducer;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

public class FlinkResumes {
    static Properties settings;
    static String topic;

    record Prepared(String transaction, long producer, short epoch) {}

    public static void main(String[] words) throws Exception {
        settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("isolation.level", "read_committed");
        settings.put("transaction.timeout.ms", "60000");
        settings.put("max.block.ms", "15000");
        topic = words[1];
        try (AdminClient admin = AdminClient.create(settings)) {
            resume(admin);
            pool();
            fenced();
            aborted(admin);
        }
        read();
        System.out.println("done");
    }

    static FlinkKafkaInternalProducer<String, String> producer(String transaction) {
        return new FlinkKafkaInternalProducer<>(settings, transaction);
    }

    /** A transaction with these values, one for each partition from 0, left open by a process that is gone. */
    static Prepared prepare(String transaction, String... values) {
        FlinkKafkaInternalProducer<String, String> producer = producer(transaction);
        producer.initTransactions();
        producer.beginTransaction();
        for (int partition = 0; partition < values.length; partition++)
            producer.send(new ProducerRecord<>(topic, partition, null, values[partition]));
        producer.flush();
        producer.precommitTransaction();
        Prepared prepared = new Prepared(transaction, producer.getProducerId(), producer.getEpoch());
        producer.close(Duration.ZERO);
        return prepared;
    }

    static void commit(Prepared prepared) {
        FlinkKafkaInternalProducer<String, String> producer = producer(prepared.transaction);
        try {
            producer.resumeTransaction(prepared.producer, prepared.epoch);
            producer.commitTransaction();
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    static void resume(AdminClient admin) throws Exception {
        Prepared prepared = prepare(topic + "-resumed", "resumed-0", "resumed-1");
        TransactionState state =
                admin.describeTransactions(List.of(prepared.transaction)).description(prepared.transaction).get().state();
        if (state != TransactionState.ONGOING) throw new IllegalStateException("prepared, it is " + state);
        commit(prepared);
        commit(prepared);  // as after a restart that comes between a commit and the note of it
        System.out.println("resumed");
    }

    static void pool() {
        FlinkKafkaInternalProducer<String, String> producer = producer(topic + "-pool");
        for (int turn = 0; turn < 3; turn++) {
            producer.setTransactionId(topic + "-pool-" + turn);
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, turn % 2, null, "pool-" + turn));
            producer.flush();
            producer.precommitTransaction();
            producer.commitTransaction();
        }
        producer.close();
        System.out.println("pooled");
    }

    static void fenced() {
        Prepared prepared = prepare(topic + "-fenced", "lost to its successor");
        FlinkKafkaInternalProducer<String, String> successor = producer(prepared.transaction);
        successor.initTransactions();
        try {
            commit(prepared);
            throw new IllegalStateException("a fenced producer committed");
        } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            System.out.println("fenced");
        }
        successor.beginTransaction();
        successor.send(new ProducerRecord<>(topic, 0, null, "successor"));
        successor.commitTransaction();
        successor.close();
    }

    static void aborted(AdminClient admin) throws Exception {
        Prepared prepared = prepare(topic + "-aborted", "lost to the administrator");
        admin.fenceProducers(List.of(prepared.transaction)).all().get();
        System.out.println("aborted");
    }

    /** Everything committed, up to a last value in each partition: no transaction before it is open any more. */
    static void read() throws Exception {
        List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (TopicPartition each : partitions)
                producer.send(new ProducerRecord<>(topic, each.partition(), null, "z-last")).get();
        }
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long until = System.nanoTime() + 30_000_000_000L;
            while (Collections.frequency(found, "z-last") < 2 && System.nanoTime() < until)
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) found.add(each.value());
        }
        Collections.sort(found);
        List<String> wanted = List.of(
                "pool-0", "pool-1", "pool-2", "resumed-0", "resumed-1", "successor", "z-last", "z-last");
        if (!found.equals(wanted)) throw new IllegalStateException("read " + found);
    }
}
