package testkafka

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// LogRootEnv names a folder for brokers' logs, instead of one that LogRoot finds.
const LogRootEnv = "LOCKSTEP_LOG_ROOT"

// memoryFolder is in memory on Linux.
const memoryFolder = "/dev/shm"

// spare is the memory that brokers' logs have to leave to everything else.
const spare = 6 << 30

// LogRoot makes a scratch folder (see Scratch) for brokers' logs, in memory where need bytes and some more are free
// there, else in the folder for temporary files. where says which, for people.
//
// It is not the disk that is tested or measured here, and it can be most of what is seen: the first entry in each of a
// partition's index files is a page fault of the broker (it maps them) that ext4 was seen to take 5 to 15 ms for, in the
// thread that handles requests; a topic of 1,000 partitions has 2,000 of them. In memory they take microseconds.
func LogRoot(name string, need uint64) (dir, where string, remove func(), err error) {
	if root := os.Getenv(LogRootEnv); root != "" {
		dir, remove, err = scratchIn(root, name)
		return dir, fmt.Sprintf("%s (%s)", root, LogRootEnv), remove, err
	}
	if inMemory(memoryFolder) && min(FreeIn(memoryFolder), available()) >= need+spare {
		if dir, remove, err = scratchIn(memoryFolder, name); err == nil {
			return dir, memoryFolder + ", in memory", remove, nil
		}
	}
	dir, remove, err = Scratch(name)
	return dir, os.TempDir() + ", the folder for temporary files", remove, err
}

// FreeIn is how many bytes a folder's file system has room for; 0: not known.
func FreeIn(dir string) uint64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return 0
	}
	return fs.Bavail * uint64(fs.Bsize)
}

// available is how much memory can be had on this machine, and in its container; 0: not known.
func available() uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "MemAvailable:")
	kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseUint(kb, 10, 64)
	if err != nil {
		return 0
	}
	n *= 1 << 10
	for _, c := range []struct{ limit, used string }{
		{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, err := readNumber(c.limit)
		if err != nil {
			continue // no such limit, or "max"
		}
		used, err := readNumber(c.used)
		if err != nil {
			continue
		}
		n = min(n, limit-min(used, limit))
	}
	return n
}

func readNumber(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("testkafka: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("testkafka: %s: %w", path, err)
	}
	return n, nil
}
