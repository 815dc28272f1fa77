import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.*;

/**
 * A black-box Kafka client for tests: Client VERB key=value... Output is one JSON object a line: records as the oracle's
 * Rec, everything else with a "meta" field. See clients.go for the keys.
 */
public final class Client {
    private static final StringBuilder OUT = new StringBuilder();
    private static final Base64.Encoder B64 = Base64.getEncoder();
    private final Map<String, String> args = new HashMap<>();

    public static void main(String[] a) throws Exception {
        Client c = new Client();
        for (int i = 1; i < a.length; i++) {
            String[] kv = a[i].split("=", 2);
            c.args.put(kv[0], kv[1]);
        }
        try {
            switch (a[0]) {
                case "read" -> c.read();
                case "offsets" -> c.offsets();
                case "produce" -> c.produce();
                case "delete-records" -> c.deleteRecords();
                default -> throw new IllegalArgumentException("verb " + a[0]);
            }
        } finally {
            flush();
        }
        System.exit(0); // not a moment more than needed, whatever thread is left
    }

    private String arg(String k, String def) { return args.getOrDefault(k, def); }
    private long num(String k, long def) { return args.containsKey(k) ? Long.parseLong(args.get(k)) : def; }
    private String need(String k) { return Objects.requireNonNull(args.get(k), k); }

    /** Settings common to all clients; "x.NAME=value" passes any further one on. */
    private Properties props() {
        Properties p = new Properties();
        p.put("bootstrap.servers", need("bootstrap"));
        p.put("client.id", "java");
        args.forEach((k, v) -> { if (k.startsWith("x.")) p.put(k.substring(2), v); });
        return p;
    }

    private List<TopicPartition> partitions() {
        List<TopicPartition> tps = new ArrayList<>();
        for (int i = 0; i < num("partitions", 1); i++) tps.add(new TopicPartition(need("topic"), i));
        return tps;
    }

    private void read() throws Exception {
        Properties p = props();
        String group = arg("group", "");
        if (!group.isEmpty()) p.put("group.id", group);
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", arg("reset", "earliest"));
        p.put("isolation.level", arg("isolation", "read_uncommitted"));
        p.putIfAbsent("fetch.max.wait.ms", "100");
        long deadline = System.currentTimeMillis() + num("timeout", 60_000);
        long max = num("max", Long.MAX_VALUE);
        boolean follow = arg("follow", "false").equals("true");
        List<TopicPartition> tps = partitions();
        try (KafkaConsumer<byte[], byte[]> c = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            Map<TopicPartition, Long> ends = c.endOffsets(tps);
            ends.forEach((tp, o) -> meta("end", tp, o, -1, ""));
            c.beginningOffsets(tps).forEach((tp, o) -> meta("start", tp, o, -1, ""));
            Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
            if (arg("subscribe", "false").equals("true")) c.subscribe(List.of(need("topic")), new ConsumerRebalanceListener() {
                @Override public void onPartitionsAssigned(Collection<TopicPartition> ps) {}
                @Override public void onPartitionsRevoked(Collection<TopicPartition> ps) {
                    if (num("commit-every", 0) > 0) commit(c, done); // as careful applications do
                }
            });
            else { c.assign(tps); seek(c, tps); }
            Map<TopicPartition, Long> seen = new HashMap<>();
            long n = 0, every = num("commit-every", 0), committed = System.currentTimeMillis();
            while (n < max) {
                if (every > 0 && System.currentTimeMillis() - committed > every && !done.isEmpty()) {
                    commit(c, done);
                    committed = System.currentTimeMillis();
                }
                if (System.currentTimeMillis() > deadline) { line("{\"meta\":\"timeout\"}"); break; }
                ConsumerRecords<byte[], byte[]> recs;
                try { // position() tells of a truncation too
                    if (!follow && atEnd(c, tps, ends)) break;
                    recs = c.poll(Duration.ofMillis(200));
                } catch (LogTruncationException e) {
                    e.divergentOffsets().forEach((tp, o) -> meta("truncation", tp, o.offset(), o.leaderEpoch().orElse(-1), ""));
                    return;
                } catch (OffsetOutOfRangeException e) {
                    e.offsetOutOfRangePartitions().forEach((tp, o) -> meta("out-of-range", tp, o, -1, ""));
                    return;
                }
                for (ConsumerRecord<byte[], byte[]> r : recs) {
                    if (n >= max) break;
                    TopicPartition tp = new TopicPartition(r.topic(), r.partition());
                    if (r.offset() > seen.getOrDefault(tp, -1L)) { // not for the second time, after a commit that failed
                        n++;
                        seen.put(tp, r.offset());
                    }
                    record(r);
                    done.put(tp, new OffsetAndMetadata(r.offset() + 1, r.leaderEpoch(), ""));
                }
                if (follow) flush(); // somebody may wait for it
            }
            if (max == Long.MAX_VALUE) for (TopicPartition tp : c.assignment()) meta("position", tp, c.position(tp), -1, "");
            if (arg("commit", "false").equals("true")) {
                while (!commit(c, done) && System.currentTimeMillis() < deadline) c.poll(Duration.ofMillis(200));
                c.committed(new HashSet<>(tps)).forEach((tp, o) -> { if (o != null) meta("committed", tp, o.offset(), o.leaderEpoch().orElse(-1), ""); });
            }
            for (TopicPartition tp : c.assignment()) c.currentLag(tp).ifPresent(l -> meta("lag", tp, l, -1, ""));
        }
    }

    /** Commits; false when a rebalance forbids it, which poll() completes: what is not committed then may come again. */
    private boolean commit(KafkaConsumer<byte[], byte[]> c, Map<TopicPartition, OffsetAndMetadata> done) {
        try {
            c.commitSync(done);
            return true;
        } catch (RebalanceInProgressException | CommitFailedException e) {
            line("{\"meta\":\"commit-failed\",\"error\":\"" + e.getClass().getSimpleName() + "\"}");
            return false;
        }
    }

    private boolean atEnd(KafkaConsumer<byte[], byte[]> c, List<TopicPartition> tps, Map<TopicPartition, Long> ends) {
        if (!c.assignment().containsAll(tps)) return false;
        for (TopicPartition tp : tps) if (c.position(tp) < ends.get(tp)) return false;
        return true;
    }

    private void seek(KafkaConsumer<byte[], byte[]> c, List<TopicPartition> tps) {
        String from = arg("from", "earliest");
        for (TopicPartition tp : tps) {
            if (from.equals("earliest")) c.seekToBeginning(List.of(tp));
            else if (from.startsWith("offset:")) {
                long e = num("epoch", -1);
                c.seek(tp, new OffsetAndMetadata(Long.parseLong(from.substring(7)), e < 0 ? Optional.empty() : Optional.of((int) e), ""));
            } else if (from.startsWith("timestamp:")) {
                OffsetAndTimestamp o = c.offsetsForTimes(Map.of(tp, Long.parseLong(from.substring(10)))).get(tp);
                if (o == null) c.seekToEnd(List.of(tp));
                else {
                    meta("for-time", tp, o.offset(), o.leaderEpoch().orElse(-1), ",\"timestamp\":" + o.timestamp());
                    c.seek(tp, o.offset());
                }
            } else if (!from.equals("group")) throw new IllegalArgumentException("from=" + from);
        }
    }

    private void offsets() throws Exception {
        try (Admin a = Admin.create(props())) {
            Map<String, OffsetSpec> specs = new LinkedHashMap<>();
            specs.put("earliest", OffsetSpec.earliest());
            specs.put("latest", OffsetSpec.latest());
            specs.put("max-timestamp", OffsetSpec.maxTimestamp());
            specs.put("earliest-local", OffsetSpec.earliestLocal());
            specs.put("latest-tiered", OffsetSpec.latestTiered());
            specs.put("earliest-pending-upload", OffsetSpec.earliestPendingUpload());
            for (String t : arg("timestamps", "").split(",")) if (!t.isEmpty()) specs.put(t, OffsetSpec.forTimestamp(Long.parseLong(t)));
            for (IsolationLevel iso : List.of(IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)) {
                for (var s : specs.entrySet()) {
                    for (TopicPartition tp : partitions()) {
                        String more = ",\"spec\":" + str(s.getKey()) + ",\"isolation\":" + str(iso.toString().toLowerCase());
                        try {
                            var r = a.listOffsets(Map.of(tp, s.getValue()), new ListOffsetsOptions(iso)).partitionResult(tp).get();
                            meta("offset", tp, r.offset(), r.leaderEpoch().orElse(-1), more + ",\"timestamp\":" + r.timestamp());
                        } catch (ExecutionException e) {
                            meta("offset", tp, -1, -1, more + error(e.getCause()));
                        }
                    }
                }
            }
        }
    }

    private void produce() throws Exception {
        Properties p = props();
        p.putIfAbsent("acks", "all");
        p.putIfAbsent("max.block.ms", "20000");
        p.putIfAbsent("delivery.timeout.ms", "30000");
        p.putIfAbsent("request.timeout.ms", "10000");
        try (KafkaProducer<byte[], byte[]> k = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<java.util.concurrent.Future<RecordMetadata>> all = new ArrayList<>();
            for (int i = 0; i < num("n", 1); i++) {
                byte[] v = (arg("value", "v") + i).getBytes(StandardCharsets.UTF_8);
                if (num("pace", 0) > 0) Thread.sleep(num("pace", 0));
                all.add(k.send(new ProducerRecord<>(need("topic"), (int) num("partition", 0), arg("key", "k").getBytes(StandardCharsets.UTF_8), v)));
            }
            for (var f : all) {
                TopicPartition tp = new TopicPartition(need("topic"), (int) num("partition", 0));
                try {
                    meta("produced", tp, f.get().offset(), -1, "");
                } catch (ExecutionException e) {
                    meta("produced", tp, -1, -1, error(e.getCause()));
                }
            }
        }
    }

    private void deleteRecords() throws Exception {
        TopicPartition tp = new TopicPartition(need("topic"), (int) num("partition", 0));
        try (Admin a = Admin.create(props())) {
            try {
                meta("deleted", tp, a.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(num("to", -1)))).lowWatermarks().get(tp).get().lowWatermark(), -1, "");
            } catch (ExecutionException e) {
                meta("deleted", tp, -1, -1, error(e.getCause()));
            }
        }
    }

    private static String error(Throwable t) {
        return ",\"error\":" + str(t.getClass().getSimpleName()) + ",\"message\":" + str(String.valueOf(t.getMessage()));
    }

    private static void meta(String what, TopicPartition tp, long offset, long epoch, String more) {
        line("{\"meta\":" + str(what) + ",\"partition\":" + tp.partition() + ",\"offset\":" + offset + ",\"leaderEpoch\":" + epoch + more + "}");
    }

    private static void record(ConsumerRecord<byte[], byte[]> r) {
        StringBuilder b = new StringBuilder("{\"partition\":").append(r.partition()).append(",\"offset\":").append(r.offset())
            .append(",\"leaderEpoch\":").append(r.leaderEpoch().orElse(-1)).append(",\"timestamp\":").append(r.timestamp())
            .append(",\"timestampType\":").append(str(r.timestampType().toString())).append(",\"key\":").append(bytes(r.key()))
            .append(",\"value\":").append(bytes(r.value())).append(",\"headers\":[");
        String sep = "";
        for (Header h : r.headers()) {
            b.append(sep).append("{\"k\":").append(str(h.key())).append(",\"v\":").append(bytes(h.value())).append('}');
            sep = ",";
        }
        line(b.append("]}").toString());
    }

    private static String bytes(byte[] b) { return b == null ? "null" : "\"" + B64.encodeToString(b) + "\""; }

    private static String str(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c < 0x20 || c == '"' || c == '\\') b.append(String.format("\\u%04x", (int) c));
            else b.append(c);
        }
        return b.append('"').toString();
    }

    private static void line(String s) {
        OUT.append(s).append('\n');
        if (OUT.length() > 1 << 20) flush();
    }

    private static void flush() {
        byte[] b = OUT.toString().getBytes(StandardCharsets.UTF_8);
        System.out.write(b, 0, b.length);
        System.out.flush();
        OUT.setLength(0);
    }
}
