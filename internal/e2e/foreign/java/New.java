import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/** What only today's Java clients have; see Matrix. */
public final class New extends Matrix {
    public static void one(String c) throws Exception {
        switch (c) {
            case "kip848": regex(); return;
            case "share": share(); return;
            case "streams": streams(); return;
            case "tools": tools(); return;
            default: throw new IllegalArgumentException("no case " + c);
        }
    }

    /** A regular expression that the broker evaluates (ConsumerGroupHeartbeat v1, PX-109), over an ordinary and a mirrored topic. */
    private static void regex() {
        String mirrored = MIRRORED.keySet().iterator().next();
        int n = written + MIRRORED.get(mirrored);
        try (KafkaConsumer<byte[], byte[]> k = consumer(prefix + "-regex", n, Map.of("group.protocol", "consumer"))) {
            k.subscribe(new SubscriptionPattern(prefix + "|" + mirrored));
            Set<TopicPartition> want = Set.of(new TopicPartition(prefix, 0), new TopicPartition(prefix, 1), new TopicPartition(mirrored, 0));
            int got = 0;
            for (long end = System.currentTimeMillis() + 40_000; got < n; ) {
                if (System.currentTimeMillis() > end) throw new IllegalStateException("regex: " + got + " of " + n + " records in time, assigned " + k.assignment());
                got += k.poll(Duration.ofMillis(200)).count();
            }
            if (!k.assignment().equals(want)) throw new IllegalStateException("regex: assigned " + k.assignment());
        }
    }

    private static void share() throws Exception {
        shareRead(prefix, prefix + "-share", written);
        try {
            shareRead(MIRRORED.keySet().iterator().next(), prefix + "-share-mirrored", 1);
        } catch (KafkaException | IllegalStateException e) {
            if (String.valueOf(e.getMessage()).endsWith("in time")) throw e;
            line("share", "\"refused\":" + str(e.toString()));
            return;
        }
        throw new IllegalStateException("a share group read a mirrored topic");
    }

    private static void shareRead(String topic, String group, int n) {
        Properties p = props(Map.of("group.id", group));
        try (KafkaShareConsumer<byte[], byte[]> k = new KafkaShareConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            k.subscribe(List.of(topic));
            int got = 0;
            for (long end = System.currentTimeMillis() + 20_000; got < n; ) {
                if (System.currentTimeMillis() > end) throw new IllegalStateException(topic + ", share group: " + got + " of " + n + " records in time");
                for (ConsumerRecord<byte[], byte[]> r : k.poll(Duration.ofMillis(200))) {
                    rec("share", topic, "", 0, r.partition(), r.offset(), r.key(), r.value());
                    got++;
                }
            }
            k.commitSync();
        }
    }

    /** Counts words of the first mirrored topic and PREFIX-words; every count goes to PREFIX-counts. */
    private static void streams() throws Exception {
        String mirrored = MIRRORED.keySet().iterator().next(), in = prefix + "-words", out = prefix + "-counts";
        Path dir = Files.createTempDirectory("streams");
        write(in, "before restart", "before all");
        long total = words(List.of(new TopicPartition(mirrored, 0), new TopicPartition(in, 0)));
        KafkaStreams app = app(List.of(mirrored, in), out, dir.resolve("1"));
        app.start();
        counts(out, total);
        // A member that doesn't leave is waited for until its session ends.
        app.close(org.apache.kafka.streams.CloseOptions.groupMembershipOperation(org.apache.kafka.streams.CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
        write(in, "after restart", "after all", "restart");
        // Another folder: the counts come back from the changelog.
        app = app(List.of(mirrored, in), out, dir.resolve("2"));
        app.start();
        for (ConsumerRecord<byte[], byte[]> r : counts(out, total + 5)) rec("streams", out, "", 0, r.partition(), r.offset(), r.key(), r.value());
        app.close();
    }

    private static void write(String topic, String... values) throws Exception {
        try (KafkaProducer<byte[], byte[]> k = producer(Map.of())) {
            for (String s : values) k.send(new ProducerRecord<>(topic, utf8(s), utf8(s))).get();
        }
    }

    private static KafkaStreams app(List<String> in, String out, Path dir) {
        StreamsBuilder b = new StreamsBuilder();
        b.stream(in, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(v -> v == null ? List.of() : List.of(v.split(" ")))
            .groupBy((k, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream().mapValues(n -> n.toString()).to(out, Produced.with(Serdes.String(), Serdes.String()));
        Properties p = props(Map.of());
        p.put("application.id", prefix + "-app");
        p.put("processing.guarantee", "exactly_once_v2");
        p.put("commit.interval.ms", "100");
        p.put("statestore.cache.max.bytes", "0");
        p.put("replication.factor", "1");
        p.put("state.dir", dir.toString());
        p.put("auto.offset.reset", "earliest");
        return new KafkaStreams(b.build(), p);
    }

    private static long words(List<TopicPartition> tps) {
        long n = 0;
        for (ConsumerRecord<byte[], byte[]> r : readAll(tps, -1)) if (r.value() != null) n += new String(r.value(), StandardCharsets.UTF_8).split(" ").length;
        return n;
    }

    private static List<ConsumerRecord<byte[], byte[]>> counts(String out, long n) { return readAll(List.of(new TopicPartition(out, 0)), n); }

    /** Reads from the start: n records, or (−1) up to the ends of now. */
    private static List<ConsumerRecord<byte[], byte[]>> readAll(List<TopicPartition> tps, long n) {
        List<ConsumerRecord<byte[], byte[]>> recs = new ArrayList<>();
        Properties p = props(Map.of("isolation.level", "read_committed"));
        try (KafkaConsumer<byte[], byte[]> k = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            k.assign(tps);
            k.seekToBeginning(tps);
            Map<TopicPartition, Long> ends = k.endOffsets(tps);
            for (long until = System.currentTimeMillis() + 60_000; ; ) {
                if (n < 0 ? tps.stream().allMatch(tp -> k.position(tp) >= ends.get(tp)) : recs.size() >= n) return recs;
                if (System.currentTimeMillis() > until) throw new IllegalStateException(tps + ": " + recs.size() + " of " + n + " records in time");
                k.poll(Duration.ofMillis(200)).forEach(recs::add);
            }
        }
    }

    /** Thrown at a tool's exit. Some catch it and exit once more: the first status counts. */
    private static final class Exited extends RuntimeException {
        Exited() { super("the tool's exit", null, false, false); }
    }

    private static Integer status;

    private static void exit(int s) {
        if (status == null) status = s;
        throw new Exited();
    }

    /** The main classes of the command-line tools, one after the other in this JVM. Each one's output is a line. */
    private static void tools() throws Exception {
        Exit.setExitProcedure((s, message) -> exit(s));
        Exit.setHaltProcedure((s, message) -> exit(s));
        Exit.setShutdownHookAdder((n, r) -> { });
        String b = ARGS.get("bootstrap"), topic = prefix + "-tools", mirrored = MIRRORED.keySet().iterator().next();
        String count = MIRRORED.get(mirrored).toString(), group = prefix + "-tools-group", share = prefix + "-tools-share";
        String topics = "org.apache.kafka.tools.TopicCommand", groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
        String consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer", offsets = "org.apache.kafka.tools.GetOffsetShell";
        tool("create", topics, "", "--bootstrap-server", b, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1");
        tool("alter", topics, "", "--bootstrap-server", b, "--alter", "--topic", topic, "--partitions", "3");
        tool("describe", topics, "", "--bootstrap-server", b, "--describe", "--topic", topic);
        tool("list", topics, "", "--bootstrap-server", b, "--list");
        tool("set-config", "kafka.admin.ConfigCommand", "", "--bootstrap-server", b, "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=1234567");
        tool("configs", "kafka.admin.ConfigCommand", "", "--bootstrap-server", b, "--describe", "--entity-type", "topics", "--entity-name", topic);
        tool("producer", "org.apache.kafka.tools.ConsoleProducer", "one\ntwo\nthree\n", "--bootstrap-server", b, "--topic", topic);
        tool("perf", "org.apache.kafka.tools.ProducerPerformance", "", "--topic", topic, "--num-records", "97", "--record-size", "100", "--throughput", "-1", "--producer-props", "bootstrap.servers=" + b);
        tool("offsets", offsets, "", "--bootstrap-server", b, "--topic", topic);
        tool("mirrored-offsets", offsets, "", "--bootstrap-server", b, "--topic", mirrored);
        tool("consumer", consumer, "", "--bootstrap-server", b, "--topic", topic, "--from-beginning", "--max-messages", "100", "--timeout-ms", "30000", "--group", group);
        tool("mirrored-consumer", consumer, "", "--bootstrap-server", b, "--topic", mirrored, "--from-beginning", "--max-messages", count, "--timeout-ms", "30000", "--group", group + "-mirrored",
            "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false");
        tool("group", groups, "", "--bootstrap-server", b, "--describe", "--group", group);
        tool("mirrored-group", groups, "", "--bootstrap-server", b, "--describe", "--group", group + "-mirrored");
        tool("groups", groups, "", "--bootstrap-server", b, "--list");
        tool("reset", groups, "", "--bootstrap-server", b, "--reset-offsets", "--to-offset", "5", "--topic", mirrored, "--group", group + "-mirrored", "--execute");
        tool("delete-group", groups, "", "--bootstrap-server", b, "--delete", "--group", group);
        tool("set-group-config", "kafka.admin.ConfigCommand", "", "--bootstrap-server", b, "--alter", "--entity-type", "groups", "--entity-name", share, "--add-config", "share.auto.offset.reset=earliest");
        tool("share-consumer", "org.apache.kafka.tools.consumer.ConsoleShareConsumer", "", "--bootstrap-server", b, "--topic", topic, "--max-messages", "100", "--timeout-ms", "30000", "--group", share);
        tool("delete", topics, "", "--bootstrap-server", b, "--delete", "--topic", topic);
    }

    private static void tool(String what, String main, String in, String... args) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        PrintStream old = System.out, oldErr = System.err, caught = new PrintStream(out, true, StandardCharsets.UTF_8);
        InputStream oldIn = System.in;
        status = null;
        System.setOut(caught);
        System.setErr(caught);
        System.setIn(new ByteArrayInputStream(utf8(in)));
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (java.lang.reflect.InvocationTargetException e) {
            if (!(e.getCause() instanceof Exited)) throw e;
        } finally {
            System.setOut(old);
            System.setErr(oldErr);
            System.setIn(oldIn);
        }
        String text = out.toString(StandardCharsets.UTF_8);
        if (status != null && status != 0) throw new IllegalStateException(main + " " + String.join(" ", args) + ": exit code " + status + "\n" + text);
        line("tools", "\"topic\":" + str(what) + ",\"text\":" + str(text));
    }
}
