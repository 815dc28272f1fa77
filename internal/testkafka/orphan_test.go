package testkafka_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

const orphanEnv = "TESTKAFKA_ORPHAN_DIR"

// TestMain: as the child of TestBrokersDieWithTheirParent this binary only starts a cluster and waits.
func TestMain(m *testing.M) {
	dir := os.Getenv(orphanEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	c, err := testkafka.Up(context.Background(), dir, testkafka.Options{Brokers: 2})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	// A paused broker must die too.
	if err := c.Pause(2); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("pids:", c.Pid(testkafka.ControllerID), c.Pid(1), c.Pid(2))
	time.Sleep(time.Hour)
}

// A test binary that is killed (a timeout, a CI that loses patience) leaves no broker behind, paused ones included.
func TestBrokersDieWithTheirParent(t *testing.T) {
	testkafka.Require(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orphanEnv+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "pids:"), line)
	pids := strings.Fields(line)[1:]
	require.Len(t, pids, 3)
	for _, p := range pids {
		require.True(t, runs(t, p), "pid %s", p)
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool {
		for _, p := range pids {
			if runs(t, p) {
				return false
			}
		}
		return true
	}, 20*time.Second, 50*time.Millisecond, "brokers outlive their test binary")
}

// runs says whether a pid is a Kafka that isn't a zombie.
func runs(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(pid)
	require.NoError(t, err)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n))
	return err == nil && strings.Contains(string(b), "kafka.Kafka")
}
