"""Drives Python's Kafka clients through the cases of package foreign: matrix.py key=value..."""

import base64
import importlib
import json
import sys
import time
import traceback


def line(**kw):
    sys.stdout.write(json.dumps(kw) + "\n")
    sys.stdout.flush()


def b64(b):
    return None if b is None else base64.b64encode(b).decode()


class Run:
    def __init__(self, name, lib, prefix, mirrored):
        self.name, self.lib, self.prefix, self.mirrored, self.written = name, lib, prefix + "-" + name, mirrored, 0

    def print(self, case, topic, recs, session=0, codec=""):
        for p, o, k, v in recs:
            line(client=self.name, case=case, topic=topic, session=session, codec=codec, p=p, o=o, k=b64(k), v=b64(v))

    def produce(self, case):
        for codec in self.lib.CODECS:
            values = [("%s %s %d %s" % (self.name, codec, i, "compressible " * 20)).encode() for i in range(10)]
            self.print(case, self.prefix, self.lib.produce(self.prefix, codec, values), codec=codec)
            self.written += len(values)

    def group(self, case):
        for topic, count in [(self.prefix, self.written)] + self.mirrored:
            group, half = self.prefix + "-" + case + "-" + topic, count // 2
            for session, n in enumerate([half, count - half], 1):
                recs = self.lib.consume(topic, group, n, case == "kip848")
                self.print(case, topic, recs, session=session)
                if len(recs) != n:
                    raise RuntimeError("%s, session %d: %d of %d records in time" % (topic, session, len(recs), n))

    kip848 = group

    def admin(self, case):
        line(client=self.name, case=case, admin=self.lib.admin(self.prefix + "-new", self.mirrored[0][0]))

    def txn(self, case):
        t = self.prefix + "-txn"
        self.lib.txn(t, self.mirrored[0][0], t + "-offsets", t + "-id")
        self.print(case, t, self.lib.consume(t, t, 5, False))

    def all(self, cases):
        for case in cases:
            began = time.time()
            try:
                getattr(self, case)(case)
            except Exception as e:
                line(client=self.name, case=case, error="%s: %s: %s" % (type(e).__name__, e, traceback.format_exc()[-1500:]))
                continue
            line(client=self.name, case=case, done=True, ms=int(1000 * (time.time() - began)))


def main():
    a = dict(x.split("=", 1) for x in sys.argv[1:])
    modules = {"librdkafka": "rdkafka", "librdkafka-old": "rdkafka", "kafka-python": "pure", "aiokafka": "aio"}
    mirrored = [(m.rsplit(":", 1)[0], int(m.rsplit(":", 1)[1])) for m in a["mirrored"].split(",")]
    lib = importlib.import_module(modules[a["client"]])
    lib.BOOTSTRAP = a["bootstrap"]
    Run(a["client"], lib, a["prefix"], mirrored).all(a["cases"].split(","))


main()
