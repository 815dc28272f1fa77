package measure

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is where figures come from.
type Machine struct {
	CPUs      int    `json:"cpus"`
	Processor string `json:"processor"`
	Memory    int64  `json:"memory_bytes"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
}

// ThisMachine describes the machine of this process.
func ThisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Processor: "unknown processor", Go: runtime.Version()}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m.Processor = strings.TrimSpace(v)
			break
		}
	}
	mem, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(mem)) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			m.Memory = kib << 10
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(kernel))
	return m
}

// Load is the load average of the last minute; -1 where it can't be read.
func Load() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	return parseLoad(string(b))
}

func parseLoad(s string) float64 {
	first, _, _ := strings.Cut(s, " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return -1
	}
	return v
}
