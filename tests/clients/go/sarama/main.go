// sarama against a broker: produce, consume with a group, administer, transactions.
// Started by tests/clients/more with the bootstrap address and a word that makes names its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
)

func must(err error, doing string) {
	if err != nil {
		log.Fatalf("%s: %v", doing, err)
	}
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

type collector struct {
	values map[string]int
	wanted int
	total  int
	stop   context.CancelFunc
}

func (c *collector) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (c *collector) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (c *collector) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			c.values[string(message.Value)]++
			c.total++
			session.MarkMessage(message, "")
			if c.total >= c.wanted {
				session.Commit()
				c.stop()
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func readGroup(bootstrap, topic, group string, wanted int, config *sarama.Config) map[string]int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	consumer, err := sarama.NewConsumerGroup([]string{bootstrap}, group, config)
	must(err, "consumer group")
	found := &collector{values: map[string]int{}, wanted: wanted, stop: cancel}
	for ctx.Err() == nil {
		if err := consumer.Consume(ctx, []string{topic}, found); err != nil && ctx.Err() == nil {
			must(err, "consume")
		}
	}
	must(consumer.Close(), "close")
	if found.total < wanted {
		log.Fatalf("%d messages instead of %d", found.total, wanted)
	}
	return found.values
}

func main() {
	bootstrap, word := os.Args[1], os.Args[2]
	topic, held, group := "sarama-"+word, "sarama-tx-"+word, "sarama-group-"+word
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, settings())
	must(err, "admin")
	// One partition: the collector above is not made for several at once.
	must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false), "create topic")
	must(admin.CreateTopic(held, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false), "create topic")

	codecs := []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD}
	for number, codec := range codecs {
		config := settings()
		config.Producer.Compression = codec
		producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
		must(err, "producer")
		for n := 0; n < 20; n++ {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprintf("%d-%d", number, n))})
			must(err, "produce")
		}
		must(producer.Close(), "close")
	}
	fmt.Println("produced")

	if values := readGroup(bootstrap, topic, group, 100, settings()); len(values) != 100 {
		log.Fatalf("%d different values instead of 100", len(values))
	}
	fmt.Println("consumed")

	groups, err := admin.ListConsumerGroups()
	must(err, "list groups")
	if _, there := groups[group]; !there {
		log.Fatalf("the group is not listed: %v", groups)
	}
	must(admin.CreatePartitions(topic, 3, nil, false), "create partitions")
	must(admin.DeleteRecords(topic, map[int32]int64{0: 5}), "delete records")
	entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})
	must(err, "describe config")
	if len(entries) < 10 {
		log.Fatalf("only %d settings", len(entries))
	}
	fmt.Println("administered")

	config := settings()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = "sarama-" + word
	config.Net.MaxOpenRequests = 1
	exact, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	must(err, "transactional producer")
	for round := 0; round < 6; round++ {
		must(exact.BeginTxn(), "begin")
		_, _, err := exact.SendMessage(&sarama.ProducerMessage{Topic: held, Value: sarama.StringEncoder(fmt.Sprint("round ", round))})
		must(err, "produce")
		if round%2 == 0 {
			must(exact.CommitTxn(), "commit")
		} else {
			must(exact.AbortTxn(), "abort")
		}
	}
	must(exact.Close(), "close")
	careful := settings()
	careful.Consumer.IsolationLevel = sarama.ReadCommitted
	seen := readGroup(bootstrap, held, group+"-committed", 3, careful)
	for _, wanted := range []string{"round 0", "round 2", "round 4"} {
		if seen[wanted] != 1 {
			log.Fatalf("read %v", seen)
		}
	}
	fmt.Println("transacted")
	must(admin.DeleteTopic(topic), "delete topic")
	must(admin.Close(), "close")
	fmt.Println("done")
}
