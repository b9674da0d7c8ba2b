// rskafka against a broker: produce with every codec, fetch, administer. It has neither groups nor transactions.
// Started by tests/clients/more with the bootstrap address and a word that makes names its own.
use rskafka::chrono::DateTime;
use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::client::ClientBuilder;
use rskafka::record::Record;
use std::collections::BTreeMap;

const CODECS: [Compression; 5] = [
    Compression::NoCompression,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let topic = format!("rskafka-{}", words[2]);
    let client = ClientBuilder::new(vec![words[1].clone()]).build().await.unwrap();
    let controller = client.controller_client().unwrap();
    controller.create_topic(&topic, 2, 1, 5000).await.unwrap();
    let partition = client.partition_client(&topic, 0, UnknownTopicHandling::Retry).await.unwrap();
    for (number, codec) in CODECS.into_iter().enumerate() {
        let record = |n: u8| Record {
            key: Some(vec![n]),
            value: Some(format!("{number}-{n}").into_bytes()),
            headers: BTreeMap::from([("h".to_owned(), b"v".to_vec())]),
            timestamp: DateTime::from_timestamp_millis(1_700_000_000_000).unwrap(),
        };
        let offsets = partition.produce((0..20).map(record).collect(), codec).await.unwrap();
        assert_eq!(offsets, (20 * number as i64..20 * (number as i64 + 1)).collect::<Vec<_>>());
    }
    println!("produced");

    let mut next = 0;
    while next < 100 {
        let (records, high_watermark) = partition.fetch_records(next, 1..1_000_000, 1000).await.unwrap();
        assert_eq!(high_watermark, 100);
        for found in &records {
            assert_eq!(found.offset, next);
            assert_eq!(found.record.value, Some(format!("{}-{}", next / 20, next % 20).into_bytes()));
            next += 1;
        }
    }
    println!("consumed");

    partition.delete_records(10, 5000).await.unwrap();
    assert_eq!(partition.get_offset(OffsetAt::Earliest).await.unwrap(), 10);
    assert_eq!(partition.get_offset(OffsetAt::Latest).await.unwrap(), 100);
    assert!(client.list_topics().await.unwrap().iter().any(|listed| listed.name == topic));
    controller.delete_topic(&topic, 5000).await.unwrap();
    println!("administered\ndone");
}
