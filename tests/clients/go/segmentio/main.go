// segmentio/kafka-go against a broker: produce, consume with a group, administer. It has no transactions.
// Started by tests/clients/more with the bootstrap address and a word that makes names its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

func must(err error, doing string) {
	if err != nil {
		log.Fatalf("%s: %v", doing, err)
	}
}

func main() {
	bootstrap, word := os.Args[1], os.Args[2]
	topic, group := "segmentio-"+word, "segmentio-group-"+word
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: 10 * time.Second}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 3, ReplicationFactor: 1}}})
	must(err, "create topic")
	must(created.Errors[topic], "create topic")

	for number, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		writer := &kafka.Writer{Addr: kafka.TCP(bootstrap), Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec, BatchTimeout: 10 * time.Millisecond}
		var messages []kafka.Message
		for n := 0; n < 20; n++ {
			messages = append(messages, kafka.Message{Key: []byte(fmt.Sprint(n)), Value: []byte(fmt.Sprintf("%d-%d", number, n)), Headers: []kafka.Header{{Key: "h", Value: []byte("v")}}})
		}
		must(writer.WriteMessages(ctx, messages...), "produce")
		must(writer.Close(), "close")
	}
	fmt.Println("produced")

	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond})
	values := map[string]int{}
	for n := 0; n < 100; n++ {
		message, err := reader.FetchMessage(ctx)
		must(err, "fetch")
		values[string(message.Value)]++
		must(reader.CommitMessages(ctx, message), "commit")
	}
	must(reader.Close(), "close")
	if len(values) != 100 {
		log.Fatalf("%d different values instead of 100", len(values))
	}
	fmt.Println("consumed")

	listed, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	must(err, "list groups")
	if len(listed.Groups) == 0 {
		log.Fatal("no groups")
	}
	offsets, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: {0, 1, 2}}})
	must(err, "offset fetch")
	var sum int64
	for _, partition := range offsets.Topics[topic] {
		if partition.CommittedOffset > 0 {
			sum += partition.CommittedOffset
		}
	}
	if sum != 100 {
		log.Fatalf("the committed offsets add up to %d", sum)
	}
	_, err = client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	must(err, "delete topic")
	fmt.Println("administered")
	fmt.Println("done")
}
