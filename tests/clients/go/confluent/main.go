// confluent-kafka-go against a broker, on the librdkafka it brings: produce, consume with both kinds of group, administer,
// read-process-write transactions of two members. Started by tests/clients/more with the bootstrap address and a word that
// makes names its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

const (
	messages = 200
	patience = 60 * time.Second
)

func must(err error, doing string) {
	if err != nil {
		log.Fatalf("%s: %v", doing, err)
	}
}

func newProducer(settings kafka.ConfigMap) *kafka.Producer {
	producer, err := kafka.NewProducer(&settings)
	must(err, "producer")
	return producer
}

func newConsumer(bootstrap, group string, more kafka.ConfigMap) *kafka.Consumer {
	settings := kafka.ConfigMap{"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": false}
	for name, value := range more {
		settings[name] = value
	}
	consumer, err := kafka.NewConsumer(&settings)
	must(err, "consumer")
	return consumer
}

// Write values with a delivery report each.
func produce(producer *kafka.Producer, topic string, first, end int) {
	reports := make(chan kafka.Event, end-first)
	for number := first; number < end; number++ {
		place := kafka.TopicPartition{Topic: &topic, Partition: kafka.PartitionAny}
		message := &kafka.Message{TopicPartition: place, Key: []byte(fmt.Sprint(number)), Value: []byte(fmt.Sprint(number))}
		must(producer.Produce(message, reports), "produce")
	}
	for number := first; number < end; number++ {
		report := (<-reports).(*kafka.Message)
		must(report.TopicPartition.Error, "delivery")
	}
}

// Read until so many messages are there, or until the patience is over.
func read(consumer *kafka.Consumer, wanted int) map[string]int {
	found := map[string]int{}
	total := 0
	for until := time.Now().Add(patience); total < wanted; {
		if time.Now().After(until) {
			log.Fatalf("%d messages instead of %d", total, wanted)
		}
		message, err := consumer.ReadMessage(500 * time.Millisecond)
		if err == nil {
			found[string(message.Value)]++
			total++
		} else if !err.(kafka.Error).IsTimeout() {
			log.Printf("read: %v", err)
		}
	}
	return found
}

// Copy from source to target in transactions that commit the group's offsets; every third one is aborted and done again.
func copyAll(bootstrap, source, target, group, name string, protocol kafka.ConfigMap, copied chan<- int, done <-chan struct{}) {
	ctx := context.Background()
	consumer := newConsumer(bootstrap, group, protocol)
	producer := newProducer(kafka.ConfigMap{"bootstrap.servers": bootstrap, "transactional.id": name})
	must(producer.InitTransactions(ctx), "init transactions")
	rebalanced := false
	must(consumer.Subscribe(source, func(*kafka.Consumer, kafka.Event) error {
		rebalanced = true
		return nil
	}), "subscribe")
	for transactions := 0; ; {
		select {
		case <-done:
			must(consumer.Close(), "close")
			producer.Close()
			copied <- -1
			return
		default:
		}
		batch, next := []*kafka.Message{}, map[int32]kafka.TopicPartition{}
		rebalanced = false
		for len(batch) < 20 {
			message, err := consumer.ReadMessage(200 * time.Millisecond)
			if err != nil {
				break
			}
			batch = append(batch, message)
			place := message.TopicPartition
			place.Offset++
			next[place.Partition] = place
		}
		if rebalanced { // what was read may be another member's now
			rewind(consumer, next)
			continue
		}
		if len(batch) == 0 {
			continue
		}
		transactions++
		must(producer.BeginTransaction(), "begin")
		for _, message := range batch {
			place := kafka.TopicPartition{Topic: &target, Partition: kafka.PartitionAny}
			must(producer.Produce(&kafka.Message{TopicPartition: place, Key: message.Key, Value: message.Value}, nil), "produce")
		}
		positions := []kafka.TopicPartition{}
		for _, place := range next {
			positions = append(positions, place)
		}
		metadata, err := consumer.GetConsumerGroupMetadata()
		must(err, "group metadata")
		err = producer.SendOffsetsToTransaction(ctx, positions, metadata)
		if err == nil && transactions%3 != 0 {
			err = producer.CommitTransaction(ctx)
		} else if err == nil {
			err = kafka.NewError(kafka.ErrFail, "aborted on purpose", false)
		}
		if err != nil {
			must(producer.AbortTransaction(ctx), "abort")
			rewind(consumer, next)
			continue
		}
		copied <- len(batch)
	}
}

// Let a group begin at committed offsets. Without them each first offset is asked for, and librdkafka 2.15 may ask a second
// time, half a second after a rebalance or a seek has overtaken the first answer, and read on from the start then, whatever
// its group has committed.
func beginAtStart(admin *kafka.AdminClient, group, topic string, partitions int32) {
	start := []kafka.TopicPartition{}
	for partition := int32(0); partition < partitions; partition++ {
		start = append(start, kafka.TopicPartition{Topic: &topic, Partition: partition, Offset: 0})
	}
	altered, err := admin.AlterConsumerGroupOffsets(context.Background(), []kafka.ConsumerGroupTopicPartitions{{Group: group, Partitions: start}})
	must(err, "alter offsets")
	for _, place := range altered.ConsumerGroupsTopicPartitions[0].Partitions {
		must(place.Error, "alter offsets")
	}
}

// Go back to what the group has committed, where something was read.
func rewind(consumer *kafka.Consumer, read map[int32]kafka.TopicPartition) {
	assigned, err := consumer.Assignment()
	must(err, "assignment")
	committed, err := consumer.Committed(assigned, 20000)
	must(err, "committed")
	for _, place := range committed {
		must(place.Error, "committed")
		if _, wasRead := read[place.Partition]; !wasRead {
			continue
		}
		must(consumer.Seek(place, 0), "seek")
	}
}

func main() {
	bootstrap, word := os.Args[1], os.Args[2]
	ctx := context.Background()
	admin, err := kafka.NewAdminClient(&kafka.ConfigMap{"bootstrap.servers": bootstrap})
	must(err, "admin")
	source := "confluent-" + word
	create := func(topic string) {
		made, err := admin.CreateTopics(ctx, []kafka.TopicSpecification{{Topic: topic, NumPartitions: 4, ReplicationFactor: 1}})
		must(err, "create topic")
		if made[0].Error.Code() != kafka.ErrNoError {
			log.Fatalf("create topic: %v", made[0].Error)
		}
	}
	create(source)
	codecs := []string{"none", "gzip", "snappy", "lz4", "zstd"}
	for number, codec := range codecs {
		producer := newProducer(kafka.ConfigMap{"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": true, "linger.ms": 5})
		produce(producer, source, number*messages/len(codecs), (number+1)*messages/len(codecs))
		producer.Close()
	}
	fmt.Println("produced")

	protocols := map[string]kafka.ConfigMap{
		"classic":     {},
		"cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
		"consumer":    {"group.protocol": "consumer"},
	}
	for name, protocol := range protocols {
		consumer := newConsumer(bootstrap, source+"-"+name, protocol)
		must(consumer.Subscribe(source, nil), "subscribe")
		if values := read(consumer, messages); len(values) != messages {
			log.Fatalf("%s: %d different values instead of %d", name, len(values), messages)
		}
		_, err := consumer.Commit()
		must(err, "commit")
		must(consumer.Close(), "close")
	}
	fmt.Println("consumed")

	described, err := admin.DescribeConsumerGroups(ctx, []string{source + "-classic", source + "-consumer"})
	must(err, "describe groups")
	for _, group := range described.ConsumerGroupDescriptions {
		if group.Error.Code() != kafka.ErrNoError || group.State != kafka.ConsumerGroupStateEmpty {
			log.Fatalf("%s is %v: %v", group.GroupID, group.State, group.Error)
		}
	}
	grown, err := admin.CreatePartitions(ctx, []kafka.PartitionsSpecification{{Topic: source, IncreaseTo: 6}})
	must(err, "create partitions")
	if grown[0].Error.Code() != kafka.ErrNoError {
		log.Fatalf("create partitions: %v", grown[0].Error)
	}
	latest, err := admin.ListOffsets(ctx, map[kafka.TopicPartition]kafka.OffsetSpec{{Topic: &source, Partition: 0}: kafka.LatestOffsetSpec})
	must(err, "list offsets")
	for _, place := range latest.ResultInfos {
		if place.Error.Code() != kafka.ErrNoError || place.Offset <= 0 {
			log.Fatalf("latest offset %v: %v", place.Offset, place.Error)
		}
	}
	deleted, err := admin.DeleteRecords(ctx, []kafka.TopicPartition{{Topic: &source, Partition: 0, Offset: 0}})
	must(err, "delete records")
	must(deleted.DeleteRecordsResults[0].TopicPartition.Error, "delete records")
	fmt.Println("administered")

	for name, protocol := range protocols {
		target := fmt.Sprintf("confluent-to-%s-%s", name, word)
		create(target)
		group := "copiers-" + target
		beginAtStart(admin, group, source, 6)
		copied, done := make(chan int, 1000), make(chan struct{})
		for member := 0; member < 2; member++ {
			transactional := fmt.Sprintf("%s-%d", target, member)
			go copyAll(bootstrap, source, target, group, transactional, protocol, copied, done)
		}
		late := time.After(2 * patience)
		for total := 0; total < messages; {
			select {
			case count := <-copied:
				total += count
			case <-late:
				log.Fatalf("%s: %d of %d messages were copied", name, total, messages)
			}
		}
		close(done)
		for ended := 0; ended < 2; {
			if <-copied < 0 {
				ended++
			}
		}
		consumer := newConsumer(bootstrap, target+"-reader", kafka.ConfigMap{"isolation.level": "read_committed"})
		must(consumer.Subscribe(target, nil), "subscribe")
		if values := read(consumer, messages); len(values) != messages {
			log.Fatalf("%s: %d different values instead of %d", name, len(values), messages)
		}
		if extra, err := consumer.ReadMessage(time.Second); err == nil {
			log.Fatalf("%s: %s came once more", name, extra.Value)
		}
		must(consumer.Close(), "close")
	}
	fmt.Println("transacted")
	_, err = admin.DeleteTopics(ctx, []string{source})
	must(err, "delete topic")
	admin.Close()
	fmt.Println("done")
}
