"""A black-box Kafka client for tests, on librdkafka (confluent-kafka): client.py VERB key=value...

Output is one JSON object a line: records as the oracle's Rec, everything else with a "meta" field. The keys are the
Java client's; see clients.go.
"""

import base64
import json
import sys
import time

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)


def line(**kw):
    sys.stdout.write(json.dumps(kw, ensure_ascii=True) + "\n")


def b64(b):
    return None if b is None else base64.b64encode(b).decode()


def meta(what, p, offset, epoch=-1, **more):
    line(meta=what, partition=p, offset=offset, leaderEpoch=-1 if epoch is None else epoch, **more)


def settings(a):
    s = {"bootstrap.servers": a["bootstrap"], "client.id": "librdkafka"}
    s.update({k[2:]: v for k, v in a.items() if k.startswith("x.")})
    return s


def record(m):
    kind, ts = m.timestamp()
    epoch = m.leader_epoch()
    line(
        partition=m.partition(),
        offset=m.offset(),
        leaderEpoch=-1 if epoch is None else epoch,
        timestamp=ts,
        timestampType="LogAppendTime" if kind == TIMESTAMP_LOG_APPEND_TIME else "CreateTime",
        key=b64(m.key()),
        value=b64(m.value()),
        headers=[{"k": k, "v": b64(v)} for k, v in (m.headers() or [])],
    )


def read(a):
    s = settings(a)
    topic, n, most = a["topic"], int(a.get("partitions", 1)), int(a.get("max", 1 << 60))
    s.update({
        "group.id": a.get("group") or "unused-%d" % time.time_ns(),
        "enable.auto.commit": False,
        "auto.offset.reset": {"none": "error"}.get(a.get("reset", "earliest"), a.get("reset", "earliest")),
        "isolation.level": a.get("isolation", "read_uncommitted"),
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
    })
    c = Consumer(s)
    end = time.time() + int(a.get("timeout", 60000)) / 1000
    for p in range(n):
        low, high = c.get_watermark_offsets(TopicPartition(topic, p), timeout=30)
        meta("start", p, low)
        meta("end", p, high)
    if a.get("subscribe") == "true":
        c.subscribe([topic])
    else:
        c.assign([start(c, a, topic, p) for p in range(n)])
    eof, count, done = set(), 0, {}
    follow = a.get("follow") == "true"
    while count < most and (follow or len(eof) < n):
        if time.time() > end:
            line(meta="timeout")
            break
        m = c.poll(0.2)
        if m is None:
            continue
        if m.error():
            code = m.error().code()
            if code == KafkaError._PARTITION_EOF:
                eof.add(m.partition())
                meta("position", m.partition(), m.offset())
            elif code == KafkaError._LOG_TRUNCATION:
                meta("truncation", m.partition(), m.offset(), m.leader_epoch(), message=m.error().str())
                break
            elif code in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                meta("out-of-range", m.partition(), m.offset(), message=m.error().str())
                break
            else:
                raise KafkaException(m.error())
            continue
        eof.discard(m.partition())
        record(m)
        if follow:
            sys.stdout.flush()  # somebody may wait for it
        count += 1
        done[m.partition()] = (m.offset() + 1, m.leader_epoch())
    if a.get("commit") == "true":
        tps = [TopicPartition(topic, p, o, leader_epoch=-1 if e is None else e) for p, (o, e) in done.items()]
        c.commit(offsets=tps, asynchronous=False)
        for tp in c.committed([TopicPartition(topic, p) for p in range(n)], timeout=30):
            if tp.offset >= 0:
                meta("committed", tp.partition, tp.offset, tp.leader_epoch)
    c.close()


def start(c, a, topic, p):
    kind, _, x = a.get("from", "earliest").partition(":")
    if kind == "offset":
        return TopicPartition(topic, p, int(x), leader_epoch=int(a.get("epoch", -1)))
    if kind == "timestamp":
        tp = c.offsets_for_times([TopicPartition(topic, p, int(x))], timeout=30)[0]
        if tp.offset >= 0:
            meta("for-time", p, tp.offset)
        return tp
    if kind == "group":
        return TopicPartition(topic, p)
    return TopicPartition(topic, p, OFFSET_BEGINNING)


def produce(a):
    s = settings(a)
    s.setdefault("message.timeout.ms", 30000)
    s.setdefault("linger.ms", 5)
    prod = Producer(s)

    def report(err, m):
        if err is None:
            meta("produced", m.partition(), m.offset())
        else:
            meta("produced", int(a.get("partition", 0)), -1, error=err.name(), message=err.str())

    for i in range(int(a.get("n", 1))):
        prod.produce(a["topic"], key=a.get("key", "k"), value=a.get("value", "v") + str(i), partition=int(a.get("partition", 0)), on_delivery=report)
    prod.flush(60)


def main():
    args = dict(x.split("=", 1) for x in sys.argv[2:])
    {"read": read, "produce": produce}[sys.argv[1]](args)
    sys.stdout.flush()


main()
