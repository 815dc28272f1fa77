package clients

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

//go:embed java/Client.java
var javaSource []byte

// java is the argument list of the compiled client, its class included; its temporary files are in tmp.
func java(ctx context.Context, tmp string) ([]string, error) {
	cp, err := testkafka.Libs(ctx, testkafka.DefaultVersion)
	if err != nil {
		return nil, err
	}
	classes, err := testkafka.Once(ctx, versioned("java-client", cp+string(javaSource)), cp+string(javaSource), func(ctx context.Context, dir string) error {
		src := filepath.Join(dir, "Client.java")
		if err := os.WriteFile(src, javaSource, 0o644); err != nil {
			return err
		}
		return testkafka.Run(ctx, dir, "javac", "-nowarn", "-cp", cp, "-d", dir, src)
	})
	if err != nil {
		return nil, err
	}
	args, err := testkafka.Java(ctx, testkafka.DefaultVersion, tmp, classes)
	if err != nil {
		return nil, err
	}
	return append(args, "Client"), nil
}

// Java runs one verb of the Java client (kafka-clients of testkafka.DefaultVersion): see java/Client.java.
func Java(ctx context.Context, args ...string) (Result, error) {
	return javaEach(ctx, Read{}.each, args...)
}

func javaEach(ctx context.Context, each func(oracle.Rec) bool, args ...string) (Result, error) {
	tmp, remove, err := testkafka.Scratch("lockstep-java")
	if err != nil {
		return Result{}, err
	}
	defer remove()
	a, err := java(ctx, tmp)
	if err != nil {
		return Result{}, err
	}
	return runClient(ctx, each, "java", append(a, args...)...)
}

// JavaRead reads with a Java consumer.
func JavaRead(ctx context.Context, r Read) (Result, error) { return javaEach(ctx, r.each, r.args()...) }

// JavaOffsets asks Java's Admin for all kinds of offsets of partitions 0…n-1, at both isolation levels; the lines'
// Spec is earliest, latest, max-timestamp, earliest-local, latest-tiered, earliest-pending-upload or a timestamp.
func JavaOffsets(ctx context.Context, bootstrap, topic string, partitions int, timestamps ...int64) ([]Meta, error) {
	ts := ""
	for _, t := range timestamps {
		ts += fmt.Sprintf("%d,", t)
	}
	r, err := Java(ctx, "offsets", "bootstrap="+bootstrap, "topic="+topic, "partitions="+strconv.Itoa(partitions), "timestamps="+ts)
	return r.Meta, err
}

// JavaProduce writes n records value0… to a partition and returns one "produced" line for each. Further arguments:
// key=, value=, pace=MS between two records, x.SETTING=.
func JavaProduce(ctx context.Context, bootstrap, topic string, partition int32, n int, more ...string) ([]Meta, error) {
	r, err := Java(ctx, append([]string{
		"produce", "bootstrap=" + bootstrap, "topic=" + topic, fmt.Sprintf("partition=%d", partition), fmt.Sprintf("n=%d", n),
	}, more...)...)
	return r.Meta, err
}

// JavaTool runs a main class of Kafka's command-line tools and returns what it printed.
func JavaTool(ctx context.Context, class string, args ...string) (string, error) {
	tmp, remove, err := testkafka.Scratch("lockstep-java")
	if err != nil {
		return "", err
	}
	defer remove()
	a, err := testkafka.Java(ctx, testkafka.DefaultVersion, tmp)
	if err != nil {
		return "", err
	}
	out, err := run(ctx, "java", append(append(a, class), args...)...)
	return out.String(), err
}
