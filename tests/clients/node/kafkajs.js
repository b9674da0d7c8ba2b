// kafkajs against a broker: produce, consume with a group, administer, transactions.
// Started by tests/clients/more with the bootstrap address and a word that makes names its own.
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [bootstrap, word] = process.argv.slice(2);
const topic = `kafkajs-${word}`;
const kafka = new Kafka({ brokers: [bootstrap], clientId: "kafkajs", logLevel: logLevel.ERROR });

function check(holds, why) {
  if (!holds) throw new Error(why);
}

async function readAll(groupId, wanted, count) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, readUncommitted: false });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [wanted], fromBeginning: true });
  const complete = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${found.length} messages instead of ${count}`)), 20000).unref();
    consumer
      .run({
        eachMessage: async ({ message }) => {
          found.push(message.value.toString());
          if (found.length === count) resolve();
        },
      })
      .catch(reject);
  });
  await complete;
  await consumer.stop();
  await consumer.disconnect();
  return found;
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 3, replicationFactor: 1 }] });
  check((await admin.listTopics()).includes(topic), "the topic is not listed");

  const producer = kafka.producer();
  await producer.connect();
  for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
    const messages = Array.from({ length: 50 }, (_, n) => ({
      key: `key-${n}`,
      value: `value-${compression}-${n}`,
      headers: { number: String(n) },
    }));
    await producer.send({ topic, compression, acks: -1, messages });
  }
  await producer.disconnect();
  console.log("produced");

  const values = await readAll(`group-${word}`, topic, 100);
  check(new Set(values).size === 100, "messages came twice");
  console.log("consumed");

  await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] });
  const offsets = await admin.fetchTopicOffsets(topic);
  check(offsets.reduce((sum, one) => sum + Number(one.high), 0) === 100, "the ends do not add up");
  const groups = await admin.listGroups();
  check(groups.groups.some((one) => one.groupId === `group-${word}`), "the group is not listed");
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "1" }] });
  console.log("administered");

  const held = `${topic}-transactions`;
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic: held, numPartitions: 1, replicationFactor: 1 }] });
  const exact = kafka.producer({ transactionalId: `kafkajs-${word}`, idempotent: true, maxInFlightRequests: 1 });
  await exact.connect();
  for (let round = 0; round < 6; round++) {
    const transaction = await exact.transaction();
    await transaction.send({ topic: held, messages: [{ value: `round ${round}` }] });
    if (round % 2 === 0) await transaction.commit();
    else await transaction.abort();
  }
  await exact.disconnect();
  const committed = await readAll(`committed-${word}`, held, 3);
  check(committed.join() === "round 0,round 2,round 4", `read ${committed}`);
  console.log("transacted");
  await admin.deleteTopics({ topics: [topic, held] });
  await admin.disconnect();
  console.log("done");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
