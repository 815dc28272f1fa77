package testkafka

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"syscall"
	"time"
)

//go:embed pom.xml
var pom []byte

var versionRE = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// CacheDir is the folder for what is made once per machine: jars, class-data archives, Python environments.
// It is LOCKSTEP_CACHE when set; else .cache in the repository that the working directory is in; else a folder
// under the user's cache directory.
func CacheDir() (string, error) {
	if d := os.Getenv("LOCKSTEP_CACHE"); d != "" {
		return filepath.Abs(d)
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("testkafka: working directory: %w", err)
	}
	for d := wd; ; d = filepath.Dir(d) {
		mod, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module github.com/lockstep-kafka/lockstep\n")) {
			cache := filepath.Join(d, ".cache")
			if real, err := filepath.EvalSymlinks(cache); err == nil {
				cache = real // one folder that several clones share has one name: it is part of the class path
			}
			return cache, nil
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	u, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("testkafka: no cache folder (set LOCKSTEP_CACHE): %w", err)
	}
	return filepath.Join(u, "lockstep"), nil
}

// Once makes the folder CacheDir()/name by calling build, once per machine: parallel test binaries wait for the one
// that builds, and a build that failed or was killed is begun anew. key names what the content depends on: another
// key than the one it was built with means that it is built again.
func Once(ctx context.Context, name, key string, build func(ctx context.Context, dir string) error) (string, error) {
	root, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, name)
	stamp := filepath.Join(dir, "READY")
	ready := func() bool { b, err := os.ReadFile(stamp); return err == nil && string(b) == key }
	if ready() {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("testkafka: cache folder: %w", err)
	}
	unlock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if ready() {
		return dir, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("testkafka: clear %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("testkafka: cache folder: %w", err)
	}
	if err := build(ctx, dir); err != nil {
		return "", fmt.Errorf("testkafka: make %s: %w", dir, err)
	}
	if err := os.WriteFile(stamp, []byte(key), 0o644); err != nil {
		return "", fmt.Errorf("testkafka: ready stamp: %w", err)
	}
	return dir, nil
}

// lockFile waits for an exclusive flock on path. The kernel drops it should its holder die.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("testkafka: lock: %w", err)
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("testkafka: lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("testkafka: waiting for lock %s: %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}

// Libs is the class path of a Kafka version: its jars in a fixed order (the class-data archive depends on it).
// The jars are fetched through Maven when they aren't in the cache.
func Libs(ctx context.Context, version string) (string, error) {
	if !versionRE.MatchString(version) {
		return "", fmt.Errorf("testkafka: Kafka version %q: want three numbers, as 4.3.1", version)
	}
	file, props := jarSource(version)
	dir, err := Once(ctx, "kafka-"+version, string(file), func(ctx context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), file, 0o644); err != nil {
			return err
		}
		args := append([]string{"-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies"}, props...)
		return Run(ctx, dir, "mvn", append(args, "-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "libs"))...)
	})
	if err != nil {
		return "", err
	}
	jars, err := filepath.Glob(filepath.Join(dir, "libs", "*.jar"))
	if err != nil || len(jars) == 0 {
		return "", fmt.Errorf("testkafka: no jars in %s: delete that folder", dir)
	}
	sort.Strings(jars)
	return strings.Join(jars, string(os.PathListSeparator)), nil
}

// Run runs a command in dir and returns an error that holds the end of its output.
func Run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	cmd.SysProcAttr = ChildAttr()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args[0], err, tail(string(out), 30))
	}
	return nil
}

func tail(s string, lines int) string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-lines):], "\n")
}
