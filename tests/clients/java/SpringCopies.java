// Spring Kafka copies a topic in transactions of its listener container, three threads at once; the listener fails at the
// first sight of some values, and the container rolls back and seeks.
// Started by tests/clients/more with bootstrap address, source, target and the group's protocol. It runs until it is killed.

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;

public class SpringCopies {
    public static void main(String[] words) {
        Map<String, Object> writing = Map.of("bootstrap.servers", words[0]);
        var producers =
                new DefaultKafkaProducerFactory<>(writing, new StringSerializer(), new StringSerializer());
        producers.setTransactionIdPrefix("into-" + words[2] + "-");

        Map<String, Object> reading = new HashMap<>(Map.of(
                "bootstrap.servers", words[0],
                "group.id", "of-" + words[1],
                "group.protocol", words[3],
                "auto.offset.reset", "earliest",
                "isolation.level", "read_committed",
                "max.poll.records", "20"));
        if (words[3].equals("classic")) {
            reading.put("session.timeout.ms", "3000");
            reading.put("heartbeat.interval.ms", "500");
        }
        var consumers =
                new DefaultKafkaConsumerFactory<>(reading, new StringDeserializer(), new StringDeserializer());

        var template = new KafkaTemplate<>(producers);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        var settings = new ContainerProperties(words[1]);
        settings.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        settings.setMessageListener((MessageListener<String, String>) record -> {
            template.send(words[2], record.partition(), record.key(), record.value());
            if (Integer.parseInt(record.value()) % 70 == 7 && seen.add(record.value())) {
                template.flush(); // or else an abort may throw away what was never sent
                throw new IllegalStateException("planted at " + record.value());
            }
        });
        var container = new ConcurrentMessageListenerContainer<>(consumers, settings);
        container.setConcurrency(3);
        container.start();
        System.out.println("started");
    }
}
