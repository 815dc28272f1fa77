"""librdkafka, through confluent-kafka."""

import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BOOTSTRAP = ""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def settings(**kw):
    s = {"bootstrap.servers": BOOTSTRAP, "client.id": "librdkafka"}
    s.update({k.replace("_", "."): v for k, v in kw.items()})
    return s


def send(p, topic, values):
    out, failed = [], []

    def report(err, m):
        if err is not None:
            failed.append(KafkaException(err))
        else:
            out.append((m.partition(), m.offset(), m.key(), m.value()))

    for i, v in enumerate(values):
        p.produce(topic, key=b"k%d" % i, value=v, on_delivery=report)
    p.flush(30)
    if failed:
        raise failed[0]
    return out


def produce(topic, codec, values):
    return send(Producer(settings(compression_type=codec, enable_idempotence=True, linger_ms=10, message_timeout_ms=20000)), topic, values)


def consume(topic, group, n, new_protocol):
    s = settings(group_id=group, enable_auto_commit=False, auto_offset_reset="earliest", isolation_level="read_committed", fetch_wait_max_ms=200)
    if new_protocol:
        s["group.protocol"] = "consumer"
    c = Consumer(s)
    c.subscribe([topic])
    out, done, end = [], {}, time.time() + 40
    while len(out) < n and time.time() < end:
        m = c.poll(0.2)
        if m is None:
            continue
        if m.error():
            raise KafkaException(m.error())
        out.append((m.partition(), m.offset(), m.key(), m.value()))
        done[m.partition()] = m.offset() + 1
    if done:
        c.commit(offsets=[TopicPartition(topic, p, o) for p, o in done.items()], asynchronous=False)
    c.close()
    return out


def admin(create, mirrored):
    a = AdminClient(settings())
    a.create_topics([NewTopic(create, num_partitions=3, replication_factor=1)])[create].result(20)
    meta = a.list_topics(create, timeout=20)
    end = time.time() + 10
    while len(meta.topics[create].partitions) == 0 and time.time() < end:
        meta = a.list_topics(create, timeout=20)
    groups = a.list_consumer_groups(request_timeout=20).result()
    if groups.errors:
        raise groups.errors[0]
    c = Consumer(settings(group_id="unused"))
    low, high = c.get_watermark_offsets(TopicPartition(mirrored, 0), timeout=20)
    c.close()
    a.delete_topics([create])[create].result(20)
    return {
        "partitions": len(meta.topics[create].partitions),
        "addresses": ["%s:%d" % (b.host, b.port) for b in meta.brokers.values()],
        "groups": [g.group_id for g in groups.valid],
        "start": low,
        "end": high,
    }


def txn(topic, mirrored, group, transactional_id):
    p = Producer(settings(transactional_id=transactional_id))
    p.init_transactions(30)
    p.begin_transaction()
    send(p, topic, [b"c0", b"c1", b"c2"])
    p.commit_transaction(30)
    p.begin_transaction()
    send(p, topic, [b"x0", b"x1", b"x2"])
    p.abort_transaction(30)
    p.begin_transaction()
    send(p, topic, [b"d0", b"d1"])
    c = Consumer(settings(group_id=group))
    p.send_offsets_to_transaction([TopicPartition(mirrored, 0, 7)], c.consumer_group_metadata(), 30)
    p.commit_transaction(30)
    c.close()
