// The library `cloudevents` (Node.js) at both ends of a broker: events by HTTP and by Kafka, in binary and structured mode.
// Started by tests/clients/more with the bootstrap address, the address of HTTP, and a word that makes names its own.
import { CloudEvent, HTTP, Kafka as Binding } from "cloudevents";
import kafkajs from "kafkajs";

const [bootstrap, url, word] = process.argv.slice(2);
const kafka = new kafkajs.Kafka({ brokers: [bootstrap], logLevel: kafkajs.logLevel.ERROR });
const topic = `cloudevents-${word}`;
const time = "2026-01-01T12:00:00.000Z";
// The library does not decode what the binding of HTTP percent-encodes in headers, a space for one: no attribute here has any.
const common = { id: "1", source: "/shop", type: "sold", time };
const events = [
  new CloudEvent({ ...common, partitionkey: "anna", datacontenttype: "application/json", data: { fruit: "fig", n: 7 } }),
  new CloudEvent({ ...common, id: "2", partitionkey: "carl", subject: "pears", datacontenttype: "text/plain", data: "a pear" }),
];

function same(found, wanted, where) {
  const [left, right] = [found, wanted].map(({ id, source, type, time, subject, partitionkey, datacontenttype, data }) =>
    JSON.stringify({ id, source, type, time, subject, partitionkey, datacontenttype, data }));
  if (left !== right) throw new Error(`${where}: ${left} is not ${right}`);
}

async function get(path, accept) {
  const answer = await fetch(`${url}/v1/topics/${topic}/partitions/0/${path}`, { headers: { Accept: accept } });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return { headers: Object.fromEntries(answer.headers), body: await answer.text() };
}

async function readByKafka(count) {
  const consumer = kafka.consumer({ groupId: topic });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const found = [];
  await new Promise((done) => consumer.run({
    eachMessage: async ({ message }) => {
      const headers = Object.fromEntries(Object.entries(message.headers).map(([name, value]) => [name, value.toString()]));
      found.push(Binding.toEvent({ headers, key: message.key?.toString(), value: message.value.toString() }));
      if (found.length === count) done();
    },
  }));
  await consumer.disconnect();
  return found;
}

for (const mode of ["binary", "structured"]) {
  for (const event of events) {
    const { headers, body } = HTTP[mode](event);
    const answer = await fetch(`${url}/v1/topics/${topic}/events`, { method: "POST", headers, body });
    if (!answer.ok) throw new Error(`${mode}: ${answer.status} ${await answer.text()}`);
  }
}
console.log("posted");

const producer = kafka.producer();
await producer.connect();
for (const mode of ["binary", "structured"]) {
  for (const event of events) {
    const { headers: all, key, value } = Binding[mode](event);
    const headers = Object.fromEntries(Object.entries(all).filter(([, content]) => content !== undefined));
    const text = typeof value === "string" ? value : JSON.stringify(value);
    await producer.send({ topic, messages: [{ headers, key, value: text }] });
  }
}
await producer.disconnect();
console.log("produced");

const all = [...events, ...events, ...events, ...events];
(await readByKafka(all.length)).forEach((event, at) => same(event, all[at], `Kafka ${at}`));
console.log("consumed");

for (const [at, event] of all.entries()) {
  for (const accept of ["*/*", "application/cloudevents+json"]) same(HTTP.toEvent(await get(`events/${at}`, accept)), event, `${accept} ${at}`);
}
const batch = HTTP.toEvent(await get("records", "application/cloudevents-batch+json"));
batch.forEach((event, at) => same(event, all[at], `batch ${at}`));
if (batch.length !== all.length) throw new Error(`${batch.length} events in the batch`);
console.log("fetched");
