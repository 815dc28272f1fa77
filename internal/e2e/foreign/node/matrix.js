'use strict'
// Drives kafkajs through the cases of package foreign: matrix.js key=value...

process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const args = Object.fromEntries(process.argv.slice(2).map((a) => [a.slice(0, a.indexOf('=')), a.slice(a.indexOf('=') + 1)]))
const mirrored = args.mirrored.split(',').map((m) => ({ name: m.slice(0, m.lastIndexOf(':')), count: Number(m.slice(m.lastIndexOf(':') + 1)) }))
const name = 'kafkajs'
const prefix = args.prefix + '-' + name
const [user, password] = (args.sasl || ':').split(':')
const sasl = user ? { mechanism: 'plain', username: user, password } : undefined
const kafka = new Kafka({ clientId: name, sasl, reauthenticationThreshold: 1500, brokers: args.bootstrap.split(','), logLevel: logLevel.ERROR, logCreator: () => ({ log }) => console.error(log.message, JSON.stringify(log)) })
const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
let written = 0

const line = (o) => console.log(JSON.stringify({ client: name, ...o }))
const b64 = (b) => (b === null ? null : b.toString('base64'))
const messages = (values) => values.map((value, i) => ({ key: 'k' + i, value }))

// send writes to partition 0, as kafkajs tells only the base offset of each partition.
async function send(producer, topic, compression, values) {
  const ms = messages(values).map((m) => ({ ...m, partition: 0 }))
  const [r] = await producer.send({ topic, acks: -1, compression, messages: ms })
  return ms.map((m, i) => ({ p: 0, o: Number(r.baseOffset) + i, k: b64(Buffer.from(m.key)), v: b64(Buffer.from(m.value)) }))
}

async function consume(kase, topic, group, n, session) {
  const consumer = kafka.consumer({ groupId: group, readUncommitted: false, maxWaitTimeInMs: 200, retry: { retries: 5 } })
  let got = 0
  let end, fail
  const ended = new Promise((resolve, reject) => { end = resolve; fail = reject })
  const timer = setTimeout(() => fail(new Error(`${topic}, session ${session}: ${got} of ${n} records in time`)), 40000)
  consumer.on(consumer.events.CRASH, ({ payload }) => fail(payload.error))
  try {
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (got >= n) return
        got++
        line({ case: kase, topic, session, p: partition, o: Number(message.offset), k: b64(message.key), v: b64(message.value) })
        await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }])
        if (got === n) end()
      },
    })
    await ended
  } finally {
    clearTimeout(timer)
    await consumer.disconnect()
  }
}

const cases = {
  async produce() {
    for (const [codec, c] of Object.entries(codecs)) {
      const producer = kafka.producer({ idempotent: true })
      await producer.connect()
      const recs = await send(producer, prefix, c, [...Array(10).keys()].map((i) => `${name} ${codec} ${i} ` + 'compressible '.repeat(20)))
      recs.forEach((r) => line({ case: 'produce', topic: prefix, codec, ...r }))
      written += recs.length
      await producer.disconnect()
    }
  },
  async group() {
    for (const t of [{ name: prefix, count: written }, ...mirrored]) {
      const half = Math.floor(t.count / 2)
      await consume('group', t.name, `${prefix}-group-${t.name}`, half, 1)
      await consume('group', t.name, `${prefix}-group-${t.name}`, t.count - half, 2)
    }
  },
  async admin() {
    const admin = kafka.admin()
    await admin.connect()
    try {
      const topic = prefix + '-new'
      await admin.createTopics({ topics: [{ topic, numPartitions: 3, replicationFactor: 1 }], waitForLeaders: true })
      const meta = await admin.fetchTopicMetadata({ topics: [topic] })
      const cluster = await admin.describeCluster()
      const { groups } = await admin.listGroups()
      const [o] = await admin.fetchTopicOffsets(mirrored[0].name)
      await admin.deleteTopics({ topics: [topic] })
      line({
        case: 'admin',
        admin: {
          partitions: meta.topics[0].partitions.length, addresses: cluster.brokers.map((b) => `${b.host}:${b.port}`),
          groups: groups.map((g) => g.groupId), start: Number(o.low), end: Number(o.high),
        },
      })
    } finally {
      await admin.disconnect()
    }
  },
  // Not a case of the matrix (PX-063): one connection for longer than its SASL sessions.
  async reauth() {
    const admin = kafka.admin()
    await admin.connect()
    try {
      for (const end = Date.now() + 8000; Date.now() < end; await new Promise((go) => setTimeout(go, 100))) await admin.describeCluster()
    } finally {
      await admin.disconnect()
    }
  },
  async txn() {
    const topic = prefix + '-txn'
    const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: topic + '-id' })
    await producer.connect()
    try {
      let t = await producer.transaction()
      await t.send({ topic, messages: messages(['c0', 'c1', 'c2']) })
      await t.commit()
      t = await producer.transaction()
      await t.send({ topic, messages: messages(['x0', 'x1', 'x2']) })
      await t.abort()
      t = await producer.transaction()
      await t.send({ topic, messages: messages(['d0', 'd1']) })
      await t.sendOffsets({ consumerGroupId: topic + '-offsets', topics: [{ topic: mirrored[0].name, partitions: [{ partition: 0, offset: '7' }] }] })
      await t.commit()
    } finally {
      await producer.disconnect()
    }
    await consume('txn', topic, topic, 5, 0)
  },
}

async function main() {
  for (const kase of args.cases.split(',')) {
    const began = Date.now()
    try {
      await cases[kase]()
    } catch (e) {
      line({ case: kase, error: String(e.stack || e) })
      continue
    }
    line({ case: kase, done: true, ms: Date.now() - began })
  }
}

main().then(() => process.exit(0))
