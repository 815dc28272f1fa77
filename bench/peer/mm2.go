package peer

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

//go:embed mm2-pom.xml
var mm2POM string

// MM2Options of MirrorMaker 2.
type MM2Options struct {
	Topic      string
	Tuned, LZ4 bool
	N          int // tells runs apart: its internal topics are named after it
}

// Remote is what MirrorMaker 2 calls the mirrored topic.
func (o MM2Options) Remote() string { return fmt.Sprintf("s%d.%s", o.N, o.Topic) }

// MM2Settings says how the tuned variant differs from the defaults.
const MM2Settings = "2 tasks, fetches of 50 MiB (8 MiB for a partition), 8,000 records for each poll, batches of 512 KiB, linger 5 ms"

// mm2Jars are the class path, fetched once per machine through Maven.
func mm2Jars(ctx context.Context) (string, error) {
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("MirrorMaker 2: %w: %s is missing", ErrMissing, tool)
		}
	}
	dir, err := testkafka.Once(ctx, "mm2-"+testkafka.DefaultVersion, mm2POM, func(ctx context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(mm2POM), 0o644); err != nil {
			return err
		}
		return testkafka.Run(ctx, dir, "mvn", "-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies",
			"-Dkv="+testkafka.DefaultVersion, "-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "libs"))
	})
	if err != nil {
		return "", fmt.Errorf("MirrorMaker 2: %w: its jars can't be fetched: %w", ErrMissing, err)
	}
	return filepath.Join(dir, "libs", "*"), nil
}

// StartMM2 starts MirrorMaker 2 with one flow, from the source to the
// destination.
func StartMM2(ctx context.Context, l *lab.Lab, o MM2Options) (*Process, error) {
	jars, err := mm2Jars(ctx)
	if err != nil {
		return nil, err
	}
	path, err := tempFile(l, "mm2-*.properties", mm2Properties(l.Source.Addr(1), l.Dest.Addr(1), o))
	if err != nil {
		return nil, err
	}
	tmp, err := testkafka.JVMTemp(filepath.Join(l.Dir, "jvm"))
	if err != nil {
		return nil, err
	}
	args := append([]string{tmp, "-XX:-UsePerfData", "-Xms256M", "-Xmx2G"}, lab.JVMScript...) // as its script starts it
	return start(l, "mirrormaker2", "java", append(args, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", jars, "org.apache.kafka.connect.mirror.MirrorMaker", path)...)
}

// mm2Properties leaves all at its default but what a destination of one broker
// forces, and what is tuned.
func mm2Properties(source, dest string, o MM2Options) string {
	var b strings.Builder
	s, d := fmt.Sprintf("s%d", o.N), fmt.Sprintf("d%d", o.N)
	fmt.Fprintf(&b, "clusters = %s, %s\n%s.bootstrap.servers = %s\n%s.bootstrap.servers = %s\n", s, d, s, source, d, dest)
	fmt.Fprintf(&b, "%s->%s.enabled = true\n%s->%s.enabled = false\n%s->%s.topics = %s\n%s->%s.groups = none-such\n", s, d, d, s, s, d, o.Topic, s, d)
	for _, k := range []string{
		"replication.factor", "checkpoints.topic.replication.factor", "heartbeats.topic.replication.factor", "offset-syncs.topic.replication.factor",
		"offset.storage.replication.factor", "status.storage.replication.factor", "config.storage.replication.factor",
	} {
		fmt.Fprintf(&b, "%s = 1\n", k)
	}
	if !o.Tuned {
		return b.String()
	}
	fmt.Fprint(&b, "tasks.max = 2\n")
	for _, kv := range []string{
		"consumer.fetch.max.bytes = 52428800", "consumer.max.partition.fetch.bytes = 8388608",
		"consumer.max.poll.records = 8000", "consumer.receive.buffer.bytes = 1048576",
	} {
		fmt.Fprintf(&b, "%s.%s\n", s, kv)
	}
	for _, kv := range []string{
		"producer.batch.size = 524288", "producer.linger.ms = 5", "producer.buffer.memory = 67108864",
		"producer.send.buffer.bytes = 1048576", "producer.max.request.size = 4194304",
	} {
		fmt.Fprintf(&b, "%s.%s\n", d, kv)
	}
	if o.LZ4 {
		fmt.Fprintf(&b, "%s.producer.compression.type = lz4\n", d)
	}
	return b.String()
}

// MM2Start is how long MirrorMaker 2 may take until its first record.
const MM2Start = 3 * time.Minute
