package ledger

import (
	"hash/maphash"
	"maps"
	"sync/atomic"
)

// index finds the slots of mirror partitions. Readers take no lock; the view
// changes it under its own. A change costs what is changed, not what is there:
// a topic's partitions are a slice that grows, topics and ids lie in shards of
// which one is copied when a topic comes or goes.
type index struct {
	seed   maphash.Seed
	topics [indexShards]atomic.Pointer[map[string]*topicSlots]
	ids    [indexShards]atomic.Pointer[map[ID]string] // own (destination) topic ids
	shown  atomic.Int64                               // topics with an entry

	uses map[ID]int // partitions with an id; the view's own
}

const indexShards = 256

// topicSlots are a topic's slots by partition; nil where there is none.
type topicSlots struct {
	slots   atomic.Pointer[[]atomic.Pointer[slot]]
	entries atomic.Int32 // partitions with an entry
}

func newIndex() *index {
	x := &index{seed: maphash.MakeSeed(), uses: map[ID]int{}}
	for i := range indexShards {
		x.topics[i].Store(&map[string]*topicSlots{})
		x.ids[i].Store(&map[ID]string{})
	}
	return x
}

func (x *index) shard(topic string) *atomic.Pointer[map[string]*topicSlots] {
	return &x.topics[maphash.String(x.seed, topic)%indexShards]
}

func (x *index) topic(topic string) *topicSlots { return (*x.shard(topic).Load())[topic] }

func (x *index) slot(topic string, p int32) *slot {
	t := x.topic(topic)
	if t == nil {
		return nil
	}
	if slots := *t.slots.Load(); p >= 0 && int(p) < len(slots) {
		return slots[p].Load()
	}
	return nil
}

func (x *index) byID(id ID) (string, bool) {
	topic, ok := (*x.ids[id[0]].Load())[id]
	return topic, ok
}

// has tells whether a topic has an entry.
func (x *index) has(topic string) bool {
	t := x.topic(topic)
	return t != nil && t.entries.Load() > 0
}

// each calls f for every slot, in no order.
func (x *index) each(f func(*slot)) {
	for i := range indexShards {
		for _, t := range *x.topics[i].Load() {
			slots := *t.slots.Load()
			for p := range slots {
				if sl := slots[p].Load(); sl != nil {
					f(sl)
				}
			}
		}
	}
}

// names are the topics with an entry.
func (x *index) names() map[string]bool {
	out := map[string]bool{}
	for i := range indexShards {
		for name, t := range *x.topics[i].Load() {
			if t.entries.Load() > 0 {
				out[name] = true
			}
		}
	}
	return out
}

// add takes in a new slot.
func (x *index) add(sl *slot) {
	t := x.topic(sl.topic)
	if t == nil {
		t = &topicSlots{}
		t.slots.Store(&[]atomic.Pointer[slot]{})
		sh := x.shard(sl.topic)
		n := maps.Clone(*sh.Load())
		n[sl.topic] = t
		sh.Store(&n)
	}
	slots := *t.slots.Load()
	if need := int(sl.partition) + 1; need > len(slots) {
		grown := make([]atomic.Pointer[slot], max(need, min(2*len(slots), maxPartition)))
		for i := range slots {
			grown[i].Store(slots[i].Load())
		}
		t.slots.Store(&grown)
		slots = grown
	}
	slots[sl.partition].Store(sl)
}

// moved takes in what a slot shows now and showed before. It says whether the
// set of topics, or of their ids, is another.
func (x *index) moved(sl *slot, before, after *Partition) (changed bool) {
	if had, has := before != nil, after != nil; had != has {
		t := x.topic(sl.topic)
		switch {
		case has && t.entries.Add(1) == 1:
			x.shown.Add(1)
			changed = true
		case had && t.entries.Add(-1) == 0:
			x.shown.Add(-1)
			changed = true
		}
	}
	was, is := topicID(before), topicID(after)
	if was == is {
		return changed
	}
	if !was.IsZero() {
		if x.uses[was]--; x.uses[was] == 0 {
			delete(x.uses, was)
			n := maps.Clone(*x.ids[was[0]].Load())
			delete(n, was)
			x.ids[was[0]].Store(&n)
			changed = true
		}
	}
	if !is.IsZero() {
		if x.uses[is]++; x.uses[is] == 1 {
			n := maps.Clone(*x.ids[is[0]].Load())
			n[is] = sl.topic
			x.ids[is[0]].Store(&n)
			changed = true
		}
	}
	return changed
}
