package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// CPUTimes are what the kernel counted for all CPUs of the machine since its
// start, in clock ticks.
type CPUTimes struct {
	Used   int64 // by processes and interrupts: not idle, not waiting for a disk
	Stolen int64 // that a hypervisor gave to others
	All    int64
}

// CPUs reads the machine's counters.
func CPUs() (CPUTimes, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPUTimes{}, fmt.Errorf("CPU times of the machine: %w", err)
	}
	return parseCPUs(string(b))
}

// parseCPUs reads the line of all CPUs: user, nice, system, idle, iowait, irq,
// softirq, steal; what follows is in user and nice already.
func parseCPUs(stat string) (t CPUTimes, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return t, fmt.Errorf("CPU times of the machine: /proc/stat begins with %q", line)
	}
	for i, s := range f[1:min(len(f), 9)] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return t, fmt.Errorf("CPU times of the machine: %w", err)
		}
		t.All += n
		switch i {
		case 3, 4: // idle, iowait
		case 7:
			t.Stolen += n
		default:
			t.Used += n
		}
	}
	return t, nil
}

// Share says which parts of the CPUs' time, in percent, were used and stolen
// from one reading to a later one.
func Share(from, to CPUTimes) (used, stolen float64) {
	all := float64(to.All - from.All)
	if all <= 0 {
		return 0, 0
	}
	return 100 * float64(to.Used-from.Used) / all, 100 * float64(to.Stolen-from.Stolen) / all
}
