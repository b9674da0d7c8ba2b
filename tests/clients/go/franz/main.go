// franz-go against a broker: produce, consume with a group, administer, transactions.
// Started by tests/clients/more with the bootstrap address and a word that makes names its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func must(err error, doing string) {
	if err != nil {
		log.Fatalf("%s: %v", doing, err)
	}
}

func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap)}, options...)...)
	must(err, "client")
	return made
}

func read(ctx context.Context, consumer *kgo.Client, count int) map[string]int {
	found := map[string]int{}
	for total := 0; total < count; {
		fetched := consumer.PollFetches(ctx)
		must(fetched.Err(), "fetch")
		fetched.EachRecord(func(record *kgo.Record) {
			found[string(record.Value)]++
			total++
		})
	}
	return found
}

func main() {
	bootstrap, word := os.Args[1], os.Args[2]
	topic, held, group := "franz-"+word, "franz-tx-"+word, "franz-group-"+word
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()

	admin := kadm.NewClient(client(bootstrap))
	defer admin.Close()
	_, err := admin.CreateTopics(ctx, 3, 1, nil, topic)
	must(err, "create topic")
	_, err = admin.CreateTopics(ctx, 1, 1, nil, held)
	must(err, "create topic")

	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	for number, codec := range codecs {
		producer := client(bootstrap, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec))
		for n := 0; n < 20; n++ {
			record := &kgo.Record{Key: []byte(fmt.Sprint(n)), Value: []byte(fmt.Sprintf("%d-%d", number, n)), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}
			must(producer.ProduceSync(ctx, record).FirstErr(), "produce")
		}
		producer.Close()
	}
	fmt.Println("produced")

	consumer := client(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	values := read(ctx, consumer, 100)
	if len(values) != 100 {
		log.Fatalf("%d different values instead of 100", len(values))
	}
	must(consumer.CommitUncommittedOffsets(ctx), "commit")
	consumer.Close()
	fmt.Println("consumed")

	lags, err := admin.Lag(ctx, group)
	must(err, "lag")
	if total := lags[group].Lag.Total(); total != 0 {
		log.Fatalf("a lag of %d after everything was read", total)
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	must(err, "end offsets")
	var sum int64
	ends.Each(func(end kadm.ListedOffset) { sum += end.Offset })
	if sum != 100 {
		log.Fatalf("the ends add up to %d", sum)
	}
	fmt.Println("administered")

	exact := client(bootstrap, kgo.DefaultProduceTopic(held), kgo.TransactionalID("franz-"+word))
	for round := 0; round < 6; round++ {
		must(exact.BeginTransaction(), "begin")
		must(exact.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint("round ", round))).FirstErr(), "produce")
		outcome := kgo.TransactionEndTry(kgo.TryCommit)
		if round%2 == 1 {
			outcome = kgo.TryAbort
		}
		must(exact.EndTransaction(ctx, outcome), "end")
	}
	exact.Close()
	committed := client(bootstrap, kgo.ConsumeTopics(held), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	seen := read(ctx, committed, 3)
	committed.Close()
	for _, wanted := range []string{"round 0", "round 2", "round 4"} {
		if seen[wanted] != 1 {
			log.Fatalf("read %v", seen)
		}
	}
	fmt.Println("transacted")

	_, err = admin.DeleteTopics(ctx, topic, held)
	must(err, "delete topics")
	fmt.Println("done")
}
