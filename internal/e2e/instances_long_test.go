//go:build long

package e2e_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/content"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

// within fails when something took longer than the issue allows, and prints how long it took.
func within(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("MEASURED %s: %.1fs (at most %v)", what, took.Seconds(), limit)
	require.LessOrEqual(t, took, limit, what)
}

// Three instances with the default session timeout under load: scaled 1→3→1 (DU-03, LA-03), killed, frozen and
// revived, restarted ten times (DU-01). The log that is shown stays equal to the source's, record by record, through
// every instance. What is measured is how long a partition stands still at most.
func TestInstances(t *testing.T) {
	const topic, partitions, session = "scaled", 24, 10 * time.Second
	ctx := withTimeout(t, 10*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, partitions, nil))
	traffic := e2e.StartTraffic(t, src, topic, partitions)
	f := e2e.PrepareFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}, SessionTimeout: session.String()}, 3)
	f[0].Launch()
	f[:1].WaitSpread(ctx, topic, partitions)
	ends := f[0].WatchEnds(topic)
	ends.Moved(ctx, time.Now())
	calm := ends.Stalls(ctx)
	wait(ctx, 3*time.Second)
	t.Logf("MEASURED nothing happens: %v", calm())
	phase := func(what string, limit time.Duration, happen func()) {
		t.Helper()
		stalled := ends.Stalls(ctx)
		happen()
		ends.Moved(ctx, time.Now())
		within(t, what+": longest standstill of a partition", stalled(), limit)
	}

	phase("LA-03 from one instance to three", 10*time.Second, func() {
		f[1].Launch()
		f[2].Launch()
		f.WaitSpread(ctx, topic, partitions)
	})
	phase("LA-03 from three to one, in order", 10*time.Second, func() {
		f[1].Stop()
		f[2].Stop()
		f[:1].WaitSpread(ctx, topic, partitions)
	})
	f[1].Launch()
	f[2].Launch()
	f.WaitSpread(ctx, topic, partitions)
	phase("kill -9 of one of three", session+5*time.Second, func() {
		f[1].Kill9()
		e2e.Fleet{f[0], f[2]}.WaitSpread(ctx, topic, partitions)
	})
	phase("it starts again", 10*time.Second, func() {
		f[1].Launch()
		f.WaitSpread(ctx, topic, partitions)
	})
	phase("SIGSTOP of one of three", session+5*time.Second, func() {
		f[2].Pause()
		wait(ctx, session) // its own status can't be asked
		e2e.Fleet{f[0], f[1]}.WaitSpread(ctx, topic, partitions)
	})
	begun := len(f[2].Log())
	phase("SIGCONT", 10*time.Second, func() {
		f[2].Continue()
		f.WaitSpread(ctx, topic, partitions)
	})
	// It has noticed by itself that it was no owner any more, and joined again.
	require.Contains(t, f[2].Log()[begun:], "ledger partitions assigned")
	phase("kill -9 of two of three", session+5*time.Second, func() {
		f[1].Kill9()
		f[2].Kill9()
		f[:1].WaitSpread(ctx, topic, partitions)
	})
	f[1].Launch()
	f[2].Launch()
	f.WaitSpread(ctx, topic, partitions)
	phase("DU-01 killed and started ten times", session+5*time.Second, func() {
		for i := range 10 {
			f[1+i%2].Restart()
			wait(ctx, time.Second)
		}
	})
	f.WaitSpread(ctx, topic, partitions)
	n := traffic.Stop(t)
	t.Logf("%d records acknowledged, %d shown", n, sameEverywhere(ctx, t, f, topic, partitions))
}

// LA-07: a destination broker is gone for 30 s: the partitions go on when others lead them.
func TestDestinationBrokerGone(t *testing.T) {
	const topic, partitions = "outage", 6
	ctx := withTimeout(t, 6*time.Minute)
	src := kafka.Source(t)
	dst := destination(t, 3)
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, partitions, nil))
	traffic := e2e.StartTraffic(t, src, topic, partitions)
	f := e2e.StartFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{topic}, Mirror: []string{"replication_factor: 3"}}, 2)
	f.WaitSpread(ctx, topic, partitions)
	ends := f[0].WatchEnds(topic)
	ends.Moved(ctx, time.Now())
	for id := 1; id <= 3; id++ {
		stalled := f[0].WatchPhysicalEnds(topic).Stalls(ctx) // how long the proxies' clients wait is another matter
		killed := time.Now()
		require.NoError(t, dst.Kill(id))
		var elected time.Duration
		for p := range int32(partitions) {
			require.NoError(t, content.WaitLeader(ctx, dst.Bootstrap(), topic, p, func(q oracle.Partition) bool { return q.Leader != int32(id) && q.Addr != "" }))
		}
		elected = time.Since(killed)
		wait(ctx, 30*time.Second)
		ends.Moved(ctx, time.Now())
		took := stalled()
		t.Logf("MEASURED broker %d: leaders elected after %.1fs", id, elected.Seconds())
		within(t, "LA-07: longest standstill beyond the election", max(took-elected, 0), 5*time.Second)
		require.NoError(t, dst.StartBroker(ctx, id))
		require.NoError(t, waitInSync(ctx, dst))
	}
	traffic.Stop(t)
	sameEverywhere(ctx, t, f, topic, partitions)
}

// RO-03: instances are killed in turn while topics are discovered: all of them are created and mirrored.
func TestKilledInDiscovery(t *testing.T) {
	ctx := withTimeout(t, 6*time.Minute)
	src, dst := kafka.Source(t), destination(t, 1)
	f := e2e.StartFleet(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"found-.*"}}, 2)
	var names []string
	for round := range 8 {
		for i := range 5 {
			name := fmt.Sprintf("found-%d-%d", round, i)
			names = append(names, name)
			require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), name, 2, nil))
			_, err := content.Produce(ctx, src.Bootstrap(), name, 1, content.Batch(time.Now().UnixMilli(), "k", name))
			require.NoError(t, err)
		}
		wait(ctx, time.Duration(round)*150*time.Millisecond) // at different moments of a sync
		f[round%2].Restart()
	}
	for _, name := range names {
		f[0].WaitCaughtUp(ctx, name, 2)
		f[1].WaitCaughtUp(ctx, name, 2) // its view may be a little behind
		f[1].CompareRaw(ctx, name, 1)
	}
}

// link is a TCP relay that can be cut.
type link struct {
	l    net.Listener
	to   string
	mu   sync.Mutex
	down bool
	open map[net.Conn]bool
	wg   sync.WaitGroup
}

func newLink(t *testing.T, listen, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	require.NoError(t, err)
	k := &link{l: l, to: to, open: map[net.Conn]bool{}}
	k.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.wg.Go(func() { k.relay(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); k.set(true); k.wg.Wait() })
	return k
}

func (k *link) relay(c net.Conn) {
	defer func() { _ = c.Close() }()
	u, err := net.Dial("tcp", k.to)
	if err != nil {
		return
	}
	defer func() { _ = u.Close() }()
	k.mu.Lock()
	if k.down {
		k.mu.Unlock()
		return
	}
	k.open[c], k.open[u] = true, true
	k.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(u, c); _ = u.Close() })
	wg.Go(func() { _, _ = io.Copy(c, u); _ = c.Close() })
	wg.Wait()
	k.mu.Lock()
	delete(k.open, c)
	delete(k.open, u)
	k.mu.Unlock()
}

func (k *link) set(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down = down; down {
		for c := range k.open {
			_ = c.Close()
		}
	}
}

// MM-07: the link to the source flaps, with a thousand partitions: nothing is written to the ledger for each of them,
// and no line of the log; and it goes on when the link stays.
func TestLinkFlaps(t *testing.T) {
	const topic, partitions = "flapped", 1000
	ctx := withTimeout(t, 6*time.Minute)
	ports, err := testkafka.ReservePorts(2)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	src := testkafka.Start(t, testkafka.Options{Name: "source", Listeners: []testkafka.Listener{{Name: "FAR", Listen: ports.Addr(1), Advertised: ports.Addr(0)}}})
	dst := destination(t, 1)
	way := newLink(t, ports.Addr(0), ports.Addr(1))
	require.NoError(t, content.CreateTopic(ctx, src.Bootstrap(), topic, partitions, nil))
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Config: func(bootstrap string) string {
		_, port, _ := net.SplitHostPort(bootstrap)
		return fmt.Sprintf("listeners:\n  - address: %s\n    broker_ports: %s\ndestination:\n  bootstrap: [%s]\n"+
			"mirrors:\n  - name: dc1\n    source:\n      bootstrap: [%s]\n    topics:\n      include: [%s]\n    metadata_refresh: 1s\n    retry_backoff_max: 2s\n",
			bootstrap, portRange(port), dst.Bootstrap(), ports.Addr(0), topic)
	}})
	l.WaitState(ctx, topic, partitions, "MIRRORING")
	wait(ctx, 6*time.Second) // checkpoints
	adm := admin(t, dst)
	written := func() (n int64) {
		os, err := adm.ListEndOffsets(ctx, "__mirror_state")
		require.NoError(t, err)
		os.Each(func(o kadm.ListedOffset) { n += o.Offset })
		return n
	}
	ledger, lines := written(), len(strings.Split(l.Log(), "\n"))
	said := len(l.Log())
	for range 5 {
		way.set(true)
		wait(ctx, 2500*time.Millisecond)
		way.set(false)
		wait(ctx, 2500*time.Millisecond)
	}
	for p := range int32(20) {
		_, err := content.Produce(ctx, src.Bootstrap(), topic, p*50, content.Batch(time.Now().UnixMilli(), "k", "after"))
		require.NoError(t, err)
	}
	for p := range int32(20) {
		until(ctx, t, "mirroring goes on", func() bool {
			end, err := oracle.ListOffset(ctx, l.Bootstrap(), topic, p*50, oracle.ReadCommitted, oracle.Latest)
			return err == nil && end.Offset == 1
		})
	}
	loud, which := 0, map[string]int{}
	for line := range strings.Lines(l.Log()[said:]) {
		if !strings.Contains(line, "level=DEBUG") {
			loud++
			_, msg, _ := strings.Cut(line, " msg=")
			which[strings.TrimSpace(msg[:min(len(msg), 40)])]++
		}
	}
	t.Logf("MEASURED 5 flaps, %d partitions: %d ledger records (leases and checkpoints too), %d log lines, %d of them above debug: %v",
		partitions, written()-ledger, len(strings.Split(l.Log(), "\n"))-lines, loud, which)
	require.Less(t, written()-ledger, int64(partitions))
	require.Less(t, loud, 200)
	for _, p := range l.Describe(ctx, topic) {
		require.Equal(t, "MIRRORING", p.State)
	}
}

// portRange: the harness's block: bootstrap, admin, then brokers.
func portRange(bootstrap string) string {
	var n int
	_, _ = fmt.Sscan(bootstrap, &n)
	return fmt.Sprintf("%d-%d", n+2, n+15)
}
