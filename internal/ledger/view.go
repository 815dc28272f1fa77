package ledger

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/epoch"
)

// DefaultLease is how old the last full read of the ledger may be (DESIGN §4).
const DefaultLease = 10 * time.Second

// ViewOptions of a [View]. Client is required, the rest has defaults.
type ViewOptions struct {
	// Client says how the destination is reached: seed brokers, TLS, SASL.
	Client []kgo.Opt
	Logger *slog.Logger
	// Lease is how long the view counts as fresh after the ledger was read to
	// its end; default [DefaultLease].
	Lease time.Duration
	// FetchWait is how long a broker may hold a fetch when nothing is new, and
	// so how often an idle ledger is found to be read to its end; default
	// 500 ms. It must be well below Lease.
	FetchWait time.Duration
}

// View is what this instance knows of the ledger. Its readers take no lock and
// allocate nothing. One View serves all of a process; Run must be running.
type View struct {
	opts ViewOptions
	log  *slog.Logger

	index   *index
	version atomic.Uint64
	fresh   atomic.Pointer[time.Time] // every partition was read to its end at or after this
	until   atomic.Pointer[time.Time] // not fresh from then on; nil: no bound
	ready   chan struct{}             // closed after the first full read

	mu        sync.Mutex // below: and writes to the above
	changed   chan struct{}
	moved     chan struct{} // closed and replaced when a position moves
	parts     [Partitions]follower
	instances map[string]*Instance
	settings  map[string]*MirrorSettings
	configs   map[string]*TopicConfigs
	acls      map[string]*ACLs
	broken    map[string]error // entries that belong to no mirror partition
	feeds     map[*Feed]bool
}

// NewView makes a view; nothing is read until [View.Run].
func NewView(o ViewOptions) *View {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	o.FetchWait = cmp.Or(o.FetchWait, 500*time.Millisecond)
	v := &View{
		opts: o, log: o.Logger,
		index: newIndex(), ready: make(chan struct{}), changed: make(chan struct{}), moved: make(chan struct{}),
		instances: map[string]*Instance{}, settings: map[string]*MirrorSettings{},
		configs: map[string]*TopicConfigs{}, acls: map[string]*ACLs{}, broken: map[string]error{}, feeds: map[*Feed]bool{},
	}
	for i := range v.parts {
		v.parts[i].reset(0)
	}
	return v
}

// ReadOnce reads the ledger once, to its end, and gives back the view as it was
// then: it follows nothing any more.
func ReadOnce(ctx context.Context, o ViewOptions) (*View, error) {
	v := NewView(o)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer cancel() // a topic that is no ledger ends the wait, too
		done <- v.Run(ctx)
	}()
	err := v.WaitReady(ctx)
	cancel()
	if e := <-done; e != nil {
		err = e
	}
	return v, err
}

// WaitReady waits for the first full read. Before it, absence means nothing.
func (v *View) WaitReady(ctx context.Context) error {
	select {
	case <-v.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ledger: not read to its end yet: %w", context.Cause(ctx))
	}
}

// Fresh tells whether all of the ledger was read to its end within the lease.
// Nothing may be served from the view while it is not (H10). A clock set back
// makes it false until the next full read, and time that passed while the
// machine slept counts.
func (v *View) Fresh() bool {
	at := v.fresh.Load()
	if at == nil {
		return false
	}
	now := time.Now()
	if d := now.Sub(*at); d < 0 || d >= v.opts.Lease {
		return false
	}
	if until := v.until.Load(); until != nil && !now.Before(*until) {
		return false
	}
	wall := now.UnixNano() - at.UnixNano()
	return wall >= 0 && wall < int64(v.opts.Lease)
}

// ServeUntil sets when the view stops being fresh whatever it reads: what this
// instance has promised in its own record ([Registrar]). It must not fall.
func (v *View) ServeUntil(t time.Time) { v.until.Store(&t) }

// FreshAt is when the ledger was last known to be read to its end, zero before
// the first time: the lease ends at FreshAt + lease.
func (v *View) FreshAt() time.Time {
	if at := v.fresh.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// TopicsVersion grows when the set of mirror topics, or of their ids, changes.
func (v *View) TopicsVersion() uint64 { return v.version.Load() }

// Partition is a mirror partition's newest snapshot, nil when the ledger has
// no record of it. Look at its Err before anything else.
func (v *View) Partition(topic string, p int32) *Partition {
	if sl := v.index.slot(topic, p); sl != nil {
		return sl.cur.Load()
	}
	return nil
}

// Command is the newest command for a partition, nil for none; also for one
// that has no record yet.
func (v *View) Command(topic string, p int32) *Command {
	sl := v.index.slot(topic, p)
	if sl == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return sl.command
}

// Topic tells whether a partition of the topic has a record, a broken one
// included.
func (v *View) Topic(topic string) bool { return v.index.has(topic) }

// Any tells whether there is a mirror topic at all.
func (v *View) Any() bool { return v.index.shown.Load() > 0 }

// Topics are the mirror topics. The map is the caller's.
func (v *View) Topics() map[string]bool { return v.index.names() }

// TopicByID finds a mirror topic by its id in this (the destination) cluster,
// as the records have it.
func (v *View) TopicByID(id [16]byte) (string, bool) {
	return v.index.byID(ID(id))
}

// All are the newest snapshots of all mirror partitions, sorted by topic and
// partition.
func (v *View) All() []*Partition {
	var all []*Partition
	v.Each(func(p *Partition) { all = append(all, p) })
	slices.SortFunc(all, func(a, b *Partition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}

// Each calls f with the newest snapshot of every mirror partition, in no order.
func (v *View) Each(f func(*Partition)) {
	v.index.each(func(sl *slot) {
		if p := sl.cur.Load(); p != nil {
			f(p)
		}
	})
}

// EachOf is Each for the partitions of one topic, in order.
func (v *View) EachOf(topic string, f func(*Partition)) {
	t := v.index.topic(topic)
	if t == nil {
		return
	}
	slots := *t.slots.Load()
	for i := range slots {
		if sl := slots[i].Load(); sl != nil {
			if p := sl.cur.Load(); p != nil {
				f(p)
			}
		}
	}
}

// Instances are the registered instances, sorted by id.
func (v *View) Instances() []*Instance {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.SortedFunc(maps.Values(v.instances), func(a, b *Instance) int { return cmp.Compare(a.ID, b.ID) })
}

// Broken are the entries that can't be read and belong to no mirror partition
// (those that do are that partition's Err), by key.
func (v *View) Broken() map[string]error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.broken)
}

// Changed is closed at the next change of any entry. Take it, then look, then
// wait.
func (v *View) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// Position is the next offset to be read of a ledger partition.
func (v *View) Position(ledgerPartition int32) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.parts[ledgerPartition].position
}

// WaitFor waits until everything below offset in a ledger partition has been
// read and is shown.
func (v *View) WaitFor(ctx context.Context, ledgerPartition int32, offset int64) error {
	if ledgerPartition < 0 || ledgerPartition >= Partitions {
		return fmt.Errorf("ledger: no partition %d, it has %d", ledgerPartition, Partitions)
	}
	for {
		v.mu.Lock()
		st, moved := &v.parts[ledgerPartition], v.moved
		pos, done := st.position, st.loading == nil && st.position >= offset
		v.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("ledger: partition %d is read to %d, waiting for %d "+
				"(a transaction of another producer left open there would hold it up): %w", ledgerPartition, pos, offset, context.Cause(ctx))
		}
	}
}

// change is one entry as read.
type change struct {
	key    Key
	val    any // *Record, *Checkpoint, *Command, *Instance, *MirrorSettings; nil: tombstone
	err    error
	offset int64
}

// readEntry decodes a record of the topic. ok is false when the key is none
// that this program writes.
func readEntry(ledgerPartition int32, key, value []byte, offset int64) (c change, err error) {
	k, err := ParseKey(key)
	if err != nil {
		return change{}, err
	}
	if want := k.LedgerPartition(); want != ledgerPartition {
		return change{}, fmt.Errorf("ledger entry %q: in partition %d, belongs in %d: not written by lockstep", k, ledgerPartition, want)
	}
	if k.Partition >= maxPartition {
		return change{}, fmt.Errorf("ledger entry %q: partition number above %d", k, maxPartition)
	}
	c = change{key: k, offset: offset}
	c.val, c.err = Decode(key, value)
	return c, nil
}

// apply takes in changes and publishes them; v.mu is held.
func (v *View) apply(changes []change) {
	if len(changes) == 0 {
		return
	}
	var fresh []*slot
	added := map[string]*slot{}
	touched := map[*slot]bool{} // true: not by a checkpoint alone
	for _, c := range changes {
		switch c.key.Kind {
		case KindInstance, KindMirror, KindConfigs, KindACLs:
			v.applyNamed(c)
			continue
		}
		sl := v.index.slot(c.key.Topic, c.key.Partition)
		name := RecordKey(c.key.Topic, c.key.Partition)
		if sl == nil {
			sl = added[name]
		}
		if sl == nil {
			if c.val == nil && c.err == nil {
				continue
			}
			sl = &slot{topic: c.key.Topic, partition: c.key.Partition, home: c.key.LedgerPartition(), live: newLive()}
			added[name] = sl
			fresh = append(fresh, sl)
		}
		if c.err != nil {
			v.log.Error("ledger entry can't be read", "topic", c.key.Topic, "partition", c.key.Partition, "offset", c.offset, "err", c.err)
		}
		switch val := c.val.(type) {
		case *Record:
			sl.setRecord(val, c.err)
			sl.recordAt = c.offset
			if val.State == epoch.StateLogAlignment || val.State == epoch.StateULERecovery {
				st := &v.parts[c.key.LedgerPartition()]
				st.awaited = max(st.awaited, c.offset)
			}
		case *Checkpoint:
			sl.setCheckpoint(val, c.err)
		case *Command:
			sl.setCommand(val, c.err)
		default: // broken, or a tombstone
			switch c.key.Kind {
			case KindCheckpoint:
				sl.setCheckpoint(nil, c.err)
			case KindCommand:
				sl.setCommand(nil, c.err)
			default:
				sl.setRecord(nil, c.err)
				sl.recordAt = c.offset
			}
		}
		touched[sl] = touched[sl] || c.key.Kind != KindCheckpoint
	}
	v.publish(fresh, touched)
}

// publish makes the touched slots' new state visible: slots first, then the
// set of topics, so that a topic that is shown has its partitions.
func (v *View) publish(add []*slot, touched map[*slot]bool) {
	before := make(map[*slot]*Partition, len(touched))
	for sl := range touched {
		before[sl] = sl.cur.Load()
		sl.publish()
	}
	for _, sl := range add {
		v.index.add(sl)
	}
	renamed := false
	for sl, was := range before {
		renamed = v.index.moved(sl, was, sl.cur.Load()) || renamed
	}
	if renamed {
		v.version.Add(1)
	}
	for f := range v.feeds {
		f.add(touched)
	}
	close(v.changed)
	v.changed = make(chan struct{})
}

func topicID(p *Partition) ID {
	if p == nil || p.Record == nil {
		return ID{}
	}
	return p.Record.TopicID
}

// markFresh recomputes when all partitions were read to their ends; v.mu is
// held.
func (v *View) markFresh() {
	oldest := v.parts[0].endAt
	for i := range v.parts {
		if at := v.parts[i].endAt; at.Before(oldest) {
			oldest = at
		}
	}
	if oldest.IsZero() {
		v.fresh.Store(nil) // a partition is being read anew
		return
	}
	v.fresh.Store(&oldest)
	select {
	case <-v.ready:
	default:
		close(v.ready)
	}
}
