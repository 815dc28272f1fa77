import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.*;

/**
 * Drives kafka-clients through the cases of package foreign: Matrix key=value... It compiles against 2.8 and today's
 * version; what only today's has is in New.java.
 */
public class Matrix {
    private static final Base64.Encoder B64 = Base64.getEncoder();
    static final Map<String, String> ARGS = new HashMap<>();
    /** Mirrored topics and how many records they hold. */
    static final Map<String, Integer> MIRRORED = new LinkedHashMap<>();
    static String name;
    static String prefix;
    static int written;

    public static void main(String[] a) throws Exception {
        for (String s : a) {
            String[] kv = s.split("=", 2);
            ARGS.put(kv[0], kv[1]);
        }
        for (String m : ARGS.get("mirrored").split(",")) {
            int i = m.lastIndexOf(':');
            MIRRORED.put(m.substring(0, i), Integer.parseInt(m.substring(i + 1)));
        }
        name = ARGS.get("client");
        prefix = ARGS.get("prefix") + "-" + name;
        for (String c : ARGS.get("cases").split(",")) {
            long began = System.currentTimeMillis();
            try {
                one(c);
            } catch (Throwable e) {
                java.io.StringWriter w = new java.io.StringWriter();
                e.printStackTrace(new java.io.PrintWriter(w));
                line(c, "\"error\":" + str(w.toString()));
                continue;
            }
            line(c, "\"done\":true,\"ms\":" + (System.currentTimeMillis() - began));
        }
        System.exit(0);
    }

    private static void one(String c) throws Exception {
        switch (c) {
            case "produce": produce(); return;
            case "group": group("group", Map.of()); return;
            case "admin": admin(); return;
            case "txn": txn(); return;
            case "kip848": group("kip848", Map.of("group.protocol", "consumer")); break;
            default:
        }
        // By name: with an old version New is not there.
        Class.forName("New").getMethod("one", String.class).invoke(null, c);
    }

    static Properties props(Map<String, String> more) {
        Properties p = new Properties();
        p.put("bootstrap.servers", ARGS.get("bootstrap"));
        p.put("client.id", name);
        p.putAll(more);
        return p;
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, String> more) {
        Properties p = props(more);
        p.put("acks", "all");
        p.put("enable.idempotence", "true");
        p.put("linger.ms", "10");
        p.put("delivery.timeout.ms", "30000");
        p.put("request.timeout.ms", "15000");
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static byte[] utf8(String s) { return s.getBytes(StandardCharsets.UTF_8); }

    private static void produce() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (KafkaProducer<byte[], byte[]> k = producer(Map.of("compression.type", codec))) {
                List<ProducerRecord<byte[], byte[]>> recs = new ArrayList<>();
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int i = 0; i < 10; i++) {
                    ProducerRecord<byte[], byte[]> r = new ProducerRecord<>(prefix, utf8("k" + i), utf8(name + " " + codec + " " + i + " " + "compressible ".repeat(20)));
                    recs.add(r);
                    sent.add(k.send(r));
                }
                for (int i = 0; i < sent.size(); i++) {
                    RecordMetadata m = sent.get(i).get();
                    rec("produce", prefix, codec, 0, m.partition(), m.offset(), recs.get(i).key(), recs.get(i).value());
                    written++;
                }
            }
        }
    }

    private static void group(String c, Map<String, String> more) {
        Map<String, Integer> topics = new LinkedHashMap<>();
        topics.put(prefix, written);
        topics.putAll(MIRRORED);
        topics.forEach((topic, count) -> {
            String group = prefix + "-" + c + "-" + topic;
            consume(c, topic, group, count / 2, 1, more);
            consume(c, topic, group, count - count / 2, 2, more);
        });
    }

    /** Joins a group, reads n records, commits and leaves. */
    static void consume(String c, String topic, String group, int n, int session, Map<String, String> more) {
        try (KafkaConsumer<byte[], byte[]> k = consumer(group, n, more)) {
            k.subscribe(List.of(topic));
            read(k, c, topic, n, session);
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, int most, Map<String, String> more) {
        Properties p = props(more);
        p.put("group.id", group);
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        p.put("isolation.level", "read_committed");
        p.put("fetch.max.wait.ms", "200");
        p.put("max.poll.records", String.valueOf(Math.max(1, most)));
        return new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void read(KafkaConsumer<byte[], byte[]> k, String c, String topic, int n, int session) {
        Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
        long end = System.currentTimeMillis() + 40_000;
        int got = 0;
        while (got < n) {
            if (System.currentTimeMillis() > end) throw new IllegalStateException(topic + ", session " + session + ": " + got + " of " + n + " records in time");
            for (ConsumerRecord<byte[], byte[]> r : k.poll(Duration.ofMillis(200))) {
                if (got >= n) break;
                got++;
                rec(c, topic, "", session, r.partition(), r.offset(), r.key(), r.value());
                done.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1, r.leaderEpoch(), ""));
            }
        }
        k.commitSync(done);
    }

    private static void admin() throws Exception {
        String topic = prefix + "-new";
        TopicPartition tp = new TopicPartition(MIRRORED.keySet().iterator().next(), 0);
        try (Admin a = Admin.create(props(Map.of()))) {
            a.createTopics(List.of(new NewTopic(topic, 3, (short) 1))).all().get();
            int partitions = 0;
            for (long until = System.currentTimeMillis() + 10_000; partitions == 0; ) {
                try {
                    partitions = describe(a, topic);
                } catch (java.util.concurrent.ExecutionException e) {
                    if (!(e.getCause() instanceof UnknownTopicOrPartitionException) || System.currentTimeMillis() > until) throw e;
                }
            }
            String addresses = a.describeCluster().nodes().get().stream().map(n -> str(n.host() + ":" + n.port())).collect(Collectors.joining(","));
            String groups = a.listConsumerGroups().all().get().stream().map(g -> str(g.groupId())).collect(Collectors.joining(","));
            long start = a.listOffsets(Map.of(tp, OffsetSpec.earliest())).partitionResult(tp).get().offset();
            long end = a.listOffsets(Map.of(tp, OffsetSpec.latest())).partitionResult(tp).get().offset();
            a.deleteTopics(List.of(topic)).all().get();
            line("admin", "\"admin\":{\"partitions\":" + partitions + ",\"addresses\":[" + addresses + "],\"groups\":[" + groups + "],\"start\":" + start + ",\"end\":" + end + "}");
        }
    }

    /** The call's name changed between the versions. */
    private static int describe(Admin a, String topic) throws Exception {
        DescribeTopicsResult r = a.describeTopics(List.of(topic));
        java.lang.reflect.Method all;
        try {
            all = r.getClass().getMethod("allTopicNames");
        } catch (NoSuchMethodException e) {
            all = r.getClass().getMethod("all");
        }
        @SuppressWarnings("unchecked")
        var future = (org.apache.kafka.common.KafkaFuture<Map<String, TopicDescription>>) all.invoke(r);
        return future.get().get(topic).partitions().size();
    }

    private static void txn() throws Exception {
        String topic = prefix + "-txn";
        try (KafkaProducer<byte[], byte[]> k = producer(Map.of("transactional.id", topic + "-id"))) {
            k.initTransactions();
            k.beginTransaction();
            send(k, topic, "c0", "c1", "c2");
            k.commitTransaction();
            k.beginTransaction();
            send(k, topic, "x0", "x1", "x2");
            k.abortTransaction();
            k.beginTransaction();
            send(k, topic, "d0", "d1");
            k.sendOffsetsToTransaction(Map.of(new TopicPartition(MIRRORED.keySet().iterator().next(), 0), new OffsetAndMetadata(7)),
                new ConsumerGroupMetadata(topic + "-offsets"));
            k.commitTransaction();
        }
        consume("txn", topic, topic, 5, 0, Map.of());
    }

    private static void send(KafkaProducer<byte[], byte[]> k, String topic, String... values) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (String v : values) sent.add(k.send(new ProducerRecord<>(topic, utf8(v), utf8(v))));
        k.flush();
        for (Future<RecordMetadata> f : sent) f.get();
    }

    static void rec(String c, String topic, String codec, int session, int p, long o, byte[] k, byte[] v) {
        line(c, "\"topic\":" + str(topic) + ",\"codec\":" + str(codec) + ",\"session\":" + session + ",\"p\":" + p + ",\"o\":" + o + ",\"k\":" + bytes(k) + ",\"v\":" + bytes(v));
    }

    private static String bytes(byte[] b) { return b == null ? "null" : "\"" + B64.encodeToString(b) + "\""; }

    static String str(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c < 0x20 || c == '"' || c == '\\') b.append(String.format("\\u%04x", (int) c));
            else b.append(c);
        }
        return b.append('"').toString();
    }

    static void line(String c, String fields) {
        OUT.println("{\"client\":" + str(name) + ",\"case\":" + str(c) + "," + fields + "}");
        OUT.flush();
    }

    /** The real standard output, also while a tool's is caught. */
    static final java.io.PrintStream OUT = new java.io.PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.UTF_8);
}
