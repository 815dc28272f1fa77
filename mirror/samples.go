package mirror

import "github.com/lockstep-kafka/lockstep/epoch"

// sample tells readers of this instance where a confirmed batch lies; hints
// that save them round trips. mu is held.
func (p *Partition) sample(v, at, maxTS int64) {
	if p.shadowing() {
		return // readers see another log
	}
	p.live.Sample(v, at)
	p.live.Times(func(t *epoch.TimeIndex) { t.Add(at, maxTS) })
}
