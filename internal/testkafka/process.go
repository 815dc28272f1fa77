package testkafka

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a child that dies with this process. Its owner goroutine is bound to the OS thread that forked it:
// the kernel sends the parent-death signal when that *thread* ends, so the thread has to live as long as the child.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child was reaped
	err  error         // of Wait; read after done
}

// Done is closed when the child has ended; Err then is what it ended with (nil: exit code 0).
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is nil before the child's end.
func (p *Process) Err() error {
	if p.Alive() {
		return nil
	}
	return p.err
}

// StartProcess runs cmd with its output appended to logPath.
func StartProcess(cmd *exec.Cmd, logPath string) (*Process, error) {
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("testkafka: log file: %w", err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = ChildAttr()
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		defer func() { _ = out.Close() }()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("testkafka: start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Pid is the child's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Alive says whether the child runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends s; a process that is gone is no error. os.Process knows whether the child was reaped, so a pid that
// was given to another program meanwhile is never hit.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("testkafka: signal pid %d: %w", p.Pid(), err)
	}
	return nil
}

// Kill ends the child at once (SIGKILL reaches a stopped process too) and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the child to end; one that doesn't in time is killed, and that is an error.
func (p *Process) Stop(timeout time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-p.done:
		return nil
	case <-t.C:
		return errors.Join(fmt.Errorf("testkafka: pid %d did not stop in %v and was killed", p.Pid(), timeout), p.Kill())
	}
}
