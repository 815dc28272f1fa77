package testkafka

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// kit is what a Kafka version needs besides its jars, made once per machine: the bootstrap checkpoint (it names
// no cluster, so one serves all) and a class-data archive, which halves the start-up time of every JVM.
type kit struct {
	classpath  string
	archive    string
	checkpoint []byte
}

func kitFor(ctx context.Context, version string, logf func(string, ...any)) (kit, error) {
	cp, err := Libs(ctx, version)
	if err != nil {
		return kit{}, err
	}
	if withZooKeeper(version) {
		return kit{classpath: cp}, nil
	}
	dir, err := Once(ctx, "kit-"+version, cp, func(ctx context.Context, dir string) error {
		logf("kafka %s: preparing start-up files, once per machine", version)
		return makeKit(ctx, dir, version, cp)
	})
	if err != nil {
		return kit{}, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "bootstrap.checkpoint"))
	if err != nil {
		return kit{}, fmt.Errorf("testkafka: %w", err)
	}
	return kit{classpath: cp, archive: filepath.Join(dir, "app.jsa"), checkpoint: b}, nil
}

// Java is the argument list for a JVM with Kafka's jars (and extra class path entries behind them), made to start
// fast, with its temporary files in tmp; the main class follows.
func Java(ctx context.Context, version, tmp string, extra ...string) ([]string, error) {
	k, err := kitFor(ctx, version, func(string, ...any) {})
	if err != nil {
		return nil, err
	}
	temp, err := JVMTemp(tmp)
	if err != nil {
		return nil, err
	}
	// The archive serves any class path that begins with its own.
	for _, e := range extra {
		k.classpath += string(os.PathListSeparator) + e
	}
	return append([]string{temp}, k.jvm(Options{Heap: "300m", LogLevel: "warn", Version: version})...), nil
}

func (k kit) jvm(o Options) []string {
	a := []string{
		"-Xmx" + o.Heap, "-Xms32m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-XX:-UsePerfData", "-XX:ReservedCodeCacheSize=48m",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=" + o.LogLevel,
		"-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
	}
	if withZooKeeper(o.Version) {
		a = append(a, "-Dzookeeper.sasl.client=false", "-Dzookeeper.jmx.log4j.disable=true") // there is no log4j
	}
	if k.archive != "" {
		a = append(a, "-XX:SharedArchiveFile="+k.archive, "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
	}
	a = append(a, o.JVMArgs...)
	return append(a, "-cp", k.classpath)
}

// makeKit formats a throw-away folder for the checkpoint, then runs a throw-away broker that writes the archive
// at its exit. A JVM that can't make an archive costs time later, no more.
func makeKit(ctx context.Context, dir, version, cp string) error {
	k := kit{classpath: cp}
	tmp := filepath.Join(dir, "tmp")
	defer func() { _ = os.RemoveAll(tmp) }()
	opts, err := Options{Name: "kit", Version: version}.withDefaults()
	if err != nil {
		return err
	}
	logs := filepath.Join(tmp, "format")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	props := filepath.Join(tmp, "format.properties")
	if err := writeProps(props, map[string]string{
		"process.roles": "controller", "node.id": "1", "log.dirs": logs, "controller.listener.names": "CONTROLLER",
		"controller.quorum.voters": "1@127.0.0.1:1", "listeners": "CONTROLLER://127.0.0.1:1",
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
	}); err != nil {
		return err
	}
	temp, err := JVMTemp(filepath.Join(tmp, "jvm"))
	if err != nil {
		return err
	}
	format := append(append([]string{temp}, k.jvm(opts)...), "kafka.tools.StorageTool", "format", "-t", randomID(), "-c", props)
	if err := Run(ctx, tmp, "java", format...); err != nil {
		return err
	}
	k.checkpoint, err = os.ReadFile(findFile(logs, "bootstrap.checkpoint"))
	if err != nil {
		return fmt.Errorf("StorageTool left no bootstrap.checkpoint: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bootstrap.checkpoint"), k.checkpoint, 0o644); err != nil {
		return err
	}
	archive := filepath.Join(dir, "app.jsa")
	opts.JVMArgs = []string{"-XX:ArchiveClassesAtExit=" + archive + ".tmp"}
	opts.StartTimeout = 3 * time.Minute
	c, err := up(ctx, tmp, opts, k)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.running(1)
	if err != nil {
		return err
	}
	if err := p.Stop(2 * time.Minute); err != nil {
		return fmt.Errorf("the broker that writes the class-data archive: %w", err)
	}
	if err := os.Rename(archive+".tmp", archive); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func findFile(dir, name string) string {
	found := ""
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			found = p
		}
		return nil
	})
	return found
}
