// Pekko Connectors' transactional source and sink: copy one topic into another, each value into the partition it comes from,
// until killed. The first commit comes late, so that a kill meets an open transaction.
// Started by tests/clients/more with bootstrap address, source and target.

import java.time.Duration;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.pekko.actor.ActorSystem;
import org.apache.pekko.kafka.ConsumerSettings;
import org.apache.pekko.kafka.ProducerMessage;
import org.apache.pekko.kafka.ProducerSettings;
import org.apache.pekko.kafka.Subscriptions;
import org.apache.pekko.kafka.javadsl.Transactional;

public class PekkoCopies {
    public static void main(String[] words) {
        ActorSystem system = ActorSystem.create();
        ConsumerSettings<String, String> reading =
                ConsumerSettings.create(system, new StringDeserializer(), new StringDeserializer())
                        .withBootstrapServers(words[0])
                        .withGroupId("copies-" + words[1])
                        .withProperty("auto.offset.reset", "earliest")
                        .withProperty("session.timeout.ms", "6000");
        ProducerSettings<String, String> writing =
                ProducerSettings.create(system, new StringSerializer(), new StringSerializer())
                        .withBootstrapServers(words[0])
                        .withEosCommitInterval(Duration.ofSeconds(3));
        Transactional.source(reading, Subscriptions.topics(words[1]))
                .map(each -> ProducerMessage.single(
                        new ProducerRecord<>(words[2], each.record().partition(), each.record().key(), each.record().value()),
                        each.partitionOffset()))
                .to(Transactional.sink(writing, "copies-" + words[1]))
                .run(system);
    }
}
