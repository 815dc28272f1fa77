package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/histories"
)

// neighbours are partitions of the topic orders whose records lie in ledger
// partition n.
func neighbours(n int32, count int) (ps []int32) {
	for p := int32(0); len(ps) < count; p++ {
		if PartitionOf("orders", p) == n {
			ps = append(ps, p)
		}
	}
	return ps
}

// groupRig holds the turn on a ledger partition, so that what is put meanwhile
// goes together once go_ is called.
type groupRig struct {
	*cluster
	v       *View
	w       *Writer
	n       int32
	ps      []int32
	commits atomic.Int32 // requests to end a transaction
	valve   valve
}

func newGroupRig(t *testing.T, count int) *groupRig {
	g := &groupRig{cluster: newFake(t), n: 7}
	g.ensure()
	g.v = g.view(ViewOptions{})
	w, err := NewWriter(WriterOptions{Client: append(g.opts(), kgo.Dialer(g.valve.dial)), View: g.v})
	require.NoError(t, err)
	t.Cleanup(w.Close)
	g.w, g.ps = w, neighbours(g.n, count)
	require.NoError(t, w.Acquire(g.ctx(), g.n))
	g.fake.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		g.fake.KeepControl()
		g.commits.Add(1)
		return nil, nil, false
	})
	return g
}

// put puts records of all partitions at once, each with its own context, and
// returns what became of each. ready is called when all of them wait.
func (g *groupRig) put(recs []*Record, ctx func(i int) context.Context, ready func()) []error {
	p, err := g.w.lock(g.ctx(), g.n)
	require.NoError(g.t, err)
	errs := make([]error, len(recs))
	var wg sync.WaitGroup
	for i, r := range recs {
		wg.Go(func() { errs[i] = g.w.Put(ctx(i), r) })
	}
	g.until(g.ctx(), func() bool {
		p.commits.mu.Lock()
		defer p.commits.mu.Unlock()
		return len(p.commits.waiting) == len(recs)
	})
	if ready != nil {
		ready()
	}
	p.unlock()
	wg.Wait()
	return errs
}

func (g *groupRig) first() (recs []*Record) {
	for _, p := range g.ps {
		recs = append(recs, newRecord(p))
	}
	return recs
}

func (g *groupRig) next() (recs []*Record) {
	for _, p := range g.ps {
		recs = append(recs, g.v.Partition("orders", p).Record.Next())
	}
	return recs
}

func (g *groupRig) all(int) context.Context { return g.ctx() }

// states are the state epochs that a new reader finds, 0 for none.
func (g *groupRig) states() (out []int64) {
	v := g.view(ViewOptions{})
	require.NoError(g.t, v.WaitReady(g.ctx()))
	for _, p := range g.ps {
		e := v.Partition("orders", p)
		if e == nil {
			out = append(out, 0)
			continue
		}
		require.NoError(g.t, e.Err)
		out = append(out, e.Record.StateEpoch)
	}
	return out
}

// What waits for the same ledger partition is one transaction, and is shown
// when it returns.
func TestGroupCommit(t *testing.T) {
	g := newGroupRig(t, 20)
	for _, err := range g.put(g.first(), g.all, nil) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, g.commits.Load())
	for _, r := range g.next() {
		require.EqualValues(t, 2, r.StateEpoch)
	}
	// Two of the same partition follow one another, each from the one before.
	second := g.next()
	twice := append(second, second[0].Next())
	twice[len(twice)-1].Error = "newest"
	for _, err := range g.put(twice, g.all, nil) {
		if err != nil { // the goroutines' order is open
			require.ErrorIs(t, err, ErrConflict)
		}
	}
	require.LessOrEqual(t, g.commits.Load(), int32(3))
	require.NoError(t, g.w.Put(g.ctx(), g.v.Partition("orders", g.ps[0]).Record.Next()), "a conflict leaves it acquired")
}

// A record that was made from an older one, or whose caller has gone, is left
// out alone.
func TestGroupLeavesOutAlone(t *testing.T) {
	g := newGroupRig(t, 5)
	recs := g.first()
	recs[1].StateEpoch = 7
	gone, cancel := context.WithCancel(t.Context())
	errs := g.put(recs, func(i int) context.Context {
		if i == 3 {
			return gone
		}
		return g.ctx()
	}, func() {
		cancel()
		c := &g.w.parts[g.n].commits
		g.until(g.ctx(), func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.waiting) == 4
		})
	})
	require.ErrorIs(t, errs[1], ErrConflict)
	require.ErrorIs(t, errs[3], context.Canceled)
	require.NotErrorIs(t, errs[3], ErrUnknownOutcome)
	for _, i := range []int{0, 2, 4} {
		require.NoError(t, errs[i])
	}
	require.Equal(t, []int64{1, 0, 1, 0, 1}, g.states())
}

// The caller that goes in the middle doesn't know, the others are served.
func TestGroupCallerGoesInTheMiddle(t *testing.T) {
	g := newGroupRig(t, 3)
	gone, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	g.fake.ControlKey(int16(kmsg.AddPartitionsToTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		cancel()
		<-left
		return nil, nil, false
	})
	errs := make([]error, 3)
	var wg sync.WaitGroup
	wg.Go(func() {
		errs = g.put(g.first(), func(i int) context.Context {
			if i == 0 {
				return gone
			}
			return g.ctx()
		}, nil)
	})
	<-gone.Done()
	close(left)
	wg.Wait()
	if errs[0] != nil { // it may have been told in time
		require.ErrorIs(t, errs[0], ErrUnknownOutcome)
	}
	require.NoError(t, errs[1])
	require.NoError(t, errs[2])
	require.Equal(t, []int64{1, 1, 1}, g.states())

	// When all have gone nothing is left to wait for.
	all, cancel := context.WithCancel(t.Context())
	g.fake.ControlKey(int16(kmsg.AddPartitionsToTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		g.fake.KeepControl()
		cancel()
		return nil, errors.New("no"), true
	})
	for _, err := range g.put(g.next(), func(int) context.Context { return all }, nil) {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, g.w.Release(g.ctx(), g.n), "the turn is free")
}

// M19, M20: a group is written whole or not at all, and everybody in it is told
// the same: lost commits with either end, a fence, a refused batch.
func TestGroupFates(t *testing.T) {
	const size = 6
	whole, none := []int64{2, 2, 2, 2, 2, 2}, []int64{1, 1, 1, 1, 1, 1}
	for _, x := range []struct {
		name  string
		spoil func(g *groupRig)
		want  error
		not   error
		found []int64
	}{
		{"commit lost", func(g *groupRig) {
			g.fake.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				g.valve.set(true)
				return nil, errors.New("lost"), true
			})
		}, ErrUnknownOutcome, ErrFenced, none},
		{"commit stored, answer lost", func(g *groupRig) {
			var once sync.Once
			g.fake.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				once.Do(func() { g.valve.set(true) })
				return nil, nil, false
			})
		}, ErrUnknownOutcome, ErrFenced, whole},
		{"fenced", func(g *groupRig) {
			other := g.writer(g.view(ViewOptions{}))
			require.NoError(g.t, other.Acquire(g.ctx(), g.n))
		}, ErrFenced, ErrUnknownOutcome, none},
		{"batch refused", func(g *groupRig) {
			g.fake.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
				resp := r.ResponseKind().(*kmsg.ProduceResponse)
				rt := kmsg.NewProduceResponseTopic()
				rt.Topic = Topic
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = g.n, 10 // MESSAGE_TOO_LARGE
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
				return resp, nil, true
			})
		}, nil, ErrUnknownOutcome, none},
	} {
		t.Run(x.name, func(t *testing.T) {
			g := newGroupRig(t, size)
			for _, err := range g.put(g.first(), g.all, nil) {
				require.NoError(t, err)
			}
			x.spoil(g)
			ctx, cancel := context.WithTimeout(g.ctx(), 2*time.Second)
			defer cancel()
			errs := g.put(g.next(), func(int) context.Context { return ctx }, nil)
			for _, err := range errs {
				require.Error(t, err)
				require.NotErrorIs(t, err, x.not)
				if x.want != nil {
					require.ErrorIs(t, err, x.want)
				}
			}
			g.valve.set(false)
			if !errors.Is(x.want, ErrFenced) {
				require.NoError(t, g.w.Renew(g.ctx(), g.n))
				for i, p := range g.ps {
					require.Equal(t, x.found[i], g.v.Partition("orders", p).Record.StateEpoch, "renewed means: read to the end")
				}
			}
			require.Equal(t, x.found, g.states())
		})
	}
}

// A writer that is closed lets nobody wait.
func TestGroupClose(t *testing.T) {
	g := newGroupRig(t, 4)
	var closed sync.WaitGroup
	errs := g.put(g.first(), g.all, func() { closed.Go(g.w.Close); <-g.w.life.Done() })
	closed.Wait()
	for _, err := range errs {
		require.Error(t, err)
	}
	require.ErrorIs(t, g.w.Put(g.ctx(), newRecord(g.ps[0])), errClosed)
}

// Whatever comes in whatever order: each write is in one group, writes of one
// key keep their order and are in different ones, a group is bounded.
func TestGroupModel(t *testing.T) {
	histories.Check(t, func(t *rapid.T) {
		c := &commits{}
		var came, taken []*write
		inGroup := map[string]int{}
		last := map[string]int{}
		order := map[*write]int{}
		groups := 0
		take := func() bool {
			group := c.next()
			groups++
			size := 0
			for _, x := range group {
				size += x.size()
				for _, e := range x.entries {
					if inGroup[e.key] == groups {
						t.Fatalf("key %s twice in a transaction", e.key)
					}
					inGroup[e.key] = groups
					if last[e.key] > order[x] {
						t.Fatalf("key %s out of order", e.key)
					}
					last[e.key] = order[x]
				}
			}
			if size > groupBytes && len(group) > 1 {
				t.Fatalf("%d bytes in a transaction", size)
			}
			taken = append(taken, group...)
			if len(group) > 0 != c.running {
				t.Fatalf("running %v with %d taken", c.running, len(group))
			}
			return len(group) > 0
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "do") {
			case 0:
				take()
			case 1:
				if len(came) > 0 {
					x := rapid.SampledFrom(came).Draw(t, "who goes")
					if c.drop(x) {
						taken = append(taken, x)
					}
				}
			default:
				x := &write{}
				for range rapid.IntRange(1, 3).Draw(t, "entries") {
					x.entries = append(x.entries, entry{
						key:   fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "key")),
						value: make([]byte, rapid.SampledFrom([]int{1, groupBytes / 3, groupBytes * 2}).Draw(t, "size")),
					})
				}
				x.entries = unique(x.entries)
				order[x] = len(came) + 1
				came = append(came, x)
				c.waiting = append(c.waiting, x)
			}
		}
		for take() {
		}
		if len(taken) != len(came) {
			t.Fatalf("%d came, %d taken", len(came), len(taken))
		}
	})
}

func unique(es []entry) (out []entry) {
	seen := map[string]bool{}
	for _, e := range es {
		if !seen[e.key] {
			out = append(out, e)
		}
		seen[e.key] = true
	}
	return out
}

// Records that are put together go in one transaction, and each has its own
// outcome.
func TestPutAllGoesTogether(t *testing.T) {
	g := newGroupRig(t, 20)
	recs := g.first()
	for _, err := range g.w.PutAll(g.ctx(), recs) {
		require.NoError(t, err)
	}
	require.Equal(t, int32(1), g.commits.Load())
	recs = g.next()
	recs[3].StateEpoch++ // made from another record
	for i, err := range g.w.PutAll(g.ctx(), recs) {
		if i == 3 {
			require.ErrorIs(t, err, ErrConflict)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, int64(2), g.v.Partition("orders", g.ps[i]).Record.StateEpoch)
	}
	require.Equal(t, int32(2), g.commits.Load())
	// What is not acquired is said of the writes there alone.
	other := neighbours(8, 1)
	errs := g.w.PutAll(g.ctx(), append(g.next()[:1], newRecord(other[0])))
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], ErrNotAcquired)
	require.Empty(t, g.w.PutAll(g.ctx(), nil))
	g.w.Close()
	require.ErrorIs(t, g.w.PutAll(g.ctx(), g.next()[:1])[0], errClosed)
}
