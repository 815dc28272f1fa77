package testkafka

import "syscall"

// inMemory says whether a folder is in memory.
func inMemory(dir string) bool {
	const tmpfs = 0x01021994 // TMPFS_MAGIC
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && fs.Type == tmpfs
}
