//go:build !linux

package testkafka

import "syscall"

// childAttr: without Linux' parent-death signal, children stay in this process group, so that what ends the group
// (a terminal, a CI runner) ends them too.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
