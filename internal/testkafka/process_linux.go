package testkafka

import "syscall"

// ChildAttr gives a child an own process group (a Ctrl-C in the terminal must reach the test, which then ends its
// brokers in order) and lets the kernel kill it when this process dies.
func ChildAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
