package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a peer under measurement.
type process struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

func startProcess(ctx context.Context, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, name, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p, nil
}

// usage is what the kernel counted for the process so far.
type usage struct {
	CPU time.Duration // user + system
	RSS int64         // highest resident set, bytes
}

const clockTick = time.Second / 100 // USER_HZ, fixed on Linux

func (p *process) usage() (usage, error) {
	dir := "/proc/" + strconv.Itoa(p.cmd.Process.Pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return usage{}, err
	}
	// Fields follow the command name, which is in parentheses and may hold spaces.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 13 {
		return usage{}, fmt.Errorf("%s/stat has %d fields", dir, len(f))
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		return usage{}, fmt.Errorf("%s/stat: no times in it", dir)
	}
	u := usage{CPU: time.Duration(user+system) * clockTick}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return usage{}, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				return usage{}, fmt.Errorf("%s/status: %w", dir, err)
			}
			u.RSS = kib << 10
		}
	}
	return u, nil
}

// ended says whether the process has ended by itself, with its last output.
func (p *process) ended() error {
	select {
	case err := <-p.done:
		p.done <- err
		return fmt.Errorf("%s ended: %w\n%s", p.cmd.Path, err, lastLines(p.out.String(), 20))
	default:
		return nil
	}
}

// stop ends the process, kindly at first.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done: //nolint:errcheck // a signal's exit status
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done //nolint:errcheck // a signal's exit status
	}
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}
