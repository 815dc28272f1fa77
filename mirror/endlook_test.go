package mirror

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/epoch"
	"github.com/lockstep-kafka/lockstep/internal/kconn"
	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// looks is a broker with n partitions, of which partition p ends at p, and is
// stable up to half of that, and the questions about them.
func looks(t *testing.T, n int32, onList func(*kmsg.ListOffsetsRequest) error) (*endLooks, string) {
	b := newFakeBroker(t)
	b.onList = onList
	for p := range n {
		b.with("t", p, func(l *fakeLog) {
			if p > 0 {
				l.append(rawBatch{n: int(p)}.bytes())
			}
			l.lso = int64(p) / 2
		})
	}
	pool := newConnPool((&kconn.Dialer{RequestTimeout: time.Minute}).Init())
	t.Cleanup(pool.close)
	return newEndLooks(pool), b.ln.Addr().String()
}

// asks is how many partitions a request asks for.
func asks(r *kmsg.ListOffsetsRequest) (n int) {
	for i := range r.Topics {
		n += len(r.Topics[i].Partitions)
	}
	return n
}

// waitingLooks is how many wait in a line that asks.
func (e *endLooks) waitingLooks(kind endKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.lines[kind]; l != nil {
		return len(l.waiting)
	}
	return 0
}

// What comes while a request is on its way goes in the next one, and each has
// its own answer; ends and stable offsets have lines of their own.
func TestEndsAreAskedTogether(t *testing.T) {
	const n = 300
	for name, stable := range map[string]bool{"end": false, "stable offset": true} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			first, release := make(chan struct{}), make(chan struct{})
			e, addr := looks(t, n, func(*kmsg.ListOffsetsRequest) error {
				if requests.Add(1) == 1 {
					close(first)
					<-release
				}
				return nil
			})
			kind := endKind{addr: addr, ts: tsLatest, stable: stable}
			var wg sync.WaitGroup
			ask := func(p, epoch int32) {
				off, err := e.ask(t.Context(), kind, partKey{"t", p}, epoch)
				want := int64(p)
				if stable {
					want /= 2
				}
				if epoch > 0 {
					require.ErrorIs(t, err, kerr.UnknownLeaderEpoch)
					return
				}
				require.NoError(t, err)
				require.Equal(t, want, off)
			}
			wg.Go(func() { ask(0, 0) })
			<-first
			for p := range int32(n) {
				wg.Go(func() { ask(p, p%7&^1) }) // some under an epoch that the broker doesn't know
			}
			eventually(t, "all wait", func() bool { return e.waitingLooks(kind) == n })
			close(release)
			wg.Wait()
			require.Equal(t, int32(2), requests.Load())
			// The same partition twice can't be asked for in one request.
			for range 3 {
				wg.Go(func() { ask(5, 0) })
			}
			wg.Wait()
			require.Empty(t, e.lines)
		})
	}
}

// A stop of many partitions asks for their ends together.
func TestStopAsksTogether(t *testing.T) {
	const n = 40
	r := newRig(t, n)
	for p := range int32(n) {
		r.write(p, rawBatch{n: 1})
	}
	var stopping atomic.Bool
	var requests atomic.Int32
	first, release := make(chan struct{}), make(chan struct{})
	r.dst.onList = func(q *kmsg.ListOffsetsRequest) error {
		if stopping.Load() && q.Topics[0].Partitions[0].Timestamp == tsEarliest && requests.Add(1) == 1 {
			close(first)
			<-release
		}
		return nil
	}
	r.start()
	for p := range int32(n) {
		r.reached(p, 1)
	}
	stopping.Store(true)
	r.store.mu.Lock()
	for k, old := range r.store.parts {
		x := *old
		x.Command = &ledger.Command{Mirror: "m", Topic: k.topic, Partition: k.partition, Desired: epoch.StateStopped, Seq: 1}
		r.store.parts[k] = &x
	}
	r.store.mu.Unlock()
	r.eng.Poke()
	kind := endKind{addr: r.dst.ln.Addr().String(), ts: tsEarliest}
	<-first
	eventually(t, "all wait", func() bool { return r.eng.ends.dst.waitingLooks(kind) == n-1 || requests.Load() > 1 })
	close(release)
	for p := range int32(n) {
		eventually(t, "STOPPED", func() bool { return r.store.Partition("t", p).Record.State == epoch.StateStopped })
	}
	require.Less(t, requests.Load(), int32(n), "2, if the first was not given up")
}

// A request for many that breaks the connection says nothing about one: each is
// asked alone.
func TestEndsAreAskedAloneAfterAnError(t *testing.T) {
	e, addr := looks(t, 40, func(r *kmsg.ListOffsetsRequest) error {
		if asks(r) > 1 {
			return errHangUp
		}
		return nil
	})
	var wg sync.WaitGroup
	for p := range int32(40) {
		wg.Go(func() {
			off, err := e.look(t.Context(), addr, partKey{"t", p}, 0, tsLatest)
			require.NoError(t, err)
			require.Equal(t, int64(p), off)
		})
	}
	wg.Wait()
}

// Whoever lends a connection for long holds up nobody's question: all of a line
// wait for it.
func TestEndsDontWaitForConnections(t *testing.T) {
	e, addr := looks(t, 2, nil)
	for range lookupConns {
		done, err := e.pool.turn(t.Context(), addr)
		require.NoError(t, err)
		defer done()
	}
	off, err := e.look(t.Context(), addr, partKey{"t", 1}, 0, tsLatest)
	require.NoError(t, err)
	require.Equal(t, int64(1), off)
}

// Callers that give up, whoever's turn it is, leave nobody behind.
func TestEndsCallersGiveUp(t *testing.T) {
	e, addr := looks(t, 50, func(*kmsg.ListOffsetsRequest) error {
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		return nil
	})
	var wg sync.WaitGroup
	for i := range 1000 {
		patient := i%3 == 0
		p := int32(i % 50)
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !patient {
				time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
			}
			off, err := e.look(ctx, addr, partKey{"t", p}, 0, tsLatest)
			if err == nil {
				require.Equal(t, int64(p), off)
				return
			}
			require.False(t, patient, "%v", err)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
	wg.Wait()
	require.Empty(t, e.lines)
}

// A caller that gives up in the moment its turn comes passes it on.
func TestEndsTurnIsPassedOn(t *testing.T) {
	e, addr := looks(t, 3, nil)
	kind := endKind{addr: addr, ts: tsLatest}
	for range 20 {
		require.True(t, e.queue(kind, &endLook{k: partKey{"t", 0}}))
		require.Len(t, e.take(kind), 1) // its request is on its way
		gone, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = e.ask(gone, kind, partKey{"t", 1}, 0) })
		eventually(t, "one waits", func() bool { return e.waitingLooks(kind) == 1 })
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			off, err := e.ask(ctx, kind, partKey{"t", 2}, 0)
			require.NoError(t, err)
			require.Equal(t, int64(2), off)
		})
		eventually(t, "two wait", func() bool { return e.waitingLooks(kind) == 2 })
		leave()
		e.mu.Lock()
		if l := e.lines[kind]; l.waiting[0].k.partition == 1 { // it has not left yet
			close(l.waiting[0].turn)
			e.mu.Unlock()
		} else {
			e.mu.Unlock()
			e.next(kind)
		}
		wg.Wait()
		require.Empty(t, e.lines)
	}
}

// An empty topic's first start is two writes less than any other: nobody has
// shown anything of it, so nobody has to take in a cut first.
func TestFirstStartWaitsForNobodyTwice(t *testing.T) {
	r := newRig(t, 1)
	r.write(0, rawBatch{base: 0, n: 3})
	r.start()
	r.reached(0, 3)
	r.same(0)
	states := []ledger.State{}
	for _, rec := range r.store.written() {
		states = append(states, rec.State)
	}
	require.Equal(t, []ledger.State{epoch.StateMirroring, epoch.StateMirroring}, states, "the first generation, and the epoch of the first batch")
}
