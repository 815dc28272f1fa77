// Package measure reads what the kernel counts for processes and the machine,
// and keeps latencies.
package measure

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what the kernel counted for a process since its start.
type Usage struct {
	CPU  time.Duration // user + system, of all its threads, ended ones too
	RSS  int64         // resident set now, bytes
	Peak int64         // the highest it ever was, bytes
}

const clockTick = time.Second / 100 // USER_HZ, fixed on Linux

// Process reads the usage of a running process.
func Process(pid int) (Usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Usage{}, fmt.Errorf("usage of a process: %w", err)
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return Usage{}, fmt.Errorf("usage of a process: %w", err)
	}
	u, err := parseUsage(stat, status)
	if err != nil {
		return Usage{}, fmt.Errorf("%s: %w", dir, err)
	}
	return u, nil
}

func parseUsage(stat, status []byte) (Usage, error) {
	// Fields follow the command name, which is in parentheses and may hold spaces and parentheses.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 13 {
		return Usage{}, fmt.Errorf("stat has %d fields behind the name", len(f))
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	if err != nil {
		return Usage{}, fmt.Errorf("user time: %w", err)
	}
	system, err := strconv.ParseInt(f[12], 10, 64)
	if err != nil {
		return Usage{}, fmt.Errorf("system time: %w", err)
	}
	u := Usage{CPU: time.Duration(user+system) * clockTick}
	for line := range strings.Lines(string(status)) {
		key, v, _ := strings.Cut(line, ":")
		if key != "VmHWM" && key != "VmRSS" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("status: %s: %w", key, err)
		}
		if key == "VmHWM" {
			u.Peak = kib << 10
		} else {
			u.RSS = kib << 10
		}
	}
	return u, nil
}

// ListenerPid finds the process that listens on a TCP port of this machine,
// for proxies that somebody else started. It needs the rights to look into
// that process.
func ListenerPid(port int) (int, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6
		}
		for _, inode := range listeners(string(b), port) {
			inodes["socket:["+inode+"]"] = true
		}
	}
	if len(inodes) == 0 {
		return 0, fmt.Errorf("nothing listens on port %d of this machine", port)
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for the owner of port %d: %w", port, err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + p.Name() + "/fd"
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // gone, or somebody else's
		}
		for _, fd := range fds {
			if to, err := os.Readlink(dir + "/" + fd.Name()); err == nil && inodes[to] {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("the process that listens on port %d can't be looked into: run the bench as its user or as root", port)
}

// listeners are the socket inodes of a /proc/net/tcp table that listen on port.
func listeners(table string, port int) (inodes []string) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "0A" { // LISTEN
			continue
		}
		_, hex, ok := strings.Cut(f[1], ":")
		if p, err := strconv.ParseUint(hex, 16, 16); ok && err == nil && int(p) == port {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}
