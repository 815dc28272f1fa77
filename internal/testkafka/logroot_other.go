//go:build !linux

package testkafka

func inMemory(string) bool { return false }
