package ledger

// Feed tells which mirror partitions have a new record or command (checkpoints
// alone don't count), so that who follows them need not look over all.
type Feed struct {
	v       *View
	wake    chan struct{}
	changed map[*slot]bool // under View.mu
}

// Feed begins to follow. What is there already is not told.
func (v *View) Feed() *Feed {
	f := &Feed{v: v, wake: make(chan struct{}, 1), changed: map[*slot]bool{}}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.feeds[f] = true
	return f
}

// Close ends it.
func (f *Feed) Close() {
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	delete(f.v.feeds, f)
}

// Wake has something in it when Take has.
func (f *Feed) Wake() <-chan struct{} { return f.wake }

// Take calls with for each partition that has changed since the last call; p is
// nil for one that the ledger has no record of any more.
func (f *Feed) Take(with func(topic string, partition int32, p *Partition)) {
	f.v.mu.Lock()
	list := f.changed
	f.changed = map[*slot]bool{}
	f.v.mu.Unlock()
	for sl := range list {
		with(sl.topic, sl.partition, sl.cur.Load())
	}
}

// add takes in what was published; View.mu is held.
func (f *Feed) add(touched map[*slot]bool) {
	for sl, counts := range touched {
		if counts {
			f.changed[sl] = true
		}
	}
	if len(f.changed) == 0 {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}
