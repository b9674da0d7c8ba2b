// Kafka's Java client of any version from 2.1 to 3.9 against a broker: every codec, a group that members join, leave and
// are thrown out of, administration, transactions. Compiled against 2.1.1, so that it uses nothing newer.
// Started by tests/clients/more with the bootstrap address and a word that makes names its own.

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class OlderJavaClient {
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    private static final long PATIENCE_MS = 60_000;
    private static String bootstrap;

    public static void main(String[] words) throws Exception {
        bootstrap = words[0];
        String topic = "old-java-" + words[1];
        try (AdminClient admin = AdminClient.create(settings())) {
            admin.createTopics(Collections.singleton(new NewTopic(topic, 3, (short) 1))).all().get();
            produce(topic);
            consume(topic, "group-" + words[1]);
            administer(admin, topic, "group-" + words[1]);
            transact(admin, topic + "-held", words[1]);
        }
        System.out.println("done");
    }

    private static void expect(boolean holds, String what) {
        if (!holds) throw new IllegalStateException(what);
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

    private static KafkaConsumer<String, String> consumer(String... pairs) {
        return new KafkaConsumer<>(settings(pairs), new StringDeserializer(), new StringDeserializer());
    }

    private static void produce(String topic) throws Exception {
        for (String codec : CODECS) {
            try (KafkaProducer<String, String> producer =
                    producer("compression.type", codec, "enable.idempotence", "true", "acks", "all", "linger.ms", "5")) {
                for (int i = 0; i < 60; i++) {
                    ProducerRecord<String, String> record = new ProducerRecord<>(topic, i % 3, "key-" + i, codec + "-" + i);
                    record.headers().add("number", new byte[] {(byte) i});
                    producer.send(record);
                }
            }
        }
        System.out.println("produced");
    }

    private static void consume(String topic, String group) {
        String[] common = {
            "group.id", group, "auto.offset.reset", "earliest", "session.timeout.ms", "6000", "heartbeat.interval.ms", "500",
            "enable.auto.commit", "false", "max.poll.interval.ms", "8000"
        };
        Set<String> values = new HashSet<>();
        KafkaConsumer<String, String> stays = consumer(common);
        KafkaConsumer<String, String> leaves = consumer(common);
        KafkaConsumer<String, String> sleeps = consumer(common);
        List<KafkaConsumer<String, String>> all = Arrays.asList(stays, leaves, sleeps);
        for (KafkaConsumer<String, String> each : all) each.subscribe(Collections.singleton(topic));
        // All three in one thread: a member joins while the others are asked to.
        until(all, values, () -> all.stream().allMatch(each -> each.assignment().size() == 1) && values.size() == 300);
        leaves.commitSync();
        leaves.close();
        // The one that sleeps is not polled any more: it is thrown out after max.poll.interval.ms.
        until(Collections.singletonList(stays), values, () -> stays.assignment().size() == 3);
        sleeps.close(Duration.ofSeconds(1));
        TopicPartition first = new TopicPartition(topic, 0);
        expect(stays.endOffsets(Collections.singleton(first)).get(first) == 100L, "the end");
        expect(stays.beginningOffsets(Collections.singleton(first)).get(first) == 0L, "the beginning");
        expect(stays.offsetsForTimes(Collections.singletonMap(first, 0L)).get(first).offset() == 0L, "the offset by time");
        stays.seek(first, 90);
        List<ConsumerRecord<String, String>> again = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (again.size() < 10 && System.currentTimeMillis() < deadline) {
            stays.poll(Duration.ofMillis(100)).records(first).forEach(again::add);
        }
        expect(again.get(0).offset() == 90 && again.get(0).headers().lastHeader("number") != null, "read again from 90");
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (int i = 0; i < 3; i++) ends.put(new TopicPartition(topic, i), new OffsetAndMetadata(100, "all of it"));
        stays.commitSync(ends);
        expect(stays.committed(first).offset() == 100, "the committed offset");
        stays.close();
        System.out.println("consumed");
    }

    private interface Condition {
        boolean holds();
    }

    private static void until(List<KafkaConsumer<String, String>> consumers, Set<String> values, Condition condition) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.holds()) {
            expect(System.currentTimeMillis() < deadline, "waited in vain; read " + values.size());
            for (KafkaConsumer<String, String> each : consumers) {
                each.poll(Duration.ofMillis(50)).forEach(record -> values.add(record.value()));
            }
        }
    }

    private static void administer(AdminClient admin, String topic, String group) throws Exception {
        TopicPartition first = new TopicPartition(topic, 0);
        expect(admin.listTopics().names().get().contains(topic), "the topic is listed");
        admin.createPartitions(Collections.singletonMap(topic, NewPartitions.increaseTo(5))).all().get();
        expect(
                admin.describeTopics(Collections.singleton(topic)).values().get(topic).get().partitions().size() == 5,
                "five partitions");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        expect(
                admin.describeConfigs(Collections.singleton(resource)).all().get().get(resource).get("retention.ms").value().equals("604800000"),
                "the default retention");
        admin.deleteRecords(Collections.singletonMap(first, RecordsToDelete.beforeOffset(10))).all().get();
        expect(
                admin.listConsumerGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group)),
                "the group is listed");
        expect(
                admin.describeConsumerGroups(Collections.singleton(group)).all().get().get(group).members().isEmpty(),
                "the group is empty");
        expect(
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(first).metadata().equals("all of it"),
                "the committed metadata");
        admin.deleteConsumerGroups(Collections.singleton(group)).all().get();
        expect(admin.describeCluster().nodes().get().size() == 1, "one node");
        System.out.println("administered");
    }

    private static void transact(AdminClient admin, String topic, String word) throws Exception {
        admin.createTopics(Collections.singleton(new NewTopic(topic, 2, (short) 1))).all().get();
        TopicPartition place = new TopicPartition(topic, 0);
        String id = "old-java-" + word;
        KafkaProducer<String, String> zombie = producer("transactional.id", id);
        zombie.initTransactions();
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>(topic, 0, null, "of a zombie")).get();
        try (KafkaProducer<String, String> producer = producer("transactional.id", id)) {
            producer.initTransactions();
            for (int round = 0; round < 6; round++) {
                producer.beginTransaction();
                for (int i = 0; i < 20; i++) producer.send(new ProducerRecord<>(topic, i % 2, null, round + "-" + i));
                producer.sendOffsetsToTransaction(
                        Collections.singletonMap(place, new OffsetAndMetadata(round)), "offsets-" + word);
                if (round % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        try {
            zombie.commitTransaction();
            throw new IllegalStateException("a zombie has committed");
        } catch (ProducerFencedException fenced) {
            zombie.close();
        }
        Set<String> values = new HashSet<>();
        try (KafkaConsumer<String, String> careful =
                consumer("group.id", "careful-" + word, "auto.offset.reset", "earliest", "isolation.level", "read_committed")) {
            careful.subscribe(Collections.singleton(topic));
            until(Collections.singletonList(careful), values, () -> values.size() >= 60);
            careful.poll(Duration.ofMillis(500)).forEach(record -> values.add(record.value()));
        }
        expect(values.size() == 60 && values.stream().noneMatch(each -> each.charAt(0) % 2 == 1), "read " + values);
        expect(
                admin.listConsumerGroupOffsets("offsets-" + word).partitionsToOffsetAndMetadata().get().get(place).offset() == 4,
                "the group's offset");
        System.out.println("transacted");
    }
}
