package testkafka

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Ports are handed out in blocks below the ephemeral range: inside it some connection's local port (also one in
// TIME_WAIT) now and then has the port that a broker wants. A block is owned by whoever holds its lock file's
// flock, so parallel test binaries never meet; the kernel frees it when its owner dies.
const (
	portBlock = 16
	portFirst = 20000
	portLast  = 32000
)

// Ports is a block of consecutive TCP ports on 127.0.0.1 that no other test process uses.
type Ports struct {
	// First is the lowest port of the block.
	First int
	lock  *os.File
	once  sync.Once
}

// ReservePorts takes a block of n ≤ 16 consecutive ports until Release (or the end of this process).
func ReservePorts(n int) (*Ports, error) {
	if n < 1 || n > portBlock {
		return nil, fmt.Errorf("testkafka: %d ports: between 1 and %d can be reserved", n, portBlock)
	}
	dir := filepath.Join(os.TempDir(), "lockstep-ports-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("testkafka: folder for port locks: %w", err)
	}
	last := portLast
	if low := ephemeralLow(); low > 0 && low < last {
		last = low
	}
	first := portFirst
	if last < first+10*portBlock {
		first = 10000
	}
	blocks := (last - first) / portBlock
	// Different processes begin at different places, so that two seldom try the same block.
	for i := range blocks {
		base := first + (os.Getpid()*7+i)%blocks*portBlock
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(base)), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("testkafka: port lock: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && allFree(base, n) {
			return &Ports{First: base, lock: f}, nil
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("testkafka: port lock: %w", err)
		}
	}
	return nil, errors.New("testkafka: no free block of ports below the ephemeral range; are old test brokers still running?")
}

// Release gives the block back. It may be called more than once.
func (p *Ports) Release() { p.once.Do(func() { _ = p.lock.Close() }) }

// Addr is 127.0.0.1 with the i-th port of the block.
func (p *Ports) Addr(i int) string { return "127.0.0.1:" + strconv.Itoa(p.First+i) }

func allFree(base, n int) bool {
	for i := range n {
		if !portFree(base + i) {
			return false
		}
	}
	return true
}

// portFree says whether a listener can have the port now.
func portFree(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// ephemeralLow is the lowest port that the kernel gives to outgoing connections; 0 where it can't be read.
func ephemeralLow() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) != 2 {
		return 0
	}
	n, _ := strconv.Atoi(f[0])
	return n
}
