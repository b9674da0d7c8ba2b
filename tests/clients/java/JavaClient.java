// Kafka's Java client against a broker: produce, consume under both group protocols, administer, transactions.
// Started by tests/clients/java/__main__.py with the bootstrap address and a word that makes names its own.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaClient {
    private static String bootstrap;

    public static void main(String[] words) throws Exception {
        bootstrap = words[0];
        String topic = "java-" + words[1];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get();
            produce(topic);
            consume(topic, "classic", words[1]);
            consume(topic, "consumer", words[1]);
            administer(admin, topic);
            transact(topic + "-transactions", admin, words[1]);
        }
        System.out.println("done");
    }

    private static Properties settings(String... pairs) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) all.put(pairs[i], pairs[i + 1]);
        return all;
    }

    private static KafkaProducer<String, String> producer(String... pairs) {
        return new KafkaProducer<>(settings(pairs), new StringSerializer(), new StringSerializer());
    }

    private static void produce(String topic) throws Exception {
        try (KafkaProducer<String, String> producer = producer("compression.type", "zstd")) {
            for (int i = 0; i < 300; i++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, i % 3, "key-" + i, "value-" + i);
                record.headers().add("number", new byte[] {(byte) i});
                producer.send(record);
            }
            producer.flush();
        }
        System.out.println("produced");
    }

    private static List<ConsumerRecord<String, String>> read(String topic, int count, String... pairs) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings(pairs), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long until = System.currentTimeMillis() + 20_000;
            while (found.size() < count && System.currentTimeMillis() < until) {
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
            }
            consumer.commitSync();
        }
        if (found.size() != count) throw new IllegalStateException(found.size() + " messages instead of " + count);
        return found;
    }

    private static void consume(String topic, String protocol, String word) {
        Set<String> values = new HashSet<>();
        for (ConsumerRecord<String, String> record :
                read(topic, 300, "group.id", protocol + word, "group.protocol", protocol, "auto.offset.reset", "earliest")) {
            if (record.headers().lastHeader("number") == null) throw new IllegalStateException("a header is missing");
            values.add(record.value());
        }
        if (values.size() != 300) throw new IllegalStateException("messages came twice");
        System.out.println("consumed " + protocol);
    }

    private static void administer(Admin admin, String topic) throws Exception {
        TopicPartition first = new TopicPartition(topic, 0);
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        if (admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() != 5)
            throw new IllegalStateException("not five partitions");
        long end = admin.listOffsets(Map.of(first, OffsetSpec.latest())).partitionResult(first).get().offset();
        if (end != 100) throw new IllegalStateException("the end is " + end);
        admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(10))).all().get();
        if (admin.listGroups().all().get().isEmpty()) throw new IllegalStateException("no groups");
        admin.describeCluster().nodes().get();
        System.out.println("administered");
    }

    @SuppressWarnings("removal") // the only way to name a group without being in it
    private static void transact(String topic, Admin admin, String word) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer("transactional.id", "java-" + word)) {
            producer.initTransactions();
            for (int round = 0; round < 6; round++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "round " + round));
                if (round % 2 == 0) {
                    producer.sendOffsetsToTransaction(
                            Collections.singletonMap(place, new OffsetAndMetadata(round)),
                            new org.apache.kafka.clients.consumer.ConsumerGroupMetadata("offsets-" + word));
                    producer.commitTransaction();
                } else producer.abortTransaction();
            }
        }
        List<ConsumerRecord<String, String>> committed =
                read(topic, 3, "group.id", "committed-" + word, "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        System.out.println("committed " + committed.size());
        if (!committed.get(2).value().equals("round 4")) throw new IllegalStateException("an aborted message was read");
        long offset = admin.listConsumerGroupOffsets("offsets-" + word).partitionsToOffsetAndMetadata().get().get(place).offset();
        if (offset != 4) throw new IllegalStateException("the group's offset is " + offset);
        System.out.println("aborted 3");
    }
}
