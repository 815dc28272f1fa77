// Package peer runs Lockstep, and what it is compared with, as processes of
// their own.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/bench/lab"
	"github.com/lockstep-kafka/lockstep/bench/measure"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// ErrMissing: a peer that this machine doesn't have. It is left out by name.
var ErrMissing = errors.New("not installed")

// Process is a peer that runs.
type Process struct {
	*testkafka.Process
	name, log string
}

// start runs a program with its output in a file of the lab.
func start(l *lab.Lab, name, program string, args ...string) (*Process, error) {
	f, err := os.CreateTemp(l.Dir, name+"-*.log")
	if err != nil {
		return nil, err
	}
	_ = f.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = l.Dir
	p, err := testkafka.StartProcess(cmd, f.Name())
	if err != nil {
		return nil, err
	}
	return &Process{p, name, f.Name()}, nil
}

// Usage is what the kernel counted so far.
func (p *Process) Usage() (measure.Usage, error) { return measure.Process(p.Pid()) }

// Ended says whether the process has ended by itself, with its last output.
func (p *Process) Ended() error {
	if p.Alive() {
		return nil
	}
	err := p.Err()
	if err == nil {
		err = errors.New("exit code 0")
	}
	return fmt.Errorf("%s ended by itself: %w\n%s", p.name, err, p.Tail())
}

// Tail is the end of what the process has said.
func (p *Process) Tail() string {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// End stops the process, kindly at first.
func (p *Process) End() { _ = p.Stop(30 * time.Second) }

// listening waits until something answers on addr.
func (p *Process) listening(ctx context.Context, addr string) error {
	for {
		if err := p.Ended(); err != nil {
			return err
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		if err := lab.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s does not listen on %s: %w", p.name, addr, err)
		}
	}
}

// tempFile writes a file of the lab.
func tempFile(l *lab.Lab, name, text string) (string, error) {
	f, err := os.CreateTemp(l.Dir, name)
	if err != nil {
		return "", err
	}
	_ = f.Close()
	return filepath.Clean(f.Name()), os.WriteFile(f.Name(), []byte(text), 0o600)
}
