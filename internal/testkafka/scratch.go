package testkafka

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// scratchLock is the file in a scratch folder whose flock its process holds.
const scratchLock = ".in-use"

// Scratch makes a temporary folder, name-RANDOM, and removes those of the same name that processes have left that were
// killed. remove deletes it.
func Scratch(name string) (dir string, remove func(), err error) {
	return scratchIn(os.TempDir(), name)
}

func scratchIn(root, name string) (dir string, remove func(), err error) {
	sweep(root, name)
	if dir, err = os.MkdirTemp(root, name+"-"); err != nil {
		return "", nil, fmt.Errorf("testkafka: scratch folder: %w", err)
	}
	// Locked before it has its name: a lock file that nobody holds is always a dead process's.
	lock, err := os.CreateTemp(dir, scratchLock)
	if err == nil {
		if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			err = os.Rename(lock.Name(), filepath.Join(dir, scratchLock))
		}
		if err != nil {
			_ = lock.Close()
		}
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("testkafka: scratch folder: %w", err), os.RemoveAll(dir))
	}
	return dir, func() { _, _ = os.RemoveAll(dir), lock.Close() }, nil
}

// sweep removes the scratch folders of a name whose process is gone.
func sweep(root, name string) {
	locks, err := filepath.Glob(filepath.Join(root, name+"-*", scratchLock))
	if err != nil {
		return
	}
	for _, path := range locks {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // another user's, or gone
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = f.Close()
	}
}

// JVMTemp is the flag that makes dir, which it creates, a JVM's temporary folder. Kafka's jars unpack native libraries
// there, and a JVM that is killed leaves them behind.
func JVMTemp(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("testkafka: folder for a JVM's temporary files: %w", err)
	}
	return "-Djava.io.tmpdir=" + dir, nil
}
