package foreign

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// Driver is a program that runs the clients of one language (in one version).
type Driver string

// The drivers.
const (
	Golang Driver = "go"
	Java   Driver = "java"
	Java28 Driver = "java-2.8"
	Python Driver = "python"
	// PythonOld has an old librdkafka.
	PythonOld Driver = "python-old"
	Node      Driver = "node"
)

// Tools are the programs that a driver needs beside those of every real-Kafka test.
func (d Driver) Tools() []string {
	switch d {
	case Python, PythonOld:
		return []string{"python3"}
	case Node:
		return []string{"node", "npm"}
	default:
		return nil
	}
}

var all = []oracle.Codec{oracle.None, oracle.Gzip, oracle.Snappy, oracle.LZ4, oracle.Zstd}

const (
	noTxn   = "the library has no transactions"
	noNew   = "the library has no KIP-848 groups"
	noShare = "the library has no share groups"
	notOwn  = "part of Java 4.3 alone"
)

// Clients are all of them.
func Clients() []Client {
	old := map[Case]string{KIP848: noNew, Share: noShare, Streams: notOwn, Tools: notOwn}
	bare := map[Case]string{Txn: noTxn, KIP848: noNew, Share: noShare, Streams: notOwn, Tools: notOwn}
	return []Client{
		{
			Name: "java", Library: "kafka-clients, Kafka Streams and tools 4.3.1 (Java)", Driver: Java, Codecs: all,
			Cases: []Case{Produce, Group, Admin, Txn, KIP848, Share, Streams, Tools},
		},
		{Name: "java-2.8", Library: "kafka-clients 2.8.2 (Java)", Driver: Java28, Codecs: all, Cases: []Case{Produce, Group, Admin, Txn}, Lacks: old},
		{
			Name: "librdkafka", Library: "librdkafka 2.16.1 (confluent-kafka for Python)", Driver: Python, Codecs: all,
			Cases: []Case{Produce, Group, Admin, Txn, KIP848}, Lacks: map[Case]string{Share: "the library's own are a preview", Streams: notOwn, Tools: notOwn},
		},
		{
			Name: "librdkafka-old", Library: "librdkafka 2.0.2 (confluent-kafka for Python)", Driver: PythonOld, Codecs: all, Long: true,
			Cases: []Case{Produce, Group, Admin, Txn}, Lacks: old,
		},
		{
			Name: "franz-go", Library: "franz-go 1.22.3 (Go)", Driver: Golang, Codecs: all,
			Cases: []Case{Produce, Group, Admin, Txn, KIP848, Share}, Lacks: map[Case]string{Streams: notOwn, Tools: notOwn},
		},
		{Name: "sarama", Library: "sarama 1.61.1 (Go)", Driver: Golang, Codecs: all, Cases: []Case{Produce, Group, Admin, Txn}, Lacks: old},
		{Name: "kafka-go", Library: "segmentio/kafka-go 0.4.51 (Go)", Driver: Golang, Codecs: all, Cases: []Case{Produce, Group, Admin}, Lacks: bare},
		{Name: "kafka-python", Library: "kafka-python 3.0.12", Driver: Python, Codecs: all, Cases: []Case{Produce, Group, Admin, Txn}, Lacks: old},
		{Name: "aiokafka", Library: "aiokafka 0.14.0 (Python)", Driver: Python, Codecs: all, Cases: []Case{Produce, Group, Admin, Txn}, Lacks: old},
		{
			Name: "kafkajs", Library: "kafkajs 2.2.4 (Node.js)", Driver: Node, Codecs: []oracle.Codec{oracle.None, oracle.Gzip},
			Cases: []Case{Produce, Group, Admin, Txn}, Lacks: old,
		},
	}
}

//go:embed java python node
var files embed.FS

// command is the driver's program and first arguments. What it needs is installed once per machine. A JVM gets tmp for
// its temporary files.
func (d Driver) command(ctx context.Context, tmp string) ([]string, error) {
	switch d {
	case Golang:
		return golang(ctx)
	case Java:
		return java(ctx, testkafka.DefaultVersion, tmp, true)
	case Java28:
		return java(ctx, "2.8.2", tmp, false)
	case Python:
		return python(ctx, "requirements.txt")
	case PythonOld:
		return python(ctx, "requirements-old.txt")
	case Node:
		return node(ctx)
	}
	return nil, fmt.Errorf("foreign: no driver %q", d)
}

// Install makes a driver ready, so that what is downloaded the first time is not part of a test's time.
func (d Driver) Install(ctx context.Context) error {
	tmp, remove, err := testkafka.Scratch("lockstep-driver")
	if err != nil {
		return err
	}
	defer remove()
	_, err = d.command(ctx, tmp)
	return err
}

func text(names ...string) string {
	var b strings.Builder
	for _, n := range names {
		c, err := files.ReadFile(n)
		if err != nil {
			panic(err) // they are embedded
		}
		b.Write(c)
	}
	return b.String()
}

// put writes embedded files into a folder, without their own folders.
func put(dir string, names ...string) error {
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(n)), []byte(text(n)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// golang builds the nested module. The build cache knows when there is nothing to do.
func golang(ctx context.Context) ([]string, error) {
	cache, err := testkafka.CacheDir()
	if err != nil {
		return nil, err
	}
	src, err := moduleDir()
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(cache, "foreign-go", "driver")
	if err := testkafka.Run(ctx, src, "go", "build", "-o", bin, "."); err != nil {
		return nil, err
	}
	return []string{bin}, nil
}

// moduleDir finds internal/e2e/foreign/golang above the working directory: a nested module can't be embedded.
func moduleDir() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("foreign: %w", err)
	}
	for d := wd; ; d = filepath.Dir(d) {
		p := filepath.Join(d, "internal", "e2e", "foreign", "golang")
		if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
			return p, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("foreign: %w", err)
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("foreign: %s is not in the repository", wd)
		}
	}
}

// java compiles the driver against a version's jars. Matrix.java is for all versions, New.java for today's.
func java(ctx context.Context, version, tmp string, today bool) ([]string, error) {
	libs, err := testkafka.Once(ctx, "foreign-java-"+version, text("java/pom.xml"), func(ctx context.Context, dir string) error {
		if err := put(dir, "java/pom.xml"); err != nil {
			return err
		}
		return testkafka.Run(ctx, dir, "mvn", "-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies",
			"-Dkv="+version, "-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "libs"))
	})
	if err != nil {
		return nil, err
	}
	jars, err := filepath.Glob(filepath.Join(libs, "libs", "*.jar"))
	if err != nil || len(jars) == 0 {
		return nil, fmt.Errorf("foreign: no jars in %s: delete that folder", libs)
	}
	sort.Strings(jars)
	cp := strings.Join(jars, string(os.PathListSeparator))
	sources := []string{"java/Matrix.java"}
	if today {
		sources = append(sources, "java/New.java")
		// The broker's jars have the tools.
		kafka, err := testkafka.Libs(ctx, version)
		if err != nil {
			return nil, err
		}
		cp = kafka + string(os.PathListSeparator) + cp
	}
	classes, err := testkafka.Once(ctx, "foreign-java-classes-"+version, cp+text(sources...), func(ctx context.Context, dir string) error {
		if err := put(dir, sources...); err != nil {
			return err
		}
		args := []string{"-nowarn", "-cp", cp, "-d", dir}
		for _, s := range sources {
			args = append(args, filepath.Join(dir, filepath.Base(s)))
		}
		return testkafka.Run(ctx, dir, "javac", args...)
	})
	if err != nil {
		return nil, err
	}
	cp += string(os.PathListSeparator) + classes
	args := []string{"java"}
	if today {
		a, err := testkafka.Java(ctx, version, tmp)
		if err != nil {
			return nil, err
		}
		args = append(args, a[:len(a)-1]...) // the class-data archive serves any class path that begins with its own
	} else {
		temp, err := testkafka.JVMTemp(tmp)
		if err != nil {
			return nil, err
		}
		args = append(args, temp, "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp")
	}
	return append(args, cp, "Matrix"), nil
}

// python makes a virtual environment with the pinned packages.
func python(ctx context.Context, requirements string) ([]string, error) {
	req := text("python/" + requirements)
	name := "foreign-python-" + strings.TrimSuffix(requirements, ".txt")
	venv, err := testkafka.Once(ctx, name, req, func(ctx context.Context, dir string) error {
		if err := put(dir, "python/"+requirements); err != nil {
			return err
		}
		if err := testkafka.Run(ctx, dir, "python3", "-m", "venv", "venv"); err != nil {
			return err
		}
		return testkafka.Run(ctx, dir, filepath.Join(dir, "venv", "bin", "pip"), "install", "-q", "-r", requirements)
	})
	if err != nil {
		return nil, err
	}
	names := []string{"python/matrix.py", "python/rdkafka.py", "python/pure.py", "python/aio.py"}
	dir, err := testkafka.Once(ctx, "foreign-python-driver", text(names...), func(_ context.Context, dir string) error {
		return put(dir, names...)
	})
	return []string{filepath.Join(venv, "venv", "bin", "python"), filepath.Join(dir, "matrix.py")}, err
}

// node installs the locked packages.
func node(ctx context.Context) ([]string, error) {
	names := []string{"node/package.json", "node/package-lock.json", "node/matrix.js"}
	dir, err := testkafka.Once(ctx, "foreign-node", text(names...), func(ctx context.Context, dir string) error {
		if err := put(dir, names...); err != nil {
			return err
		}
		return testkafka.Run(ctx, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	})
	return []string{"node", filepath.Join(dir, "matrix.js")}, err
}
