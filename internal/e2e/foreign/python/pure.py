"""kafka-python."""

import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import ConsumerGroupMetadata

BOOTSTRAP = ""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def producer(**kw):
    return KafkaProducer(bootstrap_servers=BOOTSTRAP.split(","), client_id="kafka-python", linger_ms=10, **kw)


def send(p, topic, values):
    futures = [(p.send(topic, key=b"k%d" % i, value=v), b"k%d" % i, v) for i, v in enumerate(values)]
    p.flush(20)
    out = []
    for f, k, v in futures:
        m = f.get(20)
        out.append((m.partition, m.offset, k, v))
    return out


def produce(topic, codec, values):
    p = producer(compression_type=None if codec == "none" else codec, acks="all", enable_idempotence=True)
    try:
        return send(p, topic, values)
    finally:
        p.close()


def consume(topic, group, n, _):
    c = KafkaConsumer(
        topic, bootstrap_servers=BOOTSTRAP.split(","), client_id="kafka-python", group_id=group, enable_auto_commit=False,
        auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=200,
    )
    out, done, end = [], {}, time.time() + 40
    try:
        while len(out) < n and time.time() < end:
            for tp, ms in c.poll(timeout_ms=300, max_records=n - len(out)).items():
                for m in ms:
                    out.append((m.partition, m.offset, m.key, m.value))
                    done[tp] = OffsetAndMetadata(m.offset + 1, "", -1)
        if done:
            c.commit(done)
    finally:
        c.close(autocommit=False)
    return out


def admin(create, mirrored):
    a = KafkaAdminClient(bootstrap_servers=BOOTSTRAP.split(","), client_id="kafka-python")
    try:
        a.create_topics([NewTopic(create, 3, 1)], timeout_ms=20000)
        a.wait_for_topics([create])
        topic = a.describe_topics([create])[0]
        brokers = a.describe_cluster()["brokers"]
        groups = [g["group_id"] if isinstance(g, dict) else g[0] for g in a.list_groups()]
        tp = TopicPartition(mirrored, 0)
        c = KafkaConsumer(bootstrap_servers=BOOTSTRAP.split(","))
        start, end = c.beginning_offsets([tp])[tp], c.end_offsets([tp])[tp]
        c.close()
        a.delete_topics([create], timeout_ms=20000)
    finally:
        a.close()
    return {
        "partitions": len(topic["partitions"]),
        "addresses": ["%s:%d" % (b["host"], b["port"]) for b in brokers],
        "groups": groups,
        "start": start,
        "end": end,
    }


def txn(topic, mirrored, group, transactional_id):
    p = producer(transactional_id=transactional_id)
    try:
        p.init_transactions()
        p.begin_transaction()
        send(p, topic, [b"c0", b"c1", b"c2"])
        p.commit_transaction()
        p.begin_transaction()
        send(p, topic, [b"x0", b"x1", b"x2"])
        p.abort_transaction()
        p.begin_transaction()
        send(p, topic, [b"d0", b"d1"])
        p.send_offsets_to_transaction({TopicPartition(mirrored, 0): OffsetAndMetadata(7, "", -1)}, ConsumerGroupMetadata(group, -1, "", None))
        p.commit_transaction()
    finally:
        p.close()
