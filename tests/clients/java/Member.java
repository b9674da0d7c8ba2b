// One member of a group on Kafka's Java client, as tests/clients/member.py is on others: the same arguments, the same
// lines in and out, without the client's name.

import java.io.IOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Member {
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "RangeAssignor", "roundrobin", "RoundRobinAssignor",
            "sticky", "StickyAssignor", "cooperative-sticky", "CooperativeStickyAssignor");
    private static final long HUNG_MS = 25_000;

    private static volatile boolean leaving = false;
    private static volatile long polledMs = System.currentTimeMillis();

    public static void main(String[] words) throws Exception {
        Class.forName(KafkaConsumer.class.getName());  // which takes its time
        say("{\"ready\": true}");
        while (System.in.read() != '\n') {}
        polledMs = System.currentTimeMillis();
        beside(() -> { while (System.in.read() >= 0) {} leaving = true; });
        Thread main = Thread.currentThread();
        beside(() -> { while (System.currentTimeMillis() - polledMs < HUNG_MS) Thread.sleep(500); giveUp(main); });
        String instance = words.length > 4 ? words[4] : null;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                settings(words[0], words[2], words[3], instance), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(java.util.List.of(words[1]));
            String assigned = "";
            boolean isCommitted = true;
            while (!leaving) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                polledMs = System.currentTimeMillis();
                String now = consumer.assignment().stream().map(each -> each.partition())
                        .collect(Collectors.toCollection(TreeSet::new)).toString();
                if (!now.equals(assigned)) say("{\"assigned\": " + now + "}");
                assigned = now;
                if (!records.isEmpty() || !isCommitted) isCommitted = take(consumer, records);
            }
        }
    }

    /** Whether everything that was got is committed. What a rebalance came in between with is not read again by a
     *  member that keeps its partitions, so it has to be committed with the next poll, if there are no more records, too. */
    private static boolean take(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        StringBuilder got = new StringBuilder();
        for (ConsumerRecord<String, String> each : records) {
            got.append(got.isEmpty() ? "" : ", ").append("[").append(each.partition()).append(", ").append(each.offset()).append("]");
        }
        if (!records.isEmpty()) say("{\"got\": [" + got + "]}");
        try {
            consumer.commitSync();
        } catch (CommitFailedException | RebalanceInProgressException missed) {
            return false;
        }
        for (ConsumerRecord<String, String> each : records) {
            say("{\"read\": [" + each.partition() + ", " + each.offset() + ", \"" + each.value() + "\"]}");
        }
        return true;
    }

    private static void giveUp(Thread main) {
        System.err.println("hung in " + Arrays.toString(main.getStackTrace()));
        Runtime.getRuntime().halt(3);
    }

    private static Properties settings(String bootstrap, String group, String protocol, String instance) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.put("group.id", group);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.put("default.api.timeout.ms", "20000");
        if (instance != null) all.put("group.instance.id", instance);
        if (protocol.startsWith("consumer:")) {
            all.put("group.protocol", "consumer");
            all.put("group.remote.assignor", protocol.substring("consumer:".length()));
        } else {
            all.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + ASSIGNORS.get(protocol));
            all.put("session.timeout.ms", "2000");
            all.put("heartbeat.interval.ms", "300");
        }
        return all;
    }

    private interface Work {
        void run() throws IOException, InterruptedException;
    }

    private static void beside(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException | InterruptedException broken) {
                leaving = true;
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
