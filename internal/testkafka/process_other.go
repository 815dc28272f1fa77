//go:build !linux

package testkafka

import "syscall"

// ChildAttr: without Linux' parent-death signal, children stay in this process group, so that what ends the group
// (a terminal, a CI runner) ends them too.
func ChildAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
