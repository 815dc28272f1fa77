import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Scanner;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;

/**
 * Made the Java batches of this folder, with the jars of Kafka 4.3.1 in the class path:
 *   gen     writes java_batches.txt;
 *   broker  reads "name hex" lines of stamped batches (base offset 0) and appends them as a broker's
 *           log does (LogValidator, CreateTime topic): prints what comes out and fails if anything
 *           under the CRC is not what was sent;
 *   clean   reads such lines and prints them after the cleaner (MemoryRecords.filterTo) at base
 *           offset 5000 took record 5002: java_cleaned.txt.
 * Lines for the last two: LOCKSTEP_DUMP=file go test -run TestMirroredJavaBatches ./protocol
 */
public class JavaBatches {
    static final HexFormat HEX = HexFormat.of();
    static final Map<String, Compression> CODECS = new LinkedHashMap<>();

    static {
        CODECS.put("none", Compression.NONE);
        CODECS.put("gzip", Compression.gzip().build());
        CODECS.put("snappy", Compression.snappy().build());
        CODECS.put("lz4", Compression.lz4().build());
        CODECS.put("zstd", Compression.zstd().build());
    }

    static byte[] bytes(String s) {
        return s == null ? null : s.getBytes();
    }

    static void print(String name, ByteBuffer b) {
        byte[] a = new byte[b.remaining()];
        b.duplicate().get(a);
        System.out.println(name + " " + HEX.formatHex(a));
    }

    static void build(String name, Compression c, TimestampType type, long appended, boolean txn, long horizon, boolean holes) {
        MemoryRecordsBuilder m = new MemoryRecordsBuilder(new ByteBufferOutputStream(512), (byte) 2, c, type, 100L, appended,
            txn ? 4000L : -1L, (short) (txn ? 7 : -1), txn ? 11 : -1, txn, false, 5, Integer.MAX_VALUE, horizon);
        long[] offsets = holes ? new long[] {101, 104, 105} : new long[] {100, 101, 102};
        long[] times = {1700000000000L, 5L, 300000000000000L};
        String[] keys = {"k1", null, "k3"};
        String[] values = {"value one value one value one", null, ""};
        Header[][] headers = {{},
            {new RecordHeader("h", bytes("x")), new RecordHeader("lockstep.delta", bytes("user"))},
            {new RecordHeader("", null)}};
        for (int i = 0; i < offsets.length; i++)
            m.appendWithOffset(offsets[i], times[i], bytes(keys[i]), bytes(values[i]), headers[i]);
        if (holes)
            m.overrideLastOffset(109);
        print(name, m.build().buffer());
    }

    static void gen() {
        long appended = 1800000000123L;
        long horizon = 1900000000000L;
        TimestampType create = TimestampType.CREATE_TIME;
        TimestampType append = TimestampType.LOG_APPEND_TIME;
        CODECS.forEach((n, c) -> {
            build(n + "-dense", c, create, -1, false, -1, false);
            build(n + "-txn", c, create, -1, true, -1, false);
            build(n + "-holes", c, create, -1, false, -1, true);
            build(n + "-logappend", c, append, appended, false, -1, false);
            build(n + "-logappend-holes", c, append, appended, false, -1, true);
            build(n + "-horizon-holes", c, create, -1, false, horizon, true);
            build(n + "-horizon-logappend-holes", c, append, appended, false, horizon, true);
        });
    }

    static void broker(String name, byte[] raw) {
        byte[] sent = raw.clone();
        Compression c = CODECS.get(name.split("-")[0]);
        LogValidator v = new LogValidator(MemoryRecords.readableRecords(ByteBuffer.wrap(raw)), new TopicPartition("t", 0),
            Time.SYSTEM, c.type(), c, false, (byte) 2, TimestampType.CREATE_TIME, Long.MAX_VALUE, Long.MAX_VALUE, 77,
            AppendOrigin.CLIENT);
        ByteBuffer out = v.validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(5000), new LogValidator.MetricsRecorder() {
            public void recordInvalidMagic() { }
            public void recordInvalidOffset() { }
            public void recordInvalidSequence() { }
            public void recordInvalidChecksums() { }
            public void recordNoKeyCompactedTopic() { }
        }, BufferSupplier.create()).validatedRecords().buffer();
        print(name, out);
        byte[] kept = new byte[out.remaining()];
        out.duplicate().get(kept);
        if (!Arrays.equals(sent, 16, sent.length, kept, 16, kept.length))
            throw new IllegalStateException("the broker changed " + name);
    }

    static void clean(String name, byte[] raw) {
        ByteBuffer.wrap(raw).putLong(0, 5000).putInt(12, 77);
        ByteBuffer out = MemoryRecords.readableRecords(ByteBuffer.wrap(raw)).filterTo(
            new MemoryRecords.RecordFilter(1950000000000L, 1000L) {
                protected BatchRetentionResult checkBatchRetention(RecordBatch b) {
                    return new BatchRetentionResult(BatchRetention.DELETE_EMPTY, false);
                }

                protected boolean shouldRetainRecord(RecordBatch b, Record r) {
                    return r.offset() != 5002;
                }
            }, ByteBuffer.allocate(1 << 16), BufferSupplier.create()).outputBuffer();
        out.flip();
        print(name, out);
    }

    public static void main(String[] args) {
        if (args[0].equals("gen")) {
            gen();
            return;
        }
        Scanner in = new Scanner(System.in);
        while (in.hasNext()) {
            String name = in.next();
            byte[] raw = HEX.parseHex(in.next());
            if (args[0].equals("broker"))
                broker(name, raw);
            else
                clean(name, raw);
        }
    }
}
