"""aiokafka."""

import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

BOOTSTRAP = ""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def produce(*a):
    return asyncio.run(_produce(*a))


def consume(*a):
    return asyncio.run(_consume(*a))


def admin(*a):
    return asyncio.run(_admin(*a))


def txn(*a):
    return asyncio.run(_txn(*a))


async def send(p, topic, values):
    futures = [(await p.send(topic, key=b"k%d" % i, value=v), b"k%d" % i, v) for i, v in enumerate(values)]
    out = []
    for f, k, v in futures:
        m = await f
        out.append((m.partition, m.offset, k, v))
    return out


async def _produce(topic, codec, values):
    p = AIOKafkaProducer(
        bootstrap_servers=BOOTSTRAP, client_id="aiokafka", enable_idempotence=True, linger_ms=10,
        compression_type=None if codec == "none" else codec,
    )
    await p.start()
    try:
        return await send(p, topic, values)
    finally:
        await p.stop()


async def _consume(topic, group, n, _):
    c = AIOKafkaConsumer(
        topic, bootstrap_servers=BOOTSTRAP, client_id="aiokafka", group_id=group, enable_auto_commit=False,
        auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=200,
    )
    await c.start()
    out, done, end = [], {}, time.time() + 40
    try:
        while len(out) < n and time.time() < end:
            for tp, ms in (await c.getmany(timeout_ms=300, max_records=n - len(out))).items():
                for m in ms:
                    out.append((m.partition, m.offset, m.key, m.value))
                    done[tp] = m.offset + 1
        if done:
            await c.commit(done)
    finally:
        await c.stop()
    return out


async def _admin(create, mirrored):
    a = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP, client_id="aiokafka")
    await a.start()
    try:
        await a.create_topics([NewTopic(create, 3, 1)], timeout_ms=20000)
        end = time.time() + 10
        topic = (await a.describe_topics([create]))[0]
        while topic["error_code"] != 0 and time.time() < end:
            topic = (await a.describe_topics([create]))[0]
        brokers = (await a.describe_cluster())["brokers"]
        groups = [g[0] for g in await a.list_consumer_groups()]
        tp = TopicPartition(mirrored, 0)
        c = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP)
        await c.start()
        start, last = (await c.beginning_offsets([tp]))[tp], (await c.end_offsets([tp]))[tp]
        await c.stop()
        await a.delete_topics([create], timeout_ms=20000)
    finally:
        await a.close()
    return {
        "partitions": len(topic["partitions"]),
        "addresses": ["%s:%d" % (b["host"], b["port"]) for b in brokers],
        "groups": groups,
        "start": start,
        "end": last,
    }


async def _txn(topic, mirrored, group, transactional_id):
    p = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, client_id="aiokafka", transactional_id=transactional_id)
    await p.start()
    try:
        async with p.transaction():
            await send(p, topic, [b"c0", b"c1", b"c2"])
        await p.begin_transaction()
        await send(p, topic, [b"x0", b"x1", b"x2"])
        await p.abort_transaction()
        await p.begin_transaction()
        await send(p, topic, [b"d0", b"d1"])
        await p.send_offsets_to_transaction({TopicPartition(mirrored, 0): 7}, group)
        await p.commit_transaction()
    finally:
        await p.stop()
