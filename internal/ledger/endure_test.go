package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// endureTime is longer when somebody breaks the cluster meanwhile.
func endureTime(t *testing.T) time.Duration {
	s := os.Getenv("LOCKSTEP_TEST_ENDURE")
	if s == "" {
		return time.Second
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err)
	return d
}

// acks are the writes that were answered well, and those that may be there.
type acks struct {
	mu      sync.Mutex
	done    map[string]string // key and state epoch: tag
	maybe   map[string]bool   // tag
	outcome map[string]int
}

// TestEndure lets three writers fight for the same ledger partitions, whatever
// happens to the cluster. Then the topic must hold, for each key, the state
// epochs 1, 2, 3, … with every write that was acknowledged and no write that
// was said not to have happened.
func TestEndure(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	// Several in each ledger partition, and several at once: they go together.
	partitions := append(neighbours(3, 3), neighbours(4, 3)...)
	log := acks{done: map[string]string{}, maybe: map[string]bool{}, outcome: map[string]int{}}
	// A new cluster makes its topic of transactions at the first one.
	require.NoError(t, c.writer(c.view(ViewOptions{})).Acquire(c.ctx(), 0))
	// The end is for the loops; what is under way goes on.
	stop, cancel := context.WithTimeout(t.Context(), endureTime(t))
	defer cancel()
	var wg sync.WaitGroup
	for i := range 3 {
		v := c.view(ViewOptions{})
		w := c.writer(v)
		for j := range 3 {
			wg.Go(func() {
				for n := 0; stop.Err() == nil; n++ {
					endureOnce(t, w, v, partitions[rand.IntN(len(partitions))], fmt.Sprintf("w%d-%d-%d", i, j, n), &log)
				}
			})
		}
	}
	if c.fake != nil {
		wg.Go(func() {
			for sleep(stop, 50*time.Millisecond) {
				p := PartitionOf("orders", partitions[rand.IntN(len(partitions))])
				if err := c.fake.MoveTopicPartition(Topic, p, int32(rand.IntN(3))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("outcomes: %v", log.outcome)
	v := c.view(ViewOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, v.WaitReady(ctx))
	w := c.writer(v)
	for _, p := range partitions { // ends what was left open
		require.NoError(t, w.Acquire(ctx, PartitionOf("orders", p)))
	}
	// Who is alone gets through; those that fight may all fail, on a busy machine.
	for n := 0; len(log.done) == 0 && ctx.Err() == nil; n++ {
		endureOnce(t, w, v, partitions[0], fmt.Sprintf("alone-%d", n), &log)
	}
	found := map[string]string{}
	tags := map[string]bool{}
	last := map[string]int64{}
	for _, r := range c.readAll(ctx, v) {
		require.Equal(t, last[r.Key()]+1, r.StateEpoch, "%s", r.Key())
		last[r.Key()] = r.StateEpoch
		found[fmt.Sprintf("%s@%d", r.Key(), r.StateEpoch)] = r.Error
		tags[r.Error] = true
	}
	for at, tag := range log.done {
		require.Equal(t, tag, found[at], "acknowledged write %s", at)
	}
	acked := map[string]bool{}
	for _, tag := range log.done {
		acked[tag] = true
	}
	for tag := range tags {
		require.True(t, acked[tag] || log.maybe[tag], "write %s was said not to have happened", tag)
	}
	require.NotEmpty(t, log.done)
}

func endureOnce(t *testing.T, w *Writer, v *View, p int32, tag string, log *acks) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := newRecord(p)
	if cur := v.Partition("orders", p); cur != nil {
		if cur.Err != nil {
			t.Errorf("partition %d: %v", p, cur.Err)
			return
		}
		r = cur.Record.Next()
	}
	r.Error = tag
	err := w.Put(ctx, r)
	log.mu.Lock()
	switch {
	case err == nil:
		log.done[fmt.Sprintf("%s@%d", r.Key(), r.StateEpoch)] = tag
		log.outcome["done"]++
	case errors.Is(err, ErrUnknownOutcome):
		log.maybe[tag] = true
		log.outcome["unknown"]++
	case errors.Is(err, ErrFenced):
		log.outcome["fenced"]++
	case errors.Is(err, ErrConflict):
		log.outcome["conflict"]++
	case errors.Is(err, ErrNotAcquired):
		log.outcome["not acquired"]++
	default:
		log.outcome["other"]++
		t.Logf("put: %v", err)
	}
	log.mu.Unlock()
	if errors.Is(err, ErrNotAcquired) {
		if err := w.Acquire(ctx, PartitionOf("orders", p)); err != nil {
			t.Logf("acquire: %v", err)
		}
	}
}

// readAll reads the records of the topic as a plain read_committed consumer.
func (c *cluster) readAll(ctx context.Context, v *View) []*Record {
	cl, err := kgo.NewClient(append(c.opts(), kgo.ConsumeTopics(Topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())...)
	require.NoError(c.t, err)
	defer cl.Close()
	want := map[int32]int64{}
	for n := range int32(Partitions) {
		if end := v.Position(n); end > 0 {
			want[n] = end
		}
	}
	var out []*Record
	for len(want) > 0 {
		fs := cl.PollFetches(ctx)
		require.NoError(c.t, ctx.Err())
		fs.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= want[r.Partition] {
				delete(want, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			val, err := Decode(r.Key, r.Value)
			require.NoError(c.t, err)
			if rec, ok := val.(*Record); ok {
				out = append(out, rec)
			}
		})
	}
	return out
}
