package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Fleet are several Locksteps in front of one destination.
type Fleet []*Lockstep

// PrepareFleet writes n configurations that differ in instance id and ports only, and starts nothing.
func PrepareFleet(t testing.TB, b *Binary, s Setup, n int) Fleet {
	t.Helper()
	f := make(Fleet, n)
	for i := range f {
		s.Instance = fmt.Sprintf("i%d", i+1)
		f[i] = Prepare(t, b, s)
	}
	return f
}

// StartFleet is PrepareFleet, and starts all.
func StartFleet(t testing.TB, b *Binary, s Setup, n int) Fleet {
	t.Helper()
	f := PrepareFleet(t, b, s, n)
	for _, l := range f {
		l.Launch()
	}
	return f
}

// Bootstrap names all of them, as clients should.
func (f Fleet) Bootstrap() string {
	addrs := make([]string, len(f))
	for i, l := range f {
		addrs[i] = l.Bootstrap()
	}
	return strings.Join(addrs, ",")
}

// Owned counts the partitions of a topic that this instance mirrors, by what it says itself.
func (l *Lockstep) Owned(ctx context.Context, topic string) int {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	code, body, err := l.Get(ctx, "/v1/status")
	if err != nil || code != 200 {
		return 0
	}
	var got struct {
		Partitions []struct {
			Topic string `json:"topic"`
			Mine  bool   `json:"mirrored_by_this_instance"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		l.t.Fatal(err)
	}
	n := 0
	for _, p := range got.Partitions {
		if p.Topic == topic && p.Mine {
			n++
		}
	}
	return n
}

// WaitSpread waits until each of these instances mirrors some of a topic's partitions, and all together all of them,
// and returns how long that took.
func (f Fleet) WaitSpread(ctx context.Context, topic string, partitions int) time.Duration {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		owned, sum, idle := make([]int, len(f)), 0, 0
		for i, l := range f {
			owned[i] = l.Owned(ctx, topic)
			if sum += owned[i]; owned[i] == 0 {
				idle++
			}
		}
		if sum == partitions && idle == 0 {
			return time.Since(began)
		}
		select {
		case <-ctx.Done():
			for _, l := range f {
				l.t.Log(l.LogTail(40))
			}
			f[0].t.Fatalf("the partitions of %s are not spread over all instances: %v of %d", topic, owned, partitions)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Ends watches the ends of a topic's partitions on the source and through one instance.
type Ends struct {
	l        *Lockstep
	topic    string
	src, dst *kadm.Client
}

// WatchEnds looks through this instance.
func (l *Lockstep) WatchEnds(topic string) *Ends {
	l.t.Helper()
	return l.watchEnds(topic, l.Bootstrap())
}

// WatchPhysicalEnds looks at the destination itself, where offsets are others, so that only Stalls makes sense.
func (l *Lockstep) WatchPhysicalEnds(topic string) *Ends {
	l.t.Helper()
	return l.watchEnds(topic, l.setup.Destination.Bootstrap())
}

func (l *Lockstep) watchEnds(topic, dst string) *Ends {
	l.t.Helper()
	open := func(bootstrap string) *kadm.Client {
		cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.MetadataMinAge(50*time.Millisecond), kgo.RetryTimeout(5*time.Second))
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(cl.Close)
		return kadm.NewClient(cl)
	}
	return &Ends{l: l, topic: topic, src: open(l.setup.Source.Bootstrap()), dst: open(dst)}
}

// Moved waits until what the source has now of every partition is shown, and returns how long after began that was
// for the last one.
func (e *Ends) Moved(ctx context.Context, began time.Time) time.Duration {
	e.l.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	want, err := e.src.ListCommittedOffsets(ctx, e.topic)
	if err == nil {
		err = want.Error()
	}
	if err != nil {
		e.l.t.Fatalf("ends of %s on the source: %v", e.topic, err)
	}
	for {
		var behind []string
		got, err := e.dst.ListEndOffsets(ctx, e.topic)
		want.Each(func(w kadm.ListedOffset) {
			// The last offset may be a transaction marker's: what is shown ends before it.
			if g, ok := got.Lookup(w.Topic, w.Partition); !ok || g.Err != nil || g.Offset < w.Offset-1 {
				behind = append(behind, fmt.Sprintf("%d: %d of %d", w.Partition, g.Offset, w.Offset))
			}
		})
		if err == nil && len(behind) == 0 {
			return time.Since(began)
		}
		select {
		case <-ctx.Done():
			e.l.t.Fatalf("%s is behind through %s: %v %v\n%s", e.topic, e.l.ID(), err, behind, e.l.LogTail(60))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Stalls watches what is shown of a topic under traffic to every partition. The returned function ends that and says
// for how long, at most, a partition did not move.
func (e *Ends) Stalls(ctx context.Context) (longest func() time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	var worst time.Duration
	go func() {
		defer close(done)
		type at struct {
			offset int64
			since  time.Time
		}
		last := map[int32]at{}
		began := time.Now()
		for {
			got, err := e.dst.ListEndOffsets(ctx, e.topic)
			over, now := ctx.Err() != nil, time.Now()
			if err == nil {
				got.Each(func(o kadm.ListedOffset) {
					was, ok := last[o.Partition]
					if !ok {
						was = at{-1, began}
					}
					if o.Err == nil && o.Offset > was.offset {
						worst = max(worst, now.Sub(was.since))
						last[o.Partition] = at{o.Offset, now}
					}
				})
			}
			if over {
				for _, a := range last {
					worst = max(worst, now.Sub(a.since))
				}
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() time.Duration {
		cancel()
		<-done
		return worst.Round(10 * time.Millisecond)
	}
}
