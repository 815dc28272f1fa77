package protocol

// coordinators walks a FindCoordinator answer: one coordinator at the top level
// up to v3, an array of them from v4 (KIP-699). An error carries node −1 and an
// empty host, which address leaves alone.
func (p *patcher) coordinators(version int16) {
	r := &p.r
	if version >= 1 {
		r.i32() // throttle
	}
	if version <= 3 {
		r.i16() // error
		if version >= 1 {
			r.nullableString() // message
		}
		p.address()
		return
	}
	n, _ := r.arrayLen(13)
	for range n {
		r.str() // key
		p.address()
		r.i16() // error
		r.nullableString()
		r.tags()
	}
}
