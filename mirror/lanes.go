package mirror

// A source broker a long way off is read over several connections.

// farLanes is over how many connections a source broker a long way off is read
// at most: each of them brings one answer in a round trip, and answers of a part
// of the partitions each are written and gone sooner than one of all.
const farLanes = 16

// distance takes in how far a source broker is.
func (e *Engine) distance(broker int32, far bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.far[broker] == far || e.source == nil || e.dest == nil {
		return
	}
	e.far[broker] = far
	e.route()
}

// share tells fetchers over how many connections their broker is read; led are
// the partitions led there. mu is held.
func (e *Engine) share(led map[int32]int) {
	for k, f := range e.fetchers {
		lanes := 1
		if e.far[k.broker] {
			lanes = min(led[k.broker], farLanes)
		}
		f.lanes.Store(int32(lanes))
	}
}
