package epoch

// A model of one partition on a Kafka cluster: replicas that follow the leader
// as Kafka's do, clean and unclean elections, a high watermark.

import "slices"

type kbatch struct {
	Batch
	ids  []int
	kind byte // 'd' data, 'a' aborted, 'c' control, 'o' span-opening
}

type replica struct {
	log    []kbatch
	epochs Chain
}

func (r *replica) end() int64 {
	if len(r.log) == 0 {
		return 0
	}
	return r.log[len(r.log)-1].PEnd()
}

func (r *replica) truncate(p int64) {
	r.log = slices.DeleteFunc(slices.Clone(r.log), func(b kbatch) bool { return b.PEnd() > p })
	r.epochs = r.epochs.Truncate(p)
}

func (r *replica) take(b kbatch) {
	r.log = append(r.log, b)
	if r.epochs.Newest() != b.PEpoch {
		r.epochs = r.epochs.Assign(b.PEpoch, b.P)
	}
}

type kafka struct {
	reps   []*replica
	isr    []bool
	lead   int
	pe     int32
	pStart int64
	losses int // unclean elections that lost confirmed batches
}

func newKafka(n int) *kafka {
	k := &kafka{isr: make([]bool, n)}
	for i := range n {
		k.reps = append(k.reps, &replica{epochs: Chain{{0, 0}}})
		k.isr[i] = true
	}
	return k
}

func (k *kafka) leader() *replica { return k.reps[k.lead] }

func (k *kafka) hw() int64 {
	hw := k.leader().end()
	for i, r := range k.reps {
		if k.isr[i] {
			hw = min(hw, r.common(k.leader()))
		}
	}
	return hw
}

// common is up to where two logs are the same.
func (r *replica) common(l *replica) (end int64) {
	for i, b := range r.log {
		if i == len(l.log) || l.log[i].P != b.P || l.log[i].PEpoch != b.PEpoch {
			break
		}
		end = b.PEnd()
	}
	return end
}

// read is the leader's log below the high watermark.
func (k *kafka) read() []kbatch {
	hw := k.hw()
	l := k.leader().log
	for len(l) > 0 && l[len(l)-1].PEnd() > hw {
		l = l[:len(l)-1]
	}
	return l
}

func (k *kafka) append(b kbatch) kbatch {
	b.P, b.PEpoch = k.leader().end(), k.pe
	k.leader().take(b)
	return b
}

// follow is a follower's round: cut by epochs, then copy.
func (k *kafka) follow(i int) {
	if i == k.lead {
		return
	}
	f, l := k.reps[i], k.leader()
	// Every fetch names the last epoch, so it asks until the leader agrees.
	for f.end() > 0 {
		newest := f.epochs.Newest()
		e, end := l.epochs.EndOffsetFor(newest, l.end())
		if e == newest && end >= f.end() {
			break
		}
		t, _ := f.epochs.TruncateTo(e, end, f.end())
		f.truncate(max(t, 0))
	}
	for _, b := range l.log {
		if b.P >= f.end() {
			f.take(b)
		}
	}
}

// sync lets every follower in the ISR catch up.
func (k *kafka) sync() {
	for i := range k.reps {
		if k.isr[i] {
			k.follow(i)
		}
	}
}

// elect makes replica i the leader; false when it is not in the ISR and unclean
// is not allowed. What was confirmed and is gone counts as a loss.
func (k *kafka) elect(i int, unclean bool) bool {
	if !k.isr[i] && !unclean {
		return false
	}
	was := k.read()
	if !k.isr[i] {
		clear(k.isr)
		k.isr[i] = true
	}
	k.lead = i
	k.pe++
	l := k.leader()
	l.epochs = l.epochs.Assign(k.pe, l.end())
	for _, b := range was {
		if !slices.ContainsFunc(l.log, func(x kbatch) bool { return x.P == b.P && x.PEpoch == b.PEpoch && slices.Equal(x.ids, b.ids) }) {
			k.losses++
			break
		}
	}
	return true
}

// leave takes a follower out of the ISR; it keeps what it has.
func (k *kafka) leave(i int) {
	if i != k.lead {
		k.isr[i] = false
	}
}

func (k *kafka) join(i int) {
	k.follow(i)
	k.isr[i] = true
}
